"""Templates of several steps: `capture`, which a stopped workflow cancels, `profile`, from a job to its report, and
`on-exit`, for workflows with a DAG above their captures.

The cancel is an exit hook of the capture's step. It must be a step's: a workflow's own `onExit` is not inherited
through `templateRef`. And it must be that of a `steps` template, not of a DAG: when a workflow is stopped, Argo fails
its DAGs at once, before a task that is still ending has reached its hook, while `steps` wait for both (assessDAGPhase
and executeStepGroup of its controller; its issue 15088). It names the request key, not the id, since outputs of a step
whose pod was lost don't resolve; nothing else can be meant, as a workflow starts an (n + 1)-th capture of its key only
when it runs again, after all of its hooks have ended.

A workflow's exit hook runs after a success, too, whatever its `expression` says, and fails the workflow if it fails. So
what it runs has the condition inside. It must be `steps` itself: a DAG that begins while the workflow is being stopped
fails at once (before v3.7.17, v4.0.8 and v4.1.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from hera.workflows import Artifact, Container, Parameter, Step, Steps
from hera.workflows.models import Arguments, ContinueOn, LifecycleHook, ValueFrom
from hera.workflows.models import Parameter as Argument

from sameshot_argo.interface import (
    ADDRESS,
    ANALYZE_RANK,
    CALLER,
    CANCEL,
    CAPTURE,
    COMPARE,
    ENDED,
    KEY,
    MANIFEST,
    PROFILE_INPUTS,
    REDUCE,
    SHARD,
    Input,
    Output,
)
from sameshot_argo.interface import Step as Described
from sameshot_argo.pods import parameter, pods, value
from sameshot_argo.settings import Settings

CAPTURE_NAME = "capture"
PROFILE_NAME = "profile"
ON_EXIT_NAME = "on-exit"
KEYS = "keys"
"""Input of `on-exit`: the keys of the captures, as a list in JSON."""

_CAPTURED = {"manifest_uri", "manifest_sha256"}  # inputs of later steps that are outputs of the capture


def templates(settings: Settings | None = None) -> list[Container | Steps]:
    """All templates, for a workflow that brings its own instead of referring to installed ones."""
    given = settings or Settings()
    return [profile_steps(given), capture_steps(), on_exit_steps(), *pods(given)]


def output_of(caller: str, name: str, kind: str = "steps") -> str:
    """The tag that Argo replaces by an output parameter of a step, or (`tasks`) of a DAG's task."""
    return f"{{{{{kind}.{caller}.outputs.parameters.{name}}}}}"


def capture_steps() -> Steps:
    """One capture that is cancelled when its workflow is stopped; else `capture-pod` with the same parameters.

    After a failure the outputs are those of the pod inside: Argo gives none to a template of steps that failed.
    """
    with Steps(
        name=CAPTURE_NAME,
        inputs=_inputs(CAPTURE.inputs),
        outputs=[_handed_up(each, "capture") for each in CAPTURE.outputs],
    ) as steps:
        _capture()
    return steps


def on_exit_steps() -> Steps:
    """For a workflow's exit hook: unless all went well, cancels the captures of its keys that still go on."""
    with Steps(
        name=ON_EXIT_NAME,
        inputs=[
            parameter(ADDRESS.name, ADDRESS.default, ADDRESS.about),
            parameter(KEYS, None, 'The keys of the workflow\'s captures: ["one", "other"].'),
            parameter(CALLER.name, CALLER.default, CALLER.about),
        ],
    ) as steps:
        Step(
            name="cancel",
            template=CANCEL.name,
            arguments=[
                Parameter(name=each.name, value="{{item}}" if each is KEY else value(each.name))
                for each in CANCEL.inputs
            ],
            with_param=value(KEYS),
            when="'{{workflow.status}}' != 'Succeeded'",
        )
    return steps


def profile_steps(settings: Settings) -> Steps:
    """capture → analyze-rank over the shards → reduce [→ compare]; after a capture that was skipped, nothing.

    A shard that failed does not end it: its ranks are missing in the report, and `reduce` decides whether the others
    are enough.
    """
    captured = f"'{output_of('capture', 'capture_id')}' != ''"
    with Steps(
        name=PROFILE_NAME,
        inputs=_inputs(PROFILE_INPUTS),
        parallelism=settings.parallelism,
        outputs=[*_profile_outputs(), *(_profile_artifacts() if settings.artifacts else ())],
    ) as steps:
        _capture()
        Step(
            name="analyze",
            template=ANALYZE_RANK.name,
            arguments=[*_passed_on(ANALYZE_RANK), Parameter(name=SHARD.name, value="{{item}}")],
            with_param=output_of("capture", "shards"),
            continue_on=ContinueOn(error=True, failed=True),  # of a shard without a summary the report says so, too
        )
        Step(name="reduce", template=REDUCE.name, arguments=_passed_on(REDUCE), when=captured)
        Step(
            name="compare",
            template=COMPARE.name,
            arguments=_passed_on(COMPARE),
            when=f"{captured} && '{value('threshold')}' != ''",
        )
    return steps


def _capture() -> None:
    Step(
        name="capture",
        template=CAPTURE.name,
        arguments=[Parameter(name=each.name, value=value(each.name)) for each in CAPTURE.inputs],
        hooks={
            "exit": LifecycleHook(  # the name makes it an exit hook: after the step's last retry
                template=CANCEL.name,
                expression="steps.capture.status != 'Succeeded'",
                arguments=Arguments(
                    parameters=[Argument(name=each.name, value=value(each.name)) for each in CANCEL.inputs]
                ),
            )
        },
    )


def _inputs(inputs: Iterable[Input]) -> list[Parameter]:
    return [parameter(each.name, each.default, each.about) for each in inputs]


def _passed_on(step: Described) -> list[Parameter]:
    """Inputs of the whole that are inputs of the step, and what the capture gave."""
    known = {each.name for each in PROFILE_INPUTS}
    return [
        Parameter(name=each.name, value=output_of("capture", each.name) if each.name in _CAPTURED else value(each.name))
        for each in step.inputs
        if each.name in known or each is MANIFEST or each.name in _CAPTURED
    ]


def _handed_up(output: Output, step: str) -> Parameter:
    return Parameter(
        name=output.name,
        value_from=ValueFrom(parameter=output_of(step, output.name), default=output.default),
    )


def _profile_outputs() -> list[Parameter]:
    """What is worth deciding on; each step's other outputs stand at its own node."""
    ended = set(ENDED)
    return [
        *(_handed_up(each, "capture") for each in CAPTURE.outputs if each not in ended and each.name != "shards"),
        *(
            _handed_up(each, "reduce")
            for each in REDUCE.outputs
            if each.name in ("analysed", "report_uri", "summary_uri", "headline", "trend", "findings")
        ),
        *(
            _handed_up(each, "compare")
            for each in COMPARE.outputs
            if each.name in ("verdict", "slowdown", "comparison_uri")
        ),
    ]


def _profile_artifacts() -> list[Artifact]:
    return [
        Artifact(name=each.name, from_=f"{{{{steps.{step}.outputs.artifacts.{each.name}}}}}", optional=True)
        for step, of in (("reduce", REDUCE), ("compare", COMPARE))
        for each in of.files
    ]
