"""Jobs of an emulated cluster with coordinators that answer as they are told, over real TLS, and their CRs: what a
client finds and dials.

    with ClusterApi() as api, Dialled(api, tmp_path) as cluster:
        job = cluster.job("llama-7b")                     # its CR, Ready, and a coordinator that serves
        dialer = cluster.dialer("jane")                   # with a kubeconfig; cluster.in_pod(account) as a pod's
        with Client(dialer.dial("kube:ml/llama-7b")) as client: ...
"""

from __future__ import annotations

import asyncio
import base64
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import msgspec
from canned_coordinator import Canned
from cluster_api import ClusterApi
from tls import Authority

from sameshot.api.sameshot_pb2_grpc import add_CoordinatorServicer_to_server
from sameshot.api.transport import TOKEN_KEY, ServerTls, bind
from sameshot.client.cluster import access
from sameshot.client.cluster.address import KubeAddress
from sameshot.client.cluster.dialing import Dialer
from sameshot.kube import names
from sameshot.kube.coordinators import Phase, PodPlace, Status
from sameshot.model import JobRef

Json = dict[str, Any]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


class Seeing(grpc.aio.ServerInterceptor):
    """Notes the token and the connection of each call."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.calls = 0
        self.peers: set[str] = set()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)
        self.tokens.append(metadata.get(TOKEN_KEY, ""))
        self.calls += 1
        handler = await continuation(details)
        if handler is None or not handler.unary_unary:
            return handler

        async def answer(request: Any, context: Any) -> Any:
            self.peers.add(context.peer())
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


@dataclass
class Served:
    """One coordinator: what it answers, who called, and where it listens."""

    canned: Canned
    port: int
    seen: Seeing
    server: grpc.aio.Server


class Dialled:
    def __init__(self, api: ClusterApi, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.authority = Authority()
        self._loop = asyncio.new_event_loop()
        self._all: list[Served] = []
        self._of: dict[JobRef, Served] = {}
        for part in ("crds", "system", "coordinators", "access"):
            api.apply_folder(DEPLOY / part)
        for name in ("sameshot", "sameshot-viewer"):
            api.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "ml"}})

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinators", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._all:
            self._do(each.server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- coordinators and their CRs

    def job(
        self, name: str, *, phase: Phase = Phase.READY, kind: str = "Job", served: Served | None = None, **more: Any
    ) -> JobRef:
        """A job with its CR; one that is Ready (or has ended and is still there) is served."""
        job = JobRef(
            more.pop("namespace", "ml"), name, more.pop("uid", None) or str(uuid.uuid4()), more.pop("attempt", 0)
        )
        self.cr(job, kind=kind, labels=more.pop("labels", {}), status=Status(phase=phase))
        if phase is Phase.READY:
            self.ready(job, served or self.serve(job))
        assert not more
        return job

    def job_once(self, name: str) -> None:
        """The same, where it is not there yet."""
        if not any(each["spec"]["job"]["name"] == name for each in self.api.list(_CRS, "ml")):
            self.job(name)

    def served(self, job: JobRef) -> Served:
        """Who serves it now."""
        return self._of[job]

    def cr(self, job: JobRef, *, kind: str = "Job", labels: dict[str, str] | None = None, status: Status) -> Json:
        thing = {
            "apiVersion": names.API_VERSION,
            "kind": "CaptureCoordinator",
            "metadata": {
                "name": names.coordinator_of(job),
                "namespace": job.namespace,
                "labels": {names.JOB_UID: job.uid, names.ATTEMPT: str(job.attempt)},
            },
            "spec": {
                "job": {
                    "apiVersion": "jobset.x-k8s.io/v1alpha2" if kind == "JobSet" else "batch/v1",
                    "kind": kind,
                    "name": job.name,
                    "uid": job.uid,
                    "attempt": job.attempt,
                },
                "series": f"{job.name}-series",
                "labels": labels or {},
            },
            "status": msgspec.to_builtins(status),
        }
        return self.api.put(thing)

    def status(self, job: JobRef, **changes: Any) -> None:
        """As the operator writes it."""
        self.api.set_status(_CRS, job.namespace, names.coordinator_of(job), msgspec.to_builtins(changes))

    def ready(self, job: JobRef, served: Served, *, phase: Phase = Phase.READY, pod: str = "") -> None:
        place = PodPlace(names.COORDINATORS_NAMESPACE, pod or names.coordinator_of(job), served.port)
        if self.api.find("pods", place.namespace, place.name) is not None:
            self.api.delete("pods", place.namespace, place.name)
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": place.name, "namespace": place.namespace},
                "spec": {"containers": [{"name": "coordinator", "image": "x"}]},
                "status": {"phase": "Running", "podIP": "127.0.0.1"},
            }
        )
        self._of[job] = served
        self.status(
            job,
            phase=phase.value,
            endpoint=f"127.0.0.1:{served.port}",
            serverName=names.coordinator_host(job),
            caBundle=base64.b64encode(self.authority.pem).decode(),
            attempt=job.attempt,
            pod=msgspec.to_builtins(place),
        )

    def serve(self, job: JobRef, **answers: Any) -> Served:
        """A coordinator of that job; `answers` as for `canned_coordinator`."""
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        self.authority.issue(folder, names.coordinator_host(job))
        served = self._do(self._serve(folder, {"Describe": job, **answers}))
        self._all.append(served)
        return served

    def stop(self, served: Served) -> None:
        self._do(served.server.stop(None))

    def call(self, act: Callable[[], Any]) -> None:
        """In the coordinators' loop."""
        self._loop.call_soon_threadsafe(act)

    async def _serve(self, folder: Path, answers: dict[str, Any]) -> Served:
        seen = Seeing()
        server, canned = grpc.aio.server(interceptors=[seen]), Canned(**answers)
        add_CoordinatorServicer_to_server(canned, server)  # type: ignore[no-untyped-call]
        address = bind(server, "127.0.0.1:0", "a coordinator", ServerTls(folder / "tls.crt", folder / "tls.key"))
        await server.start()
        return Served(canned, int(address.rpartition(":")[2]), seen, server)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # --- who asks

    def person(self, name: str = "jane", *, connects: bool = True, role: str | None = "sameshot-user") -> Path:
        """A kubeconfig of somebody with that role in the namespace `ml`."""
        subject = {"kind": "User", "name": name, "apiGroup": _RBAC}
        if role is not None:
            self.bind(f"{name}-{role}", "ml", {"kind": "ClusterRole", "name": role}, subject)
        if connects:
            where = names.COORDINATORS_NAMESPACE
            self.bind(f"{name}-connects", where, {"kind": "Role", "name": "sameshot-connect"}, subject)
        return self.api.kubeconfig(self.folder / f"{name}.kubeconfig", name)

    def bind(self, name: str, namespace: str, role: Json, subject: Json) -> None:
        self.api.put(
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": namespace},
                "roleRef": {"apiGroup": _RBAC, **role},
                "subjects": [subject],
            }
        )

    def dialer(self, name: str = "jane", **rights: Any) -> Dialer:
        """Of a person with a kubeconfig."""
        path = str(self.person(name, **rights))

        def opened(wanted: KubeAddress) -> access.Access:
            return access.open_access(msgspec.structs.replace(wanted, kubeconfig=path), {}, self.folder / "none")

        return Dialer(opened)

    def in_pod(self, account: str = "runner", namespace: str = "ml", *, role: str | None = "sameshot-user") -> Dialer:
        """Of a process in a pod with that account, which may ask for tokens of itself."""
        self.api.put(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
        )
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        if role is not None:
            self.bind(f"{account}-{role}", "ml", {"kind": "ClusterRole", "name": role}, subject)
            token = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}
            self.api.put(
                {
                    "apiVersion": f"{_RBAC}/v1",
                    "kind": "Role",
                    "metadata": {"name": f"{account}-token", "namespace": namespace},
                    "rules": [token | {"resourceNames": [account]}],
                }
            )
            self.bind(f"{account}-token", namespace, {"kind": "Role", "name": f"{account}-token"}, subject)
        return self.in_pod_again(account, namespace)

    def in_pod_again(self, account: str, namespace: str = "ml") -> Dialer:
        """Another process like that, without a word to the API server."""
        environment, folder = self.pod_environment(account, namespace)
        return Dialer(lambda wanted: access.open_access(wanted, environment, folder))

    def grant_pods(self, account: str) -> None:
        """That account may list the namespace's pods."""
        subject = {"kind": "ServiceAccount", "name": account, "namespace": "ml"}
        self.bind(f"{account}-pods", "ml", {"kind": "ClusterRole", "name": "view"}, subject)

    def pod_environment(self, account: str, namespace: str = "ml") -> tuple[dict[str, str], Path]:
        """What the kubelet gives to a pod of that account."""
        folder = self.folder / f"account-{uuid.uuid4().hex}"
        folder.mkdir()
        (folder / "token").write_text(self.api.token_for(names.username_of(namespace, account)))
        (folder / "ca.crt").write_bytes(self.api.ca_file.read_bytes())
        environment = {"KUBERNETES_SERVICE_HOST": self.api.host, "KUBERNETES_SERVICE_PORT": str(self.api.port)}
        return environment, folder

    def asked(self, since: int = 0) -> list[str]:
        """What the API server was asked for by others than the administrator, as `verb resource`."""
        return [
            f"{each.verb} {each.resource}{'/' if each.subresource else ''}{each.subresource}"
            for each in self.api.log[since:]
        ]


_CRS = "capturecoordinators.sameshot.dev"
_RBAC = "rbac.authorization.k8s.io"
