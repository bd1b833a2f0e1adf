"""Whether a job of a kind has ended, from its own object: by the fields that each project documents for that.

True: it has, and will start no pod again. False: it has not. None: it can't be told from this object. A job that is
suspended, or restarts, has not ended. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sameshot.arm.values import Json, inside


def _condition(thing: Json, *types: str) -> bool:
    conditions = inside(thing, "status").get("conditions")
    return any(
        isinstance(each, dict) and each.get("type") in types and each.get("status") == "True"
        for each in (conditions if isinstance(conditions, list) else ())
    )


def _job(thing: Json) -> bool | None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#terminal-job-conditions"""
    return _condition(thing, "Complete", "Failed")


def _jobset(thing: Json) -> bool | None:
    """`terminalState` since v0.6; its conditions before. https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""
    return inside(thing, "status").get("terminalState") in ("Completed", "Failed") or _condition(
        thing, "Completed", "Failed"
    )


def _kubeflow(thing: Json) -> bool | None:
    """The training operator's JobConditionType: a restarting job has Restarting, and neither of these is True.
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/reference/"""
    return _condition(thing, "Succeeded", "Failed")


def _trainjob(thing: Json) -> bool | None:
    """https://www.kubeflow.org/docs/components/trainer/ (conditions Suspended, Complete, Failed)"""
    return _condition(thing, "Complete", "Failed")


def _volcano(thing: Json) -> bool | None:
    """https://volcano.sh/en/docs/vcjob/#status: an Aborted job may be resumed, as a suspended one of other kinds."""
    return inside(thing, "status", "state").get("phase") in ("Completed", "Failed", "Terminated")


def _pod(thing: Json) -> bool | None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase"""
    return inside(thing, "status").get("phase") in ("Succeeded", "Failed")


def _never(_: Json) -> bool | None:
    """It runs until somebody deletes it."""
    return False


@dataclass(frozen=True)
class Ending:
    """`resource`: the kind's name in the API's paths."""

    resource: str
    ended: Callable[[Json], bool | None]

    @property
    def tells(self) -> bool:
        """Whether such an object ever says that it has ended."""
        return self.ended is not _never


ENDINGS: dict[tuple[str, str], Ending] = {
    ("", "Pod"): Ending("pods", _pod),
    ("batch", "Job"): Ending("jobs", _job),
    ("apps", "StatefulSet"): Ending("statefulsets", _never),
    ("apps", "Deployment"): Ending("deployments", _never),
    ("jobset.x-k8s.io", "JobSet"): Ending("jobsets", _jobset),
    ("kubeflow.org", "PyTorchJob"): Ending("pytorchjobs", _kubeflow),
    ("batch.volcano.sh", "Job"): Ending("jobs", _volcano),
    ("trainer.kubeflow.org", "TrainJob"): Ending("trainjobs", _trainjob),
}
"""By API group and kind; any version of the group. Of other kinds nobody knows here when they end: their coordinator
goes when they are deleted."""
