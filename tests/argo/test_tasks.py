"""Tasks for a workflow of one's own: what they refer to, what they are given, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from argo_checks import problems
from hera.workflows import DAG, Task, Workflow

from sameshot.errors import UsageError
from sameshot_argo.composed import templates
from sameshot_argo.objects import cluster_workflow_template, cron_workflow, workflow, workflow_template
from sameshot_argo.settings import Settings
from sameshot_argo.tasks import (
    IN_CLUSTER,
    OWN,
    Source,
    analyze_rank,
    cancel,
    capture,
    compare,
    exit_hook,
    profile,
    reduce,
)

INSTALLED = [workflow_template().to_dict(), cluster_workflow_template().to_dict()]
JOB = {"address": "kube:ml/bert"}
RESULTS = {"results": "s3://results/profiling"}


def made(build: Callable[[], object], **options: Any) -> dict[str, Any]:
    with Workflow(generate_name="mine-", entrypoint="main", **options) as found, DAG(name="main"):
        build()
    document: dict[str, Any] = found.to_dict()
    return document


def tasks(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    main = next(each for each in document["spec"]["templates"] if each["name"] == "main")
    return {each["name"]: each for each in main["dag"]["tasks"]}


def arguments(task: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in task["arguments"]["parameters"]}


def everything(source: Source) -> None:
    taken = capture(**JOB, source=source)
    analyzed = analyze_rank(of=taken, **RESULTS, source=source)
    reduced = reduce(of=taken, **RESULTS, source=source)
    analyzed >> reduced >> compare(of=taken, **RESULTS, source=source)
    whole = profile(**JOB, **RESULTS, source=source)
    compare("again", of=whole, **RESULTS, source=source)
    cancel(**JOB, key="capture", source=source)


@pytest.mark.parametrize("source", [Source(), IN_CLUSTER, OWN], ids=["namespace", "cluster", "own"])
def test_all_of_them_hold_together_wherever_the_templates_are(source: Source) -> None:
    document = made(lambda: everything(source), templates=templates() if source is OWN else [])
    assert problems(document, INSTALLED) == []
    found = tasks(document)
    assert ("templateRef" in found["capture"]) is (source is not OWN)
    if source is IN_CLUSTER:
        assert found["profile"]["templateRef"] == {"name": "sameshot", "template": "profile", "clusterScope": True}


def test_what_a_capture_gave_is_what_the_next_tasks_get() -> None:
    found = tasks(made(lambda: everything(Source())))
    assert found["analyze"]["withParam"] == "{{tasks.capture.outputs.parameters.shards}}"
    assert arguments(found["analyze"])["shard"] == "{{item}}"
    for name in ("analyze", "reduce", "compare"):
        given = arguments(found[name])
        assert given["manifest_uri"] == "{{tasks.capture.outputs.parameters.manifest_uri}}"
        assert given["manifest_sha256"] == "{{tasks.capture.outputs.parameters.manifest_sha256}}"
    assert found["reduce"]["depends"] == "capture && analyze"
    assert found["reduce"]["when"] == "'{{tasks.capture.outputs.parameters.capture_id}}' != ''"


def test_values_are_written_as_templates_take_them() -> None:
    def build() -> None:
        capture("first", **JOB, timeout="1.5s", with_stack=True, min_ranks=7, activities=["cpu", "cuda"], job=None)
        capture("second", **JOB, key="k", timeout=timedelta(minutes=2))

    first, second = (arguments(each) for each in tasks(made(build)).values())
    assert first == {
        **JOB, "key": "first", "timeout_s": "2", "with_stack": "true", "min_ranks": "7", "activities": "cpu,cuda",
        "job": "",
    }  # fmt: skip
    assert second == {**JOB, "key": "k", "timeout_s": "120"}


def test_the_key_of_a_task_that_runs_once_per_item_must_be_given() -> None:
    with pytest.raises(UsageError, match="give it a key with the item in it"):
        made(lambda: capture(**JOB, with_items=["a", "b"]))
    found = tasks(made(lambda: capture(address="{{item}}:7000", key="{{item}}", with_items=["a", "b"])))
    assert arguments(found["capture"])["key"] == "{{item}}"


def test_a_manifest_can_be_named_by_its_address() -> None:
    def build() -> None:
        one: Task = analyze_rank(of="s3://traces/m.json", shard="0/1", **RESULTS)
        one >> reduce(of="s3://traces/m.json", **RESULTS, min_ranks=3, fetch_pattern="next")

    document = made(build)
    assert problems(document, INSTALLED) == []
    found = tasks(document)
    assert "withParam" not in found["analyze"]
    assert arguments(found["reduce"]) == {
        "manifest_uri": "s3://traces/m.json", **RESULTS, "min_ranks": "3", "fetch_pattern": "next",
    }  # fmt: skip


def test_an_exit_hook_names_the_captures_that_it_may_cancel() -> None:
    hook = exit_hook(**JOB, key=["first", "second"], source=IN_CLUSTER)["exit"]
    assert (hook.template_ref.template, hook.template_ref.cluster_scope) == ("on-exit", True)  # type: ignore[union-attr]
    given = {each.name: each.value for each in hook.arguments.parameters}  # type: ignore[union-attr]
    assert given == {**JOB, "keys": '["first", "second"]', "caller": ""}
    assert '["one"]' in [each.value for each in exit_hook(**JOB, key="one")["exit"].arguments.parameters]  # type: ignore[union-attr]
    for nothing in ("", [], ["first", ""]):
        with pytest.raises(UsageError, match="needs the keys"):
            exit_hook(**JOB, key=nothing)


def test_an_input_that_no_template_has_is_refused() -> None:
    with pytest.raises(TypeError, match="durations"):
        made(lambda: capture(**JOB, durations="2s"))
    with pytest.raises(UsageError, match="takes no durations"):
        workflow({**JOB, **RESULTS, "durations": "2s"})
    with pytest.raises(UsageError, match="A run needs results"):
        workflow(JOB)
    with pytest.raises(UsageError, match="at most 52 characters"):
        cron_workflow({**JOB, **RESULTS}, "@daily", name="n" * 53)
    with pytest.raises(UsageError, match="impossible"):
        Settings(parallelism=0)
