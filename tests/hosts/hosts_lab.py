"""Several hosts on one machine: a network namespace each, on one bridge, with its own agent and its own workers.

    with Hosts(tmp_path, "host-a", "host-b") as hosts:
        hosts["host-a"].worker(hosts.job, rank=0)
        with hosts.coordinator(hosts.job, on="host-a") as client: ...
        hosts["host-b"].black_hole()

Agents and coordinator are the real commands with what a cluster gives them: TLS, tokens of their own accounts, the
shipped roles, and the emulated API server at an address of the hosts' network. Workers are light: they register, hold
their locks and write the trace that was asked for, like `agent_lab`'s; no pod's network is played, as none has a part.
A black hole drops every packet to and from a host without a word: its bridge port is off, and as neighbours are known
for good nobody is told "no route" either.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_lab import AWorker
from cluster_api import ClusterApi
from kube_api import a_pod, an_object
from kubernetes_objects import kustomized
from live import wait_for
from pods import Network
from tls import Authority

from sameshot.api.transport import Endpoint
from sameshot.client import Client
from sameshot.errors import TryAgain
from sameshot.kube import names
from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import JobRef

Json = dict[str, Any]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GATEWAY, API_PORT = "10.244.0.1", 6443
AGENT = names.username_of(names.AGENTS_NAMESPACE, "sameshot-agent")
_CLONE_NEWNET = 0x40000000
# Shorter than for real jobs; nothing here takes long but a host that does not answer.
TIMINGS = {"freeze_s": 1.5, "call_s": 1.0, "announce_s": 6.0, "start_margin_s": 0.5, "listing_s": 0.5}


class Relay:
    """A way from one network namespace into another (None: the test's own), for as long as it is open."""

    def __init__(self, listen: tuple[str, int], of: int | None, connect: tuple[str, int], within: int | None) -> None:
        self._connect, self._within = connect, within
        with _in_network(of):
            self._listening = socket.create_server(listen)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            with _in_network(self._within):
                far = socket.create_connection(self._connect, timeout=30)
            far.settimeout(None)
            with far:
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _in_network(pid: int | None) -> Iterator[None]:
    """This thread, and no other, is in the network namespace of that process meanwhile."""
    if pid is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        assert libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(here, _CLONE_NEWNET) == 0
    finally:
        os.close(here)
        os.close(there)


class Host:
    def __init__(self, hosts: Hosts, name: str, number: int) -> None:
        self.hosts, self.name = hosts, name
        self.root = hosts.root / name / "var/lib/kubelet"
        (self.root / "pods").mkdir(parents=True)
        self._port = f"veth{number}"  # its end at the bridge, as `Network` names it
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        ours = os.readlink("/proc/self/ns/net")
        wait_for(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/net") != ours, "a network of its own")
        self.address = hosts.network.connect(self._holder.pid)
        link = json.loads(subprocess.check_output([*self.inside, "ip", "-j", "link", "show", "eth0"]))
        self.mac = str(link[0]["address"])
        self.workers: list[FakeKineto] = []
        self.agent: Service | None = None

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def inside(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self._holder.pid), "-n")

    def network(self) -> contextlib.AbstractContextManager[None]:
        """Sockets that this thread makes meanwhile are this host's."""
        return _in_network(self.pid)

    def knows(self, address: str, mac: str) -> None:
        """Who has that address, for good: without it a dead host is soon an error instead of silence."""
        subprocess.run(
            [*self.inside, "ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent"],
            check=True,
        )

    def black_hole(self) -> None:
        self.hosts.bridge("link", "set", "dev", self._port, "state", "disabled")

    def restore(self) -> None:
        self.hosts.bridge("link", "set", "dev", self._port, "state", "forwarding")

    def worker(self, job: JobRef, *, rank: int, world_size: int, owner: Json) -> FakeKineto:
        """An armed pod of the job on this host, and its one worker."""
        pod = self.hosts.api.make(
            a_pod(f"{job.name}-{rank}", node=self.name, namespace=job.namespace, owner=owner, local_world_size=1)
        )
        meta = pod["metadata"]
        volume = self.root / "pods" / meta["uid"] / "volumes/kubernetes.io~empty-dir/sameshot"
        volume.mkdir(parents=True)
        one = AWorker(
            volume, job=job, rank=rank, world_size=world_size, local_rank=0, local_world_size=1, node=self.name,
            pod=meta["name"], pod_uid=meta["uid"], container="trainer", kineto_job_id=100 + rank, phase="confirmed",
        )  # fmt: skip
        fake = FakeKineto(one)
        self.workers.append(fake)
        return fake

    def start_agent(self) -> None:
        folder = self.hosts.folder
        address = folder / f"agent-{self.name}.address"
        argv = sameshot_argv(
            "agent", "--node", self.name, "--kubelet-root", str(self.root), "--archive", self.hosts.archive,
            "--api-server", f"https://{GATEWAY}:{API_PORT}", "--api-token-file", str(self.hosts.agent_token),
            "--api-ca-file", str(self.hosts.api.ca_file), "--listen", f"{self.address}:{names.AGENT_PORT}",
            "--certificate", str(folder / "tls.crt"), "--key", str(folder / "tls.key"), "--metrics", "127.0.0.1:9464",
            "--address-file", str(address), "--end-with-stdin",
        )  # fmt: skip
        command = ServiceCommand(f"agent of {self.name}", (*self.inside, *argv), folder / f"{self.name}.log", address)
        self.agent = Service(command, dict(os.environ))

    def said(self) -> str:
        return (self.hosts.folder / f"{self.name}.log").read_text(errors="replace")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        if self.agent is not None:
            self.agent.stop()
        self._holder.kill()
        self._holder.wait()


class FakeKineto:
    """Writes the trace of each capture that its agent prepares, unless it is `held`."""

    def __init__(self, worker: AWorker) -> None:
        self.worker = worker
        self.held = threading.Event()
        self.asked: dict[str, int] = {}  # capture id → when its folder was made, CLOCK_REALTIME
        self._ending = threading.Event()
        self._done: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            for folder in (self.worker.folder / "captures").glob("*/*/*"):
                capture = folder.parents[1].name
                with contextlib.suppress(FileNotFoundError):
                    self.asked.setdefault(capture, folder.stat().st_mtime_ns)
                    if capture not in self._done and not self.held.is_set():
                        self.worker.write_trace(capture)
                        self._done.add(capture)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(10)
        self.worker.close()


class Hosts:
    """`job` is that of tenant ml; all hosts are in order at the beginning."""

    def __init__(self, folder: Path, *given: str) -> None:
        self.folder = folder
        self.root = Path(tempfile.mkdtemp(prefix="sameshot-hosts-"))
        self.archive = str(folder / "archive")
        self._given = given
        self._stack = contextlib.ExitStack()
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Hosts:
        with self._stack as stack:
            stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            self.network = Network()
            stack.callback(self.network.close)
            self.network._ip("addr", "add", f"{GATEWAY}/24", "dev", "cni0")
            self.api = stack.enter_context(ClusterApi(names=[GATEWAY]))
            relay = Relay((GATEWAY, API_PORT), self.network._process.pid, (self.api.host, self.api.port), None)
            stack.callback(relay.close)
            for part in ("agent", "coordinators", "access"):
                self.api.apply(kustomized(DEPLOY / part))
            self.agent_token = self.api.token_file(AGENT)
            self.authority = Authority()
            (self.folder / "ca.crt").write_bytes(self.authority.pem)
            for number, name in enumerate(self._given, start=1):
                host = self._hosts[name] = Host(self, name, number)
                stack.callback(host.close)
            gateway = json.loads(
                subprocess.check_output(["nsenter", "-t", str(self.network._process.pid), "-n", "ip", "-j", "link"])
            )
            macs = {GATEWAY: next(each["address"] for each in gateway if each["ifname"] == "cni0")}
            macs |= {host.address: host.mac for host in self._hosts.values()}
            for host in self._hosts.values():
                for address, mac in macs.items():
                    if address != host.address:
                        host.knows(address, mac)
                host.start_agent()
                self._agent_pod(host)
            for host in self._hosts.values():
                wait_for(lambda host=host: "nothing is served yet" in host.said(), "the agent waits, and says so")
            self.authority.issue(self.folder, names.AGENT_HOST)  # as the operator does, whenever it comes
            for host in self._hosts.values():
                assert host.agent is not None
                host.agent.wait_ready(60)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def bridge(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self.network._process.pid), "-n", "bridge", *command], check=True)

    def a_job(self, namespace: str, name: str, *places: str) -> JobRef:
        """A Job with one pod and one worker per place."""
        plain = an_object("Job", name, api_version="batch/v1", namespace=namespace)
        owner = self.api.make({**plain, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}})
        job = JobRef(namespace, name, owner["metadata"]["uid"])
        for rank, place in enumerate(places):
            self[place].worker(job, rank=rank, world_size=len(places), owner=owner)
        return job

    def coordinator_token(self, job: JobRef) -> str:
        """Of the account of this job's coordinator, for agents."""
        self._account(names.COORDINATORS_NAMESPACE, names.account_of(job))
        username = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        return self.api.token_for(username, audience=names.AGENT_AUDIENCE)

    @contextlib.contextmanager
    def coordinator(self, job: JobRef, *, on: str) -> Iterator[Client]:
        """A real one in that host's network, as the operator starts it; a client that is with it by a relay."""
        host, folder = self[on], self.folder / f"coordinator-{job.name}"
        folder.mkdir()
        token = self.coordinator_token(job)
        username = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        self._bind(job.namespace, names.coordinator_of(job), "sameshot-coordinator", username)
        self._account(job.namespace, "sameshot")
        self._bind(job.namespace, "users", "sameshot-user", names.username_of(job.namespace, "sameshot"))
        self.authority.issue(folder, names.coordinator_host(job))
        (folder / "token").write_text(token)
        config = {
            "job": {"namespace": job.namespace, "name": job.name, "uid": job.uid, "attempt": job.attempt},
            "archive": self.archive,
            "timings": TIMINGS,
            "policy": str(folder / "none"),
            "listen": f"{host.address}:{names.COORDINATOR_PORT}",
            "tls_certificate": str(folder / "tls.crt"),
            "tls_key": str(folder / "tls.key"),
            "ca": str(self.folder / "ca.crt"),
            "agent_token": str(folder / "token"),
            "api_server": f"https://{GATEWAY}:{API_PORT}",
            "api_token": str(self.api.token_file(username)),
            "api_ca": str(self.api.ca_file),
            "drain_s": 1.0,
        }
        (folder / "config.json").write_text(json.dumps(config))
        argv = sameshot_argv("coordinator", "--config", str(folder / "config.json"), "--end-with-stdin")
        log = self.folder / f"coordinator-{job.name}.log"
        service = Service(ServiceCommand("coordinator", (*host.inside, *argv), log), dict(os.environ))
        relay = Relay(("127.0.0.1", 0), None, (host.address, names.COORDINATOR_PORT), host.pid)
        own = self.api.token_for(names.username_of(job.namespace, "sameshot"), audience=names.audience_of(job))
        to = Endpoint(
            f"127.0.0.1:{relay.port}",
            self.authority.pem,
            names.coordinator_host(job),
            lambda: own,
        )
        try:
            with Client(to) as client:
                wait_for(lambda: _answers(client.describe), f"the coordinator of {job}; see {log}")
                yield client
        finally:
            relay.close()
            service.stop()

    def _account(self, namespace: str, name: str) -> None:
        self.api.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})

    def _bind(self, namespace: str, name: str, role: str, username: str) -> None:
        _, _, of, account = username.split(":")
        self.api.put(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
            }
        )

    def _agent_pod(self, host: Host) -> None:
        self.api.make(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"sameshot-agent-{host.name}",
                    "namespace": names.AGENTS_NAMESPACE,
                    "labels": {"app.kubernetes.io/name": "sameshot-agent"},
                },
                "spec": {"nodeName": host.name, "containers": [{"name": "agent", "image": "x"}]},
                "status": {
                    "phase": "Running",
                    "podIP": host.address,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )


def _answers(call: Callable[[], object]) -> bool:
    try:
        call()
    except TryAgain:
        time.sleep(0.2)
        return False
    return True
