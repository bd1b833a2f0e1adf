"""Why a rank was late: each cause is planted in a simulated job and recognised from its traces; and without a cause
nobody is named."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hand_made import group, rank, reduced, stream
from make_job import GpuJob, Slow
from planted import detailed, manifest_for, mapped, verdict

from sameshot.analysis import Summary, reduce_ranks
from sameshot.analysis.results import Cause, Confidence, Lost, StepMethod, Steps, Stream, Verdict
from sameshot.analysis.waiting.cause import CAUSES, Spent, because, blame, explain_lost

MS = 1_000_000
US = 1_000
PLANTED = 8.0  # ms per step


def named(summary: Summary) -> list[tuple[int | None, Cause]]:
    return [(rank.rank, rank.cause) for rank in summary.late.ranks]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("planted", "cause", "words"),
    [
        ("compute", Cause.COMPUTE, "its GPU computes"),
        ("host", Cause.HOST, "for the launching thread"),
        ("data", Cause.DATA_WAIT, "for the next batch"),
    ],
)
def test_each_cause_is_recognised(planted: str, cause: Cause, words: str, seed: int) -> None:
    summary = verdict(GpuJob(steps=15, seed=seed, slow=(Slow(5, planted, PLANTED),)))
    assert named(summary) == [(5, cause)]
    late = summary.late.ranks[0]
    assert (late.node, late.victims) == ("node-1", 7)
    assert late.confidence is Confidence.HIGH
    assert 0.7 * PLANTED * MS < late.lateness_per_step < 1.2 * PLANTED * MS
    assert late.lost is not None
    amounts = {
        Cause.COMPUTE: late.lost.compute,
        Cause.HOST: late.lost.host,
        Cause.DATA_WAIT: late.lost.data_wait,
        Cause.OTHER_GROUP: late.lost.other_group,
    }
    assert 0.8 * PLANTED * MS < amounts.pop(cause) < 1.2 * PLANTED * MS
    assert all(abs(amount) < 0.25 * PLANTED * MS for amount in amounts.values()), "and nothing else is"
    assert words in because(late)
    assert words in summary.findings[0].sentence
    assert summary.stragglers[0].label == "rank 5"
    assert summary.stragglers[0].cause == cause.value


@pytest.mark.parametrize("planted", ["compute", "host", "data"])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (2, 2), (4, 1)])
def test_ranks_that_only_pass_a_delay_on_are_not_named(planted: str, tp: int, pp: int) -> None:
    """A late rank holds up its tensor parallel peers, and these come late to their data parallel groups, and to the
    next pipeline stage: all of that is the one rank's doing."""
    summary = verdict(GpuJob(steps=15, tp=tp, pp=pp, slow=(Slow(5, planted, PLANTED),)))
    cause = Cause.DATA_WAIT if planted == "data" else Cause(planted)
    assert named(summary) == [(5, cause)]
    assert summary.late.ranks[0].victims is not None
    assert summary.late.ranks[0].victims > tp - 1
    assert "in several groups" in summary.late.ranks[0].sentence
    culprit, *others = summary.stragglers
    assert culprit.label == "rank 5"
    assert culprit.share > 0.7
    assert culprit.relayed == 0
    assert max(one.relayed for one in others) > 100 * MS, "its peer came last as often, but because it waited"


def test_a_delay_from_before_the_window_is_inherited() -> None:
    """The rank lost 8 ms right before its window, which begins at the same point of its program as everybody's."""
    summary = verdict(GpuJob(steps=3, from_step=1, slow=(Slow(5, "inherited", PLANTED),)))
    assert named(summary) == [(5, Cause.INHERITED)]
    late = summary.late.ranks[0]
    assert late.confidence in (Confidence.LOW, Confidence.MEDIUM), "a single moment is no sure thing"
    assert "rests on those" in late.sentence
    assert "when the window began" in because(late)


def test_one_late_step_among_many_accuses_nobody() -> None:
    summary = verdict(GpuJob(steps=15, from_step=1, slow=(Slow(5, "inherited", PLANTED),)))
    assert summary.late.verdict is Verdict.NONE
    assert named(summary) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_equal_ranks_accuse_nobody(tp: int, pp: int, seed: int) -> None:
    summary = verdict(GpuJob(steps=12, tp=tp, pp=pp, seed=seed))
    assert summary.late.verdict is Verdict.NONE
    assert named(summary) == []


@pytest.mark.parametrize("seed", range(4))
def test_noise_accuses_nobody(seed: int) -> None:
    """Every rank is late by milliseconds now and then, and ends of collectives stray by up to a millisecond."""
    job = GpuJob(steps=15, seed=seed, jitter=4.0, wobble=0.1, outliers=0.1, outlier_ms=(0.1, 2.0))
    assert verdict(job).late.verdict is not Verdict.LATE


@pytest.mark.parametrize("seed", range(6))
def test_a_costly_moment_of_a_restless_job_accuses_nobody_if_other_steps_contradict_it(seed: int) -> None:
    run = GpuJob(steps=3, seed=seed, jitter=4.0).run()
    ranks = detailed(run)
    assert reduce_ranks(manifest_for(run, ranks), ranks).late.ranks == ()


@pytest.mark.parametrize("planted", ["compute", "host"])
def test_groups_that_the_trace_does_not_record_are_told_apart_and_the_confidence_is_lower(planted: str) -> None:
    summary = verdict(GpuJob(steps=12, tp=2, group_args=False, slow=(Slow(5, planted, PLANTED),)))
    assert named(summary) == [(5, Cause(planted))]
    assert summary.late.ranks[0].confidence is Confidence.MEDIUM


def test_replays_of_graphs_are_compared_like_launched_kernels() -> None:
    summary = verdict(GpuJob(steps=12, graphs=True, slow=(Slow(5, "compute", PLANTED),)))
    assert named(summary) == [(5, Cause.COMPUTE)]


def test_a_pipeline_makes_no_straggler() -> None:
    """Later stages wait for earlier ones at every send and receive. That is how a pipeline works."""
    summary = verdict(GpuJob(hosts=1, gpus=4, pp=4, steps=12))
    assert summary.late.ranks == ()
    assert summary.stragglers == ()
    assert summary.waiting is None
    assert {row.kind for row in summary.collectives} == {"send_recv"}
    assert all(row.wait is None for row in summary.collectives)


def test_clocks_seconds_apart_change_neither_who_nor_why() -> None:
    for cause in ("host", "data"):
        summary = verdict(GpuJob(steps=15, tp=2, clock_s=3.0, slow=(Slow(5, cause, PLANTED),)))
        assert named(summary) == [(5, Cause.DATA_WAIT if cause == "data" else Cause.HOST)]
        assert summary.cross_rank
        assert summary.common_window is not None
        assert summary.common_window > 0, "by aligned clocks the windows overlap"


def test_without_what_devices_did_the_cause_is_unknown_and_stays_unsaid() -> None:
    run = GpuJob(steps=15, slow=(Slow(5, "compute", PLANTED),)).run()
    ranks = run.summaries()
    summary = reduce_ranks(manifest_for(run, ranks), ranks)
    assert named(summary) == [(5, Cause.UNKNOWN)]
    assert summary.late.ranks[0].lost is None
    assert because(summary.late.ranks[0]) == ""


def test_half_of_a_group_is_not_enough_to_accuse_and_more_is_never_of_high_confidence() -> None:
    run = GpuJob(steps=15, slow=(Slow(5, "compute", PLANTED),)).run()
    ranks = detailed(run)
    half = reduce_ranks(manifest_for(run, ranks), [ranks[i] for i in (1, 2, 5, 6)])
    assert half.late.verdict is Verdict.UNKNOWN
    assert "4 of 8 ranks" in half.late.reason
    most = reduce_ranks(manifest_for(run, ranks), [ranks[i] for i in (0, 1, 2, 5, 6)])
    assert named(most) == [(5, Cause.COMPUTE)]
    assert most.late.ranks[0].confidence is Confidence.MEDIUM, "one of the missing may have come later still"


def test_two_late_ranks_with_different_causes_are_both_named() -> None:
    summary = verdict(GpuJob(steps=15, slow=(Slow(2, "compute", PLANTED), Slow(5, "host", PLANTED + 1))))
    assert sorted(named(summary), key=str) == [(2, Cause.COMPUTE), (5, Cause.HOST)]


def test_the_bubble_of_a_pipeline_is_nobodys_fault() -> None:
    """Two pipelines of two stages. Stage 0 (ranks 0 and 2) ends each step last, because it waits for what stage 1 sends
    back: so it comes 5.9 ms late to the collective of all ranks, step after step."""
    world, pairs = "group 0 [0, 1, 2, 3]", ["group 1 [0, 1]", "group 1 [0, 1]", "group 2 [2, 3]", "group 2 [2, 3]"]
    steps = range(12)
    begins = [1_000.0 + 20_000 * k + 37 * k * k for k in steps]  # µs
    ranks = []
    for number in range(4):
        first = number in (0, 2)
        arrives = (13_900.0 if number == 2 else 14_000.0) if first else 8_100.0
        every = stream(world, ["all_reduce 10 Float"] * 12, [at + 14_040 for at in begins], [14_040 - arrives] * 12)
        sends = stream(
            pairs[number], ["send_recv 10 Float"] * 12, [at + 8_040 for at in begins], [7_040.0 if first else 40.0] * 12
        )
        every = msgspec.structs.replace(
            every,
            exposed=every.dur,
            compute=((7_000 if first else 8_000) * US,) * 12,
            other=((7_000 if first else 0) * US,) * 12,
            data=(0,) * 12,
        )
        sends = msgspec.structs.replace(
            sends, exposed=sends.dur, compute=(8_000 * US,) * 12, other=(0,) * 12, data=(0,) * 12
        )
        ranks.append(rank(number, [every, sends], [group(world, 4, "0"), group(pairs[number], 2, pairs[number][6])]))
    summary = reduced(ranks)
    assert summary.late.ranks == ()
    assert summary.late.verdict is Verdict.UNKNOWN
    assert "2 ranks came last steadily" in summary.late.reason
    assert "a dependency, as in a pipeline" in summary.late.reason
    assert {one.label for one in summary.stragglers} == {"rank 0"}, "it came last, which is no verdict"
    assert summary.stragglers[0].cause == "other_group"


def test_what_a_late_rank_lost_per_step_is_the_same_however_many_steps_were_recorded() -> None:
    """Two ranks, a step every 20 ms with one collective that ends in its 15th. Rank 1 computes 14 ms each, rank 0
    10 ms: it waits 4 ms. Nothing is known of what was before the first one."""
    key = "group 1 [0, 1]"
    for steps in (5, 12):
        ends = [15_000.0 + 20_000 * k for k in range(steps)]
        ranks = []
        for number, computes in enumerate((10_000, 14_000)):
            dur = 14_900 - computes
            one = stream(key, ["all_reduce 10 Float"] * steps, ends, [dur] * steps)
            one = msgspec.structs.replace(
                one, exposed=one.dur, compute=(computes * US,) * steps, other=(0,) * steps, data=(0,) * steps
            )
            edges = tuple(20_000 * US * k for k in range(steps + 1))
            made = rank(number, [one], [group(key, 2)])
            marked = Steps(StepMethod.PROFILER_STEP, Confidence.HIGH, "", edges)
            ranks.append(msgspec.structs.replace(made, steps=marked))
        late = reduced(ranks).late.ranks
        assert [(one.rank, one.cause, one.lateness_per_step) for one in late] == [(1, Cause.COMPUTE, 4 * MS)]
        assert late[0].lost == Lost(4 * MS, 0, 0, 0)


def test_one_long_wait_is_not_blamed_for_what_comes_after() -> None:
    """Two tensor parallel groups of four, four data parallel groups of two across them. Rank 1 computes 5 ms longer in
    each of 20 steps, rank 3 once 30 ms longer. In a common step three wait 5 ms for rank 1, then four in the data
    parallel groups: 35 ms. In the one step rank 3 costs 30 + 25 + 30 ms, then 4 x 30 ms."""
    steps, late, once = 20, 5_000, 30_000  # µs
    tensor = ["group a [0, 1, 2, 3]"] * 4 + ["group b [4, 5, 6, 7]"] * 4
    data = [f"group {n} [{n}, {n + 4}]" for n in range(4)] * 2
    first: list[list[tuple[int, int, int, int]]] = [[] for _ in range(8)]  # end, duration, compute, other
    second: list[list[tuple[int, int, int, int]]] = [[] for _ in range(8)]
    for k in range(steps):
        begin = 1_000 + 70_000 * k
        computes = [10_000 + late * (n == 1) + once * (n == 3 and k == 2) for n in range(8)]
        ends = [begin + max(computes[n - n % 4 : n - n % 4 + 4]) + 1_000 for n in range(8)]
        starts = [end + 5_000 for end in ends]
        for n in range(8):
            dur = ends[n] - begin - computes[n]
            end = max(starts[n], starts[n - 4]) + 2_000
            first[n].append((ends[n], dur, computes[n] + (5_000 if k else 0), second[n][-1][1] if k else 0))
            second[n].append((end, end - starts[n], computes[n] + 5_000, dur))

    def told(key: str, calls: list[tuple[int, int, int, int]]) -> Stream:
        ends, durs, compute, other = zip(*calls, strict=True)
        one = stream(key, ["all_reduce 10 Float"] * steps, ends, durs)
        columns = {"compute": tuple(c * US for c in compute), "other": tuple(o * US for o in other)}
        return msgspec.structs.replace(one, exposed=one.dur, data=(0,) * steps, **columns)

    summary = reduced(
        [
            rank(
                n,
                [told(tensor[n], first[n]), told(data[n], second[n])],
                [group(tensor[n], 4, tensor[n][6]), group(data[n], 2, data[n][6])],
            )
            for n in range(8)
        ]
    )
    caused = {one.label: one.caused / MS for one in summary.stragglers}
    # Of the first data parallel collectives nothing is known of before: they are charged to who came last there.
    assert caused == {"rank 1": 19 * 35 - 3 * 5, "rank 3": 85 + 120 + 5, "rank 0": 5, "rank 2": 5}


# ---- the arithmetic, by hand


def spent(*rows: list[tuple[int, int, int, int, int]]) -> Spent:
    """Per rank and collective (compute, host, data, other, own), in ms."""
    since = np.asarray(rows, dtype=np.int64).transpose(2, 0, 1) * MS
    return Spent(since, np.zeros(since.shape[1:], dtype=np.int64))


def causes(told: Spent, last: list[int], lateness: list[float], significant: list[bool]) -> list[Cause]:
    found = blame(told, np.asarray(last), np.asarray(lateness) * MS, np.asarray(significant))
    return [CAUSES[place] for place in found.cause.tolist()]


def test_the_largest_excess_is_the_cause_if_it_explains_half_of_the_lateness() -> None:
    even = (10, 1, 0, 0, 0)
    told = spent([even, (10, 5, 0, 0, 0), (13, 3, 2, 0, 0)], [even, even, even], [even, even, even])
    # 4 ms of the host explain 4 of 5 ms; then 3 of compute do not explain half of 7.
    assert causes(told, [0, 0, 0], [0, 5, 7], [False, True, False])[1:] == [Cause.HOST, Cause.UNKNOWN]


def test_who_ran_ahead_while_waiting_is_no_less_busy() -> None:
    """Rank 0 came 6 ms late to the second collective because of its host. Its peers compute beside their waiting, and
    wait at the third one for the 6 ms which rank 0 is still behind: for the same reason."""
    told = spent(
        [(10, 0, 0, 0, 0), (10, 6, 0, 0, 0), (5, 0, 0, 0, 1)],
        [(10, 0, 0, 0, 0), (10, 0, 0, 0, 0), (5, 0, 0, 0, 1)],
    )
    assert causes(told, [0, 0, 0], [0, 6, 6], [False, True, True])[1:] == [Cause.HOST, Cause.HOST]


def test_an_inherited_lateness_is_used_up_by_waiting() -> None:
    """8 ms late at the first collective; the other waits 8 ms there with nothing else to do. So 3 ms at the second are
    new: of its own compute."""
    told = spent([(0, 1, 0, 0, 0), (8, 0, 0, 0, 0)], [(0, 1, 0, 0, 0), (5, 0, 0, 0, 8)])
    assert causes(told, [0, 0], [8, 3], [True, True]) == [Cause.INHERITED, Cause.COMPUTE]
    told = spent([(0, 1, 0, 0, 0), (8, 0, 0, 0, 0)], [(0, 1, 0, 0, 0), (8, 0, 0, 0, 0)])
    assert causes(told, [0, 0], [8, 8], [True, True]) == [Cause.INHERITED, Cause.INHERITED], "nobody waited for it yet"


def test_what_grew_inside_the_window_before_the_first_collective_may_have_begun_earlier() -> None:
    told = spent([(9, 1, 0, 0, 0)], [(1, 1, 0, 0, 0)])
    assert causes(told, [0], [8], [True]) == [Cause.UNKNOWN]


def test_no_part_explains_a_lateness_that_is_spread_over_all() -> None:
    assert explain_lost(Lost(3, 3, 3, 0), 9.0) is Cause.UNKNOWN
    assert explain_lost(Lost(5, 3, 1, 0), 9.0) is Cause.COMPUTE


def test_summaries_of_older_versions_without_those_columns_are_still_compared() -> None:
    run = GpuJob(steps=12, slow=(Slow(1, "host", PLANTED),)).run()
    ranks = mapped(run)
    old = [
        msgspec.structs.replace(
            rank,
            streams=tuple(msgspec.structs.replace(s, exposed=(), compute=(), other=(), data=()) for s in rank.streams),
        )
        for rank in ranks
    ]
    assert named(reduce_ranks(manifest_for(run, ranks), old)) == [(1, Cause.UNKNOWN)]


def test_of_several_causes_since_then_the_latest_counts_if_it_explains_nearly_all() -> None:
    """Rank 0 computes 5 ms longer each time; before the second collective it was held up for 25 ms in another group,
    for which the others have waited there."""
    even = (10, 0, 0, 0, 0)
    told = spent([(15, 0, 0, 0, 0), (15, 0, 0, 25, 0), (15, 0, 0, 0, 0)], [even, even, even])
    assert causes(told, [0] * 3, [5, 30, 5], [True] * 3)[1:] == [Cause.OTHER_GROUP, Cause.COMPUTE]
