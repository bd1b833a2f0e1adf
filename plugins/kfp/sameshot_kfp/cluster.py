"""Where in a cluster the tasks run, and with which credentials: kfp-kubernetes, said once for all tasks.

Components.containers(prepare=in_cluster(secret="sameshot", node_selector={"pool": "cpu"}))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sameshot_kfp.components import Prepare

if TYPE_CHECKING:
    from kfp.dsl.pipeline_task import PipelineTask

_AWS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "ENDPOINT_URL")
CREDENTIALS = tuple(f"{prefix}AWS_{name}" for prefix in ("", "SAMESHOT_RESULTS_") for name in _AWS)
"""What the steps read from the environment: for the archive, and for results where that is another credential."""

LABELS = {"app.kubernetes.io/name": "sameshot", "app.kubernetes.io/part-of": "sameshot"}


def in_cluster(
    *,
    secret: str = "",
    node_selector: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    tolerations: Mapping[str, str] | None = None,
) -> Prepare:
    """What to do to each task.

    `secret`: a Secret of the run's namespace with keys of `CREDENTIALS`, none of which has to be there (without any,
    the service account's own identity is used). `tolerations`: taint key → effect, `""` for any effect. The labels
    come beside `LABELS`, by which the pods are found.
    """
    from kfp import kubernetes

    def prepare(task: PipelineTask) -> None:
        if secret:
            kubernetes.use_secret_as_env(task, secret, {name: name for name in CREDENTIALS}, optional=True)
        for key, value in (node_selector or {}).items():
            kubernetes.add_node_selector(task, key, value)
        for key, value in {**LABELS, **(labels or {})}.items():
            kubernetes.add_pod_label(task, key, value)
        for key, effect in (tolerations or {}).items():
            kubernetes.add_toleration(task, key=key, operator="Exists", effect=effect or None)

    return prepare
