"""Both faces ask for the same: inputs of the same names, types, defaults and meaning, and those of a capture as they
stand in the one table of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte2_lab import User

from sameshot_flyte.asked import INPUTS
from sameshot_flyte.flyte1 import analysis, workflow
from sameshot_flyte.forms import MEANING

TASKS = ("profile_job", "analyze_rank", "reduce", "analyze", "compare")


class Input(NamedTuple):
    kind: str
    default: Any  # "…": it must be given
    meaning: str


def of_flytekit(name: str) -> dict[str, Input]:
    entity = workflow.profile_job if name == "profile_job" else getattr(analysis, name)
    function = getattr(entity, "task_function", None) or entity._workflow_function
    defaults = {each.name: each.default for each in inspect.signature(function).parameters.values()}
    return {
        each: Input(
            kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind),
            "…" if defaults[each] is inspect.Parameter.empty else defaults[each],
            entity.interface.inputs[each].description,
        )
        for each, kind in entity.python_interface.inputs.items()
    }


def test_all_that_a_capture_can_be_asked_for_is_an_input_of_the_workflow_with_the_same_type_and_default() -> None:
    found = of_flytekit("profile_job")
    for name, (kind, default) in INPUTS.items():
        assert found[name] == (kind.__name__, "…" if default is ... else default, MEANING[name])


def test_every_input_of_the_workflow_comes_where_it_belongs() -> None:
    """What tasks take of the workflow's inputs has the same name in both. Flyte 2's is tested by running it."""
    graph = [
        {each.var: each.binding.promise for each in node.bindings if each.binding.promise is not None}
        for node in workflow.profile_job.nodes
    ]
    _, mapped, reduce, compare = graph
    taken = [{name for name, promise in bindings.items() if not promise.node_id} for bindings in graph]
    assert taken == [
        set(INPUTS),
        {"results", "fetch_pattern"},
        {"results", "fetch_pattern", "min_ranks", "history", "trained_image", "commit"},
        {"results", "threshold", "accept_partial", "min_ranks"},
    ]
    for bindings in graph:
        for name, promise in bindings.items():
            if not promise.node_id:
                assert promise.var == name
    of_the_capture = [("n0", "capture", [each]) for each in ("manifest_uri", "manifest_sha256")]
    for bindings in (mapped, reduce, compare):
        promises = [bindings[name] for name in ("manifest_uri", "manifest_sha256")]
        assert [(each.node_id, each.var, each.attr_path) for each in promises] == of_the_capture
    assert mapped["shard"].attr_path == ["shards"]
    assert (reduce["analysed"].node_id, compare["analysis"].node_id) == ("n1", "n2")


@pytest.mark.full
def test_both_faces_have_the_same_inputs(tmp_path: Path) -> None:
    of_flyte2: dict[str, dict[str, Input]] = {
        task: {name: Input(*each) for name, each in inputs.items()}
        for task, inputs in User(tmp_path)
        .drives("inputs", module="sameshot_flyte.flyte2", tasks=TASKS)["inputs"]
        .items()
    }
    ours = {task: of_flytekit(task) for task in TASKS}
    # How many ranks are analysed at once is fixed in flytekit's map.
    assert of_flyte2["profile_job"].pop("concurrency") == ("int", workflow.CONCURRENCY, MEANING["concurrency"])
    # What flytekit's map gives of a rank that failed is None; with Flyte 2 it is left out.
    assert ours["reduce"].pop("analysed")[:2] == ("list[str | None]", "…")
    assert of_flyte2["reduce"].pop("analysed")[:2] == ("list[str]", "…")
    # By which flytekit knows that the comparison comes after the report; Flyte 2 runs as it is written.
    assert "analysis" in ours["compare"]
    del ours["compare"]["analysis"]
    assert of_flyte2 == ours
