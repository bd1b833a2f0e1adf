"""What analysis tasks do, whichever SDK runs them: reports and tables from real captures, words where there is nothing,
and which of our errors are worth another attempt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gloo_job import GlooJob, archive, failed
from import_run import import_run
from make_job import GpuJob

from sameshot import errors
from sameshot_flyte import work

MS = 1_000_000


def gloo(folder: Path, **more: Any) -> tuple[str, str]:
    """A capture of four ranks, rank 2 late by 30 ms in each step: where its manifest is, and its digest."""
    return told(archive(folder / "archive", GlooJob(seed=1, late={2: 30.0}).traces(), **more))


def told(manifest: Path) -> tuple[str, str]:
    return str(manifest), json.loads(manifest.read_bytes())["sha256"]


def damage(manifest: str, rank: int) -> None:
    """The trace's bytes are not what the manifest states any more."""
    trace = Path(manifest).parent / f"rank{rank}.json.gz"
    trace.write_bytes(trace.read_bytes()[:-4] + b"\0\0\0\0")


# -- what is handed out


def test_a_report_comes_with_a_row_for_each_rank(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    made = work.analyze(uri, digest, str(tmp_path / "results"), out=tmp_path / "out")
    kept = next((tmp_path / "results").rglob("report.html"))
    assert made.report.read_bytes() == kept.read_bytes() == made.page.encode()
    assert (made.accept().analysed, made.analysis.expected, made.analysis.late) == (4, 4, "2")

    assert [(row["rank"], row["label"], row["node"], row["missing"]) for row in made.rows] == [
        (0, "rank 0", "node-0", None), (1, "rank 1", "node-0", None),
        (2, "rank 2", "node-1", None), (3, "rank 3", "node-1", None),
    ]  # fmt: skip
    late = {row["rank"]: row["lateness_per_step_ns"] for row in made.rows}
    assert 25 * MS < late.pop(2) < 36 * MS
    assert all(each < 5 * MS for each in late.values())
    for row in made.rows:
        parts = ("operators", "communication", "data_wait", "runtime", "backward_thread", "untraced")
        assert sum(row[f"{part}_ns"] for part in parts) == row["window_ns"]
        assert row["device_idle_ns"] is None  # it has no device, which is not a device that never idles


def test_the_times_of_a_device_add_up_to_the_window(tmp_path: Path) -> None:
    manifest = import_run(tmp_path, GpuJob(hosts=1, gpus=2, steps=6).run(), job="demo") / "manifest.json"
    made = work.analyze(*told(manifest), str(tmp_path / "results"), out=tmp_path / "out")
    assert len(made.rows) == 2
    for row in made.rows:
        parts = [row[f"device_{part}_ns"] for part in ("compute", "communication", "memory", "idle")]
        assert sum(parts) == row["window_ns"]
        assert parts[0] > 0


def test_the_table_has_the_same_columns_whatever_is_in_it(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    made = work.analyze(uri, digest, str(tmp_path / "results"), out=tmp_path / "out")
    full, empty = work.table(made.rows), work.table([])
    assert full.schema == empty.schema
    assert full.schema.names == list(work.ROWS) == list(made.rows[0])
    assert (full.num_rows, empty.num_rows) == (4, 0)
    assert full["device_idle_ns"].null_count == 4


def test_shards_and_reduce_give_what_one_task_gives(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    apart, together = str(tmp_path / "apart"), str(tmp_path / "together")
    assert [work.analyze_rank(uri, digest, apart, f"{i}/3") for i in range(3)] == ["0/3", "1/3", "2/3"]
    reduced = work.reduce(uri, digest, apart, out=tmp_path / "a")
    analysed = work.analyze(uri, digest, together, out=tmp_path / "b")
    assert reduced.rows == analysed.rows
    assert reduced.analysis.findings == analysed.analysis.findings


# -- ranks that are missing


def test_a_damaged_trace_takes_no_other_rank_along_and_is_named(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    damage(uri, 1)
    results = str(tmp_path / "results")
    for shard in ("0/4", "2/4", "3/4"):
        work.analyze_rank(uri, digest, results, shard)
    with pytest.raises(errors.VerificationFailed, match="rank 1") as caught:
        work.analyze_rank(uri, digest, results, "1/4")
    assert not work.recoverable(caught.value)

    came_back = ["0/4", None, "2/4", "3/4"]
    made = work.reduce(uri, digest, results, out=tmp_path / "out", analysed=came_back)
    assert (made.analysis.analysed, made.analysis.missing) == (3, "1")
    assert {row["rank"]: row["missing"] for row in made.rows} == {0: None, 1: "NOT_ANALYSED", 2: None, 3: None}
    assert made.rows[1]["window_ns"] is None
    assert "rank 1" in made.page  # the report is there, and says so
    with pytest.raises(errors.PartialCapture, match=r"3 of 4 ranks analysed, all are needed.*rank 1") as few:
        made.accept()
    assert not work.recoverable(few.value)
    said = str(few.value)
    assert said.startswith("Capture c-1 of job local/demo: ")
    assert made.analysis.report_uri in said
    assert "rank 1: Its trace is in the manifest, but it could not be analysed (The trace of rank 1" in said
    assert re.search("Once that is mended, run analyze_rank with shard 1/4 again", said)


def test_of_a_rank_that_was_only_not_analysed_it_is_not_said_that_its_trace_needs_mending(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    for shard in ("0/4", "2/4", "3/4"):
        work.analyze_rank(uri, digest, str(tmp_path / "results"), shard)
    made = work.reduce(uri, digest, str(tmp_path / "results"), out=tmp_path / "out")
    with pytest.raises(
        errors.PartialCapture, match=r"it was not analysed. Run analyze_rank with shard 1/4 again"
    ) as few:
        made.accept()
    assert "mended" not in str(few.value)


def test_ranks_that_came_back_and_are_gone_are_analysed_by_reduce(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    results = str(tmp_path / "results")
    made = work.reduce(uri, digest, results, out=tmp_path / "a", analysed=["0/2", None, "1/2"])
    assert made.accept().analysed == 4
    other = work.reduce(
        uri, digest, results, out=tmp_path / "b", analysed=["0/2", "1/2"], fetch_pattern="gloo:all_reduce"
    )
    assert other.rows != made.rows, "it is of the pattern that was asked for"
    with pytest.raises(errors.VerificationFailed, match=r"fetch pattern 'gloo:all_reduce', not with .*DataLoader"):
        work.reduce(uri, digest, results, out=tmp_path / "c")


@pytest.mark.parametrize(("min_ranks", "enough"), [(0, False), (3, True), (4, False)])
def test_whoever_accepts_fewer_ranks_gets_the_report_of_those(tmp_path: Path, min_ranks: int, enough: bool) -> None:
    traces = GlooJob(seed=1).traces()
    del traces[3]
    uri, digest = told(archive(tmp_path / "archive", {**traces}, failures=(failed(3),)))
    made = work.analyze(uri, digest, str(tmp_path / "results"), out=tmp_path / "out", min_ranks=min_ranks)
    assert made.rows[3]["missing"] == "WORKER_EXITED"
    if enough:
        assert made.accept().missing == "3"
    else:
        with pytest.raises(errors.PartialCapture):
            made.accept()


# -- nothing to do


def test_nothing_was_captured_is_said_in_words_and_leaves_no_results(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert work.analyze_rank("", "", str(results), "0/1") == "0/1"
    for made in (
        work.reduce("", "", str(results), out=tmp_path / "a"),
        work.analyze("", "", str(results), out=tmp_path / "b"),
    ):
        assert made.accept().message == work.NOTHING_CAPTURED
        assert work.NOTHING_CAPTURED in made.page
        assert (made.rows, made.analysis.report_uri) == ([], "")
    compared = work.compare("", "", str(results), out=tmp_path / "c", threshold=0.1)
    assert (compared.comparison.verdict, compared.comparison.message) == ("", work.NOTHING_CAPTURED)
    assert not results.exists()


def test_what_is_written_into_a_page_is_text(tmp_path: Path) -> None:
    assert "<b>" not in work._note("a <b> & c", tmp_path / "x.html").read_text()


def test_without_a_threshold_nothing_is_compared(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    made = work.compare(uri, digest, str(tmp_path / "results"), out=tmp_path / "out", threshold=-1)
    assert made.comparison.message == work.NO_COMPARISON
    assert not (tmp_path / "results").exists()


def test_the_first_capture_of_a_series_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    made = work.compare(uri, digest, str(tmp_path / "results"), out=tmp_path / "out", threshold=0.1)
    assert made.comparison.verdict == "first"
    assert made.comparison.message in made.page


# -- what is refused


@pytest.mark.parametrize("step", ["analyze_rank", "reduce", "analyze", "compare"])
def test_a_manifest_without_its_digest_is_refused_since_it_would_be_cached_for_any_other(
    tmp_path: Path, step: str
) -> None:
    uri, _ = gloo(tmp_path)
    more: dict[str, Any] = {"shard": "0/4"} if step == "analyze_rank" else {"out": tmp_path / "out"}
    more |= {"threshold": 0.1} if step == "compare" else {}
    with pytest.raises(errors.UsageError, match="digest"):
        getattr(work, step)(uri, "", str(tmp_path / "results"), **more)


@pytest.mark.parametrize("step", ["analyze_rank", "reduce", "analyze", "compare"])
def test_a_digest_without_its_manifest_is_refused_since_it_would_be_cached_as_nothing_to_do(
    tmp_path: Path, step: str
) -> None:
    _, digest = gloo(tmp_path)
    more: dict[str, Any] = {"shard": "0/4"} if step == "analyze_rank" else {"out": tmp_path / "out"}
    more |= {"threshold": 0.1} if step == "compare" else {}
    with pytest.raises(errors.UsageError, match=rf"Where the manifest with the digest {digest} is, is not given"):
        getattr(work, step)("", digest, str(tmp_path / "results"), **more)


def test_a_negative_number_is_no_number_of_processes_or_ranks(tmp_path: Path) -> None:
    uri, digest = gloo(tmp_path)
    for wrong in ({"workers": -1}, {"min_ranks": -1}):
        with pytest.raises(errors.UsageError, match=f"{next(iter(wrong))} is -1"):
            work.analyze(uri, digest, str(tmp_path / "results"), out=tmp_path / "out", **wrong)
    assert not (tmp_path / "results").exists()


WORTH_IT = {
    errors.SameshotError: True,
    errors.UsageError: False,
    errors.PartialCapture: False,
    errors.CaptureFailed: False,
    errors.ManifestError: False,
    errors.VerificationFailed: False,
    errors.ColumnsError: False,
    errors.UnknownCapture: True,  # a manifest that is not there yet
    errors.CaptureCancelled: False,
    errors.Unreachable: True,
    errors.StorageError: True,
    errors.NotFound: True,
    errors.Denied: False,
}


@pytest.mark.parametrize("kind", WORTH_IT)
def test_only_what_another_attempt_may_mend_is_repeated(kind: type[errors.SameshotError]) -> None:
    assert work.recoverable(kind("why")) is WORTH_IT[kind]


def test_a_trace_that_is_none_is_none_again() -> None:
    assert not work.recoverable(errors.TraceError("NOT_JSON", "it ends"))
