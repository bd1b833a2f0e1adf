"""What the operator makes for one attempt of a job: the objects as they are to be (the pod: coordinatorpod.py). Pure.

Everything but the CaptureCoordinator and the RoleBinding is in the coordinators' namespace, where owners of jobs can
neither mint tokens nor look into pods. All of it has our labels, by which it is found again.
"""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Iterable

import msgspec

from sameshot.arm import labels
from sameshot.arm.values import Json, inside
from sameshot.coordinator.configfile import ClusterConfig
from sameshot.kube import names
from sameshot.kube.api import ApiError
from sameshot.kube.coordinators import Spec, path_of
from sameshot.model import CapturePolicy, JobRef
from sameshot.operator.authority import Pair
from sameshot.operator.config import OperatorConfig
from sameshot.operator.rights import COORDINATOR_ROLE

NAME = "sameshot-coordinator"
PORT = "grpc"
_RBAC = "rbac.authorization.k8s.io"


class Kind(enum.StrEnum):
    """Of what belongs to an attempt, in the order in which it is made."""

    ACCOUNT = "ServiceAccount"
    BINDING = "RoleBinding"
    SECRET = "Secret"
    CONFIG = "ConfigMap"
    SERVICE = "Service"
    POD = "Pod"


_PLURALS = {
    Kind.ACCOUNT: ("/api/v1", "serviceaccounts"),
    Kind.BINDING: (f"/apis/{_RBAC}/v1", "rolebindings"),
    Kind.SECRET: ("/api/v1", "secrets"),
    Kind.CONFIG: ("/api/v1", "configmaps"),
    Kind.SERVICE: ("/api/v1", "services"),
    Kind.POD: ("/api/v1", "pods"),
}


class Attempt(msgspec.Struct, frozen=True):
    """Whose objects, and what goes into them besides the operator's own configuration."""

    job: JobRef
    series: str
    policy: CapturePolicy
    ca: bytes
    port: int = names.COORDINATOR_PORT


def path(kind: Kind, namespace: str, name: str | None = None) -> str:
    root, plural = _PLURALS[kind]
    which = "" if name is None else f"/{name}"
    return f"{root}/namespaces/{namespace}/{plural}{which}"


def name_of(kind: Kind, job: JobRef) -> str:
    return names.account_of(job) if kind is Kind.ACCOUNT else names.coordinator_of(job)


def place_of(kind: Kind, job: JobRef, config: OperatorConfig) -> str:
    """In which namespace it is."""
    return job.namespace if kind is Kind.BINDING else config.coordinators_namespace


def host_of(job: JobRef, config: OperatorConfig) -> str:
    return names.coordinator_host(job, config.coordinators_namespace)


def capture_coordinator(job: JobRef, spec: Spec) -> Json:
    """It belongs to its job, and goes with it; nobody waits for that."""
    owner = spec.job
    return {
        "apiVersion": names.API_VERSION,
        "kind": "CaptureCoordinator",
        "metadata": {
            "name": names.coordinator_of(job),
            "namespace": job.namespace,
            "labels": _labels(job),
            "ownerReferences": [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "job": msgspec.to_builtins(spec.job),
            "series": spec.series,
            "labels": dict(spec.labels),
        },
    }


def account(job: JobRef, config: OperatorConfig) -> Json:
    made = object_of(Kind.ACCOUNT, job, config)
    del made["metadata"]["labels"][names.ATTEMPT]  # all attempts have it
    return {**made, "automountServiceAccountToken": False}


def binding(job: JobRef, config: OperatorConfig, owner_uid: str) -> Json:
    """In the job's namespace; it goes with the CaptureCoordinator, which owns it."""
    made = object_of(Kind.BINDING, job, config)
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": names.API_VERSION,
            "kind": "CaptureCoordinator",
            "name": names.coordinator_of(job),
            "uid": owner_uid,
            "blockOwnerDeletion": False,
        }
    ]
    return {
        **made,
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": COORDINATOR_ROLE},
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": names.account_of(job),
                "namespace": config.coordinators_namespace,
            }
        ],
    }


def secret(job: JobRef, config: OperatorConfig, leaf: Pair) -> Json:
    """The coordinator's certificate."""
    return {**object_of(Kind.SECRET, job, config), "type": "kubernetes.io/tls", "data": tls_data(leaf)}


def tls_data(leaf: Pair) -> dict[str, str]:
    return {"tls.crt": encoded(leaf.certificate), "tls.key": encoded(leaf.key)}


def pair_in(thing: Json) -> Pair:
    """The certificate in a Secret; empty where there is none."""
    data = decoded(thing)
    return Pair(data.get("tls.crt", b""), data.get("tls.key", b""))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decoded(thing: Json) -> dict[str, bytes]:
    """The data of a Secret; what is no base64 is left out."""
    found = {}
    for key, value in inside(thing, "data").items():
        try:
            found[key] = base64.b64decode(value, validate=True)
        except (ValueError, TypeError):
            continue
    return found


def config_map(attempt: Attempt, config: OperatorConfig) -> Json:
    """The coordinator's files but for its certificate. Raises UsageError for a job that can't be served."""
    return {
        **object_of(Kind.CONFIG, attempt.job, config),
        "data": {
            "config.json": _pretty(cluster_config(attempt, config)),
            "policy.json": _pretty(attempt.policy),
            "ca.crt": attempt.ca.decode(),
        },
    }


def cluster_config(attempt: Attempt, config: OperatorConfig) -> ClusterConfig:
    return ClusterConfig(
        job=attempt.job,
        archive=config.archive,
        series=attempt.series,
        listen=f"0.0.0.0:{attempt.port}",
        operator=names.username_of(config.system_namespace, config.account),
        probe=f"0.0.0.0:{probe_port(attempt.port, config)}",
        metrics="" if config.host_network else config.coordinator_metrics,
        agents_namespace=config.agents_namespace,
        api_server=config.coordinators_api_server or config.api_server,
    )


def service(attempt: Attempt, config: OperatorConfig) -> Json:
    job = attempt.job
    return {
        **object_of(Kind.SERVICE, job, config),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(job),
            "ports": [
                {
                    "name": PORT,
                    "protocol": "TCP",
                    "port": names.COORDINATOR_PORT,
                    "targetPort": attempt.port,
                }
            ],
        },
    }


def named(things: object, name: str) -> Json:
    """The one of that name out of a list of an object's; empty: there is none."""
    listed = things if isinstance(things, list) else []
    return next((each for each in listed if isinstance(each, dict) and each.get("name") == name), {})


def job_of(thing: Json) -> tuple[str, str, int | None] | None:
    """(the job's namespace, its uid, attempt; None: of all attempts) by the labels; None: not ours."""
    marks = inside(thing, "metadata", "labels")
    namespace, uid, attempt = (marks.get(key, "") for key in (names.JOB_NAMESPACE, names.JOB_UID, names.ATTEMPT))
    if not all(isinstance(each, str) for each in (namespace, uid, attempt)) or not namespace or not uid:
        return None
    if attempt and not (attempt.isdecimal() and attempt.isascii() and len(attempt) < 9):
        return None
    return namespace, uid, int(attempt) if attempt else None


def port_of(job: JobRef, config: OperatorConfig, have: Json | None, taken: Iterable[int]) -> int:
    """The coordinator's port: the one that its Service leads to, else a stable one that no other coordinator has."""
    if (now := port_now(config, have)) is not None:
        return now
    first, count = names.COORDINATOR_PORT + 1000, max(config.ports, 1)
    used = set(taken)
    at = int.from_bytes(hashlib.sha256(names.coordinator_of(job).encode()).digest()[:8], "big") % count
    return next((first + (at + i) % count for i in range(count) if first + (at + i) % count not in used), first + at)


def port_now(config: OperatorConfig, service: Json | None) -> int | None:
    """The port that a coordinator has by its Service; None: one is to be found."""
    if not config.host_network:
        return names.COORDINATOR_PORT
    first, count = names.COORDINATOR_PORT + 1000, max(config.ports, 1)
    now = named(inside(service or {}, "spec").get("ports"), PORT).get("targetPort")
    return now if isinstance(now, int) and first <= now < first + count else None


def probe_port(port: int, config: OperatorConfig) -> int:
    """Where the coordinator of that port answers probes; on the nodes' network no two are the same there, either."""
    return port + max(names.PROBE_PORTS_AFTER, config.ports) if config.host_network else names.PROBE_PORT


def refused(error: ApiError) -> str:
    """A reason for a condition: what the API server's answer means."""
    reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Gone", 422: "Invalid"}
    return reasons.get(error.status, "TooManyRequests" if error.status == 429 else "Refused")


def coordinator_path(job: JobRef, *, status: bool = False) -> str:
    return path_of(job.namespace, names.coordinator_of(job), status=status)


def object_of(kind: Kind, job: JobRef, config: OperatorConfig) -> Json:
    """What all have in common."""
    return {
        "apiVersion": "v1" if kind is not Kind.BINDING else f"{_RBAC}/v1",
        "kind": kind.value,
        "metadata": {
            "name": name_of(kind, job),
            "namespace": place_of(kind, job, config),
            "labels": _labels(job),
            "annotations": {names.JOB_NAME: job.name},
        },
    }


def _labels(job: JobRef) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": "sameshot",
        **names.MANAGED,
        labels.ARM_LABEL: labels.DISABLED,
        names.JOB_NAMESPACE: job.namespace,
        names.JOB_UID: job.uid,
        names.ATTEMPT: str(job.attempt),
    }


def _selector(job: JobRef) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": NAME,
        names.JOB_NAMESPACE: job.namespace,
        names.JOB_UID: job.uid,
        names.ATTEMPT: str(job.attempt),
    }


def _pretty(value: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
