"""A coordinator as a pod of a real node, from an image that is there already: Python and sameshot are the node's own,
mounted. The variables are those of test_pods_on_real_nodes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_at_hand import Cluster
from cluster_parts import published
from live import free_port
from tls import Authority

import sameshot
from sameshot.kube import names
from sameshot.model import JobRef

Json = dict[str, Any]
PYTHON = os.environ.get("SAMESHOT_TEST_PYTHON", sys.executable)
MOUNTS = [each for each in os.environ.get("SAMESHOT_TEST_MOUNTS", "").split(",") if each]
OURS = str(Path(sameshot.__file__).parents[1])
CONFIG, ARCHIVE = "/etc/sameshot", "/tmp/archive"
SERVES_WITHIN_S = 240.0
NOWHERE = "192.0.2.1"  # an address for documentation: a port-forward needs none


def needs_an_image() -> str:
    image = os.environ.get("SAMESHOT_TEST_IMAGE")
    if not image:
        pytest.skip("SAMESHOT_TEST_IMAGE is not set: name an image that is on a node already, with a /bin/sh")
    if not os.stat(OURS).st_mode & 0o001:
        pytest.skip(f"{OURS} is closed to the user that pods run as")
    return image


def objects(
    job: JobRef, *, image: str, node: str, port: int, api_server: str, tls: tuple[bytes, bytes], ca: bytes
) -> list[Json]:
    """ConfigMap, Secret and pod: as small as will do."""
    meta = {"name": names.coordinator_of(job), "namespace": names.COORDINATORS_NAMESPACE}
    config = {
        "job": {"namespace": job.namespace, "name": job.name, "uid": job.uid, "attempt": job.attempt},
        "archive": ARCHIVE,
        "listen": f"0.0.0.0:{port}",
        "api_server": api_server,
    }
    host = [(f"host-{at}", path) for at, path in enumerate(dict.fromkeys([*MOUNTS, OURS]))]
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": meta["name"]}},
        {"name": "tls", "secret": {"secretName": meta["name"]}},
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "agent-token",
            "projected": {
                "sources": [{"serviceAccountToken": {"audience": names.AGENT_AUDIENCE, "path": "token"}}],
                "defaultMode": 0o444,
            },
        },
        *({"name": name, "hostPath": {"path": path}} for name, path in host),
    ]
    mounts: list[Json] = [
        {"name": "config", "mountPath": CONFIG},
        {"name": "tls", "mountPath": f"{CONFIG}/tls"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "agent-token", "mountPath": "/var/run/secrets/sameshot.dev/agent"},
        *({"name": name, "mountPath": path, "readOnly": True} for name, path in host),
    ]
    encoded = [base64.b64encode(each).decode() for each in tls]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta,
            "data": {"config.json": json.dumps(config), "ca.crt": ca.decode()},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": meta,
            "type": "kubernetes.io/tls",
            "data": dict(zip(("tls.crt", "tls.key"), encoded, strict=True)),
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {
                "nodeName": node,
                "hostNetwork": os.environ.get("SAMESHOT_TEST_HOST_NETWORK") == "1",
                "serviceAccountName": names.account_of(job),
                "automountServiceAccountToken": True,
                "enableServiceLinks": False,
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "volumes": volumes,
                "containers": [
                    {
                        "name": "coordinator",
                        "image": image,
                        "imagePullPolicy": "Never",
                        "command": ["/bin/sh", "-c", f"mkdir -p {ARCHIVE} && exec \"$@\"", "--"],
                        "args": [PYTHON, "-m", "sameshot.cli.main", "coordinator", "--config", f"{CONFIG}/config.json"],
                        "env": [{"name": "PYTHONPATH", "value": OURS}, {"name": "HOME", "value": "/tmp"}],
                        "ports": [{"containerPort": port}],
                        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
                        "securityContext": {"runAsUser": 10_001, "allowPrivilegeEscalation": False},
                        "volumeMounts": mounts,
                    }
                ],
            },
        },
    ]  # fmt: skip


@contextlib.contextmanager
def running(cluster: Cluster, thing: Json, job: JobRef, *, image: str, node: str) -> Iterator[None]:
    """Until it is ready, and its CaptureCoordinator says where it is."""
    authority, port = Authority(), free_port()
    pair = authority.pair(names.coordinator_host(job))
    with cluster.scope() as inner:
        inner.bind(
            job.namespace, "sameshot-coordinator", inner.account(names.COORDINATORS_NAMESPACE, names.account_of(job))
        )
        made = objects(
            job, image=image, node=node, port=port, api_server=cluster.api.url,
            tls=(pair.certificate, pair.key), ca=authority.pem,
        )  # fmt: skip
        for each in made:
            inner.create(each)
        path = inner.api.path_of(made[-1])

        def ready() -> bool:
            status = (inner.get(path) or {}).get("status", {})
            return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))

        try:
            inner.until(ready, f"the pod {made[-1]['metadata']['name']} is ready", SERVES_WITHIN_S)
        except AssertionError as error:
            said = inner.api.call("GET", f"{path}/log").thing
            raise AssertionError(f"{error}\n{inner.get(path)}\n{said}") from None
        place = {"namespace": names.COORDINATORS_NAMESPACE, "name": made[-1]["metadata"]["name"], "port": port}
        published(inner, thing, job, authority, endpoint=f"{NOWHERE}:{port}", pod=place)
        yield
