"""Where in a cluster the tasks run, and with which credentials: kfp-kubernetes, said once for all tasks.

Components.containers(prepare=in_cluster(secret="sameshot", node_selector={"pool": "cpu"}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sameshot_kfp.components import Prepare

if TYPE_CHECKING:
    from kfp.dsl.pipeline_task import PipelineTask

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""What a Secret is expected to hold, unless said otherwise."""

LABELS = {"app.kubernetes.io/name": "sameshot", "app.kubernetes.io/part-of": "sameshot"}


def in_cluster(
    *,
    secret: str = "",
    keys: Sequence[str] = KEYS,
    node_selector: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    tolerations: Mapping[str, str] | None = None,
) -> Prepare:
    """What to do to each task.

    `secret`: a Secret of the run's namespace; each of `keys`, which must be in it, becomes the environment variable of
    that name (`AWS_ENDPOINT_URL`, `SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID`, …: docs/steps.md). Without one the stores see
    the service account's own identity. `tolerations`: taint key → effect, `""` for any effect. The labels come beside
    `LABELS`, by which the pods are found.
    """
    from kfp import kubernetes

    def prepare(task: PipelineTask) -> None:
        if secret:
            # Never `optional`: backends before 2.15 refuse the whole task for that word.
            kubernetes.use_secret_as_env(task, secret, {name: name for name in keys})
        for key, value in (node_selector or {}).items():
            kubernetes.add_node_selector(task, key, value)
        for key, value in {**LABELS, **(labels or {})}.items():
            kubernetes.add_pod_label(task, key, value)
        for key, effect in (tolerations or {}).items():
            kubernetes.add_toleration(task, key=key, operator="Exists", effect=effect or None)

    return prepare
