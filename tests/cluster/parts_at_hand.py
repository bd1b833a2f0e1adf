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

from at_hand import Cluster
from live import free_port
from tls import Authority

from sameshot.api.transport import Endpoint
from sameshot.client import Client
from sameshot.kube import names
from sameshot.kube.coordinators import path_of
from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import JobRef

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
def coordinator(cluster: Cluster, job: JobRef, **more: Any) -> Iterator[Coordinator]:
    """With what the operator would make for it: an account, its right in the job's namespace, a certificate."""
    folder = cluster.folder / f"coordinator-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    archive = folder / "archive"
    archive.mkdir()
    namespace, account = names.COORDINATORS_NAMESPACE, names.account_of(job)
    authority, address = Authority(), f"{HOST}:{free_port()}"
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


def told(found: Coordinator, thing: Json, *, phase: str = "Ready", pod: Json | None = None) -> Json:
    """The CaptureCoordinator by which clients find it, as the operator writes it; it goes with the coordinator."""
    job, meta = found.job, thing["metadata"]
    about = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "name": job.name, "uid": job.uid, "attempt": 0}
    made = found.cluster.create(
        {
            "apiVersion": names.API_VERSION,
            "kind": "CaptureCoordinator",
            "metadata": {
                "name": names.coordinator_of(job),
                "namespace": job.namespace,
                "labels": {names.JOB_UID: job.uid, names.ATTEMPT: str(job.attempt)},
            },
            "spec": {"job": about, "series": job.name, "labels": meta.get("labels", {})},
        }
    )
    status = {
        "phase": phase,
        "endpoint": found.address,
        "serverName": found.server_name,
        "caBundle": base64.b64encode(found.authority.pem).decode(),
        "attempt": 0,
        **({} if pod is None else {"pod": pod}),
    }
    return found.cluster.api.patch(path_of(job.namespace, made["metadata"]["name"], status=True), {"status": status})
