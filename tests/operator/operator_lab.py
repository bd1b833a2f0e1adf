"""The real operator in a cluster that is emulated: its shipped rights, armed jobs, and coordinators that say what they
are told, over TLS with the certificates that the operator issued.

async with cluster() as lab:
    job = lab.job("llama")                       # a batch Job and its armed pods
    await lab.operate()                          # … and from here on it is kept
    await lab.until(lambda: lab.phase(job) == "Ready")
    lab.coordinators[lab.name(job)].unsettled = 1

One event loop has all but the API server: gRPC's asynchronous servers and clients share one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cluster_api import ClusterApi, Logged
from cluster_kinds import Kind
from kubernetes_objects import kustomized

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from sameshot.api.transport import SERVER_OPTIONS
from sameshot.kube import names
from sameshot.kube.inpod import Way
from sameshot.model import JobRef
from sameshot.operator.config import OperatorConfig, Reach, Timings
from sameshot.operator.run import Operator

Json = dict[str, Any]
REPO = Path(__file__).resolve().parents[2]
OPERATOR = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
OURS = (names.SYSTEM_NAMESPACE, names.COORDINATORS_NAMESPACE, names.AGENTS_NAMESPACE)
JOBSET = "jobset.sigs.k8s.io/restart-attempt"
# Coordinators' ports are the same in every process of a test run, so each has a node of its own.
NODE_IP = f"127.{os.getpid() >> 16 & 127 | 64}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"

QUICK = Timings(
    grace_s=0.5, settle_s=0.2, remake_s=0.2, remake_longest_s=1.0, mend_longest_s=0.1, ask_s=0.1,
    settling_longest_s=0.3, end_s=0.1, end_longest_s=0.4, retry_s=0.1, retry_longest_s=0.5, sweep_s=600.0,
    restart_s=0.2, unread_s=0.2, unsure_s=0.4, recount_s=0.2, call_s=3.0,
)  # fmt: skip
JOBS = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", status=True)
ODD = Kind("example.com", "v1", "trainings", "Training", status=True)


@functools.cache
def shipped(overlay: str = "cluster-wide") -> list[Json]:
    """Namespaces, rights, accounts and kinds, as they are installed."""
    kinds = {"Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    found = kustomized(REPO / "deploy/overlays" / overlay)
    return [each for each in found if each["kind"] in kinds | {"CustomResourceDefinition"}]


@dataclass
class Scripted(CoordinatorServicer):
    """One coordinator: `Retire` and `Describe` are answered so, and remembered; `silent`: neither is."""

    unsettled: int = 0
    registered: int | None = 1
    world_size: int | None = 1
    silent: bool = False
    version: str = "0.1.0"
    retired: list[int] = field(default_factory=list)
    described: int = 0
    tokens: set[str] = field(default_factory=set)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        self._note(context)
        self.described += 1
        await self._maybe_never()
        return pb.DescribeResponse(
            job=pb.JobRef(namespace="told", name="by", uid="the-script"),
            version=self.version,
            registered=self.registered,
            world_size=self.world_size,
            unsettled=self.unsettled,
        )

    async def Retire(self, request: pb.RetireRequest, context: Any) -> pb.RetireResponse:  # noqa: N802
        self._note(context)
        self.retired.append(request.why)
        await self._maybe_never()
        return pb.RetireResponse(unsettled=self.unsettled)

    def _note(self, context: Any) -> None:
        self.tokens.add(dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer "))

    async def _maybe_never(self) -> None:
        if self.silent:
            await asyncio.sleep(3600)


class Lab:
    def __init__(self, api: ClusterApi, **options: Any) -> None:
        self.api = api
        self.options = options
        self.coordinators: dict[str, Scripted] = {}
        self.operator: Operator | None = None
        self._servers: dict[str, grpc.aio.Server] = {}
        self._uids: dict[str, str] = {}  # of the pods that they are
        self.starts = True  # whether coordinators' pods come up
        self.kubelet = True  # whether there is any: without one nothing starts, and nothing that is deleted ends

    # --- the operator

    def config(self, **options: Any) -> OperatorConfig:
        given: Json = {"archive": "s3://traces", "image": "sameshot/cluster:1", "timings": QUICK, **self.options}
        return OperatorConfig(**(given | {"host_network": True, "reach": Reach.POD_IP} | options))

    def way(self) -> Way:
        return Way(self.api.url, self.api.token_file(OPERATOR), self.api.ca_file)

    async def operate(self, **options: Any) -> Operator:
        self.operator = Operator(self.config(**options), self.way())
        await self.operator.start()
        return self.operator

    async def rest(self) -> None:
        """The operator ends."""
        if self.operator is not None:
            await self.operator.stop()
            self.operator = None

    # --- the cluster

    def job(self, name: str, *, namespace: str = "ml", pods: int = 1, size: int | None = 1, **more: Any) -> JobRef:
        made = self.api.make(batch_job(name, namespace))
        ref = JobRef(namespace, name, made["metadata"]["uid"], 0)
        for i in range(pods):
            self.pod(f"{name}-{i}", owner=made, size=size, **more)
        return ref

    def pod(self, name: str, *, owner: Json | None = None, namespace: str = "ml", size: int | None = 1,
            labels: Json | None = None, annotations: Json | None = None) -> Json:  # fmt: skip
        if owner is not None:
            namespace = owner["metadata"]["namespace"]
        return self.api.make(armed_pod(name, namespace, owner, size, labels or {}, annotations or {}))

    def end_pods(self, job: JobRef, phase: str = "Succeeded") -> None:
        for each in self.api.list("pods", job.namespace):
            if any(one["uid"] == job.uid for one in each["metadata"].get("ownerReferences", ())):
                self.api.set_status("pods", job.namespace, each["metadata"]["name"], {"phase": phase})

    def finish(self, job: JobRef, condition: str = "Complete") -> None:
        self.end_pods(job)
        status = {"conditions": [{"type": condition, "status": "True"}]}
        self.api.set_status("jobs.batch", job.namespace, job.name, status)

    def delete(self, job: JobRef) -> None:
        self.api.delete("jobs.batch", job.namespace, job.name)

    # --- what is there

    def name(self, job: JobRef) -> str:
        return names.coordinator_of(job)

    def of(self, job: JobRef) -> Scripted:
        return self.coordinators[self.name(job)]

    def cr(self, job: JobRef) -> Json | None:
        return self.api.find("capturecoordinators.sameshot.dev", job.namespace, self.name(job))

    def status(self, job: JobRef) -> Json:
        return (self.cr(job) or {}).get("status", {})

    def phase(self, job: JobRef) -> str | None:
        return self.status(job).get("phase")

    def condition(self, job: JobRef, kind: str) -> Json:
        found = [each for each in self.status(job).get("conditions", ()) if each["type"] == kind]
        return found[0] if found else {}

    def own(self, what: str, job: JobRef) -> Json | None:
        name = names.account_of(job) if what == "serviceaccounts" else self.name(job)
        where = job.namespace if what.startswith("rolebindings") else names.COORDINATORS_NAMESPACE
        return self.api.find(what, where, name)

    def left(self, job: JobRef) -> set[str]:
        """Which of the objects of a coordinator are there."""
        return {each for each in KINDS if self.own(each, job) is not None}

    def asked(self, since: int = 0) -> list[Logged]:
        """The operator's requests, without watches that were opened anew."""
        return [each for each in self.api.log[since:] if each.user == OPERATOR and each.verb != "watch"]

    async def until(self, holds: Callable[[], Any], within_s: float = 20.0, every_s: float = 0.02) -> Any:
        ends = time.monotonic() + within_s
        while not (found := holds()):
            if time.monotonic() > ends:
                log = "\n".join(map(str, self.asked()[-25:]))
                raise AssertionError(f"not within {within_s} s; the operator's last requests:\n{log}")
            await asyncio.sleep(every_s)
        return found

    async def quiet(self, for_s: float = 0.6) -> None:
        """Nothing is worked on, and nothing was asked for a while."""
        seen, since = -1, time.monotonic()
        ends = since + 20
        while time.monotonic() < ends:
            busy = self.operator is not None and not self.operator.queue.quiet
            if busy or len(self.asked()) != seen:
                seen, since = len(self.asked()), time.monotonic()
            elif time.monotonic() > since + for_s:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"it does not come to rest: {self.asked()[-25:]}")

    # --- coordinators' pods

    async def keep(self) -> None:
        """As a kubelet would: what is to run runs, what is deleted ends."""
        pods: dict[str, Json] = {}
        version = -1
        while True:
            await asyncio.sleep(0.03 + 0.002 * len(pods))
            if not self.kubelet:
                continue
            if version == self.api.store.version and not any(name not in self._servers for name in pods):
                continue
            version = self.api.store.version
            pods = {each["metadata"]["name"]: each for each in self.api.list("pods", names.COORDINATORS_NAMESPACE)}
            uids = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
            for name in [each for each in self._servers if self._uids[each] != uids.get(each)]:
                await self._stop(name)
            for name, pod in pods.items():
                if pod["metadata"].get("deletionTimestamp"):
                    await self._stop(name)
                    self._gone(name)
                elif self.starts and name not in self._servers and not pod.get("status", {}).get("podIP"):
                    await self._start(name, pod)

    def _gone(self, name: str) -> None:
        with contextlib.suppress(Exception):
            self.api.delete("pods", names.COORDINATORS_NAMESPACE, name, gracePeriodSeconds=0)

    async def _start(self, name: str, pod: Json) -> None:
        secret = self.api.find("secrets", names.COORDINATORS_NAMESPACE, name)
        if secret is None:
            return
        data = {key: base64.b64decode(value) for key, value in secret["data"].items()}
        server = grpc.aio.server(options=SERVER_OPTIONS)
        scripted = self.coordinators.setdefault(name, Scripted())
        add_CoordinatorServicer_to_server(scripted, server)
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        credentials = grpc.ssl_server_credentials([(data["tls.key"], data["tls.crt"])])
        server.add_secure_port(f"{NODE_IP}:{port}", credentials)
        await server.start()
        self._servers[name], self._uids[name] = server, pod["metadata"]["uid"]
        status = {
            "phase": "Running",
            "podIP": NODE_IP,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "coordinator", "restartCount": 0, "state": {"running": {}}}],
        }
        self.api.set_status("pods", names.COORDINATORS_NAMESPACE, name, status)

    async def _stop(self, name: str) -> None:
        if (server := self._servers.pop(name, None)) is not None:
            await server.stop(None)

    async def close(self) -> None:
        await self.rest()
        for name in list(self._servers):
            await self._stop(name)


KINDS = ("pods", "services", "secrets", "configmaps", "serviceaccounts", "rolebindings.rbac.authorization.k8s.io")


@contextlib.asynccontextmanager
async def cluster(overlay: str = "cluster-wide", **options: Any) -> AsyncIterator[Lab]:
    with ClusterApi(kinds=[JOBS, ODD], collects=True) as api:
        api.apply(shipped(overlay))
        lab = Lab(api, **options)
        keeping = asyncio.create_task(lab.keep())
        try:
            yield lab
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await lab.close()


def batch_job(name: str, namespace: str) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": "nlp"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "train"}]}}},
    }


def armed_pod(name: str, namespace: str, owner: Json | None, size: int | None, labels: Json, annotations: Json) -> Json:
    """As it is after arming: the label, the record, the volume."""
    record = '{"v":1,"container":"main"' + (f',"local_world_size":{size}' if size else "") + "}"
    made: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"sameshot.dev/arm": "enabled", **labels},
            "annotations": {"sameshot.dev/armed": record, **annotations},
        },
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "main", "image": "train"}],
            "volumes": [{"name": "sameshot", "emptyDir": {}}],
        },
        "status": {"phase": "Running"},
    }
    if owner is not None:
        made["metadata"]["ownerReferences"] = [reference(owner)]
    return made


def reference(owner: Json) -> Json:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True,
    }  # fmt: skip


def played(**options: Any) -> Callable[[Callable[[Lab], Any]], Callable[[], None]]:
    """A test that is given a `Lab`: `@played()` above an `async def test_…(lab)`."""

    def wrap(test: Callable[[Lab], Any]) -> Callable[[], None]:
        async def play() -> None:
            async with cluster(**options) as lab:
                await test(lab)

        def run() -> None:
            asyncio.run(play())

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return wrap
