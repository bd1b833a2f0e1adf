"""The tasks that analyse: thin over the steps, with what a DAG's author and an on-call person need around them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from dag_file import Pushed
from series_on_disk import capture, manifest_at, result_of

from sameshot import errors
from sameshot.steps.history import rows
from sameshot.steps.results import AnalysisResult, CaptureResult, RankResult, from_builtins, to_builtins
from sameshot_airflow.operators.analyze import (
    SameshotAnalyzeOperator,
    SameshotAnalyzeRankOperator,
    SameshotReduceOperator,
    SameshotShardsOperator,
)
from sameshot_airflow.operators.base import typed_failures
from sameshot_airflow.operators.compare import SameshotCompareOperator

FINISHED: Sequence[type[BaseOperator]] = (
    SameshotAnalyzeRankOperator,
    SameshotReduceOperator,
    SameshotAnalyzeOperator,
    SameshotCompareOperator,
)


def run(operator: BaseOperator) -> Any:
    return operator.execute({"ti": Pushed()})  # type: ignore[arg-type, typeddict-item]


def logged(capsys: pytest.CaptureFixture[str], level: str) -> list[str]:
    """What tasks have said since, at this level; Airflow's loggers write to the standard output here."""
    lines = re.findall(r"^\S+ \[(\w+) *\] (.*?) *\[[\w.]+\]", capsys.readouterr().out, re.MULTILINE)
    own = [(at, text) for at, text in lines if "outside of the Task Runner" not in text]
    return [text for at, text in own if at == level]


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(tmp_path / "results")


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, results: str) -> str:
    """The default connection names where results go."""
    connection = {"conn_type": "sameshot", "extra": {"results_uri": results}}
    monkeypatch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps(connection))
    return results


# -- the work


def test_mapped_tasks_and_a_reduce_find_what_one_task_finds(tmp_path: Path) -> None:
    xcom = result_of(capture(tmp_path, "c-1", ranks=3, late={2: 30.0}))
    apart, whole = str(tmp_path / "apart"), str(tmp_path / "whole")
    shards = run(SameshotShardsOperator(task_id="shards", capture=xcom))
    assert shards == ["0/3", "1/3", "2/3"]
    ranks = [
        from_builtins(
            run(SameshotAnalyzeRankOperator(task_id="rank", capture=xcom, shard=shard, results_uri=apart)), RankResult
        )
        for shard in shards
    ]
    assert [rank.ranks for rank in ranks] == ["0", "1", "2"]
    reduced = run(SameshotReduceOperator(task_id="reduce", capture=xcom, results_uri=apart))
    at_once = run(SameshotAnalyzeOperator(task_id="analyze", capture=xcom, results_uri=whole))
    assert reduced["headline"] == at_once["headline"]
    assert reduced["headline"]["late"] == "2"
    assert Path(reduced["report_uri"].removeprefix("file://")).read_bytes().startswith(b"<!")


def test_a_report_is_of_the_ranks_that_were_analysed_with_its_fetch_pattern(tmp_path: Path, results: str) -> None:
    of = {"capture": result_of(capture(tmp_path, "c-1")), "results_uri": results}
    run(SameshotAnalyzeRankOperator(task_id="rank", shard="0/1", fetch_pattern="next_batch", **of))
    with pytest.raises(AirflowFailException, match="'next_batch', not with"):
        run(SameshotReduceOperator(task_id="reduce", **of))
    assert run(SameshotReduceOperator(task_id="reduce", fetch_pattern="next_batch", **of))["analysed"] == 2
    both = run(SameshotAnalyzeOperator(task_id="analyze", fetch_pattern="next", **of))
    assert run(SameshotReduceOperator(task_id="reduce", fetch_pattern="next", **of))["findings"] == both["findings"]


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_processes_finds_the_same(tmp_path: Path, results: str, workers: int) -> None:
    path = capture(tmp_path, "c-1", late={1: 30.0})
    found = run(SameshotAnalyzeOperator(task_id="a", manifest_uri=str(path), results_uri=results, workers=workers))
    assert (found["analysed"], found["headline"]["late"]) == (2, "1")


def test_results_are_small(tmp_path: Path, results: str) -> None:
    path = str(capture(tmp_path, "c-1", ranks=4, late={2: 30.0}))
    given: dict[str, Any] = {"manifest_uri": path, "results_uri": results}
    for found in (
        run(SameshotAnalyzeRankOperator(task_id="r", shard="0/1", **given)),
        run(SameshotReduceOperator(task_id="j", **given)),
        run(SameshotAnalyzeOperator(task_id="a", **given)),
        run(SameshotCompareOperator(task_id="c", **given)),
    ):
        assert len(json.dumps(found)) < 2048
    assert from_builtins(run(SameshotReduceOperator(task_id="j", **given)), AnalysisResult).analysed == 4


def test_the_history_is_told_what_was_trained_with(tmp_path: Path, results: str) -> None:
    path = str(capture(tmp_path, "c-1"))
    for image, history in (("trainer:7", True), ("trainer:8", False)):
        run(
            SameshotAnalyzeOperator(
                task_id="a", manifest_uri=path, results_uri=results, image=image, commit="abc", history=history
            )
        )
    assert [(row.image, row.commit) for row in rows(results, "local", "nightly")] == [("trainer:7", "abc")]


def test_the_log_says_how_far_it_is_and_what_was_found(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(capture(tmp_path, "c-1", ranks=3, late={2: 30.0}))
    found = run(SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=results))
    said = logged(capsys, "info")
    assert "2 of 3 ranks: node-0/main/1" in said
    assert found["findings"][0] in said
    assert f"Report: {found['report_uri']}" in said
    assert "All 3 ranks analysed." in said


@pytest.mark.parametrize(("total", "lines"), [(1, 1), (20, 20), (21, 11), (1000, 20)])
def test_a_large_job_does_not_flood_the_log(total: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = SameshotAnalyzeOperator(task_id="a", manifest_uri="/m").progress()
    for done in range(1, total + 1):
        report(done, total, "rank")
    said = logged(capsys, "info")
    assert len(said) == lines
    assert said[-1] == f"{total} of {total} ranks: rank"


# -- ranks are missing


def test_a_missing_rank_fails_the_task_for_good_with_the_report_written(tmp_path: Path, results: str) -> None:
    path = str(capture(tmp_path, "c-1", ranks=3, without=(1,)))
    pushed = Pushed()
    task = SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=results)
    with pytest.raises(AirflowFailException, match=r"rank 1 \(WORKER_EXITED\)"):
        task.execute({"ti": pushed})  # type: ignore[arg-type, typeddict-item]
    kept = from_builtins(pushed.xcoms["return_value"], AnalysisResult)  # what the link to the report is made of
    assert (kept.exit_code, kept.missing) == (3, "1")
    assert Path(kept.report_uri.removeprefix("file://")).is_file()


@pytest.mark.parametrize("enough", [2, "2", 1])
def test_enough_ranks_pass_with_a_warning(
    tmp_path: Path, results: str, enough: int | str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(capture(tmp_path, "c-1", ranks=3, without=(1,)))
    found = run(SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=results, min_ranks=enough))
    assert (found["analysed"], found["missing"]) == (2, "1")
    (warning,) = logged(capsys, "warning")
    assert "rank 1 (WORKER_EXITED)" in warning


def test_fewer_than_enough_ranks_fail(tmp_path: Path, results: str) -> None:
    path = str(capture(tmp_path, "c-1", ranks=3, without=(0, 1)))
    with pytest.raises(AirflowFailException, match="at least 2 are needed"):
        run(SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=results, min_ranks=2))


@pytest.mark.parametrize("value", ["two", "1.5", -1, 0])
def test_a_min_ranks_that_is_no_number_of_ranks_is_refused(tmp_path: Path, results: str, value: Any) -> None:
    path = str(capture(tmp_path, "c-1"))
    with pytest.raises(AirflowFailException, match="min_ranks"):
        run(SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=results, min_ranks=value))


# -- which capture


@pytest.mark.parametrize("operator", FINISHED)
def test_a_task_must_say_which_capture_in_one_way(operator: Any) -> None:
    for given in ({}, {"capture": {}, "manifest_uri": "/m"}):
        with pytest.raises(ValueError, match="say which capture"):
            operator(task_id="t", **given)
    with pytest.raises(ValueError, match="manifest_sha256"):
        operator(task_id="t", capture={}, manifest_sha256="0" * 64)


@pytest.mark.parametrize("operator", FINISHED)
def test_another_manifest_than_that_of_the_capture_is_refused(tmp_path: Path, results: str, operator: Any) -> None:
    path = capture(tmp_path, "c-1")
    mine = result_of(path)
    capture(tmp_path, "c-1", ranks=3)  # somebody wrote another one in its place
    for given in ({"capture": mine}, {"manifest_uri": str(path), "manifest_sha256": mine["manifest_sha256"]}):
        with pytest.raises(AirflowFailException, match="manifest"):
            run(operator(task_id="t", results_uri=results, **given))
    assert not Path(results).exists()


@pytest.mark.parametrize("operator", [SameshotShardsOperator, *FINISHED])
def test_without_a_capture_the_task_is_skipped(results: str, operator: Any) -> None:
    """The group's trigger rules skip it before; this is for tasks with rules of their own."""
    more = {} if operator is SameshotShardsOperator else {"results_uri": results}
    busy = to_builtins(CaptureResult(message="Job demo is being captured by somebody else."))
    with pytest.raises(AirflowSkipException, match="somebody else"):
        run(operator(task_id="t", capture=busy, **more))
    task = operator(task_id="t", capture=busy, **more)
    task.capture = None  # what an XComArg gives where the task left no result
    with pytest.raises(AirflowSkipException, match="left no result"):
        run(task)


@pytest.mark.parametrize("write", [str, json.dumps], ids=["as Jinja does", "JSON"])
def test_a_template_may_bring_the_capture_as_a_text(tmp_path: Path, results: str, write: Any) -> None:
    """`{{ ti.xcom_pull(…) }}` is rendered to one, unless the DAG renders native objects."""
    text = write(result_of(capture(tmp_path, "c-1", ranks=2)))
    assert run(SameshotShardsOperator(task_id="s", capture=text)) == ["0/2", "1/2"]
    found = from_builtins(
        run(SameshotAnalyzeRankOperator(task_id="r", capture=text, shard="1/2", results_uri=results)), RankResult
    )
    assert found.ranks == "1"


@pytest.mark.parametrize("text", ["None", "", " null "])
@pytest.mark.parametrize("operator", [SameshotShardsOperator, *FINISHED])
def test_a_template_that_found_none_skips(operator: Any, text: str) -> None:
    with pytest.raises(AirflowSkipException, match="left no result"):
        run(operator(task_id="t", capture=text))


@pytest.mark.parametrize("text", ["s3://traces/manifest.json", "{'a': ", "[1]", 7, {"shards": 5}])
@pytest.mark.parametrize("operator", [SameshotShardsOperator, *FINISHED])
def test_what_is_no_capture_fails_for_good_and_names_the_option(operator: Any, text: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"^capture: .* is not what a capture task returns"):
        run(operator(task_id="t", capture=text))


@pytest.mark.parametrize("operator", FINISHED)
def test_a_capture_without_a_published_manifest_fails(results: str, operator: Any) -> None:
    lost = to_builtins(CaptureResult(capture_id="c-9", message="It is not over.", exit_code=75))
    with pytest.raises(AirflowFailException, match="c-9 has no manifest"):
        run(operator(task_id="t", capture=lost, results_uri=results))


# -- where results go


@pytest.mark.parametrize("operator", FINISHED)
def test_results_go_where_the_connection_says(tmp_path: Path, connected: str, operator: Any) -> None:
    path = str(capture(tmp_path, "c-1"))
    run(SameshotAnalyzeOperator(task_id="a", manifest_uri=path))
    run(operator(task_id="t", manifest_uri=path))
    assert (Path(connected) / "captures" / "local" / "run-1" / "0" / "c-1" / "report.html").is_file()


def test_the_task_itself_may_say_where_results_go_without_any_connection(tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    found = run(SameshotAnalyzeOperator(task_id="a", manifest_uri=str(capture(tmp_path, "c-1")), results_uri=own))
    assert found["report_uri"].removeprefix("file://").startswith(own)


@pytest.mark.parametrize("operator", FINISHED)
def test_where_nobody_says_where_results_go_the_error_says_how_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BARE", json.dumps({"conn_type": "sameshot"}))
    path = str(capture(tmp_path, "c-1"))
    with pytest.raises(AirflowFailException, match=r"results_uri in the extra of the connection 'bare'"):
        run(operator(task_id="t", manifest_uri=path, sameshot_conn_id="bare"))


# -- what a retry can mend


def test_damaged_bytes_fail_for_good_and_name_the_rank(tmp_path: Path, results: str) -> None:
    path = capture(tmp_path, "c-1")
    (path.parent / "rank1.json.gz").write_bytes(b"something else")
    with pytest.raises(AirflowFailException, match="node-0/main/1"):
        run(SameshotAnalyzeRankOperator(task_id="r", manifest_uri=str(path), shard="1/2", results_uri=results))
    run(SameshotAnalyzeRankOperator(task_id="r", manifest_uri=str(path), shard="0/2", results_uri=results))
    reduce = {"task_id": "j", "manifest_uri": str(path), "results_uri": results}
    with pytest.raises(AirflowFailException, match=r"1 of 2 ranks analysed, all are needed; not analysed: rank 1"):
        run(SameshotReduceOperator(**reduce))
    assert list(Path(results).rglob("report.html")), "that of the other"
    run(SameshotReduceOperator(**reduce, min_ranks=1))


def test_storage_that_takes_nothing_now_is_left_to_the_retries(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, where folders are to be made")
    path = str(capture(tmp_path, "c-1"))
    task = SameshotAnalyzeOperator(task_id="a", manifest_uri=path, results_uri=str(tmp_path / "results"))
    with pytest.raises(AirflowException) as failed:
        run(task)
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (errors.StorageError("slow"), False),
        (errors.SameshotError("a process that read traces was killed"), False),
        (errors.UnknownCapture("not there yet"), False),
        (errors.Denied("no"), True),
        (errors.UsageError("what?"), True),
        (errors.ManifestError("edited"), True),
        (errors.TraceError("TRUNCATED", "the end is missing"), True),
        (errors.CaptureFailed("no traces"), True),
    ],
)
def test_only_what_may_change_is_tried_again(error: errors.SameshotError, for_good: bool) -> None:
    with pytest.raises(AirflowException, match=str(error)) as failed, typed_failures():
        raise error
    assert isinstance(failed.value, AirflowFailException) is for_good


# -- as Airflow sees them


@pytest.mark.parametrize("operator", FINISHED)
def test_options_are_templates(operator: Any) -> None:
    own = {
        SameshotAnalyzeRankOperator: {"shard": "{{ params.x }}/9"},
        SameshotCompareOperator: {"threshold": "0.{{ params.x }}", "before": "/before/{{ params.x }}"},
    }.get(operator, {"min_ranks": "{{ params.x }}", "image": "trainer:{{ params.x }}"})
    given = {
        "manifest_uri": "/archive/{{ params.x }}/manifest.json",
        "manifest_sha256": "{{ params.x }}0",
        "results_uri": "/results/{{ params.x }}",
        "sameshot_conn_id": "conn_{{ params.x }}",
        **own,
    }
    with DAG("templates", schedule=None):
        task = operator(task_id="t", **given)
    task.render_template_fields({"params": {"x": 7}})
    assert {name: getattr(task, name) for name in given} == {
        name: text.replace("{{ params.x }}", "7") for name, text in given.items()
    }


@pytest.mark.parametrize("operator", [SameshotShardsOperator, *FINISHED])
def test_operators_survive_serialization(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    # What a scheduler, which needs no links, leaves behind for the whole process (models/serialized_dag.py).
    monkeypatch.setattr(DagSerialization, "_load_operator_extra_links", True)
    with DAG("serialized", schedule=None) as dag:
        operator(task_id="t", capture={"manifest_uri": "/m"})
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    task = DagSerialization.from_dict(stored).get_task("t")
    assert task.task_type == operator.__name__
    assert set(task.template_fields) == set(operator.template_fields)
    assert task.capture == {"manifest_uri": "/m"}
    assert set(task.operator_extra_link_dict) == {link.name for link in operator.operator_extra_links}
    assert task.inherits_from_skipmixin is (operator is SameshotCompareOperator)


def test_the_digest_in_the_result_is_that_of_the_manifest(tmp_path: Path, results: str) -> None:
    path = capture(tmp_path, "c-1")
    found = run(SameshotAnalyzeOperator(task_id="a", capture=result_of(path), results_uri=results))
    assert found["manifest_sha256"] == manifest_at(path).sha256
