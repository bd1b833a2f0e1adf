"""Nobody is cleared while a rank that all may wait for is missing, and nobody is accused whose starts contradict it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hand_made import group, rank, reduced, stream
from make_job import GpuJob, Slow
from planted import detailed, manifest_of_ranks, mapped

from sameshot.analysis import Summary, reduce_ranks
from sameshot.analysis.late.starts import contradicted
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.results import (
    Clocks,
    Confidence,
    HostClock,
    PartTimes,
    RankSummary,
    StepMethod,
    Steps,
    Verdict,
)
from sameshot.analysis.waiting.gather import arrivals

US = 1_000
STEPS = 30


def without(job: GpuJob, *missing: int) -> Summary:
    """The verdict over a job some of whose ranks left no trace."""
    ranks = [one for one in detailed(job.run()) if one.identity.rank not in missing]
    return reduce_ranks(manifest_of_ranks(ranks, job.world), ranks)


def test_nobody_is_cleared_while_the_missing_rank_may_be_the_late_one() -> None:
    job = GpuJob(hosts=2, gpus=4, slow=(Slow(3, "compute", 8.0),))
    summary = without(job, 3)
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.late.reason.startswith(
        "rank 3 of group 1 (dp) has no trace and may be the one that all wait for. Nobody is steadily late over "
    )
    assert "7 of 8 ranks compared" in summary.late.reason
    assert [one.rank for one in without(job).late.ranks] == [3], "with its trace it is found"


def test_several_missing_ranks_are_all_told() -> None:
    summary = without(GpuJob(hosts=2, gpus=4), 3, 6)
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.late.reason.startswith("rank 3, rank 6 of group 1 (dp) have no trace; one of them may be ")


def test_a_missing_rank_leaves_open_only_what_its_groups_wait_for() -> None:
    """Two islands that have no group in common. Of one, a rank is missing: nobody is cleared."""
    summary = without(GpuJob(hosts=4, gpus=2, islands=2), 7)
    assert summary.late.verdict is Verdict.UNKNOWN
    assert "rank 7 of group " in summary.late.reason


def test_that_nobody_is_late_says_on_how_many_ranks_it_rests() -> None:
    summary = without(GpuJob(hosts=2, gpus=4))
    assert summary.late.verdict is Verdict.NONE
    assert "over 30 matched steps (8 of 8 ranks compared): " in summary.findings[0].sentence


@pytest.mark.parametrize("seed", range(4))
def test_of_a_single_moment_nobody_is_named_who_only_passed_a_delay_on(seed: int) -> None:
    """Rank 3 holds up rank 2, its tensor parallel peer, which so comes last to its other group. Rank 3's trace is
    missing: nobody knows why rank 2 was late."""
    job = GpuJob(hosts=2, gpus=4, tp=2, steps=3, seed=seed, slow=(Slow(3, "data", 20.0),))
    summary = without(job, 3)
    assert summary.late.ranks == ()
    assert summary.late.verdict is Verdict.UNKNOWN


def test_who_is_late_while_a_rank_is_missing_is_named_but_never_for_sure() -> None:
    job = GpuJob(hosts=2, gpus=4, backend="gloo", slow=(Slow(5, "host", 20.0),))
    ranks = mapped(job.run())
    whole = reduce_ranks(manifest_of_ranks(ranks, 8), ranks).late.ranks
    assert [(one.rank, one.confidence) for one in whole] == [(5, Confidence.HIGH)]
    part = reduce_ranks(manifest_of_ranks(ranks[1:], 8), ranks[1:]).late.ranks
    assert [(one.rank, one.confidence) for one in part] == [(5, Confidence.MEDIUM)]


@pytest.mark.parametrize("cause", ["data", "host"])
def test_who_steadily_waits_for_the_late_rank_is_not_named_by_way_of_a_third(cause: str) -> None:
    """Rank 5 is late; rank 4 waits for it, and rank 6, of the next stage, for rank 4."""
    faults = {"clock_s": 3.0, "drift_ppm": 50.0, "lag": 0.1, "missing": 0.02}
    job = GpuJob(hosts=2, gpus=4, tp=2, pp=2, steps=14, seed=2, slow=(Slow(5, cause, 8.0),), **faults)
    ranks = mapped(job.run())
    assert [one.rank for one in reduce_ranks(manifest_of_ranks(ranks, 8), ranks).late.ranks] == [5]


# ---- starts on one clock


def job(kind: str, durs: Sequence[float], starts: Sequence[float], hosts: Sequence[str] | None = None) -> Summary:
    return reduced(_ranks(kind, durs, starts, hosts))


def _ranks(
    kind: str, durs: Sequence[float], starts: Sequence[float], hosts: Sequence[str] | None = None
) -> list[RankSummary]:
    """A step every 20 ms with one collective, which a rank starts `starts` µs into it and in which it stays `durs`."""
    key = f"group 1 {list(range(len(durs)))}"
    ranks = []
    for number, (dur, start) in enumerate(zip(durs, starts, strict=True)):
        ends = [20_000.0 * k + 37.0 * (k % 7) + start + dur for k in range(STEPS)]
        node = hosts[number] if hosts else "n0"
        made = rank(
            number,
            [stream(key, [f"{kind} 1048576 Float"] * STEPS, ends, [dur] * STEPS)],
            [group(key, len(durs))],
            node=node,
        )
        edges = tuple(20_000 * US * k for k in range(STEPS + 1))
        steps = Steps(StepMethod.PROFILER_STEP, Confidence.HIGH, "marks", edges, (PartTimes(),) * STEPS)
        ranks.append(msgspec.structs.replace(made, steps=steps))
    return ranks


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_who_starts_with_the_others_and_leaves_early_is_not_late(kind: str) -> None:
    summary = job(kind, [8_000.0, 10_001.0, 10_002.0, 10_003.0], [5_000.0] * 4)
    assert summary.late.ranks == ()
    assert summary.late.verdict is Verdict.UNKNOWN
    assert "they don't start later by as much" in summary.late.reason


def test_a_costly_moment_at_which_a_rank_only_left_early_accuses_nobody() -> None:
    """Nine collectives; in one, rank 1 stays for 40 µs and the others for 75 ms. Did it start with them or later?"""

    def moment(late: bool) -> Summary:
        key, ends = "group 1 [0, 1, 2]", [90_000.0 + 95_000 * k + 37 * k * k for k in range(9)]
        ranks = []
        for number in range(3):
            durs, own = [40.0] * 9, list(ends)
            if number != 1:
                durs[5] = 75_040.0
            elif not late:
                own[5] -= 75_000.0
            ranks.append(rank(number, [stream(key, ["all_reduce 1000 Float"] * 9, own, durs)], [group(key, 3)]))
        return reduced(ranks)

    assert [one.rank for one in moment(late=True).late.ranks] == [1]
    assert moment(late=False).late.ranks == ()


def test_who_starts_later_and_ends_with_the_others_is_late() -> None:
    summary = job("all_reduce", [8_000.0, 10_001.0, 10_002.0, 10_003.0], [7_003.0, 5_002.0, 5_001.0, 5_000.0])
    assert [(one.rank, one.confidence) for one in summary.late.ranks] == [(0, Confidence.HIGH)]


def test_two_late_ranks_of_one_host_do_not_contradict_each_other() -> None:
    """Both start late, together: that they start at the same time as each other proves nothing against them."""
    hosts = ["a", "a", "b", "b", "c", "c"]
    durs, starts = [8_000.0] * 2 + [10_000.0] * 4, [7_000.0] * 2 + [5_000.0] * 4
    assert sorted(one.rank or 0 for one in job("all_reduce", durs, starts, hosts).late.ranks) == [0, 1]


@pytest.mark.parametrize(("early", "error", "expected"), [(1_500, 100, True), (500, 100, False), (1_500, 1_500, False)])
def test_across_hosts_starts_count_as_far_as_clocks_were_measured(early: int, error: int, expected: bool) -> None:
    """Rank 0 is 2 ms shorter and leaves `early` µs before the others by the measured clocks, which may err by `error`.
    Its own clock is 3 s ahead."""
    ahead = 3_000_000_000
    ranks = _ranks("all_reduce", [8_000.0, 10_000.0, 10_000.0], [7_000.0 - early, 5_000.0, 5_000.0], ["a", "b", "c"])
    (matched,), _ = match_streams(ranks)
    (one,) = arrivals(ranks, [matched], 3)
    row = one.found.ranks.index(0)
    begin = ranks[0].window_start_ns + ahead
    ranks[0] = msgspec.structs.replace(ranks[0], window_start_ns=begin)
    clocks = Clocks(
        "b",
        (
            HostClock("b", 0, 0, None, None, 0, 10, "the reference"),
            HostClock("a", 0, -ahead, None, 1_000, error * US, 10, ""),
            HostClock("c", 0, 0, None, 1_000, error * US, 10, ""),
        ),
        "",
    )
    assert contradicted(ranks, one, row, np.arange(STEPS), clocks) is expected
    assert contradicted(ranks, one, row, np.arange(STEPS)) is False, "without measured clocks nothing is compared"
