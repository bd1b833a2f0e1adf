"""Analysis tasks under flytekit: mapped, cached by the manifest's digest, and repeated only where that may help."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gloo_job import GlooJob, archive, failed

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flytekit import map_task, workflow
from flytekit.core.array_node_map_task import ArrayNodeMapTask
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit_alone import alone, decks

import sameshot
from sameshot.errors import PartialCapture, UsageError, VerificationFailed
from sameshot_flyte import work
from sameshot_flyte.flyte1.analysis import ONE_IS_ENOUGH, Reported, analyze, analyze_rank, compare, reduce, tasks
from sameshot_flyte.forms import MEANING

NOWHERE = "/nowhere/manifest.json"


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    with alone(tmp_path / "flyte") as folder:
        yield folder


class Captured:
    """A capture of four ranks, rank 2 late, and a place for its results."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.manifest = archive(folder / "archive", GlooJob(seed=seed, late={2: 30.0}).traces())
        self.digest = json.loads(self.manifest.read_bytes())["sha256"]
        self.results = folder / "results"

    @property
    def inputs(self) -> dict[str, Any]:
        return {
            "manifest_uri": str(self.manifest),
            "manifest_sha256": self.digest,
            "results": str(self.results),
        }

    def damage(self, rank: int) -> None:
        trace = self.manifest.parent / f"rank{rank}.json.gz"
        trace.write_bytes(trace.read_bytes()[:-4] + b"\0\0\0\0")


@pytest.fixture
def captured(tmp_path: Path) -> Captured:
    return Captured(tmp_path / "a")


@workflow
def mapped(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    shards: list[str],
    min_ranks: int = 0,
    fetch_pattern: str = "",
) -> Reported:
    capture: dict[str, Any] = {
        "manifest_uri": manifest_uri,
        "manifest_sha256": manifest_sha256,
        "results": results,
    }
    each = map_task(partial(analyze_rank, **capture, fetch_pattern=fetch_pattern), min_success_ratio=ONE_IS_ENOUGH)
    made = reduce(**capture, analysed=each(shard=shards), min_ranks=min_ranks, fetch_pattern=fetch_pattern)
    return Reported(made.analysis, made.report, made.ranks)


SHARDS = [f"{i}/4" for i in range(4)]


def column(made: Reported, name: str) -> list[Any]:
    table: pa.Table = made.ranks.open(pa.Table).all()
    return list(table[name].to_pylist())


# -- what the tasks give


def test_ranks_are_mapped_and_reduced_to_a_file_a_table_and_a_deck(captured: Captured, here: Path) -> None:
    made = mapped(**captured.inputs, shards=SHARDS)
    assert (made.analysis.analysed, made.analysis.expected, made.analysis.late) == (4, 4, "2")
    page = next(captured.results.rglob("report.html")).read_text()
    assert Path(str(made.report)).read_text() == page
    assert decks(here) == [page]
    assert column(made, "rank") == [0, 1, 2, 3]
    assert [each > 25_000_000 for each in column(made, "lateness_per_step_ns")] == [False, False, True, False]


def test_one_task_gives_the_same(captured: Captured, here: Path) -> None:
    made = analyze(**captured.inputs)
    assert decks(here) == [next(captured.results.rglob("report.html")).read_text()]
    again = mapped(**{**captured.inputs, "results": str(here / "elsewhere")}, shards=SHARDS)
    for name in work.ROWS:
        assert column(made, name) == column(again, name)


def test_a_damaged_rank_loses_no_other_and_reduce_names_it(captured: Captured) -> None:
    captured.damage(1)
    made = mapped(**captured.inputs, shards=SHARDS, min_ranks=3)
    assert (made.analysis.analysed, made.analysis.missing) == (3, "1")
    assert column(made, "missing") == [None, "NOT_ANALYSED", None, None]


def test_too_few_ranks_are_a_failure_for_good_after_the_report_was_shown(captured: Captured, here: Path) -> None:
    captured.damage(1)
    with pytest.raises(PartialCapture, match=r"Capture c-1 of job local/demo.*rank 1.*report\.html.*sha256"):
        mapped(**captured.inputs, shards=SHARDS)
    (deck,) = decks(here)
    assert "3 of 4" in deck


def test_without_a_single_rank_the_map_itself_fails_and_says_of_which(captured: Captured, here: Path) -> None:
    for rank in range(4):
        captured.damage(rank)
    with pytest.raises(VerificationFailed, match="rank 3"):
        mapped(**captured.inputs, shards=SHARDS)
    assert decks(here) == []


def test_a_capture_that_was_skipped_ends_well(here: Path) -> None:
    made = mapped(manifest_uri="", manifest_sha256="", results=str(here / "results"), shards=[])
    assert made.analysis.message == work.NOTHING_CAPTURED
    assert column(made, "rank") == []
    (deck,) = decks(here)
    assert work.NOTHING_CAPTURED in deck
    assert not (here / "results").exists()


def test_a_comparison_has_a_deck_of_its_own(tmp_path: Path, here: Path) -> None:
    before, after = Captured(tmp_path / "a"), Captured(tmp_path / "b", seed=2)
    analyze(**before.inputs)
    made = compare(**after.inputs, threshold=0.1, before=str(before.manifest))
    assert made.comparison.verdict == "same"
    assert decks(here)[-1] == next(after.results.rglob("comparison.html")).read_text()


# -- the cache


def test_the_same_digest_is_not_analysed_again_wherever_the_manifest_is(captured: Captured, here: Path) -> None:
    first = analyze(**captured.inputs)
    again = analyze(**{**captured.inputs, "manifest_uri": NOWHERE})
    assert again.analysis == first.analysis
    assert len(decks(here)) == 1

    analyze_rank(**captured.inputs, shard="0/4")
    assert analyze_rank(**{**captured.inputs, "manifest_uri": NOWHERE}, shard="0/4") == "0/4"


def test_another_digest_is_another_analysis(tmp_path: Path, here: Path) -> None:
    one, other = Captured(tmp_path / "a"), Captured(tmp_path / "b", seed=2)
    other.results = one.results
    first, second = analyze(**one.inputs), analyze(**other.inputs)
    assert len(decks(here)) == 2
    assert (first.analysis.manifest_sha256, second.analysis.manifest_sha256) == (one.digest, other.digest)
    analyze_rank(**one.inputs, shard="0/4")
    with pytest.raises(VerificationFailed):  # it was looked for, and is not what it should be
        analyze_rank(**{**one.inputs, "manifest_sha256": other.digest}, shard="0/4")


@pytest.mark.parametrize(
    "more",
    [
        {"results": "elsewhere"}, {"min_ranks": 3}, {"history": False}, {"commit": "c0ffee"}, {"trained_image": "x:1"},
        {"fetch_pattern": "next_batch"},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_what_changes_the_report_is_another_analysis(captured: Captured, here: Path, more: dict[str, Any]) -> None:
    analyze(**captured.inputs)
    if "results" in more:
        more = {"results": str(here / more["results"])}
    analyze(**{**captured.inputs, **more})
    assert len(decks(here)) == 2


def test_what_a_skip_left_in_the_cache_is_true_of_a_digest_that_was_forgotten_too(captured: Captured) -> None:
    nothing = {**captured.inputs, "manifest_sha256": ""}
    analyze(**{**nothing, "manifest_uri": ""})
    assert "no digest of a manifest" in analyze(**nothing).analysis.message


def test_another_fetch_pattern_makes_another_report_and_the_first_again_its_own(captured: Captured, here: Path) -> None:
    def waited(fetch_pattern: str, min_ranks: int = 0) -> list[Any]:
        made = mapped(**captured.inputs, shards=SHARDS, fetch_pattern=fetch_pattern, min_ranks=min_ranks)
        return column(made, "data_wait_ns")

    first = waited("")
    other = waited("gloo:all_reduce")
    assert len(decks(here)) == 2, "the report of another pattern is another one"
    assert other != first
    # The ranks are known, and what was kept of them is of the other pattern; this report was not made yet.
    assert waited("", min_ranks=3) == first
    assert waited("gloo:all_reduce", min_ranks=3) == other


def test_ranks_that_are_known_and_whose_results_were_deleted_are_analysed_for_a_new_report(
    captured: Captured, here: Path
) -> None:
    mapped(**captured.inputs, shards=SHARDS)
    shutil.rmtree(captured.results)
    made = mapped(**captured.inputs, shards=SHARDS, min_ranks=3)
    assert (made.analysis.analysed, made.analysis.missing) == (4, "")
    assert len(decks(here)) == 2
    assert next(captured.results.rglob("report.html")).read_text() == decks(here)[-1]


def test_a_digest_without_its_manifest_leaves_nothing_in_the_cache(captured: Captured) -> None:
    with pytest.raises(UsageError, match="digest"):
        analyze(**{**captured.inputs, "manifest_uri": ""})
    assert analyze(**captured.inputs).analysis.analysed == 4


def test_how_many_processes_read_does_not_matter(captured: Captured, here: Path) -> None:
    analyze(**captured.inputs, workers=1)
    analyze(**captured.inputs, workers=2)
    assert len(decks(here)) == 1


def test_a_rank_that_was_analysed_since_makes_another_report(captured: Captured, here: Path) -> None:
    for shard in SHARDS[:3]:
        analyze_rank(**captured.inputs, shard=shard)
    partly = reduce(**captured.inputs, analysed=[*SHARDS[:3], None], min_ranks=3)
    analyze_rank(**captured.inputs, shard=SHARDS[3])
    wholly = reduce(**captured.inputs, analysed=SHARDS, min_ranks=3)
    assert (partly.analysis.analysed, wholly.analysis.analysed) == (3, 4)
    assert len(decks(here)) == 2


def test_what_failed_is_not_remembered(captured: Captured) -> None:
    trace = captured.manifest.parent / "rank1.json.gz"
    whole = trace.read_bytes()
    captured.damage(1)
    with pytest.raises(VerificationFailed):
        analyze_rank(**captured.inputs, shard="1/4")
    trace.write_bytes(whole)
    assert analyze_rank(**captured.inputs, shard="1/4") == "1/4"


def test_a_local_map_is_remembered_with_the_ranks_it_lost_until_the_cache_is_overwritten(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = captured.manifest.parent / "rank1.json.gz"
    whole = trace.read_bytes()
    captured.damage(1)
    mapped(**captured.inputs, shards=SHARDS, min_ranks=3)
    trace.write_bytes(whole)
    assert mapped(**captured.inputs, shards=SHARDS, min_ranks=3).analysis.analysed == 3
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_OVERWRITE", "true")
    assert mapped(**captured.inputs, shards=SHARDS, min_ranks=3).analysis.analysed == 4


def test_a_comparison_is_made_anew_as_the_history_has_gone_on(captured: Captured, here: Path) -> None:
    for _ in range(2):
        compare(**captured.inputs, threshold=0.1)
    assert len(decks(here)) == 2
    assert not compare.metadata.cache


def test_results_that_were_deleted_come_back_when_the_cache_is_overwritten(
    captured: Captured, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = analyze(**captured.inputs)
    shutil.rmtree(captured.results)
    assert analyze(**captured.inputs).analysis.report_uri == first.analysis.report_uri
    assert not captured.results.exists()
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_OVERWRITE", "true")
    analyze(**captured.inputs)
    assert Path(first.analysis.report_uri.removeprefix("file://")).is_file()
    assert len(decks(here)) == 2


def test_another_version_of_sameshot_analyses_anew() -> None:
    for each in (analyze_rank, reduce, analyze):
        assert each.metadata.cache
        assert sameshot.__version__ in each.metadata.cache_version


# -- another attempt


def test_trouble_with_a_store_is_recoverable(captured: Captured) -> None:
    captured.results.write_text("a file, where a folder should be")
    for again in (partial(analyze_rank, shard="0/4"), analyze):
        with pytest.raises(FlyteRecoverableException, match="results"):
            again(**captured.inputs)
    captured.results.unlink()
    analyze_rank(**captured.inputs, shard="0/1")
    (captured.results / "history").write_text("a file, where a folder should be")
    with pytest.raises(FlyteRecoverableException, match="history"):
        reduce(**captured.inputs, analysed=["0/1"])
    with pytest.raises(FlyteRecoverableException, match="nowhere"):
        compare(**{**captured.inputs, "manifest_uri": NOWHERE}, threshold=0.1)


def test_another_manifest_than_was_captured_is_refused_for_good(captured: Captured) -> None:
    other = {**captured.inputs, "manifest_sha256": "0" * 64}
    for again in (
        partial(analyze_rank, shard="0/4"), analyze, partial(reduce, analysed=SHARDS), partial(compare, threshold=0.1),
    ):  # fmt: skip
        with pytest.raises(VerificationFailed, match=captured.digest):
            again(**other)


def test_what_was_asked_wrongly_is_refused_for_good(captured: Captured) -> None:
    with pytest.raises(UsageError, match="i/n"):
        analyze_rank(**captured.inputs, shard="everything")
    with pytest.raises(UsageError, match="digest"):
        analyze(**{**captured.inputs, "manifest_sha256": ""})


# -- what is registered


def test_forms_say_what_each_input_means() -> None:
    for each in (analyze_rank, reduce, analyze, compare, *tasks(__name__)):
        for name, variable in each.interface.inputs.items():
            assert variable.description == MEANING[name], f"{name} of {each.name}"


def test_pods_have_limits_that_a_quota_may_demand() -> None:
    for each in (analyze_rank, reduce, analyze, compare):
        assert (each.resources.limits.cpu, each.resources.limits.mem) == ("1", "1Gi")
        assert each.resources.requests == each.resources.limits


# -- tasks of one's own


def test_tasks_of_ones_own_keep_what_makes_ours_right() -> None:
    theirs = tasks(__name__, retries=1, environment={"A": "b"})
    for mine, ours in zip(theirs, (analyze_rank, reduce, analyze, compare), strict=True):
        assert mine.python_interface.inputs == ours.python_interface.inputs
        assert mine.python_interface.outputs == ours.python_interface.outputs
        for kept in ("cache", "cache_version", "cache_ignore_input_vars"):
            assert getattr(mine.metadata, kept) == getattr(ours.metadata, kept)
        assert (mine.metadata.retries, mine.environment) == (1, {"A": "b"})
        name = ours.task_function.__name__
        assert mine.name.endswith(f"{__name__}.{name}")
        assert mine.task_resolver.loader_args(None, mine) == ["task-module", __name__, "task-name", name]
        assert type(mine) is type(ours)


def test_a_map_over_a_task_of_ones_own_is_another_task_than_over_ours() -> None:
    mine = tasks(__name__).analyze_rank
    bound = {"manifest_uri": "u", "manifest_sha256": "d", "results": "r", "fetch_pattern": ""}
    names = {ArrayNodeMapTask(partial(each, **bound), concurrency=8).name for each in (mine, analyze_rank)}
    assert len(names) == 2


def test_a_capture_with_a_rank_that_failed_is_mapped_over_the_others(tmp_path: Path) -> None:
    traces = GlooJob(seed=1).traces()
    del traces[3]
    manifest = archive(tmp_path / "partial", {**traces}, failures=(failed(3),))
    digest = json.loads(manifest.read_bytes())["sha256"]
    made = mapped(
        manifest_uri=str(manifest), manifest_sha256=digest, results=str(tmp_path / "r"),
        shards=["0/3", "1/3", "2/3"], min_ranks=3,
    )  # fmt: skip
    assert column(made, "missing") == [None, None, None, "WORKER_EXITED"]
