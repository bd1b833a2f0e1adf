"""The container templates: one step each, in a pod that may do nothing but run it.

Who retries is Argo's controller, by `retryStrategy`: pods that were lost with their node, evicted or deleted, and the
exit codes that say "the same again" (THE_SAME_AGAIN). What the step itself found out (a failed capture, missing ranks)
is an answer, and is not asked for again. Facts about Argo: its controller, v3.5 to v4.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from hera.workflows import (
    Artifact,
    Container,
    NoneArchiveStrategy,
    Parameter,
    Resources,
    RetryPolicy,
    RetryStrategy,
)
from hera.workflows.models import (
    Backoff,
    Capabilities,
    EmptyDirVolumeSource,
    EnvVar,
    EnvVarSource,
    IntOrString,
    PodSecurityContext,
    SeccompProfile,
    SecretKeySelector,
    SecurityContext,
    ValueFrom,
    Volume,
    VolumeMount,
)

from sameshot.steps.contract import ARGO, THE_SAME_AGAIN
from sameshot_argo.interface import ANALYZE_RANK, CANCEL, CAPTURE, COMPARE, KEY, MANIFEST, REDUCE, STEPS, Step
from sameshot_argo.settings import NAME, Settings

SCRATCH = "/tmp"
RESULT = "/tmp/sameshot-step/result"
"""Where a step leaves one file per output parameter."""
FILES = "/tmp/sameshot-step/files"
"""Where a step leaves what becomes artifacts."""


def value(name: str) -> str:
    """The tag that Argo replaces by an input of the template."""
    return f"{{{{inputs.parameters.{name}}}}}"


REQUEST_KEY = ARGO.request_key(workflow_uid="{{workflow.uid}}", key=value(KEY.name))

LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": NAME}

# A node that is lost or drained ends in one of several ways: the pod is deleted ("pod deleted", Error), it is marked
# Failed by the kubelet with a message of its own, perhaps before its container ran (then no exit code is known, -1),
# its container is terminated (143), or nobody knows any more how it ended (255, or ContainerStatusUnknown). The reasons
# that Argo itself starts pods again for (isRestartableReason, since v4) are in it.
_NOBODYS_ANSWER = ("-1", "255")
INFRASTRUCTURE = (
    "low on resource|[Ee]vict|[Pp]reempt|node shutdown|NodeShutdown|NodeLost|NodeAffinity|UnexpectedAdmissionError"
    "|Pod was rejected|ContainerStatusUnknown"
)
# What does not pass by waiting: activeDeadlineSeconds terminates the container, too; and an artifact repository that is
# not configured or refuses what is written (Argo's own executor tries the rest again) is an Error.
FOR_GOOD = "longer than the specified deadline|artifact storage|failed to put file"
RETRY = (
    f"(lastRetry.status == 'Error' || lastRetry.exitCode in {[*map(str, THE_SAME_AGAIN), *_NOBODYS_ANSWER]} || "
    f"lastRetry.message matches '{INFRASTRUCTURE}') && not (lastRetry.message matches '{FOR_GOOD}')"
)

_SLACK_S = 300  # to be scheduled, pull the image, and end by the step's own timeout
_DEADLINES: dict[str, int | str] = {
    CAPTURE.name: f"{{{{=asInt(inputs.parameters.timeout_s) + {_SLACK_S}}}}}",
    CANCEL.name: 300,
    ANALYZE_RANK.name: 3600,
    REDUCE.name: 3600,
    COMPARE.name: 3600,
}
_WAITING = ("100m", "128Mi", "512Mi")
_READING = ("1", "2Gi", "8Gi")
_RESOURCES = {  # CPU and memory requested, and the limit of memory
    CAPTURE.name: _WAITING,
    CANCEL.name: _WAITING,
    ANALYZE_RANK.name: _READING,
    REDUCE.name: _READING,
    COMPARE.name: _READING,
}
_AWS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "ENDPOINT_URL")
_RESULTS_PREFIX = "SAMESHOT_RESULTS_"  # docs/steps.md: results have a write credential of their own


def pods(settings: Settings) -> list[Container]:
    """A template for each step."""
    return [pod(step, settings) for step in STEPS]


def pod(step: Step, settings: Settings) -> Container:
    cpu, memory, most = _RESOURCES[step.name]
    return Container(
        name=step.name,
        labels=LABELS | {"app.kubernetes.io/component": step.command},
        inputs=[parameter(each.name, each.default, each.about) for each in step.inputs],
        outputs=[
            *(
                Parameter(name=each.name, value_from=ValueFrom(path=f"{RESULT}/{each.name}", default=each.default))
                for each in step.outputs
            ),
            *(
                Artifact(name=each.name, path=f"{FILES}/{each.file}", archive=NoneArchiveStrategy(), optional=True)
                for each in step.files
                if settings.artifacts
            ),
        ],
        image=settings.image,
        command=["sameshot"],  # given, so that the controller needs no look at the image's registry
        args=list(_arguments(step, settings)),
        env=[EnvVar(name="HOME", value=SCRATCH), *_credentials(step, settings)],
        resources=Resources(cpu_request=cpu, memory_request=memory, memory_limit=most),
        active_deadline_seconds=_DEADLINES[step.name],
        retry_strategy=RetryStrategy(
            limit=settings.retries,
            retry_policy=RetryPolicy.always,  # the expression decides; Error and Failed both reach it
            expression=RETRY,
            backoff=Backoff(duration="15s", factor=IntOrString(root=2)),
        ),
        pod_security_context=PodSecurityContext(
            run_as_non_root=True,
            run_as_user=settings.run_as_user,  # holds for Argo's init and wait, too, whose image names no user
            seccomp_profile=SeccompProfile(type="RuntimeDefault"),
        ),
        security_context=SecurityContext(
            allow_privilege_escalation=False,
            capabilities=Capabilities(drop=["ALL"]),
            read_only_root_filesystem=True,
            run_as_non_root=True,
        ),
        volumes=[Volume(name="scratch", empty_dir=EmptyDirVolumeSource())],
        volume_mounts=[VolumeMount(name="scratch", mount_path=SCRATCH)],
    )


def parameter(name: str, default: str | None, about: str) -> Parameter:
    if default is None:
        return Parameter(name=name, description=about)
    return Parameter(name=name, description=about, default=default)


def _arguments(step: Step, settings: Settings) -> Iterator[str]:
    """One argument per input, value and all: no shell, and no value can become another option."""
    yield from ("step", step.command, f"--result-dir={RESULT}")
    if step.files and settings.artifacts:
        yield f"--out={FILES}"
    if KEY in step.inputs:
        yield f"--key={REQUEST_KEY}"
    for each in step.inputs:
        if each.option:
            yield each.option.format(value(each.name))
    if MANIFEST in step.inputs:
        yield from ("--", value(MANIFEST.name))


def _credentials(step: Step, settings: Settings) -> Iterator[EnvVar]:
    """Every key is optional: where a role of the pod's ServiceAccount has the rights, there are no Secrets."""
    if step is CANCEL:
        return  # it speaks to the coordinator only
    yield from _from_secret(settings.archive_secret, "")
    if step is not CAPTURE:
        yield from _from_secret(settings.results_secret, _RESULTS_PREFIX)


def _from_secret(secret: str, prefix: str) -> Iterator[EnvVar]:
    for name in (f"AWS_{each}" for each in _AWS):
        selected = SecretKeySelector(name=secret, key=name, optional=True)
        yield EnvVar(name=prefix + name, value_from=EnvVarSource(secret_key_ref=selected))
