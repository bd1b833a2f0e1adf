"""Everything that is rendered is what Argo's own schemas describe, and holds together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from argo_checks import Schemas, problems
from hera.workflows import ClusterWorkflowTemplate, CronWorkflow, Workflow, WorkflowTemplate

from sameshot_argo.render import objects
from sameshot_argo.settings import Kind, Settings

HERA = {
    Kind.WORKFLOW_TEMPLATE: WorkflowTemplate,
    Kind.CLUSTER_WORKFLOW_TEMPLATE: ClusterWorkflowTemplate,
    Kind.CRON_WORKFLOW: CronWorkflow,
    Kind.WORKFLOW: Workflow,
}
TEMPLATE = objects(Kind.WORKFLOW_TEMPLATE)[0]
IN_CLUSTER = objects(Kind.CLUSTER_WORKFLOW_TEMPLATE)[0]
INSTALLED = [TEMPLATE, IN_CLUSTER]


@pytest.fixture(scope="session")
def schemas(shared_data: Path) -> Schemas:
    return Schemas(shared_data / "argo-crds")


VARIANTS: list[dict[str, Any]] = [
    {},
    {"settings": Settings(artifacts=False, parallelism=1, retries=0)},
    {"namespace": "ml", "cluster": True},
    {"arguments": {"key": "k", "threshold": "0.1"}, "timezone": "Europe/Vienna", "name": "n" * 52},
]


@pytest.mark.parametrize("kind", HERA)
@pytest.mark.parametrize("options", VARIANTS, ids=["plain", "small", "cluster", "arguments"])
def test_each_is_valid_for_argos_schema_and_holds_together(
    schemas: Schemas, kind: Kind, options: dict[str, Any]
) -> None:
    (made,) = objects(kind, **options)
    assert schemas.problems(made) == []
    assert problems(made, INSTALLED) == []


@pytest.mark.parametrize("kind", HERA)
def test_each_comes_back_from_hera_as_it_was(kind: Kind) -> None:
    (made,) = objects(kind)
    assert HERA[kind].from_dict(made).to_dict() == made  # type: ignore[attr-defined]
    assert HERA[kind].from_yaml(yaml.safe_dump(made)).to_dict() == made  # type: ignore[attr-defined]


def of(document: dict[str, Any], template: str) -> dict[str, Any]:
    return next(each for each in document["spec"]["templates"] if each["name"] == template)


def task(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for (each,) in of(document, "profile")["steps"] if each["name"] == name)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "entrypoint": (lambda d: d["spec"].update(entrypoint="nothing"), "entrypoint nothing is not there"),
    "task's template": (lambda d: task(d, "reduce").update(template="redcue"), "redcue is not there"),
    "unbound input": (lambda d: task(d, "analyze")["arguments"]["parameters"].pop(0), "manifest_uri is not bound"),
    "unknown argument": (
        lambda d: task(d, "reduce")["arguments"]["parameters"].append({"name": "ranks", "value": "1"}),
        "ranks is unknown",
    ),
    "no body": (lambda d: of(d, "cancel").pop("container"), "has bodies []"),
    "unknown output": (
        lambda d: task(d, "analyze").update(withParam="{{steps.capture.outputs.parameters.shard}}"),
        "outputs.parameters.shard}} is not known",
    ),
    "output of a later task": (
        lambda d: task(d, "analyze").update(when="{{steps.reduce.outputs.parameters.analysed}} == 1"),
        "is not known here",
    ),
    "item without a loop": (lambda d: task(d, "analyze").pop("withParam"), "{{item}} is not known"),
    "hook's template": (lambda d: task(d, "capture")["hooks"]["exit"].update(template="x"), "hook exit: template x"),
    "hook's input": (
        lambda d: task(d, "capture")["hooks"]["exit"]["arguments"]["parameters"].pop(1),
        "hook exit: input key is not bound",
    ),
    "long name": (lambda d: of(d, "cancel").update(name="c" * 64), "name"),
    "order": (lambda d: of(d, "profile")["steps"].reverse(), "is not known here"),
    "expression": (
        lambda d: of(d, "capture-pod").update(activeDeadlineSeconds="{{=asInt(inputs.parameters.timeout)}}"),
        "names inputs.parameters.timeout",
    ),
    "volume": (lambda d: of(d, "cancel").pop("volumes"), "volume scratch is not there"),
}


@pytest.mark.parametrize(("fault", "says"), FAULTS.values(), ids=list(FAULTS))
def test_what_no_schema_sees_is_found(schemas: Schemas, fault: Callable[[dict[str, Any]], object], says: str) -> None:
    broken = copy.deepcopy(TEMPLATE)
    fault(broken)
    assert schemas.problems(broken) == []
    assert any(says in each for each in problems(broken)), problems(broken)


@pytest.mark.parametrize(
    ("path", "unknown"),
    [(("spec",), "entryPoint"), (("spec", "templates", -1, "container"), "imagePullSecret"), (("metadata",), "lables")],
)
def test_an_unknown_field_is_found_at_any_depth(schemas: Schemas, path: tuple[Any, ...], unknown: str) -> None:
    broken: Any = copy.deepcopy(TEMPLATE)
    place = broken
    for step in path:
        place = place[step]
    place[unknown] = "x"
    assert len(found := schemas.problems(broken)) == 1
    assert unknown in found[0]


def test_a_run_without_what_the_template_needs_is_found() -> None:
    (run,) = objects(Kind.WORKFLOW)
    run["spec"]["arguments"]["parameters"].pop()
    assert problems(run, INSTALLED) == ["argument results is not bound"]
    assert problems(run, []) == ["workflowTemplateRef sameshot is not installed"]
