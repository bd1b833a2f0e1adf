"""What a DAG does about a regression, and that nothing else is taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from airflow.sdk.exceptions import AirflowFailException
from dag_file import DagRun, Pushed, dag_file, run_dag
from series_on_disk import capture

from sameshot.steps.analyze import analyze
from sameshot.steps.results import CompareResult, CompareVerdict, from_builtins
from sameshot_airflow.operators.compare import SameshotCompareOperator


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def later(results: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A later capture of each kind, each in a series of its own with one earlier capture; all are analysed."""
    folder = tmp_path_factory.mktemp("captures")
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "slower": ({}, {"compute": 12.0}),  # the passes take twice as long: 6 ms of a step of 16
        "same": ({}, {}),
        "faster": ({"compute": 12.0}, {}),
        "stepless": ({}, {"steps": 1}),  # one step has no duration from mark to mark
    }
    made = {}
    for day, (name, (before, after)) in enumerate(kinds.items(), 10):
        made[f"{name} before"] = capture(folder, f"{name}-1", day=day, series=name, **before)
        made[name] = capture(folder, f"{name}-2", day=day + 10, series=name, **after)
    made["after partial before"] = capture(folder, "partial-1", day=8, series="partial", ranks=3)
    made["after partial between"] = capture(folder, "partial-2", day=9, series="partial", ranks=3, without=(1,))
    made["after partial"] = capture(folder, "partial-3", day=10, series="partial", ranks=3)
    made["first"] = capture(folder, "first", series="first")
    for path in made.values():
        analyze(str(path), results)
    return made


def compared(path: Path, results: str, **options: Any) -> tuple[CompareResult, bool]:
    """The task's result, and whether it failed for good."""
    pushed = Pushed()
    task = SameshotCompareOperator(task_id="compare", manifest_uri=str(path), results_uri=results, **options)
    try:
        found = task.execute({"ti": pushed})  # type: ignore[arg-type, typeddict-item]
    except AirflowFailException:
        return from_builtins(pushed.xcoms["return_value"], CompareResult), True
    return from_builtins(found, CompareResult), False


@pytest.mark.parametrize(
    ("kind", "threshold", "verdict"),
    [
        ("slower", 0.1, CompareVerdict.REGRESSED),
        ("slower", 3.0, CompareVerdict.SLOWER),  # by more than noise, and nobody minds
        ("same", 0.0, CompareVerdict.SAME),  # no threshold turns noise into a regression
        ("faster", 0.0, CompareVerdict.FASTER),
        ("stepless", 0.0, CompareVerdict.UNKNOWN),
        ("first", 0.0, CompareVerdict.FIRST),
    ],
)
def test_only_a_regression_fails_the_task(
    later: dict[str, Path], results: str, kind: str, threshold: float, verdict: CompareVerdict
) -> None:
    found, failed = compared(later[kind], results, threshold=threshold)
    assert (found.verdict, failed) == (verdict, verdict is CompareVerdict.REGRESSED)
    assert found.message
    reported, failed = compared(later[kind], results, threshold=threshold, on_regression="report")
    assert (reported, failed) == (found, False)


def test_a_regression_is_linked_and_named_although_the_task_failed(later: dict[str, Path], results: str) -> None:
    pushed = Pushed()
    task = SameshotCompareOperator(task_id="c", manifest_uri=str(later["slower"]), results_uri=results, threshold="0.1")
    with pytest.raises(AirflowFailException, match=r"against capture slower-1.*A step got slower"):
        task.execute({"ti": pushed})  # type: ignore[arg-type, typeddict-item]
    kept = from_builtins(pushed.xcoms["return_value"], CompareResult)
    assert Path(kept.comparison_uri.removeprefix("file://")).is_file()
    assert kept.slowdown is not None
    assert kept.slowdown > 0.2
    assert len(json.dumps(pushed.xcoms)) < 2048


def test_where_nothing_can_be_told_the_message_says_so(later: dict[str, Path], results: str) -> None:
    assert "no earlier usable capture" in compared(later["first"], results)[0].message
    assert "no recognised steps" in compared(later["stepless"], results)[0].message


def test_the_earlier_capture_may_be_named(later: dict[str, Path], results: str) -> None:
    found, failed = compared(later["slower"], results, before=str(later["faster"]))
    assert (found.before_capture_id, failed) == ("faster-2", True)
    for nothing in (None, "", "None"):  # what templates make of a param that isn't set
        assert compared(later["slower"], results, before=nothing)[0].before_capture_id == "slower-1"


@pytest.mark.parametrize(
    ("min_ranks", "before"),
    [(None, "partial-1"), ("None", "partial-1"), (2, "partial-2"), ("2", "partial-2")],
)
def test_who_accepts_missing_ranks_accepts_them_of_the_earlier_capture(
    later: dict[str, Path], results: str, min_ranks: int | str | None, before: str
) -> None:
    found, _ = compared(later["after partial"], results, min_ranks=min_ranks, on_regression="report")
    assert found.before_capture_id == before


@pytest.mark.parametrize("threshold", ["a tenth", "10%", "", -0.1, float("nan")])
def test_a_threshold_that_is_no_share_is_refused(later: dict[str, Path], results: str, threshold: Any) -> None:
    task = SameshotCompareOperator(
        task_id="c", manifest_uri=str(later["same"]), results_uri=results, threshold=threshold
    )
    with pytest.raises(AirflowFailException, match="threshold"):
        task.execute({"ti": Pushed()})  # type: ignore[arg-type, typeddict-item]


@pytest.mark.parametrize(
    "options",
    [
        {"on_regression": "branch"},
        {"if_regressed": "alert"},
        {"otherwise": ["promote"], "on_regression": "report"},
        {"on_regression": "panic"},
    ],
)
def test_a_branch_and_its_tasks_belong_together(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"branch|panic"):
        SameshotCompareOperator(task_id="c", manifest_uri="/m", **options)


@pytest.mark.parametrize("name", ["nobody", "not_downstream", "grandchild"])
def test_a_branch_to_what_is_not_directly_downstream_fails_before_anything_is_read(name: str) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    with DAG("wrong_branch", schedule=None):
        compare = SameshotCompareOperator(
            task_id="compare", manifest_uri="/nowhere", on_regression="branch", if_regressed=["child", name]
        )
        compare >> EmptyOperator(task_id="child") >> EmptyOperator(task_id="grandchild")
        EmptyOperator(task_id="not_downstream")
    with pytest.raises(AirflowFailException, match=f"'{name}'.*Downstream are child"):
        compare.execute({"ti": Pushed()})  # type: ignore[arg-type, typeddict-item]


def test_there_is_no_branch_in_what_is_mapped() -> None:
    """Airflow would run all of both branches: https://github.com/apache/airflow/issues/67265."""

    @task_group
    def each(manifest: str) -> None:
        SameshotCompareOperator(task_id="c", manifest_uri=manifest, on_regression="branch", if_regressed="each.alert")

    with DAG("mapped_group", schedule=None), pytest.raises(ValueError, match="does not follow the branch"):
        each.expand(manifest=["/a", "/b"])
    pushed = Pushed(map_index=1)
    task = SameshotCompareOperator(task_id="c", manifest_uri="/m", on_regression="branch", if_regressed="alert")
    with pytest.raises(AirflowFailException, match="does not follow the branch"):
        task.execute({"ti": pushed})  # type: ignore[arg-type, typeddict-item]


# -- in a real run

BRANCHING = """
from airflow.sdk import DAG, TaskGroup, task
from airflow.providers.standard.operators.empty import EmptyOperator

from sameshot_airflow.operators.compare import SameshotCompareOperator

def say(name, **more):
    @task(task_id=name, **more)
    def here():
        return name
    return here()

with DAG("branching", schedule=None, default_args={"retries": 0}) as branching:
    compare = SameshotCompareOperator(
        task_id="compare",
        manifest_uri="{{ dag_run.conf['manifest'] }}",
        results_uri="{{ dag_run.conf['results'] }}",
        on_regression="branch",
        if_regressed=["alert", "hold"],
        otherwise="promote",
    )
    with TaskGroup("hold") as hold:
        say("first") >> say("second")
    alert, promote, either = say("alert"), say("promote"), say("either")
    summary = say("summary", trigger_rule="none_failed_min_one_success")
    compare >> [alert, hold, promote, either, summary]
    [alert, promote] >> summary
    either >> alert                                    # what runs either way does not bring an alert along
    say("after_promote") << promote

with DAG("one_branch", schedule=None, default_args={"retries": 0}) as one_branch:
    lone = SameshotCompareOperator(
        task_id="compare",
        manifest_uri="{{ dag_run.conf['manifest'] }}",
        results_uri="{{ dag_run.conf['results'] }}",
        on_regression="branch",
        if_regressed="alert",
    )
    lone >> [say("alert"), say("onwards")]

with DAG("detour", schedule=None, default_args={"retries": 0}) as detour:
    fork = SameshotCompareOperator(
        task_id="compare",
        manifest_uri="{{ dag_run.conf['manifest'] }}",
        results_uri="{{ dag_run.conf['results'] }}",
        on_regression="branch",
        if_regressed="alert",
        otherwise="go_on",
    )
    go_on = say("go_on", trigger_rule="none_failed_min_one_success")
    fork >> [say("alert"), go_on]
    dag_alert = detour.get_task("alert")
    dag_alert >> go_on
"""


@pytest.fixture(scope="module")
def branched(airflow_database: Path, later: dict[str, Path], results: str) -> Any:
    with dag_file(airflow_database.parent, BRANCHING) as dags:

        def run(dag: str, kind: str) -> DagRun:
            return run_dag(dags[dag], {"manifest": str(later[kind]), "results": results})

        yield run


Run = Callable[[str, str], DagRun]


@pytest.mark.full
def test_a_regression_takes_its_branch_and_skips_the_other(branched: Run) -> None:
    run = branched("branching", "slower")
    assert run.state == "success"
    assert run.states == {
        "compare": "success",
        "alert": "success",
        "hold.first": "success",
        "hold.second": "success",
        "promote": "skipped",
        "after_promote": "skipped",
        "either": "success",
        "summary": "success",
    }
    assert run.results["compare"]["verdict"] == "regressed"  # Airflow drops what a branching task returns; we don't


@pytest.mark.full
@pytest.mark.parametrize("kind", ["same", "stepless", "first"])
def test_without_a_regression_its_branch_is_skipped(branched: Run, kind: str) -> None:
    run = branched("branching", kind)
    assert run.state == "success"
    assert run.states == {
        "compare": "success",
        "alert": "skipped",
        "hold.first": "skipped",
        "hold.second": "skipped",
        "promote": "success",
        "after_promote": "success",
        "either": "success",
        "summary": "success",
    }
    assert run.results["compare"]["verdict"] in ("same", "unknown", "first")


@pytest.mark.full
@pytest.mark.parametrize(("kind", "alert"), [("slower", "success"), ("faster", "skipped")])
def test_one_branch_alone_is_enough(branched: Run, kind: str, alert: str) -> None:
    run = branched("one_branch", kind)
    assert run.states == {"compare": "success", "alert": alert, "onwards": "success"}
    assert run.results["compare"]["after_capture_id"] == f"{kind}-2"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "alert"), [("slower", "success"), ("same", "skipped")])
def test_what_also_comes_after_the_branch_that_is_taken_still_runs(branched: Run, kind: str, alert: str) -> None:
    run = branched("detour", kind)
    assert run.states == {"compare": "success", "alert": alert, "go_on": "success"}
