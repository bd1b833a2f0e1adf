"""sameshot's parts as processes beside a cluster, each with the token of its own account and nothing else."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from background import Background
from cluster_at_hand import Cluster, apply, installed
from fake_agent import FakeAgent, worker
from live import free_port
from tls import Authority

from sameshot.api.transport import Endpoint, ServerTls
from sameshot.arm.kinds import arm_object
from sameshot.client import Client
from sameshot.kube import names
from sameshot.kube.coordinators import path_of
from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import JobRef
from sameshot.steps.rights import rights
from sameshot.storage import Storage

Json = dict[str, Any]
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Coordinator:
    """A process that serves one job, and what its clients have to know."""

    cluster: Cluster
    job: JobRef
    address: str
    authority: Authority
    archive: Path
    service: Service

    @property
    def server_name(self) -> str:
        return names.coordinator_host(self.job)

    def client(self, token: str | None) -> Client:
        """Whoever calls shows this token; None: none."""
        given = None if token is None else (lambda: token)
        return Client(Endpoint(self.address, ca=self.authority.pem, server_name=self.server_name, token=given))

    def client_of(self, namespace: str, account: str) -> Client:
        return self.client(self.cluster.token(namespace, account, names.audience_of(self.job)))


def job_of(thing: Json) -> JobRef:
    meta = thing["metadata"]
    return JobRef(meta["namespace"], meta["name"], meta["uid"])


def service(name: str, folder: Path, *arguments: str, **environment: str) -> Service:
    """One that ends with this process. Without a kubeconfig: it has its own way to the API server, or none."""
    folder.mkdir(exist_ok=True, parents=True)
    clean = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    return Service(ServiceCommand(name, sameshot_argv(*arguments), folder / f"{name}.log"), {**clean, **environment})


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


@contextlib.contextmanager
def coordinator(
    cluster: Cluster, job: JobRef, *, authority: Authority | None = None, **more: Any
) -> Iterator[Coordinator]:
    """With what the operator would make for it: an account, its right in the job's namespace, a certificate."""
    folder = cluster.folder / f"coordinator-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    archive = folder / "archive"
    archive.mkdir()
    namespace, account = names.COORDINATORS_NAMESPACE, names.account_of(job)
    authority, address = authority or Authority(), f"{HOST}:{free_port()}"
    authority.issue(folder, names.coordinator_host(job))
    (folder / "ca.crt").write_bytes(authority.pem)
    with cluster.scope() as inner:
        who = inner.account(namespace, account)
        inner.bind(job.namespace, "sameshot-coordinator", who)
        config = {
            "job": {"namespace": job.namespace, "name": job.name, "uid": job.uid, "attempt": job.attempt},
            "archive": str(archive),
            "listen": address,
            "tls_certificate": str(folder / "tls.crt"),
            "tls_key": str(folder / "tls.key"),
            "ca": str(folder / "ca.crt"),
            "policy": str(folder / "policy.json"),
            "api_server": cluster.api.url,
            "api_token": str(cluster.token_file(namespace, account)),
            "agent_token": str(cluster.token_file(namespace, account, names.AGENT_AUDIENCE)),
            **({} if cluster.ca_file is None else {"api_ca": str(cluster.ca_file)}),
            **more,
        }
        (folder / "config.json").write_text(json.dumps(config))
        process = service("coordinator", folder, "coordinator", "--config", str(folder / "config.json"))
        try:
            log = folder / "coordinator.log"
            inner.until(lambda: listens(address) or process.restarts, f"it serves; see {log}")
            assert not process.restarts, log.read_text()[-3000:]
            yield Coordinator(inner, job, address, authority, archive, process)
        finally:
            process.stop()


def published(
    cluster: Cluster, thing: Json, job: JobRef, authority: Authority, *, endpoint: str, pod: Json | None = None
) -> None:
    """The CaptureCoordinator by which clients find a coordinator of this job, as the operator writes it."""
    about = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "name": job.name, "uid": job.uid, "attempt": 0}
    meta = {"name": names.coordinator_of(job), "namespace": job.namespace, "labels": {names.JOB_UID: job.uid}}
    spec = {"job": about, "series": job.name, "labels": thing["metadata"].get("labels", {})}
    cluster.create({"apiVersion": names.API_VERSION, "kind": "CaptureCoordinator", "metadata": meta, "spec": spec})
    status = {
        "phase": "Ready",
        "endpoint": endpoint,
        "serverName": names.coordinator_host(job),
        "caBundle": base64.b64encode(authority.pem).decode(),
        "attempt": 0,
        **({} if pod is None else {"pod": pod}),
    }
    cluster.api.patch(path_of(job.namespace, meta["name"], status=True), {"status": status})


# ---- a node that is only an object, so that a capture can succeed without training


@dataclass(frozen=True)
class Training:
    """A pod that counts as running, and an agent of its node that says what a real one would."""

    pod: Json
    coordinator: Coordinator
    agent: FakeAgent

    @property
    def job(self) -> JobRef:
        return self.coordinator.job

    def captured_by(self) -> list[str]:
        """The account behind each capture, the newest first."""
        cluster, namespace = self.coordinator.cluster, self.job.namespace
        with cluster.scope() as inner:
            who = inner.account(namespace, "looks-on")
            inner.bind(namespace, "sameshot-viewer", who)
            inner.until_captures(namespace, "looks-on")
            with self.coordinator.client_of(namespace, "looks-on") as client:
                return [view.caller.rpartition(":")[2] for view in client.captures()]


@contextlib.contextmanager
def training(cluster: Cluster, namespace: str, name: str, *, ranks: int = 2) -> Iterator[Training]:
    """No kubelet ever looks at that node. The agent is scripted, behind TLS; everything before it is real."""
    with cluster.scope() as inner, Background() as background:
        node, port = inner.phantom_node(), free_port()
        (folder := cluster.folder / node).mkdir()
        authority = Authority()
        authority.issue(folder, names.AGENT_HOST)
        agent_pod = inner.create(pod_on(node, names.AGENTS_NAMESPACE, f"agent-of-{node}", {_LABEL: "sameshot-agent"}))
        runs(inner, agent_pod)
        pod = arm_object(pod_on(node, namespace, name, {"team": "nlp"})).thing
        pod = runs(inner, inner.create(pod))
        tls = ServerTls(folder / "tls.crt", folder / "tls.key")
        with coordinator(inner, job_of(pod), authority=authority, agent_port=port) as found:
            agent = FakeAgent(node, Storage.open(str(found.archive)), listen=f"{HOST}:{port}", tls=tls)
            agent.workers = [
                worker(rank=rank, world_size=ranks, node=node, job=found.job, pod=name, pod_uid=found.job.uid)
                for rank in range(ranks)
            ]
            background.enter(agent)
            published(inner, pod, found.job, authority, endpoint=found.address)
            yield Training(pod, found, agent)


_LABEL = "app.kubernetes.io/name"


def pod_on(node: str, namespace: str, name: str, labels: dict[str, str] | None = None) -> Json:
    container = {"name": "main", "image": "sameshot.invalid/never-pulled", "command": ["python", "train.py"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "containers": [{**container, "env": [{"name": "LOCAL_WORLD_SIZE", "value": "2"}]}],
        },
    }


def runs(cluster: Cluster, pod: Json) -> Json:
    """As its kubelet would say."""
    status = {
        "phase": "Running",
        "podIP": HOST,
        "podIPs": [{"ip": HOST}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return cluster.api.patch(f"{cluster.api.path_of(pod)}/status", {"status": status})


@contextlib.contextmanager
def captured_by_an_engine(folder: Path, account: str) -> Iterator[tuple[Training, dict[str, str]]]:
    """An emulated cluster with a job `llama`, and the environment of an engine's pods: their account is in another
    namespace, and has what `sameshot rights` gives it."""
    with Cluster.emulating(folder) as cluster, installed(cluster) as there:
        namespace, engine = there.namespace("ml"), there.namespace("engine")
        apply(there, rights(account, engine, jobs_in=[namespace]))
        with training(there, namespace, "llama") as found:
            yield found, there.as_pod(engine, account)
