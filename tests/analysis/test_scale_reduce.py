"""Many ranks are compared as few are: the same answer, and a summary that does not explode."""

from __future__ import annotations

import msgspec
import pytest
from make_job import GpuJob, Slow
from planted import detailed, manifest_for

from sameshot.analysis import Summary, reduce_ranks
from sameshot.analysis.clocks import to_reference
from sameshot.analysis.results import Cause, Confidence, Timeline

MS = 1_000_000
PLANTED = 170


@pytest.fixture(scope="module")
def job() -> GpuJob:
    return GpuJob(
        hosts=64, gpus=8, tp=8, steps=12, layers=2, buckets=2, clock_s=3.0, slow=(Slow(PLANTED, "compute", 8.0),)
    )


@pytest.fixture(scope="module")
def summary(job: GpuJob) -> Summary:
    run = job.run()
    timeline = Timeline(480, (("operators", 240), ("communication", 240)))
    ranks = [msgspec.structs.replace(rank, timeline=timeline) for rank in detailed(run)]
    return reduce_ranks(manifest_for(run, ranks), ranks)


def test_the_planted_rank_of_512_is_the_only_one_named(summary: Summary) -> None:
    (late,) = summary.late.ranks
    assert (late.rank, late.cause, late.node) == (PLANTED, Cause.COMPUTE, "node-21")
    assert late.confidence is Confidence.HIGH
    assert late.victims is not None
    assert late.victims > 500, "through its data parallel groups it holds up nearly everybody"
    assert summary.late.rests_on_ranks == 512
    assert summary.stragglers[0].label == f"rank {PLANTED}"
    assert summary.stragglers[0].share > 0.5
    assert summary.waiting is not None
    assert summary.waiting_exposed is not None
    assert summary.waiting_exposed > 511 * 12 * 5 * MS, "eight ms per step on all others, less what they were late"


def test_clocks_of_64_hosts_seconds_apart_are_aligned(summary: Summary, job: GpuJob) -> None:
    assert summary.clocks is not None
    assert len(summary.clocks.hosts) == 64
    assert all(clock.offset is not None for clock in summary.clocks.hosts)
    assert max(abs(clock.offset or 0) for clock in summary.clocks.hosts) > 1_000 * MS
    assert all(to_reference(clock, 0) is not None for clock in summary.clocks.hosts)
    assert summary.cross_rank
    assert summary.common_window is not None
    assert summary.common_window > 0
    assert max(row.starts_after for row in summary.ranks) < 100 * MS, "by aligned clocks they began together"


def test_the_summary_stays_small_and_says_what_it_left_out(summary: Summary) -> None:
    assert len(summary.ranks) == 512, "every rank has its row"
    assert len(msgspec.json.encode(summary)) < 4_000_000
    assert len(summary.findings) <= 8
    assert all(len(finding.sentence) < 600 for finding in summary.findings)
    assert any(
        note.startswith("Of 512 ranks, tables are kept here only for those that stand out") for note in summary.notes
    )
    assert all(row.timeline is not None for row in summary.ranks), "the picture of all ranks needs them"


def test_of_more_than_a_thousand_ranks_timelines_are_kept_for_those_that_stand_out() -> None:
    run = GpuJob(hosts=160, gpus=8, tp=8, steps=6, layers=1, buckets=1, slow=(Slow(700, "compute", 8.0),)).run()
    timeline = Timeline(480, (("operators", 480),))
    ranks = [msgspec.structs.replace(rank, timeline=timeline) for rank in detailed(run)]
    summary = reduce_ranks(manifest_for(run, ranks), ranks)
    assert [late.rank for late in summary.late.ranks] == [700]
    kept = [row.rank for row in summary.ranks if row.timeline is not None]
    assert 700 in kept
    assert 64 <= len(kept) < 300
    assert any("tables and timelines" in note for note in summary.notes)
