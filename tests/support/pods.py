"""Pods played faithfully on this machine: what a kubelet and a container runtime do that matters to a node's agent.

    with Nodes(tmp_path, "node-a", "node-b") as nodes:
        pod = nodes["node-a"].run(nodes.training_pod("train-0", rank=0, world_size=1))
        with nodes.agent("node-a") as agent: ...

A pod has pid, mount, network, IPC and UTS namespaces of its own, its command is process 1, a user without privileges
and without a name, a root file system that it can't write to, `/sameshot` as an emptyDir and `/sameshot-hook` from a
ConfigMap. On the node's side its directories lie where a kubelet keeps them. It is armed by the real `arm_object`; the
API server is `kube_api`; the agent is the real one, started as on a node, with the capabilities of the DaemonSet.
All pods of a test are in one network, that of no machine.

`needs_pods()` skips, with a reason, where namespaces can't be made.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kube_api import KubeApiServer, an_object
from live import free_port, wait_for

from sameshot.api.views import CaptureView
from sameshot.arm.hookmap import hook_files
from sameshot.arm.kinds import arm_object
from sameshot.arm.values import ArmOptions
from sameshot.client import Client
from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import CaptureSpec, JobRef, TargetState, Worker

Json = dict[str, Any]
SCRIPTS = Path(__file__).parent / "scripts"
REPO = Path(__file__).resolve().parent.parent.parent
TRAIN = SCRIPTS / "train.py"
UID = 10_001
# What the DaemonSet keeps: binding below a pod's directory, and reading what a worker wrote under umask 077.
CAPABILITIES = ("sys_chroot", "dac_override")


@functools.cache
def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "pods are played in namespaces of their own, which only root can make here"
    for tool in ("unshare", "nsenter", "ip", "setpriv"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here (util-linux, iproute2), and pods are played with it"
    all_it_takes = (
        "mount -t tmpfs x /mnt && ip link add br0 type bridge && ip link add ve0 type veth peer name ve1 && "
        f"setpriv --reuid {UID} --regid {UID} --clear-groups true"
    )
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "sh", "-c", all_it_takes],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (
        None
        if tried.returncode == 0
        else f"namespaces for pods and their users can't be made here: {tried.stderr.strip()[-300:]}"
    )


def needs_pods() -> None:
    if (reason := _why_not()) is not None:
        pytest.skip(reason)


class Network:
    """A bridge in a network namespace of its own: pods reach each other and nothing else."""

    def __init__(self) -> None:
        self._hosts = 0
        self._process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._ours = os.readlink("/proc/self/ns/net")
        wait_for(lambda: os.readlink(f"/proc/{self._process.pid}/ns/net") != self._ours, "a network of its own")
        self._ip("link", "add", "cni0", "type", "bridge")
        self._ip("link", "set", "cni0", "up")

    def connect(self, pid: int) -> str:
        """Give the network namespace of `pid` an address; returns it."""
        self._hosts += 1
        name, address = f"veth{self._hosts}", f"10.244.0.{self._hosts + 1}"
        self._ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._ip("link", "set", name, "master", "cni0", "up")
        for command in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *command], check=True)
        return address

    def next_address(self) -> str:
        return f"10.244.0.{self._hosts + 2}"

    def _ip(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self._process.pid), "-n", "ip", *command], check=True)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


CRASHED: list[str] = []
"""Pods in which torch itself crashed, so that a test can tell that from a failure of ours."""


class RunningPod:
    """`pid` is that of its process 1, as this machine sees it."""

    def __init__(self, kubelet: Kubelet, thing: Json, process: subprocess.Popen[bytes], pid: int, log: Path) -> None:
        self.kubelet = kubelet
        self.thing = thing
        self.process = process
        self.pid = pid
        self.log = log

    @property
    def name(self) -> str:
        return str(self.thing["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.thing["metadata"]["uid"])

    @property
    def volume(self) -> Path:
        return self.kubelet.volume(self.uid)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def crashed(self) -> bool:
        """A worker died of SIGSEGV. torch before 2.14 can, whenever a recording stops (docs/troubleshooting.md)."""
        return self.process.poll() == -signal.SIGSEGV or "Signal 11 (SIGSEGV)" in self.said()

    def kill(self) -> None:
        """As the kubelet does in the end; whatever runs in it dies with its process 1."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def delete(self) -> None:
        """Killed, and its directories removed, and gone from the API server."""
        self.kill()
        shutil.rmtree(self.volume.parents[2])
        self.kubelet.api.delete(self.thing)


class Kubelet:
    """One node: the kubelet's root, and the pods that run there."""

    def __init__(self, name: str, root: Path, api: KubeApiServer, network: Network) -> None:
        self.name = name
        self.root = root
        self.api = api
        self.network = network
        self.pods: list[RunningPod] = []
        (root / "pods").mkdir(parents=True)
        (root / "pods").chmod(0o750)

    def volume(self, uid: str, name: str = "sameshot") -> Path:
        return self.root / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / name

    def run(self, thing: Json) -> RunningPod:
        """Start an armed pod, as its object says, and tell the API server."""
        thing = json.loads(json.dumps(thing))
        meta, spec = thing["metadata"], thing["spec"]
        meta.setdefault("uid", str(uuid.uuid4()))
        spec["nodeName"] = self.name
        [container] = spec["containers"]
        context = container.get("securityContext", {})
        uid = context.get("runAsUser", UID)
        sources = {each["name"]: self._volume(meta["uid"], each, spec) for each in spec["volumes"]}
        mounts = [
            (str(sources[each["name"]]), each["mountPath"], bool(each.get("readOnly")))
            for each in container.get("volumeMounts", ())
        ]
        rootfs = self.root / "rootfs" / meta["uid"]
        rootfs.mkdir(parents=True)
        told = {
            "rootfs": str(rootfs),
            "system": _system(),
            "mounts": [*mounts, *thing.get("_extra_mounts", ())],
            "cwd": "/tmp",
            "uid": uid,
            "gid": context.get("runAsGroup", uid),
            "groups": [spec.get("securityContext", {}).get("fsGroup", uid)],
            "umask": thing.get("_umask", 0o022),
            "command": [*container["command"], *container.get("args", ())],
            "env": {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/tmp", **_env(container, thing)},
        }
        log = self.root / f"{meta['name']}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child",
                 sys.executable, "-I", str(SCRIPTS / "pod_init.py"), json.dumps(told)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip().isdigit(), f"the pod did not start: {log.read_text()}"
        pod = RunningPod(self, thing, process, int(line), log)
        self.pods.append(pod)
        self.network.connect(pod.pid)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        thing["status"] = {
            "phase": "Running",
            "containerStatuses": [
                {"name": container["name"], "restartCount": 0, "state": {"running": {"startedAt": started}}}
            ],
        }
        self.api.put({key: value for key, value in thing.items() if not key.startswith("_")})
        process.stdin.write(b"go\n")
        process.stdin.flush()
        return pod

    def _volume(self, uid: str, volume: Json, spec: Json) -> Path:
        if "emptyDir" in volume:
            path = self.volume(uid, volume["name"])
            path.mkdir(parents=True)
            path.chmod(0o777)
            group = spec.get("securityContext", {}).get("fsGroup")
            if group is not None:
                os.chown(path, 0, group)
                path.chmod(0o2777)
            return path
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        assert volume["configMap"]["name"] == "sameshot-hook", volume
        path = self.root / "pods" / uid / "volumes" / "kubernetes.io~configmap" / volume["name"]
        generation = path / "..2026_11_30_00_00_00.1"
        generation.mkdir(parents=True)
        (path / "..data").symlink_to(generation.name)
        for name, text in hook_files().items():
            (generation / name).write_text(text)
            (generation / name).chmod(volume["configMap"].get("defaultMode", 0o644))
            (path / name).symlink_to(f"..data/{name}")
        return path

    def close(self) -> None:
        CRASHED.extend(pod.name for pod in self.pods if pod.crashed)
        for pod in self.pods:
            pod.kill()
            for pipe in (pod.process.stdin, pod.process.stdout):
                if pipe is not None:
                    pipe.close()


class Nodes:
    """Nodes, the API server they share, the network of their pods, and a job to run there."""

    def __init__(self, folder: Path, *names: str, archive: str | None = None) -> None:
        self.folder = folder
        # On one file system with nothing special about it; in the form of a kubelet's root.
        self._root = Path(tempfile.mkdtemp(prefix="sameshot-nodes-"))
        self.archive = archive or str(folder / "archive")
        self.api = KubeApiServer()
        self._names = names
        self._stack = contextlib.ExitStack()
        self.shared = folder / "shared"
        self.finish_file = self.shared / "finish"

    def __enter__(self) -> Nodes:
        self._stack.callback(shutil.rmtree, self._root, ignore_errors=True)
        self._stack.enter_context(self.api)
        self.network = Network()
        self._stack.callback(self.network.close)
        self.job_object = self.api.put(an_object("Job", "train", api_version="batch/v1"))
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self._root.chmod(0o755)
        self.kubelets = {
            name: Kubelet(name, self._root / name / "var/lib/kubelet", self.api, self.network) for name in self._names
        }
        for kubelet in self.kubelets.values():
            self._stack.callback(kubelet.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Kubelet:
        return self.kubelets[name]

    @property
    def job(self) -> JobRef:
        meta = self.job_object["metadata"]
        return JobRef(meta["namespace"], meta["name"], meta["uid"])

    def pod(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        options: ArmOptions | None = None,
        limits: Mapping[str, str] | None = None,
        owner: Json | None = None,
        umask: int = 0o022,
        fs_group: int | None = None,
    ) -> Json:
        """An armed pod of the job, by the real arming."""
        owner = owner or self.job_object
        plain: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": owner["metadata"]["namespace"],
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"],
                        "kind": owner["kind"],
                        "name": owner["metadata"]["name"],
                        "uid": owner["metadata"]["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "securityContext": {} if fs_group is None else {"fsGroup": fs_group},
                "containers": [
                    {
                        "name": "trainer",
                        "command": list(command),
                        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                        "resources": {"limits": dict(limits or {})},
                        "securityContext": {"runAsUser": UID, "readOnlyRootFilesystem": True},
                    }
                ],
            },
        }
        armed = arm_object(plain, options).thing
        return {**armed, "_extra_mounts": [(str(self.shared), "/shared", False)], "_umask": umask}

    def training_pod(
        self, name: str, *, rank: int, world_size: int, master: str, args: Sequence[str] = (), **more: Any
    ) -> Json:
        """One rank, as process 1 of its pod, without a launcher."""
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": master,
            "MASTER_PORT": "29500",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        command = [sys.executable, str(TRAIN), "--finish", "/shared/finish", "--pause", "0.02", *args]
        return self.pod(name, command, env=env, **more)

    def train(self, *places: str, args: Sequence[str] = ()) -> list[RunningPod]:
        """One pod with one rank per place (a node's name); they find each other by the first one's address."""
        master = self.network.next_address()
        return [
            self[place].run(
                self.training_pod(f"train-{rank}", rank=rank, world_size=len(places), master=master, args=args)
            )
            for rank, place in enumerate(places)
        ]

    # --- what is beside the job

    @contextlib.contextmanager
    def agent(
        self, name: str, *options: str, capabilities: Sequence[str] = CAPABILITIES, contained: bool = False
    ) -> Iterator[Service]:
        """The real agent of one node, as root with these capabilities and no others; started again when it dies.

        `contained`: in a pid namespace of its own, as in a container; it sees no pod's processes then.
        """
        listen = f"127.0.0.1:{free_port()}"
        address = self.folder / f"agent-{name}.address"
        command = sameshot_argv(
            "agent", "--node", name, "--kubelet-root", str(self[name].root), "--archive", self.archive,
            "--api-server", self.api.url, "--listen", listen, "--address-file", str(address), "--end-with-stdin",
            *options,
        )  # fmt: skip
        kept = ",".join(f"+{each}" for each in capabilities)
        argv = ("setpriv", "--bounding-set", f"-all,{kept}" if kept else "-all", *command)
        if contained:
            argv = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", *argv)
        service = Service(
            ServiceCommand(f"agent of {name}", argv, self.folder / f"agent-{name}.log", address), dict(os.environ)
        )
        try:
            service.wait_ready(60)
            yield service
        finally:
            service.stop()

    @contextlib.contextmanager
    def coordinator(self, *agents: Service, job: JobRef | None = None) -> Iterator[Job]:
        job = job or self.job
        ready = self.folder / f"coordinator-{job.name}.address"
        argv = sameshot_argv(
            "coordinator", "--name", job.name, "--namespace", job.namespace, "--uid", job.uid,
            "--archive", self.archive, "--address-file", str(ready), "--end-with-stdin",
            *(word for agent in agents for word in ("--agent", agent.wait_ready(60))),
        )  # fmt: skip
        service = Service(
            ServiceCommand("coordinator", argv, self.folder / f"coordinator-{job.name}.log", ready), dict(os.environ)
        )
        try:
            with Client(service.wait_ready(60), caller="test") as client:
                yield Job(self, client)
        finally:
            service.stop()

    def log(self, name: str) -> str:
        return (self.folder / f"agent-{name}.log").read_text(errors="replace")


class Job:
    """A coordinator's client, and what tests ask of it."""

    def __init__(self, nodes: Nodes, client: Client) -> None:
        self.nodes = nodes
        self.client = client

    def workers(self) -> dict[int, Worker]:
        """Rank → the current worker."""
        found = [worker for worker in self.client.workers().workers if worker.current]
        return {rank: worker for worker in found if (rank := worker.registration.rank) is not None}

    def until_registered(self, count: int, timeout_s: float = 120.0) -> dict[int, Worker]:
        def there() -> bool:
            for kubelet in self.nodes.kubelets.values():
                for pod in kubelet.pods:
                    assert pod.alive, f"pod {pod.name} ended: {pod.said()[-3000:]}"
            return len(self.workers()) == count

        wait_for(there, f"{count} workers are registered", timeout_s)
        return self.workers()

    def until_training(self, count: int, timeout_s: float = 180.0) -> dict[int, Worker]:
        """All ranks are registered, and some pod reports steps: a window that begins before would be empty."""
        workers = self.until_registered(count, timeout_s)
        pods = [pod for kubelet in self.nodes.kubelets.values() for pod in kubelet.pods]
        wait_for(lambda: any("step 3" in pod.said() for pod in pods), "training makes steps", timeout_s)
        return workers

    def start(self, **spec: Any) -> CaptureView:
        return self.client.start_capture(
            CaptureSpec.of({"duration_ms": 500, "warmup_ms": 0, "activities": ["cpu"], **spec})
        )

    def wait(self, view: CaptureView, timeout_s: float = 120.0) -> CaptureView:
        return self.client.wait(view.capture_id, timeout_s=timeout_s)

    def until_all(self, view: CaptureView, state: TargetState) -> CaptureView:
        found = view

        def reached() -> bool:
            nonlocal found
            found = self.client.get(view.capture_id)
            return bool(found.targets) and all(fact.state >= state for fact in found.targets)

        wait_for(reached, f"every target is {state.name}")
        return found

    def until(self, view: CaptureView, rank: int, state: TargetState) -> None:
        """Until the target of this rank has come at least this far."""
        wait_for(
            lambda: any(
                fact.identity.rank == rank and fact.state >= state for fact in self.client.get(view.capture_id).targets
            ),
            f"rank {rank} is {state.name}",
        )


def _env(container: Json, thing: Json) -> dict[str, str]:
    """What the kubelet makes of a container's `env`, the downward API included."""
    found = {}
    for entry in container.get("env", ()):
        reference = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[entry["name"]] = str(entry.get("value", "")) if reference is None else _field(thing, reference)
    return found


def _field(thing: Json, path: str) -> str:
    head, bracket, key = path.partition("['")
    found: Any = thing
    for part in head.split("."):
        found = (found or {}).get(part)
    if bracket:
        found = (found or {}).get(key.removesuffix("']"))
    return "" if found is None else str(found)


def _system() -> list[str]:
    """What of this machine a container needs: its system folders, Python and what is installed for it, the tests."""
    folders = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", sys.base_prefix, sys.prefix, str(REPO)]
    return list(dict.fromkeys(folders))
