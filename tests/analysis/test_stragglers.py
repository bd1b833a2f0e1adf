"""Who came last, what that cost the others and why: on real traces, on planted jobs, and on jobs where nobody is to
blame."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from gloo_job import manifest_of
from hand_made import group, rank, reduced, stream
from test_real_traces import target_of

from sameshot.analysis import RankSummary, Summary, map_rank, reduce_ranks
from sameshot.analysis.communication.groups import most_ranks
from sameshot.analysis.results import Cause, Confidence, Group, Stream, Verdict
from sameshot.analysis.waiting.cause import because
from sameshot.manifest import Manifest

US = 1_000

DLRM_FIRST = [2.146, 7.635, 0.518, 6.132, 4.882, 4.679, 0.514, 0.010]  # ms, by nvidia-smi's clock of one node
"""How long the first all-to-all (NCCL's SendRecv kernel) lasts on ranks 0 to 7 of the recorded DLRM step."""


def recorded(*paths: Path, world_size: int | None = None) -> tuple[Manifest, list[RankSummary]]:
    targets = [target_of(path, rank) for rank, path in enumerate(paths)]
    ranks = [map_rank(path, target) for path, target in zip(paths, targets, strict=True)]
    return manifest_of(targets, world_size=world_size), ranks


def dlrm(shared_data: Path) -> tuple[Manifest, list[RankSummary]]:
    return recorded(*(shared_data / "traces" / "dlrm8_v100" / f"rank{rank}.json.gz" for rank in range(8)))


def test_the_one_culprit_of_the_recorded_dlrm_step_came_late_into_the_window(shared_data: Path) -> None:
    """Rank 7's step began 7.51 ms after rank 1's; inside the step it lost 0.11 ms more. So it was late before."""
    manifest, ranks = dlrm(shared_data)
    assert [rank.streams[0].dur[0] / 1e6 for rank in ranks] == DLRM_FIRST
    assert {rank.streams[0].signatures[0] for rank in ranks} == {"all_to_all"}, "its host calls say what it is"
    summary = reduce_ranks(manifest, ranks)
    assert summary.late.verdict is Verdict.LATE
    (late,) = summary.late.ranks
    assert (late.rank, late.cause) == (7, Cause.INHERITED)
    waits = [1e6 * (dur - DLRM_FIRST[7]) for dur in DLRM_FIRST]
    assert late.waiting is not None
    assert abs(late.waiting - sum(waits)) < 5 * US
    assert set(late.waits) == {f"rank {number}" for number in range(7)}
    for number, wait in enumerate(waits[:7]):
        assert abs(late.waits[f"rank {number}"] - wait) < 5 * US
    row = next(row for row in summary.collectives if row.kind == "all_to_all")
    assert (row.matched, row.ranks, row.last_arriver) == (5, 8, "rank 7")
    assert row.longest_wait is not None
    assert abs(row.longest_wait - max(waits)) < 5 * US
    assert abs(late.waiting - 26.4e6) < 0.05e6
    assert (late.victims, late.collectives) == (7, 1)
    assert late.confidence is Confidence.MEDIUM, "a single moment is never a sure thing"
    assert "rests on that one collective" in late.sentence
    assert "the 7 others wait 26.4 ms in all" in summary.findings[0].sentence
    assert "before the window" in because(late) or "when the window began" in because(late)
    assert summary.stragglers[0].label == "rank 7"
    assert summary.stragglers[0].cause == "inherited"
    assert summary.stragglers[0].causes["inherited"] == late.waiting


def test_a_rank_of_a_group_that_was_not_wholly_recorded_is_not_blamed_for_a_moment(shared_data: Path) -> None:
    """Without rank 7, rank 6 has the shortest record: but it waited itself."""
    manifest, ranks = dlrm(shared_data)
    summary = reduce_ranks(manifest, ranks[:7])
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.late.ranks == ()
    assert summary.findings[0].sentence.startswith("1 of 8 ranks has not been analysed: rank 7")
    assert summary.bandwidth == ()


def test_two_of_128_ranks_get_no_verdict(shared_data: Path) -> None:
    folder = shared_data / "traces" / "single"
    paths = (folder / f"nccl128_sampled_rank{rank}.json.gz" for rank in (0, 1))
    manifest, ranks = recorded(*paths, world_size=128)
    summary = reduce_ranks(manifest, ranks)
    assert summary.late.verdict is Verdict.UNKNOWN
    assert summary.late.ranks == ()
    assert summary.findings[0].sentence.startswith("126 of 128 ranks have no verified trace")
    assert summary.findings[0].sentence.endswith("all numbers rest on the other 2")
    assert "rank 12 (" in summary.findings[0].sentence
    assert "and 115 more" in summary.findings[0].sentence, (
        "of many missing ranks, the first are named; all are in the table"
    )
    assert len(summary.missing) == 126
    assert summary.slow_links == ()


# ---- which collectives tell anything, by hand

CALLS = 10
ENDS = [10_000.0 + 10_000 * k + 37 * k * k for k in range(CALLS)]  # µs
LATE = [900.0, 40.0, 700.0, 800.0]  # rank 1 comes last


def job(
    signature: str, durs: list[float], *, ends: list[list[float]] | None = None, name: str | None = "1", source: int = 4
) -> Summary:
    """Four ranks, ten collectives of one kind; `ends` per rank, else they all end together."""
    key = "group 1 [0, 1, 2, 3]" if name else "communication stream 0"
    return reduced(
        [
            rank(
                number,
                [stream(key, [signature] * CALLS, ends[number] if ends else ENDS, [dur] * CALLS)],
                [group(key, source, name)],
            )
            for number, dur in enumerate(durs)
        ]
    )


def last(summary: Summary) -> dict[str, tuple[int, int]]:
    return {one.label: (one.last, one.of) for one in summary.stragglers}


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"])
def test_the_shortest_record_is_that_of_who_came_last(kind: str) -> None:
    summary = job(f"{kind} 1000 Float", LATE)
    assert last(summary) == {"rank 1": (CALLS, CALLS)}
    assert summary.waiting == CALLS * (860 + 660 + 760) * US
    assert summary.stragglers[0].caused == summary.waiting
    assert summary.stragglers[0].share == 1.0


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter", "send_recv", "other"])
def test_a_wait_that_is_a_dependency_blames_nobody(kind: str) -> None:
    summary = job(f"{kind} 1000 Float", LATE)
    assert summary.stragglers == ()
    assert summary.waiting is None
    assert summary.late.ranks == ()
    assert "No symmetric collective" in summary.late.reason


def test_an_all_to_all_of_unequal_parts_gives_no_verdict_from_durations_alone() -> None:
    assert job("all_to_allv Float", LATE).stragglers == (), "split sizes were recorded"
    apart = [[end + 400.0 * number * (k % 3) for k, end in enumerate(ENDS)] for number in range(4)]
    summary = job("all_to_all", LATE, ends=apart)
    assert summary.late.ranks == ()
    assert sum(one.last for one in summary.stragglers) < CALLS, "those that not all ranks left together tell nothing"


def test_a_send_receive_kernel_is_an_all_to_all_only_if_all_ranks_leave_it_together() -> None:
    assert last(job("send_recv", LATE, name=None)) == {"rank 1": (CALLS, CALLS)}
    apart = [[end + 400.0 * number * (k % 2) for k, end in enumerate(ENDS)] for number in range(4)]
    assert last(job("send_recv", LATE, name=None, ends=apart)).get("rank 1", (0, 0))[0] < CALLS
    assert last(job("send_recv", LATE, source=5)) == {}, "a rank of the group was not recorded"


def test_nobody_came_last_by_less_than_the_noise() -> None:
    summary = job("all_reduce 1000 Float", [60.0, 40.0, 70.0, 65.0])
    assert summary.stragglers == ()
    assert summary.waiting == CALLS * (20 + 30 + 25) * US, "it is waiting all the same"


def test_of_two_that_come_last_together_neither_is_picked() -> None:
    assert job("all_reduce 1000 Float", [900.0, 40.0, 45.0, 800.0]).stragglers == ()


def moment(size: int) -> Summary:
    """Three ranks of a group of `size`; once the first and the third wait 75 ms for the second."""
    key, ends = "group 1 [some]", [90_000.0 + 95_000 * k + 37 * k * k for k in range(CALLS - 1)]
    durs = {0: [40.0] * (CALLS - 1), 1: [40.0] * (CALLS - 1), 2: [40.0] * (CALLS - 1)}
    durs[0][5], durs[2][5] = 75_040.0, 75_040.0
    signatures = ["all_reduce 1000 Float"] * (CALLS - 1)
    return reduced([rank(r, [stream(key, signatures, ends, durs[r])], [group(key, size)]) for r in range(3)])


def test_a_single_costly_moment_is_named_if_all_ranks_of_the_group_were_compared() -> None:
    summary = moment(size=3)
    assert [(late.rank, late.cause) for late in summary.late.ranks] == [(1, Cause.UNKNOWN)]
    late = summary.late.ranks[0]
    assert late.waiting == 2 * 75_000 * US
    assert late.confidence is Confidence.LOW, "one moment, and nothing tells why"
    assert "rests on that one collective" in late.sentence
    assert moment(size=4).late.ranks == (), "the fourth may have come later still"


def test_a_collective_that_one_rank_did_not_record_tells_nothing() -> None:
    key = "group 1 [0, 1]"
    signatures = ["all_reduce 1000 Float"] * CALLS
    whole, part = stream(key, signatures, ENDS, [500.0] * CALLS), stream(key, signatures, ENDS, [40.0] * CALLS)
    seq = part.seq or ()
    columns = {name: getattr(part, name)[:4] + getattr(part, name)[5:] for name in ("signature", "start", "dur")}
    part = msgspec.structs.replace(part, seq=seq[:4] + seq[5:], **columns)
    groups = [group(key, 3)]
    summary = reduced([rank(0, [whole], groups), rank(1, [whole], groups), rank(2, [part], groups)])
    assert last(summary) == {"rank 2": (CALLS - 1, CALLS - 1)}
    assert summary.waiting == (CALLS - 1) * 2 * 460 * US


def test_of_a_group_that_is_not_whole_nobody_is_charged_and_waits_are_told_as_at_least() -> None:
    """The fifth rank's trace is missing: it may have come later than rank 1, and the others waited for it then."""
    whole, partial = (job("all_reduce 1000 Float", LATE, source=size) for size in (4, 5))
    waited = CALLS * (860 + 660 + 760) * US
    assert [(one.label, one.caused, one.perhaps) for one in whole.stragglers] == [("rank 1", waited, 0)]
    assert [(one.label, one.caused, one.perhaps) for one in partial.stragglers] == [("rank 1", 0, waited)]
    assert partial.stragglers[0].causes == {}
    assert whole.waiting == partial.waiting == waited
    assert [(row.transfer, row.mean_transfer) for row in whole.collectives] == [(CALLS * 40 * US, 40 * US)]
    assert [(row.transfer, row.mean_transfer, row.wait) for row in partial.collectives] == [(None, None, waited)]
    assert {moment.transfer for moment in whole.moments} == {40 * US}
    assert {moment.transfer for moment in partial.moments} == {None}


@pytest.mark.parametrize(("size", "sure"), [(2, True), (3, False)])
def test_blame_that_is_passed_on_through_a_group_that_is_not_whole_is_not_sure(size: int, sure: bool) -> None:
    """Rank 1 comes 5 ms late to group A, so rank 0 comes 5 ms late to group B, which is whole: due to rank 1, unless a
    third rank of A came later still."""
    steps = 12
    first, second = "group A [0, 1]", "group B [0, 2]"
    begins = [1_000.0 + 20_000 * k for k in range(steps)]  # µs

    def told(key: str, end: float, dur: float, compute: float, other: float) -> Stream:
        one = stream(key, ["all_reduce 10 Float"] * steps, [begin + end for begin in begins], [dur] * steps)
        columns = {name: (round(us * US),) * steps for name, us in (("compute", compute), ("other", other))}
        return msgspec.structs.replace(one, exposed=one.dur, data=(0,) * steps, **columns)

    groups = [group(first, size, "A"), group(second, 2, "B")]
    ranks = [
        rank(0, [told(first, 8_040, 5_040, 14_960, 0), told(second, 9_080, 40, 14_920, 5_040)], groups),
        rank(1, [told(first, 8_040, 40, 19_960, 0)], groups),
        rank(2, [told(second, 9_080, 5_040, 14_960, 0)], groups),
    ]
    summary = reduced(ranks)
    costs = {one.label: (one.caused, one.perhaps) for one in summary.stragglers}
    passed_on = (steps - 1) * 5_000 * US  # the first of a group tells nothing of what was before
    in_first = steps * 5_000 * US
    assert costs["rank 1"] == ((in_first + passed_on, 0) if sure else (0, in_first + passed_on))
    alone = {one.label: (one.caused, one.perhaps) for one in reduced([ranks[0], ranks[2]], 3).stragglers}
    first_of_second = 5_000 * US
    assert alone == {"rank 0": (first_of_second, passed_on)}, "for whom it waited in A is not known"


@pytest.mark.parametrize(
    ("listed", "named"),
    [("[0, 1, 2, 3, 4, ..., 127]", False), (None, False), ("[0, 1]", True)],
)
def test_where_no_size_was_recorded_the_list_says_whether_enough_ranks_were_compared(
    listed: str | None, named: bool
) -> None:
    key = "group 1 [some]"
    recorded = [Group(key, "1", listed, None, None)]
    ranks = [
        rank(number, [stream(key, ["all_reduce 1000 Float"] * CALLS, ENDS, [dur] * CALLS)], recorded)
        for number, dur in ((3, 6_000.0), (9, 40.0))
    ]
    late = reduced(ranks, 128).late
    assert [one.rank for one in late.ranks] == ([9] if named else [])
    assert named or late.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("listed", "most"),
    [
        ("[0, 1, 2]", 3),
        ("[0, 8, ..., 56]", 57),
        ("[64, 65, ..., 127]", 64),
        ("[5, 3, ..., 9]", None),  # not in order: the last says nothing
        ("[0, 1, ...]", None),
        ("[]", None),  # the default group
        (None, None),
    ],
)
def test_a_list_of_ranks_says_how_many_they_are_at_most(listed: str | None, most: int | None) -> None:
    assert most_ranks(listed) == most
