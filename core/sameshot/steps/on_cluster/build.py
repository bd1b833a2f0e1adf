"""The Job that analyses one capture: `sameshot step analyze` in a pod. Pure.

Its pod may do nothing but read the manifest and what that names, and write results: an account of its own without any
right, no token of the API, a storage credential of its own (a Secret as environment), the restricted Pod Security
standard, a root file system that can't be written.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from sameshot.arm.quantity import quantity
from sameshot.arm.values import NotArmable
from sameshot.errors import UsageError
from sameshot.kube import names
from sameshot.steps.image import IMAGE
from sameshot.steps.options import milliseconds

Json = dict[str, Any]

CONTAINER = "analyze"
SECRET = "sameshot-results"
TERMINATION_LOG = "/dev/termination-log"
"""The kubelet's default: what is written there is in the pod's status, up to 4,096 bytes of it; results are smaller."""
KEPT_S = 86_400  # a finished Job, for whoever asks for the same again, or what went wrong
TRIES = 3
# Another try changes nothing about these: a request that can't be served, missing ranks, a manifest or trace that is
# not sound, a capture that is unknown, a credential that is refused.
FINAL_CODES = (2, 3, 4, 5, 6, 7, 77)

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class AnalysisJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `secret` None: `sameshot-results`, where there is one, and otherwise what the ServiceAccount
    brings (workload identity). `requests` and `limits` as Kubernetes writes amounts; `timeout` of the whole Job."""

    manifest: str
    results: str
    namespace: str
    image: str = IMAGE
    service_account: str = names.ANALYSIS_ACCOUNT
    secret: str | None = None
    requests: dict[str, str] = msgspec.field(default_factory=lambda: {"cpu": "2", "memory": "2Gi"})
    limits: dict[str, str] = msgspec.field(default_factory=lambda: {"memory": "8Gi"})
    timeout: str = "1h"
    expected_sha256: str | None = None
    min_ranks: int | None = None
    history: bool = True
    fetch_pattern: str | None = None
    workers: int | None = None


def namespace_of(manifest: str) -> str | None:
    """The namespace of the job that a manifest in an archive is of, by where it lies:
    `…/<namespace>/<job>/<attempt>/<capture id>[/manifest.json]`. None: it does not lie so."""
    parts = [unquote(each) for each in urlsplit(manifest).path.strip("/").split("/")]
    if parts and parts[-1].endswith(".json"):
        parts.pop()
    if len(parts) < 4 or not parts[-2].isdecimal() or not _LABEL.fullmatch(parts[-4]):
        return None
    return parts[-4]


def job_of(asked: AnalysisJob) -> Json:
    """The object. Its name follows from all that is in it, so whoever asks for the same again finds the same Job.

    Raises UsageError for what no pod could do, and for amounts that are none.
    """
    _check(asked)
    spec = _spec(asked)
    digest = hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()[:10]
    labels = {
        "app.kubernetes.io/name": "sameshot",
        "app.kubernetes.io/component": "analyze",
        "app.kubernetes.io/part-of": "sameshot",
    }
    spec["template"]["metadata"] = {"labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"sameshot-analyze-{digest}",
            "namespace": asked.namespace,
            "labels": labels,
            "annotations": {f"{names.GROUP}/manifest": asked.manifest, f"{names.GROUP}/results": asked.results},
        },
        "spec": spec,
    }


def _check(asked: AnalysisJob) -> None:
    for what, place in (("manifest", asked.manifest), ("place for results", asked.results)):
        scheme = urlsplit(place).scheme if "://" in place else ""
        if scheme in ("", "file"):
            raise UsageError(
                f"A pod can't reach the {what} {place!r}: it must be in an object store (s3://bucket/…). Without "
                "--on-cluster it is analysed on this machine."
            )
    if not _LABEL.fullmatch(asked.namespace):
        raise UsageError(f"{asked.namespace!r} is no name of a namespace.")
    for kind, amounts in (("request", asked.requests), ("limit", asked.limits)):
        for name, amount in amounts.items():
            try:
                sound = quantity(amount) > 0
            except NotArmable:
                sound = False
            if not name or not sound:
                raise UsageError(f"The {kind} {name}={amount} is none; write for example cpu=2,memory=8Gi.")
    if asked.workers is not None and asked.workers < 1:
        raise UsageError(f"workers is {asked.workers}; ask for at least one process, or leave it out.")
    if asked.min_ranks is not None and asked.min_ranks < 1:
        raise UsageError(f"min_ranks is {asked.min_ranks}; ask for at least one rank, or leave it out.")


def _spec(asked: AnalysisJob) -> Json:
    return {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": TRIES - 1,
        "activeDeadlineSeconds": max(milliseconds(asked.timeout, "timeout") // 1000, 1),
        "ttlSecondsAfterFinished": KEPT_S,
        "podFailurePolicy": {
            "rules": [
                # An evicted or preempted pod is no failure of the analysis: what it has kept is used again.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(FINAL_CODES)},
                },
            ]
        },
        "template": {"spec": _pod(asked)},
    }


def _pod(asked: AnalysisJob) -> Json:
    secret: Json = {"name": asked.secret or SECRET}
    if asked.secret is None:
        secret["optional"] = True
    return {
        "restartPolicy": "Never",
        "serviceAccountName": asked.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": CONTAINER,
                "image": asked.image,
                "command": ["sameshot"],
                "args": _arguments(asked),
                "env": [{"name": "HOME", "value": "/tmp"}],
                "envFrom": [{"secretRef": secret}],
                "resources": {"requests": dict(asked.requests), "limits": dict(asked.limits)},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "terminationMessagePath": TERMINATION_LOG,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }


def _arguments(asked: AnalysisJob) -> list[str]:
    """`--opt=value`, so that no value can be taken for an option."""
    # Of its own accord it would start as many processes as the whole node has cores.
    workers = asked.workers or quantity(asked.limits.get("cpu") or asked.requests.get("cpu") or "1")
    given: dict[str, object] = {
        "results": asked.results,
        "result": TERMINATION_LOG,
        "expected-sha256": asked.expected_sha256,
        "min-ranks": asked.min_ranks,
        "fetch-pattern": asked.fetch_pattern,
        "workers": workers,
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return ["step", "analyze", *options, *([] if asked.history else ["--no-history"]), "--", asked.manifest]
