"""The report names the rank that holds the others up, names nobody by chance, and refuses to guess."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gloo_job import GlooJob, archive

from sameshot.analysis import Summary, analyze, late
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.results import Cause, Confidence, PartTimes, RankSummary, Verdict
from sameshot.analysis.run import map_rank
from sameshot.analysis.waiting.gather import arrivals
from sameshot.manifest import decode


def analysed(folder: Path, job: GlooJob, **options: Any) -> Summary:
    return analyze(str(archive(folder / "capture", job.traces(), **options)), None)


def mapped(folder: Path, job: GlooJob) -> list[RankSummary]:
    manifest = decode(archive(folder / "capture", job.traces()).read_bytes())
    return [
        map_rank(folder / "capture" / target.artifact.uri, target) for target in manifest.targets if target.artifact
    ]


def evidence_of(ranks: list[RankSummary]) -> list[late.Evidence]:
    return late.gather(ranks, arrivals(ranks, match_streams(ranks)[0], len(ranks)))


def named(summary: Summary) -> list[int | None]:
    return [rank.rank for rank in summary.late.ranks]


@pytest.mark.parametrize("seed", range(12))
def test_a_rank_that_sleeps_in_every_step_is_named(tmp_path: Path, seed: int) -> None:
    culprit = seed % 4
    summary = analysed(tmp_path, GlooJob(seed=seed, late={culprit: 30.0}, skip={0: 1, 3: 2}))
    assert named(summary) == [culprit]
    found = summary.late.ranks[0]
    assert found.cause is Cause.UNTRACED
    assert found.confidence is Confidence.HIGH
    assert 22e6 < found.lateness_per_step < 36e6
    assert found.excess is not None
    assert 24e6 < found.excess.untraced < 36e6
    assert found.excess.communication < -20e6, "the culprit is the one that does not wait"
    assert summary.late.rests_on_ranks == 4
    assert summary.stragglers[0].label == f"rank {culprit}"
    assert summary.stragglers[0].cause == "untraced", "what its main thread tells"
    assert summary.stragglers[0].share > 0.5
    assert summary.findings[0].sentence.startswith(f"rank {culprit} (node-{culprit // 2}) is late: the 3 others wait ")


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("jitter", [1.0, 6.0, 12.0])
def test_nobody_is_named_where_everybody_is_late_now_and_then(tmp_path: Path, seed: int, jitter: float) -> None:
    summary = analysed(tmp_path, GlooJob(seed=seed, jitter=jitter, skip={1: 1}))
    assert named(summary) == []
    assert summary.late.verdict is not Verdict.LATE


def test_a_clean_job_gets_the_verdict_that_no_rank_is_late(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(seed=3))
    assert summary.late.verdict is Verdict.NONE
    assert summary.findings[0].sentence.startswith("no rank is late: nobody is steadily late over ")
    assert not re.search(r"rank \d", summary.findings[0].sentence), "the finding accuses nobody, not even in passing"
    assert summary.late.threshold is not None
    assert all(row.lateness_per_step is not None for row in summary.ranks)


@pytest.mark.parametrize(("how", "cause"), [("operators", Cause.OPERATORS), ("data", Cause.DATA_WAIT)])
def test_the_cause_is_what_the_late_rank_does_more_of_than_its_peers(tmp_path: Path, how: str, cause: Cause) -> None:
    summary = analysed(tmp_path, GlooJob(seed=1, late={1: 25.0}, how=how))
    assert [(rank.rank, rank.cause) for rank in summary.late.ranks] == [(1, cause)]


def test_two_late_ranks_of_four_are_both_named(tmp_path: Path) -> None:
    assert sorted(named(analysed(tmp_path, GlooJob(seed=5, late={0: 30.0, 3: 30.0})))) == [0, 3]  # type: ignore[type-var]


def test_of_two_ranks_the_late_one_is_named(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(ranks=2, seed=2, late={1: 30.0}))
    assert named(summary) == [1]
    assert "the other one waits" in summary.late.ranks[0].sentence


@pytest.mark.parametrize("buckets", [2, 5])
def test_several_collectives_per_step_count_as_one_piece_of_evidence(tmp_path: Path, buckets: int) -> None:
    summary = analysed(tmp_path, GlooJob(seed=4, late={2: 30.0}, buckets=buckets, skip={1: 1}))
    assert named(summary) == [2]
    assert summary.late.ranks[0].lateness_per_step < 40e6, "a delay that several buckets see is counted once"
    assert summary.late.rests_on_steps < summary.late.rests_on_collectives


def test_clocks_of_different_hosts_may_differ_by_seconds_if_the_rhythm_is_unmistakable(tmp_path: Path) -> None:
    job = GlooJob(seed=8, late={2: 30.0}, jitter=8.0, skew=0.2, clock={1: 0.3, 2: 1.7, 3: -0.4}, skip={0: 2, 2: 1})
    summary = analysed(tmp_path, job, hosts=False)
    assert named(summary) == [2]
    assert {alignment.method for alignment in summary.alignments} == {"intervals"}
    assert all(alignment.clock_offset is not None for alignment in summary.alignments)


def test_a_clock_far_off_does_not_change_who_is_late(tmp_path: Path) -> None:
    job = GlooJob(seed=8, steps=40, late={2: 30.0}, jitter=8.0, skew=0.2, clock={3: 400.0})
    summary = analysed(tmp_path, job, hosts=False)
    assert named(summary) == [2]
    offsets = {alignment.label: alignment.clock_offset or 0 for alignment in summary.alignments}
    assert max(abs(offset) for offset in offsets.values()) > 390e6


def test_a_job_like_clockwork_on_hosts_with_doubtful_clocks_is_refused(tmp_path: Path) -> None:
    """Under a shift by one step everything fits as well: a guess might accuse the wrong rank."""
    job = GlooJob(ranks=2, seed=1, late={1: 30.0}, jitter=0.0, skew=0.0, clock={1: 21.0}, skip={0: 1})
    summary = analysed(tmp_path, job, hosts=False)
    assert summary.late.verdict is Verdict.UNKNOWN
    assert [alignment.method for alignment in summary.alignments] == ["none"]
    assert summary.cross_rank


def test_a_match_that_rests_on_the_clocks_of_two_hosts_says_so_and_is_never_of_high_confidence(tmp_path: Path) -> None:
    job = GlooJob(seed=1, late={2: 30.0}, jitter=0.0, skew=0.0, clock={1: 2.0, 3: -1.0}, skip={1: 1})
    summary = analysed(tmp_path, job, hosts=False)
    assert named(summary) == [2]
    assert summary.late.ranks[0].confidence is Confidence.MEDIUM
    assert "clocks agree" in summary.late.reason
    same = analysed(tmp_path / "same", GlooJob(seed=1, late={2: 30.0}, jitter=0.0, skew=0.0, skip={1: 1}))
    assert same.late.ranks[0].confidence is Confidence.HIGH


def test_a_job_like_clockwork_on_one_host_is_matched_by_its_clock_and_the_report_says_so(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(seed=1, late={2: 30.0}, jitter=0.0, skew=0.0, skip={1: 1, 2: 2}))
    assert named(summary) == [2]
    assert {alignment.method for alignment in summary.alignments} == {"wall-clock"}
    assert {alignment.lag for alignment in summary.alignments} <= {0, -1, -2, 1, 2}


def test_too_few_steps_make_no_verdict(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(seed=1, steps=4, late={2: 30.0}))
    assert summary.late.verdict is Verdict.UNKNOWN
    assert "a verdict takes 5" in summary.late.reason


def test_without_step_marks_the_confidence_is_lower(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(seed=1, late={2: 30.0}, optimizer=False))
    assert named(summary) == [2]
    assert summary.late.ranks[0].confidence is Confidence.MEDIUM, "its steps are a guess, or none"


def test_one_rank_alone_is_never_late(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(ranks=1, seed=1, late={0: 30.0}))
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.late.reason == "There are no two ranks to compare."


def test_a_rank_that_comes_last_without_more_work_of_its_own_is_not_named(tmp_path: Path) -> None:
    ranks = mapped(tmp_path, GlooJob(seed=1, late={2: 30.0}))
    even = PartTimes(operators=10_000_000, communication=5_000_000)
    ranks = [
        msgspec.structs.replace(
            rank, steps=msgspec.structs.replace(rank.steps, parts=tuple(even for _ in rank.steps.parts))
        )
        for rank in ranks
    ]
    found = late.judge(ranks, evidence_of(ranks), cross_rank=True)
    assert found.verdict is Verdict.UNKNOWN
    assert "nothing on the main thread explains it" in found.reason


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_rank_that_is_slower_at_everything_as_if_starved_of_cpu_is_not_named(tmp_path: Path, optimizer: bool) -> None:
    ranks = mapped(tmp_path, GlooJob(seed=1, late={2: 30.0}, optimizer=optimizer))

    def spread(parts: PartTimes) -> PartTimes:
        work = (parts.operators + parts.data_wait + parts.untraced) // 3
        return PartTimes(operators=work, data_wait=work, untraced=work, communication=parts.communication)

    ranks = [
        msgspec.structs.replace(
            rank,
            parts=spread(rank.parts),
            steps=msgspec.structs.replace(rank.steps, parts=tuple(map(spread, rank.steps.parts))),
        )
        for rank in ranks
    ]
    found = late.judge(ranks, evidence_of(ranks), cross_rank=True)
    assert found.verdict is Verdict.UNKNOWN
    assert found.ranks == ()
    assert found.reason.startswith("1 rank came last steadily")
    assert "overloaded host" in found.reason


def test_one_disastrous_step_is_not_a_late_rank(tmp_path: Path) -> None:
    """A pause of half a second, once: its mean is large, its median is not."""
    ranks = mapped(tmp_path, GlooJob(seed=6))
    (evidence,) = evidence_of(ranks)
    lateness = evidence.lateness.copy()
    lateness[1, 3] += 500_000_000
    found = late.judge(ranks, [msgspec.structs.replace(evidence, lateness=lateness)], cross_rank=True)
    assert np.mean(lateness[1]) > 10e6
    assert found.verdict is Verdict.NONE


def test_the_more_the_others_vary_the_more_it_takes_to_be_named(tmp_path: Path) -> None:
    ranks = mapped(tmp_path, GlooJob(seed=6, late={1: 12.0}))
    (evidence,) = evidence_of(ranks)
    calm = late.judge(ranks, [evidence], cross_rank=True)
    assert [rank.rank for rank in calm.ranks] == [1]
    restless = evidence.lateness.copy()
    restless[[0, 2, 3], ::2] += 10_000_000
    restless[[0, 2, 3], 1::2] -= 10_000_000
    found = late.judge(ranks, [msgspec.structs.replace(evidence, lateness=restless)], cross_rank=True)
    assert found.threshold is not None
    assert calm.threshold is not None
    assert found.threshold > 2 * calm.threshold
    assert found.verdict is Verdict.NONE


def test_steadily_a_little_later_is_not_late(tmp_path: Path) -> None:
    summary = analysed(tmp_path, GlooJob(seed=1, late={1: 5.5}, jitter=0.3))
    assert summary.late.verdict is Verdict.NONE
    row = summary.ranks[1]
    assert row.lateness_per_step is not None
    assert row.lateness_per_step > 4e6, "it is shown, but it makes no verdict"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_matched_really_happened_at_the_same_time(tmp_path: Path, seed: int) -> None:
    ranks = mapped(tmp_path, GlooJob(seed=seed, jitter=6.0, skip={0: 3, 2: 1, 3: 5}, buckets=1 + seed % 2))
    (matched,), alignments = match_streams(ranks)
    begins = np.asarray([rank.window_start_ns for rank in ranks])[list(matched.ranks), None]
    starts = matched.start + begins
    ends = starts + matched.dur
    assert (starts.max(axis=0) < ends.min(axis=0))[matched.complete].all()
    assert matched.complete.sum() == 20 * (1 + seed % 2), "everything that all four recorded"
    assert {alignment.lag for alignment in alignments} != {0}


def test_windows_without_common_time_are_not_compared(tmp_path: Path) -> None:
    job = GlooJob(seed=1, late={2: 30.0}, shift={3: 60_000.0})
    summary = analysed(tmp_path, job)
    assert summary.common_window is not None
    assert summary.common_window < 0
    assert not summary.cross_rank
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.alignments == ()
    assert "share no time" in summary.warnings[0]
    assert summary.step_ranks == 4, "what each rank says about itself still counts"


def test_less_than_half_of_the_window_in_common_is_a_warning(tmp_path: Path) -> None:
    job = GlooJob(seed=1, steps=60, late={2: 30.0}, skip={0: 40})
    summary = analysed(tmp_path, job, window_ms=3000)
    assert any("share only" in warning for warning in summary.warnings)
    assert summary.cross_rank
    even = analysed(tmp_path / "even", GlooJob(seed=1, late={2: 30.0}), window_ms=1000)
    assert not any("share only" in warning for warning in even.warnings)
