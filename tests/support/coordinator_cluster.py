"""A coordinator in an emulated cluster: the real one over the real rights of deploy/, a kubelet's pods written by hand,
and scripted agents that speak TLS and look at tokens with the real agent's door. Every node has an address of its own.

    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0, 1], job)                 # a pod of the job, an agent with these ranks
        async with cluster.coordinator(job) as coordinator, cluster.client(job) as client:
            ...
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cluster_api import ClusterApi
from cluster_kinds import JOBSET
from coordination import QUICK, JumpClock
from fake_agent import FakeAgent, worker
from kube_api import a_pod
from tls import Authority

from sameshot.agent.coordinators import OUTAGE_S, Coordinators
from sameshot.api.door import AtTheDoor
from sameshot.api.transport import Endpoint, ServerTls
from sameshot.client import AsyncClient
from sameshot.coordinator.cluster import ClusterCoordinator
from sameshot.coordinator.config import Timings
from sameshot.coordinator.configfile import ClusterConfig
from sameshot.kube import names
from sameshot.kube.reviews import TokenReviews
from sameshot.model import JobRef, Worker
from sameshot.storage import Storage

Json = dict[str, Any]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OPERATOR = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
_subnets = itertools.count(1)


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = Storage.open(str(folder / "archive"))
        self.authority = Authority()
        self.agents: dict[str, FakeAgent] = {}
        self.api = ClusterApi(kinds=[JOBSET])
        self._tls = folder / "agent-tls"
        self._tls.mkdir()
        self.authority.issue(self._tls, names.AGENT_HOST)
        self._ip = f"127.{next(_subnets) % 250 + 1}.{uuid.uuid4().int % 250 + 1}"
        self._hosts = itertools.count(2)
        self._ends = contextlib.AsyncExitStack()
        with socket.socket() as probe:
            probe.bind((f"{self._ip}.1", 0))
            self.port = probe.getsockname()[1]

    async def __aenter__(self) -> Self:
        self._ends.enter_context(self.api)
        for part in ("system", "agent", "coordinators", "access"):
            self.api.apply_folder(DEPLOY / part)
        self.api.make(_account(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT))
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents.values():
            await agent.stop()
        await self._ends.aclose()

    # --- jobs and pods

    def job(self, name: str, namespace: str = "ml", uid: str | None = None, attempt: int = 0) -> JobRef:
        """A batch Job, and what the operator makes for its coordinator: the account and its binding."""
        thing = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {"template": {"spec": {"restartPolicy": "Never"}}},
            "metadata": {"name": name, "namespace": namespace},
        }
        if uid is None:
            uid = self.api.make(thing)["metadata"]["uid"]
        job = JobRef(namespace, name, uid, attempt)
        self.api.put(_account(names.COORDINATORS_NAMESPACE, names.account_of(job)))
        self.api.put(
            _binding(
                namespace,
                names.account_of(job),
                "sameshot-coordinator",
                {"kind": "ServiceAccount", "namespace": names.COORDINATORS_NAMESPACE, "name": names.account_of(job)},
            )
        )
        return job

    def pod(self, job: JobRef, name: str, node: str | None, *, phase: str = "Running", **more: Any) -> Json:
        """Of that job, as its kubelet says. `status` is added to what is said, `labels` to the pod's."""
        thing = a_pod(name, node=node or "", namespace=job.namespace, armed=more.pop("armed", True))
        thing["metadata"]["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
        ]
        thing["metadata"]["labels"] |= more.pop("labels", {})
        thing["metadata"].pop("uid")
        if node is None:
            del thing["spec"]["nodeName"]
        thing["status"] = {"phase": phase, **more.pop("status", {})}
        assert not more
        return self.api.make(thing)

    def agent_pod(self, node: str, ip: str, *, name: str = "", ready: bool = True, phase: str = "Running") -> Json:
        return self.api.make(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name or f"sameshot-agent-{node}",
                    "namespace": names.AGENTS_NAMESPACE,
                    "labels": {"app.kubernetes.io/name": "sameshot-agent"},
                },
                "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "x"}]},
                "status": {
                    "phase": phase,
                    **({"podIP": ip} if ip else {}),
                    "conditions": [{"type": "Ready", "status": str(ready)}],
                },
            }
        )

    # --- agents

    async def agent(self, node: str, workers: Sequence[Worker] = (), *, ip: str | None = None) -> FakeAgent:
        """An agent at an address of its own; without a pod nobody finds it."""
        reviews = TokenReviews(self.api.kube(), names.AGENT_AUDIENCE, outage_s=OUTAGE_S)
        agent = FakeAgent(
            node,
            self.archive,
            listen=f"{ip or self.new_ip()}:{self.port}",
            tls=ServerTls(self._tls / "tls.crt", self._tls / "tls.key"),
            interceptors=[AtTheDoor(Coordinators(reviews))],
        )
        agent.workers = list(workers)
        self.agents[f"{node} {uuid.uuid4()}"] = agent
        return await agent.start()

    async def node(self, name: str, ranks: Sequence[int], job: JobRef, world_size: int, **more: Any) -> FakeAgent:
        """A node with one pod of the job and an agent that knows the workers in it."""
        pod = self.pod(job, f"{job.name}-{name}", name)
        agent = await self.agent(name, [self.worker(pod, job, rank, world_size, **more) for rank in ranks])
        self.agent_pod(name, ip_of(agent))
        return agent

    def worker(self, pod: Json, job: JobRef, rank: int, world_size: int, **more: Any) -> Worker:
        meta = pod["metadata"]
        return worker(
            rank=rank, world_size=world_size, node=pod["spec"].get("nodeName", ""), job=job, pod=meta["name"],
            pod_uid=meta["uid"], container="trainer", **more,
        )  # fmt: skip

    def new_ip(self) -> str:
        return f"{self._ip}.{next(self._hosts)}"

    # --- the coordinator

    def config(self, job: JobRef, timings: Timings = QUICK, **more: Any) -> ClusterConfig:
        folder = self.folder / names.coordinator_of(job)
        folder.mkdir(exist_ok=True)
        self.authority.issue(folder, names.coordinator_host(job))
        (folder / "ca.crt").write_bytes(self.authority.pem)
        account = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        (folder / "agent-token").write_text(self.api.token_for(account, audience=names.AGENT_AUDIENCE))
        given = {
            "job": job, "archive": str(self.folder / "archive"), "policy": folder / "policy.json", "timings": timings,
            "listen": "127.0.0.1:0", "tls_certificate": folder / "tls.crt", "tls_key": folder / "tls.key",
            "agent_port": self.port, "ca": folder / "ca.crt", "agent_token": folder / "agent-token", "drain_s": 0.0,
            "api_server": self.api.url, "api_token": self.api.token_file(account), "api_ca": self.api.ca_file,
        }  # fmt: skip
        return ClusterConfig(**{**given, **more})

    @contextlib.asynccontextmanager
    async def coordinator(
        self, job: JobRef, *, clock: JumpClock | None = None, **more: Any
    ) -> AsyncIterator[ClusterCoordinator]:
        config = self.config(job, **more)
        coordinator = ClusterCoordinator(config, clock=clock)
        self.address = await coordinator.start()
        try:
            yield coordinator
        finally:
            await coordinator.stop()

    def account(self, name: str, namespace: str = "ml", role: str | None = None) -> str:
        """A ServiceAccount that is bound to a ClusterRole there; its username."""
        self.api.put(_account(namespace, name))
        username = names.username_of(namespace, name)
        if role is not None:
            self.allow(username, namespace, role)
        return username

    def allow(self, username: str, namespace: str, role: str) -> None:
        """Bind an account of whatever namespace to a ClusterRole in this one."""
        home, name = username.split(":")[2:]
        subject = {"kind": "ServiceAccount", "namespace": home, "name": name}
        self.api.put(_binding(namespace, f"{name}-{role}", role, subject))

    def endpoint(self, job: JobRef, token: str | Callable[[], str]) -> Endpoint:
        return Endpoint(
            self.address,
            self.authority.pem,
            names.coordinator_host(job),
            token if callable(token) else lambda: token,
        )

    def client(self, job: JobRef, username: str | None = None) -> AsyncClient:
        """As a user of the job's namespace, or as that account."""
        who = username or self.account("sameshot", job.namespace, "sameshot-user")
        return AsyncClient(self.endpoint(job, self.api.token_for(who, audience=names.audience_of(job))))


def ip_of(agent: FakeAgent) -> str:
    return agent.address.rpartition(":")[0]


def _account(namespace: str, name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def _binding(namespace: str, name: str, role: str, subject: Json) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
