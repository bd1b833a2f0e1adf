"""What differs from cluster to cluster: the image, names, limits. Everything else about a run is a parameter."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sameshot.errors import UsageError
from sameshot.steps.image import IMAGE

NAME = "sameshot"
"""The name under which the templates are installed, and that `templateRef`s use."""


USER = 8737
"""The user of argoexec in the examples of Argo's own documentation (workflow-pod-security-context). Its image names
none, so where pods must not run as root, the kubelet starts Argo's containers only if the pod says who they are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`parallelism` bounds the pods of one profile at a time; `retries` those that follow a first attempt that was
    killed or should try again. With `artifacts` the pages go to the workflow's artifact repository, too, which then
    must be there. `run_as_user` is the pods' user, of Argo's own containers in them, too; None: the cluster gives one
    (OpenShift does). Raises UsageError for a number that is none.
    """

    image: str = IMAGE
    service_account: str = "sameshot-workflow"
    archive_secret: str = "sameshot-archive"
    results_secret: str = "sameshot-results"
    parallelism: int = 8
    retries: int = 4
    artifacts: bool = True
    run_as_user: int | None = USER

    def __post_init__(self) -> None:
        if self.parallelism < 1 or self.retries < 0:
            raise UsageError(
                f"A parallelism of {self.parallelism} with {self.retries} retries is impossible; "
                "at least 1 pod at a time and 0 retries."
            )
        if self.run_as_user is not None and self.run_as_user < 1:
            raise UsageError(f"Pods don't run as user {self.run_as_user}: they run without root.")


class Kind(enum.StrEnum):
    """What can be rendered."""

    WORKFLOW_TEMPLATE = "WorkflowTemplate"
    CLUSTER_WORKFLOW_TEMPLATE = "ClusterWorkflowTemplate"
    CRON_WORKFLOW = "CronWorkflow"
    WORKFLOW = "Workflow"
    ROLE = "Role"  # with its ServiceAccount and RoleBinding
    ALL = "all"  # what a namespace needs: Role and WorkflowTemplate
