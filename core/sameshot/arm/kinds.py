"""The kinds of workloads: where each keeps its pod templates, and what it tells about the job. Nobody else knows.

What arming can't know (the uid of a PyTorchJob, a Volcano Job, a StatefulSet or a Deployment; the name of what is made
with generateName) the node's agent learns from the pod's owners.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sameshot.arm import labels
from sameshot.arm.environment import named_env
from sameshot.arm.options import options_in
from sameshot.arm.record import record_of
from sameshot.arm.template import Armed, arm_template, disarm_template
from sameshot.arm.trainer import asks_for_an_accelerator
from sameshot.arm.values import ArmOptions, Field, JobPlace, Json, NotArmable, copied, inside

# Labels that the controllers put on their pods; each from its project's documentation.
_JOB_NAME, _JOB_UID = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
_OF_THE_SERVER = {_JOB_NAME, _JOB_UID, "job-name", "controller-uid"}
_JOBSET_NAME, _JOBSET_UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_KUBEFLOW_NAME = "training.kubeflow.org/job-name"
_VOLCANO_NAME = "volcano.sh/job-name"


def _of_pod(_: Json) -> JobPlace:
    return JobPlace(name=Field("metadata.name"), uid=Field("metadata.uid"))


def _of_job(_: Json) -> JobPlace:
    return JobPlace(name=Field.label(_JOB_NAME), uid=Field.label(_JOB_UID))


def _of_jobset(_: Json) -> JobPlace:
    return JobPlace(name=Field.label(_JOBSET_NAME), uid=Field.label(_JOBSET_UID), attempt=Field.label(JOBSET_ATTEMPT))


def _of_pytorchjob(workload: Json) -> JobPlace:
    """With a Master its operator gives every pod a RANK and a WORLD_SIZE that count pods; nprocPerNode is what
    torchrun is told (a number, or auto, gpu, cpu)."""
    spec = inside(workload, "spec")
    per_node = spec.get("nprocPerNode", inside(spec, "elasticPolicy").get("nProcPerNode"))
    known = str(per_node).isdigit() and int(per_node) > 0
    return JobPlace(
        name=Field.label(_KUBEFLOW_NAME),
        local_world_size=int(per_node) if known else None,
        container="pytorch",
        ranks_pods=bool(inside(spec, "pytorchReplicaSpecs").get("Master")),
    )


def _of_volcano_job(workload: Json) -> JobPlace:
    """Its plugin `pytorch` gives every pod a RANK and a WORLD_SIZE that count pods."""
    return JobPlace(
        name=Field.label(_VOLCANO_NAME), ranks_pods="pytorch" in inside(inside(workload, "spec"), "plugins")
    )


def _named_by_itself(workload: Json) -> JobPlace:
    name = inside(workload, "metadata").get("name")
    return JobPlace(name=name if isinstance(name, str) else None)


@dataclass(frozen=True)
class Kind:
    """One kind of workload. `paths` lead to pod templates; `*` stands for every key, `[*]` for every item."""

    paths: tuple[str, ...]
    place: Callable[[Json], JobPlace]


SUPPORTED: dict[tuple[str, str], Kind] = {
    ("", "Pod"): Kind(("",), _of_pod),
    ("batch", "Job"): Kind(("spec.template",), _of_job),
    ("batch", "CronJob"): Kind(("spec.jobTemplate.spec.template",), _of_job),
    ("apps", "StatefulSet"): Kind(("spec.template",), _named_by_itself),
    ("apps", "Deployment"): Kind(("spec.template",), _named_by_itself),
    ("jobset.x-k8s.io", "JobSet"): Kind(("spec.replicatedJobs[*].template.spec.template",), _of_jobset),
    ("kubeflow.org", "PyTorchJob"): Kind(("spec.pytorchReplicaSpecs.*.template",), _of_pytorchjob),
    ("batch.volcano.sh", "Job"): Kind(("spec.tasks[*].template",), _of_volcano_job),
}
"""By API group and kind; any version of the group."""

_BY_WEBHOOK = (
    "label its pods with sameshot.dev/arm: enabled (in its podTemplateOverrides or runtimePatches, or in the runtime's "
    "pod template) and let the admission webhook arm them as they are created"
)
UNSUPPORTED: dict[tuple[str, str], str] = {
    ("trainer.kubeflow.org", "TrainJob"): f"a TrainJob has no pod template of its own: {_BY_WEBHOOK}",
    ("trainer.kubeflow.org", "TrainingRuntime"): (
        f"the command of a TrainJob replaces the runtime's, wrapped or not: {_BY_WEBHOOK}"
    ),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): (
        f"the command of a TrainJob replaces the runtime's, wrapped or not: {_BY_WEBHOOK}"
    ),
    ("kubeflow.org", "MPIJob"): (
        "MPIJob is not supported yet: its ranks are started through ssh in the worker pods, where the environment of "
        "the pod does not reach them"
    ),
    ("ray.io", "RayJob"): (
        "RayJob is not supported yet: Ray Train sets a rank in workers that run already, often after torch is imported"
    ),
    ("ray.io", "RayCluster"): (
        "RayCluster is not supported yet: Ray Train sets a rank in workers that run already, often after torch is "
        "imported"
    ),
    ("argoproj.io", "Workflow"): (
        "Argo Workflows are not supported yet: their templates hold containers, not pod templates, and the controller "
        "rewrites the command; arm the training job that the workflow creates"
    ),
}
UNSUPPORTED |= {
    ("argoproj.io", kind): UNSUPPORTED["argoproj.io", "Workflow"]
    for kind in ("CronWorkflow", "WorkflowTemplate", "ClusterWorkflowTemplate")
}

# By convention these would count as workloads if they were unknown; objects of these groups never hold training.
_PLAIN_GROUPS = {"", "rbac.authorization.k8s.io", "networking.k8s.io", "storage.k8s.io", "policy", "scheduling.k8s.io"}


@dataclass(frozen=True)
class ArmedObject:
    """A workload after arming or disarming; `told` are (path of the pod template, what a person should know)."""

    thing: Json
    templates: int = 0  # how many pod templates are armed, or were disarmed
    told: tuple[tuple[str, str], ...] = ()


def kind_of(thing: Json) -> tuple[str, str]:
    """API group and kind of an object; the core group is empty."""
    group, slash, _ = str(thing.get("apiVersion", "")).rpartition("/")
    return (group if slash else ""), str(thing.get("kind", ""))


def may_be_a_workload(thing: Json) -> bool:
    """Whether an object of a kind that isn't known might hold pod templates; a Service or a Role does not."""
    return kind_of(thing)[0] not in _PLAIN_GROUPS


def is_known(thing: Json) -> bool:
    """Whether this kind is one that arming handles without being told where the pod templates are."""
    return kind_of(thing) in SUPPORTED


def arm_object(thing: Json, options: ArmOptions | None = None, template_paths: Sequence[str] = ()) -> ArmedObject:
    """The same workload with its pod templates armed; `template_paths` say where those of an unknown kind are.

    Where some templates ask for an accelerator, those that don't are left as they are, and so are those whose label
    forbids it. Raises NotArmable.
    """
    options = options or ArmOptions()
    kind, paths = _kind(thing, template_paths)
    place = kind.place(thing) if kind else JobPlace()
    work: Json = copied(thing)
    found = list(_templates(work, paths))
    if not found:
        raise NotArmable(f"There is no pod template at {' or '.join(path or 'the top' for path in paths)}.")
    equipped = [asks_for_an_accelerator(template) for _, template in found]
    told: list[tuple[str, str]] = []
    refused: list[str] = []
    armed = 0
    for (path, template), asks in zip(found, equipped, strict=True):
        if any(equipped) and not asks and not _is_armed(template):
            told.append((path, "asks for no accelerator, as others of this workload do; it is left as it is"))
            continue
        if inside(template, "metadata", "labels").get(labels.ARM_LABEL) == labels.DISABLED:
            told.append((path, f"its label {labels.ARM_LABEL} is {labels.DISABLED}; it is left as it is"))
            continue
        try:
            result = arm_template(template, options.over(options_in(template)), place)
        except NotArmable as error:
            refused.append(f"{path}: {error}" if path else str(error))
            continue
        _put_back(template, result)
        told += [(path, warning) for warning in result.warnings]
        armed += 1
    if refused:
        raise NotArmable(" | ".join(refused))
    return ArmedObject(work, armed, tuple(told))


def disarm_object(thing: Json, template_paths: Sequence[str] = ()) -> ArmedObject:
    """The same workload without what arming added to its pod templates, and without the label that an API server copied
    from there to a Job. Raises NotArmable for an unreadable record."""
    _, paths = _kind(thing, template_paths)
    work: Json = copied(thing)
    told: list[tuple[str, str]] = []
    disarmed = 0
    for path, template in _templates(work, paths):
        copied_marks = _marks_of_its_template(work, template)
        result = disarm_template(template)
        _put_back(template, result)
        told += [(path, warning) for warning in result.warnings]
        disarmed += result.changed
        if copied_marks and labels.ARM_LABEL not in inside(template, "metadata", "labels"):
            del work["metadata"]["labels"][labels.ARM_LABEL]
    return ArmedObject(work, disarmed, tuple(told))


def _marks_of_its_template(thing: Json, template: Json) -> bool:
    """Whether the labels of a Job are those of its armed template, and not a person's own.

    An API server gives a Job without labels those of its template (batch/v1, SetDefaults_Job), and so the one that
    arming put there, too. What it adds to either for itself tells nothing.
    """
    if kind_of(thing) != ("batch", "Job"):
        return False
    own, below = (
        {key: value for key, value in inside(each, "metadata", "labels").items() if key not in _OF_THE_SERVER}
        for each in (thing, template)
    )
    return labels.ARM_LABEL in own and own == below


def templates_of(thing: Json, template_paths: Sequence[str] = ()) -> list[tuple[str, Json]]:
    """The pod templates of a workload, each with its path in it. Raises NotArmable for a kind that is not known."""
    return list(_templates(thing, _kind(thing, template_paths)[1]))


def place_of_pod(pod: Json) -> JobPlace:
    """What a pod tells about its job by the labels that its controller gave it; for the webhook."""
    marks: Mapping[str, Any] = inside(inside(pod, "metadata"), "labels")
    if _JOBSET_NAME in marks:
        return _of_jobset(pod)
    if _KUBEFLOW_NAME in marks:
        return JobPlace(name=Field.label(_KUBEFLOW_NAME), container="pytorch", ranks_pods=_has_a_rank(pod))
    if _VOLCANO_NAME in marks:
        return JobPlace(name=Field.label(_VOLCANO_NAME), ranks_pods=_has_a_rank(pod))
    if _JOB_NAME in marks:
        return _of_job(pod)
    if not inside(pod, "metadata").get("ownerReferences"):
        return _of_pod(pod)
    return JobPlace()


def _has_a_rank(pod: Json) -> bool:
    """Whether its controller, which writes it into every pod that it makes, gave it a RANK."""
    containers = inside(pod, "spec").get("containers")
    return isinstance(containers, list) and any(
        named_env(each, "RANK") for each in containers if isinstance(each, dict)
    )


def _kind(thing: Json, template_paths: Sequence[str]) -> tuple[Kind | None, Sequence[str]]:
    key = kind_of(thing)
    if key in UNSUPPORTED:
        raise NotArmable(f"{UNSUPPORTED[key]}.")
    if template_paths:
        return SUPPORTED.get(key), template_paths
    if key not in SUPPORTED:
        raise NotArmable(
            f"The kind {key[1]} ({key[0] or 'core'}) is not known here; say with --template-path where its pod "
            "templates are, for example spec.workers[*].template."
        )
    return SUPPORTED[key], SUPPORTED[key].paths


def _is_armed(template: Json) -> bool:
    return record_of(template) is not None


def _put_back(template: Json, result: Armed) -> None:
    template.clear()
    template.update(result.template)


_STEP = re.compile(r"\[(\*|[0-9]+)\]|\.?([^.\[\]]+)")


def _templates(thing: Json, paths: Sequence[str]) -> Iterator[tuple[str, Json]]:
    """The pod templates at these paths, each with its own exact path."""
    for path in paths:
        steps: list[str | int] = []
        at = 0
        while at < len(path):
            match = _STEP.match(path, at)
            if match is None:
                raise NotArmable(
                    f"The template path {path!r} can't be read; write for example spec.workers[*].template."
                )
            index, key = match.groups()
            steps.append(key if index is None else "*" if index == "*" else int(index))
            at = match.end()
        yield from _follow(thing, steps, "")


def _follow(value: Any, steps: list[str | int], path: str) -> Iterator[tuple[str, Json]]:
    if not steps:
        if isinstance(value, dict):
            yield path, value
        return
    step, rest = steps[0], steps[1:]
    if isinstance(value, list):
        chosen = range(len(value)) if step == "*" else [step] if isinstance(step, int) and step < len(value) else []
        for index in chosen:
            yield from _follow(value[index], rest, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key in value if step == "*" else [step] if step in value else []:
            yield from _follow(value[key], rest, f"{path}.{key}" if path else str(key))
