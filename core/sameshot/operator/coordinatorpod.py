"""The pod of a coordinator. Pure.

What it is made from stands in an annotation: it is replaced when that changed, and for nothing that others made of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.coordinator.configfile import AGENT_TOKEN, FOLDER
from sameshot.kube import names
from sameshot.operator.config import OperatorConfig
from sameshot.operator.objects import PORT, Attempt, Kind, cluster_config, object_of, probe_port

USER = 8737
GRACE_S = 150
"""Longer than a coordinator's drain_s: captures that run are waited for."""
CONTAINER = "coordinator"
TEMPLATE = f"{names.GROUP}/template"
"""Annotation: what it was made from."""
_ACCOUNT_FILES = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_LASTS_S = 3600
_API_TOKEN_LASTS_S = 3607  # as the API server's own admission asks for


def pod(attempt: Attempt, config: OperatorConfig) -> Json:
    """It passes the restricted Pod Security Standard. What it is made from stands in an annotation."""
    job = attempt.job
    container, annotations = _container(attempt, config), dict[str, str]()
    if config.host_network:
        for each in container["ports"]:
            each["hostPort"] = each["containerPort"]
    elif scraped := config.coordinator_metrics.rpartition(":")[2]:
        container["ports"].append({"name": "metrics", "containerPort": int(scraped), "protocol": "TCP"})
        marks = {"scrape": "true", "port": scraped, "path": "/metrics"}
        annotations = {f"prometheus.io/{key}": value for key, value in marks.items()}
    spec: Json = {
        "serviceAccountName": names.account_of(job),
        "automountServiceAccountToken": False,  # by projection below, with the one for agents
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "config", "projected": {"defaultMode": 0o440, "sources": _files(names.coordinator_of(job))}},
            {
                "name": "agent-token",
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {
                            "serviceAccountToken": {
                                "audience": names.AGENT_AUDIENCE,
                                "expirationSeconds": _TOKEN_LASTS_S,
                                "path": AGENT_TOKEN.name,
                            }
                        }
                    ],
                },
            },
            {"name": "api-token", "projected": {"defaultMode": 0o440, "sources": _api_files()}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    if config.host_network:
        spec["hostNetwork"] = True
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if config.priority_class:
        spec["priorityClassName"] = config.priority_class
    if config.pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in config.pull_secrets]
    if config.node_selector:
        spec["nodeSelector"] = dict(config.node_selector)
    if config.tolerations:
        spec["tolerations"] = [msgspec.to_builtins(each) for each in config.tolerations]
    made = object_of(Kind.POD, job, config)
    made["metadata"]["annotations"] |= annotations | {
        TEMPLATE: _digest(spec, cluster_config(attempt, config)),
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",  # as for any pod that nobody would make again
    }
    return {**made, "spec": spec}


def is_current(have: Json, want: Json) -> bool:
    """Whether a pod was made from what it would be made from now.

    What admission made of it (another registry, a digest for a tag, a container beside ours) would be the same the next
    time, and is the cluster's business.
    """

    def made_from(thing: Json) -> object:
        return inside(thing, "metadata", "annotations").get(TEMPLATE)

    return made_from(have) == made_from(want)


def _container(attempt: Attempt, config: OperatorConfig) -> Json:
    probed = probe_port(attempt.port, config)
    archives = ("sameshot-archive", f"sameshot-archive-{attempt.job.namespace}")
    return {
        "name": CONTAINER,
        "image": config.image,
        "args": ["coordinator", "--config", f"{FOLDER}/config.json"],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "envFrom": [{"secretRef": {"name": each, "optional": True}} for each in archives],
        "ports": [
            {"name": PORT, "containerPort": attempt.port, "protocol": "TCP"},
            {"name": "probe", "containerPort": probed, "protocol": "TCP"},
        ],
        "startupProbe": _probe(probed, "/readyz", period_s=1, failures=60),
        "readinessProbe": _probe(probed, "/readyz", period_s=5, failures=2),
        "livenessProbe": _probe(probed, "/healthz", period_s=20, failures=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "16Mi"},
            "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "256Mi"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": str(FOLDER), "readOnly": True},
            {"name": "agent-token", "mountPath": str(AGENT_TOKEN.parent), "readOnly": True},
            {"name": "api-token", "mountPath": _ACCOUNT_FILES, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _probe(port: int, path: str, *, period_s: int, failures: int) -> Json:
    """No look at whether its own port is open: a process that stands still takes connections all the same."""
    return {
        "httpGet": {"port": port, "path": path, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _files(name: str) -> list[Json]:
    keys = ("config.json", "policy.json", "ca.crt")
    return [
        {"configMap": {"name": name, "items": [{"key": key, "path": key} for key in keys]}},
        {"secret": {"name": name, "items": [{"key": key, "path": f"tls/{key}"} for key in ("tls.crt", "tls.key")]}},
    ]


def _api_files() -> list[Json]:
    return [
        {"serviceAccountToken": {"expirationSeconds": _API_TOKEN_LASTS_S, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]
            }
        },
    ]


def _digest(*parts: Any) -> str:
    whole = b"\0".join(msgspec.json.encode(each, order="deterministic") for each in parts)
    return hashlib.sha256(whole).hexdigest()[:16]
