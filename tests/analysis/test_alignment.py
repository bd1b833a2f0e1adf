"""Matching the collectives of ranks: right, or refused; never wrong."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import numpy as np
import pytest
from make_job import BASE_NS, GpuJob, Run

from sameshot.analysis.matching.align import Pairing, by_clocks, pair
from sameshot.analysis.matching.fit import sequence
from sameshot.analysis.matching.groups import gather_groups, may_be_one
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.matching.matched import ABSENT, Matched
from sameshot.analysis.results import RankSummary, Stream


def stream(
    starts: list[float], durs: list[float], kinds: list[str] | None = None, seq: list[int] | None = None
) -> Stream:
    """Times in ms."""
    kinds = kinds or ["all_reduce"] * len(starts)
    names = tuple(dict.fromkeys(kinds))
    return Stream(
        key="gloo",
        source="gloo",
        signatures=names,
        signature=tuple(names.index(kind) for kind in kinds),
        start=tuple(round(start * 1e6) for start in starts),
        dur=tuple(round(dur * 1e6) for dur in durs),
        seq=None if seq is None else tuple(seq),
    )


def two(
    dice: random.Random, *, count: int = 30, step: float = 40.0, jitter: float, skew: float, drop: int, offset: float
) -> tuple[Stream, Stream]:
    """Two ranks' records of the same collectives; the other lacks the first `drop`, its clock is `offset` ms ahead."""
    at, ends = 0.0, []
    for _ in range(count):
        at += step + dice.uniform(-jitter, jitter)
        ends.append(at)
    records = []
    for moved in (0.0, offset):
        durs = [dice.uniform(2, 12) for _ in ends]
        mine = [end + dice.uniform(0, skew) + moved for end in ends]
        records.append(([end - dur for end, dur in zip(mine, durs, strict=True)], durs))
    (starts, durs), (others, other_durs) = records
    return stream(starts, durs), stream(others[drop:], other_durs[drop:])


def without(one: Stream, *gone: int) -> Stream:
    kept = [i for i in range(len(one.start)) if i not in gone]
    return msgspec.structs.replace(
        one,
        start=tuple(one.start[i] for i in kept),
        dur=tuple(one.dur[i] for i in kept),
        signature=tuple(one.signature[i] for i in kept),
        seq=None if one.seq is None else tuple(one.seq[i] for i in kept),
    )


def found(one: Stream, other: Stream, *, same_host: bool = False, known_offset: int | None = None) -> Pairing:
    numbers: dict[str, int] = {}
    return pair(sequence(one, 0, numbers), sequence(other, 0, numbers), same_host=same_host, known_offset=known_offset)


def assumed(one: Stream, other: Stream) -> Pairing:
    numbers: dict[str, int] = {}
    return by_clocks(sequence(one, 0, numbers), sequence(other, 0, numbers))


@pytest.mark.parametrize("seed", range(20))
def test_the_rhythm_of_uneven_steps_gives_the_lag_without_any_clock(seed: int) -> None:
    dice = random.Random(seed)
    drop = dice.randint(0, 8)
    pairing = found(*two(dice, jitter=8, skew=0.03, drop=drop, offset=dice.uniform(-5000, 5000)))
    assert (pairing.lag, pairing.method) == (-drop, "intervals")
    assert pairing.place.tolist() == [-1] * drop + list(range(30 - drop))


@pytest.mark.parametrize("seed", range(60))
def test_a_purely_periodic_sequence_is_refused(seed: int) -> None:
    dice = random.Random(seed)
    pairing = found(*two(dice, jitter=0, skew=0.03, drop=dice.randint(0, 8), offset=dice.uniform(-5000, 5000)))
    assert not pairing.found
    assert "too regular" in pairing.note


@pytest.mark.parametrize("seed", range(60))
def test_windows_without_a_common_moment_are_not_matched(seed: int) -> None:
    """The other's clock is off by just as much as its window is later: by the clocks they coincide."""
    dice = random.Random(seed)
    one, _ = two(dice, jitter=8, skew=0.03, drop=0, offset=0)
    _, other = two(dice, jitter=8, skew=0.03, drop=0, offset=dice.uniform(-20, 20))
    assert not found(one, other).found


def test_a_few_collectives_that_fit_by_chance_are_no_proof() -> None:
    """Short windows of unrelated times: of so many lags one often fits twice as well as all others."""
    dice = random.Random(11)
    wrong = 0
    for _ in range(1500):
        one, _ = two(dice, count=9, jitter=8, skew=0.03, drop=0, offset=0)
        _, other = two(dice, count=9, jitter=8, skew=0.03, drop=0, offset=dice.uniform(-20, 20))
        wrong += found(one, other).found
    assert wrong <= 1


@pytest.mark.parametrize("seed", range(40))
def test_a_missing_record_costs_one_collective_and_shifts_nothing(seed: int) -> None:
    dice = random.Random(seed)
    one, other = two(dice, jitter=8, skew=0.03, drop=0, offset=dice.uniform(-5000, 5000))
    here, there = sorted(dice.sample(range(4, 26), 2))
    pairing = found(without(one, here), without(other, there))
    wanted = [i - (i > there) if i != there else -1 for i in range(30) if i != here]
    assert pairing.place.tolist() == wanted


def test_two_missing_records_side_by_side_on_either_side_are_not_taken_for_one_another() -> None:
    one, other = two(random.Random(4), jitter=8, skew=0.03, drop=0, offset=77.0)
    pairing = found(without(one, 12), without(other, 13))
    assert pairing.place.tolist() == [*range(12), -1, *range(13, 29)]


@pytest.mark.parametrize("seed", range(20))
def test_a_periodic_sequence_is_matched_by_clocks_that_agree_to_a_fraction_of_a_step(seed: int) -> None:
    dice = random.Random(seed)
    drop = dice.randint(0, 8)
    pairing = assumed(*two(dice, jitter=0, skew=0.03, drop=drop, offset=dice.uniform(-8, 8)))
    assert (pairing.lag, pairing.method) == (-drop, "wall-clock")
    assert "hosts' clocks" in pairing.note


def test_clocks_that_differ_by_about_half_a_step_are_not_believed() -> None:
    pairing = assumed(*two(random.Random(1), jitter=0, skew=0.03, drop=3, offset=20.0))
    assert (pairing.found, pairing.method) == (False, "none")
    assert pairing.note


def test_a_measured_offset_matches_what_is_purely_periodic() -> None:
    one, other = two(random.Random(5), jitter=0, skew=0.03, drop=3, offset=2900.0)
    pairing = found(one, other, known_offset=2_900_100_000)
    assert (pairing.lag, pairing.method) == (-3, "measured-clock")


def test_a_measured_offset_that_the_rhythm_contradicts_is_not_used() -> None:
    one, other = two(random.Random(5), jitter=8, skew=0.03, drop=3, offset=2900.0)
    pairing = found(one, other, known_offset=2_820_000_000)
    assert not pairing.found
    assert "contradicts" in pairing.note


def test_recorded_numbers_win_over_everything_else() -> None:
    one = stream([0, 40, 80, 120], [2] * 4, seq=[7, 8, 9, 10])
    other = stream([0, 40, 80], [2] * 3, seq=[9, 10, 11])
    assert (found(one, other).lag, found(one, other).method) == (-2, "sequence")


def test_numbers_with_a_gap_are_matched_around_it() -> None:
    one = stream([0, 40, 80, 120], [2] * 4, seq=[7, 8, 9, 10])
    other = stream([0, 40, 80], [2] * 3, seq=[8, 10, 11])
    assert found(one, other).place.tolist() == [-1, 0, -1, 1]


def test_equal_numbers_of_different_collectives_are_refused() -> None:
    one = stream([0, 40, 80], [2] * 3, ["all_reduce", "all_gather", "all_reduce"], seq=[1, 2, 3])
    other = stream([0, 40, 80], [2] * 3, ["all_gather", "all_reduce", "all_gather"], seq=[1, 2, 3])
    assert not found(one, other).found


def test_shifts_under_which_kinds_differ_are_impossible() -> None:
    kinds = ["all_gather", *["all_reduce"] * 2, "reduce_scatter", *["all_reduce"] * 3, "barrier", *["all_reduce"] * 2]
    starts = [10.0 * i for i in range(10)]
    one, other = stream(starts, [1.0] * 10, kinds), stream(starts[:8], [1.0] * 8, kinds[2:])
    assert found(one, other).lag == -2, "regular in time, but no other shift fits the kinds"


def test_sequences_of_different_kinds_are_not_matched() -> None:
    one = stream([0, 40, 80, 120, 160], [2] * 5, ["all_reduce"] * 5)
    other = stream([0, 40, 80, 120, 160], [2] * 5, ["all_gather"] * 5)
    assert not found(one, other).found


def test_rhythm_and_clock_of_one_host_must_agree() -> None:
    one, other = two(random.Random(3), jitter=8, skew=0.03, drop=4, offset=200.0)
    assert found(one, other, same_host=False).lag == -4
    refused = found(one, other, same_host=True)
    assert not refused.found
    assert "common host" in refused.note


def test_nothing_is_matched_with_nothing() -> None:
    assert not found(stream([], []), stream([1.0], [1.0])).found
    assert not found(stream([1.0], [1.0]), stream([], [])).found


# ---- whole jobs


def truly(run: Run, ranks: list[RankSummary], matched: Matched) -> list[set[tuple[str, int, int]]]:
    """For each column, which collectives (family, group, number) its entries really are."""
    columns: list[set[tuple[str, int, int]]] = [set() for _ in range(matched.count)]
    for row, rank in enumerate(matched.ranks):
        known = {}
        for family in run.truth.families.values():
            kept = np.flatnonzero(run.truth.kept[family.name][:, rank])
            arrived = run.truth.local(run.job.host_of(rank), run.truth.arrival[family.name][kept, rank])
            begins = arrived - (ranks[rank].window_start_ns - BASE_NS)
            known |= {
                (int(begin), length): (family.name, int(family.group[rank]), int(number))
                for begin, number, length in zip(
                    begins,
                    kept,
                    (run.truth.local(run.job.host_of(rank), run.truth.end[family.name][kept, rank]) - arrived).tolist(),
                    strict=True,
                )
            }
        for column in np.flatnonzero(matched.present[row]).tolist():
            columns[column].add(known[int(matched.start[row, column]), int(matched.dur[row, column])])
    return columns


SHAPES = [
    GpuJob(),
    GpuJob(tp=2, pp=2),
    GpuJob(hosts=4, gpus=2, islands=2),
    GpuJob(group_args=False),
    GpuJob(graphs=True),
    GpuJob(seq=True, periodic=True, outliers=0.0),
    GpuJob(jitter=0.1, common_jitter=0.1, wobble=0.002),
    GpuJob(hosts=3, gpus=1, backend="gloo", skew_us=(5.0, 300.0)),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_what_is_matched_is_the_same_collective_whatever_clocks_lags_and_holes(shape: GpuJob, seed: int) -> None:
    job = changed(shape, seed=seed, clock_s=3.0, drift_ppm=20.0, lag=80.0, missing=0.01)
    run = job.run()
    ranks = run.summaries()
    matched, alignments = match_streams(ranks)
    assert all(alignment.method != "none" for alignment in alignments)
    for one in matched:
        columns = truly(run, ranks, one)
        assert sum(len(column) != 1 for column in columns) <= 0.002 * len(columns)
        assert one.complete.sum() > 0.6 * one.count
    assert {rank for one in matched for rank in one.ranks} == set(range(job.world))


def changed(job: GpuJob, **changes: object) -> GpuJob:
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_a_clockwork_job_on_hosts_with_wrong_clocks_is_only_matched_within_each_host(seed: int) -> None:
    job = GpuJob(periodic=True, outliers=0.0, clock_s=3.0, lag=60.0, seed=seed)
    matched, alignments = match_streams(job.run().summaries())
    assert {a.method for a in alignments if not a.note} <= {"none"}
    between = [one for one in matched if {rank // job.gpus for rank in one.ranks} == {0, 1}]
    assert all(one.assumes_clocks and one.assumed for one in between), "where the clocks are believed, it is said"


def test_clocks_are_not_believed_where_others_of_the_job_are_known_to_disagree() -> None:
    clockwork = GpuJob(hosts=2, gpus=1, periodic=True, outliers=0.0, clock_s=0.001, seed=1).run().summaries()

    def elsewhere(rank: RankSummary) -> RankSummary:
        identity = msgspec.structs.replace(rank.identity, host=f"far-{rank.identity.host}")
        streams = tuple(msgspec.structs.replace(one, key="group 9 [4, 5]") for one in rank.streams)
        return msgspec.structs.replace(rank, identity=identity, streams=streams)

    alone = [elsewhere(rank) for rank in clockwork]
    assert [one.assumes_clocks for one in match_streams(alone)[0]] == [True]
    others = GpuJob(hosts=2, gpus=1, clock_s=3.0, seed=2).run().summaries()
    matched, alignments = match_streams([*others, *alone])
    assert [one.key for one in matched] == ["group 1 [0, 1]"]
    assert any("known to disagree" in alignment.note for alignment in alignments)


def test_unnamed_streams_of_two_groups_are_told_apart() -> None:
    run = GpuJob(tp=2, group_args=False, hosts=1, gpus=8, seed=1).run()
    ranks = run.summaries()
    matched, _ = match_streams(ranks)
    groups = {key: sorted(one.ranks for one in matched if one.stream == key) for key in {one.stream for one in matched}}
    assert groups == {
        "communication stream 0": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "communication stream 1": [(0, 2, 4, 6), (1, 3, 5, 7)],
    }
    assert len({one.key for one in matched}) == len(matched)


def test_a_rank_without_a_record_is_absent_in_that_column_alone() -> None:
    run = GpuJob(hosts=1, gpus=3, missing=0.02, seed=3).run()
    ranks = run.summaries()
    (matched,), _ = match_streams(ranks)
    assert (matched.dur[~matched.present] == ABSENT).all()
    assert (~matched.present).any()
    assert (matched.wait[~matched.present] == 0).all()
    assert set(matched.symmetric) == set(np.flatnonzero(matched.present.all(axis=0)))
    shortest = [min(d for d in column if d >= 0) for column in matched.dur.T.tolist()]
    assert matched.wait.min() == 0
    assert matched.wait[0].tolist() == [
        d - s if d >= 0 else 0 for d, s in zip(matched.dur[0].tolist(), shortest, strict=True)
    ]


def test_lists_of_ranks_cut_short_are_one_group() -> None:
    run = GpuJob(hosts=2, gpus=20, truncate=30, steps=8, layers=1, buckets=2).run()
    ranks = run.summaries()
    keys = {stream.key for rank in ranks for stream in rank.streams}
    assert keys == {f"group 1 [{', '.join(map(str, range(29)))}, ..., 39]"}
    whole = f"group 1 [{', '.join(map(str, range(40)))}]"
    streams = tuple(msgspec.structs.replace(stream, key=whole) for stream in ranks[7].streams)
    ranks[7] = msgspec.structs.replace(ranks[7], streams=streams)
    (matched,), _ = match_streams(ranks)
    assert len(matched.ranks) == 40
    assert matched.key == whole
    assert matched.streams[7] == whole
    assert matched.stream_of(ranks, 7) is streams[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[0, 1, ..., 7]", "[0, 1, 2, 3, 4, 5, 6, 7]", True),
        ("[0, 1, ..., 7]", "[0, 1, 2, ..., 7]", True),
        ("[0, 1, ..., 7]", "[0, 2, ..., 7]", False),
        ("[0, 1, ..., 7]", "[0, 1, ..., 9]", False),
        ("[0, 1, ..., 7]", "[0, 7]", False),
        ("[0, 1]", "[0, 1]", True),
        ("[0, 1]", "[0, 2]", False),
    ],
)
def test_which_recorded_lists_may_be_one(one: str, other: str, same: bool) -> None:
    assert may_be_one(one, other) is same
    assert may_be_one(other, one) is same


def test_a_cut_list_that_fits_two_groups_is_joined_to_neither() -> None:
    (base, *_) = GpuJob(hosts=1, gpus=2, steps=6).run().summaries()

    def named(ranks: str) -> RankSummary:
        renamed = tuple(msgspec.structs.replace(one, key=f"group 4 {ranks}") for one in base.streams)
        return msgspec.structs.replace(base, streams=renamed)

    groups = gather_groups([named("[0, 1, 2, 7]"), named("[0, 1, 3, 7]"), named("[0, 1, ..., 7]")])
    assert sorted(len(group.members) for group in groups) == [1, 1, 1]


def test_more_collectives_than_are_searched_are_all_matched_between_hosts() -> None:
    """Two hosts whose clocks are 3 s apart, 5,000 collectives of which the other's window lacks the first ten."""
    pairing = found(*two(random.Random(4), count=5_000, step=1, jitter=0.5, skew=0.02, drop=10, offset=3_000))
    assert (pairing.lag, pairing.method) == (-10, "intervals")
    assert pairing.place.tolist() == [-1] * 10 + list(range(4_990))


@pytest.mark.parametrize(
    ("kinds", "matched"),
    [
        (["all_reduce", "all_reduce"], False),  # one distance: the next collective may be as far away
        (["all_reduce"] * 4, False),
        (["all_reduce", "all_gather"], False),
        (["all_reduce", "all_gather", "reduce_scatter"], True),  # only one shift is possible
    ],
)
def test_few_collectives_are_matched_across_clocks_only_where_each_is_of_its_own_kind(
    kinds: list[str], matched: bool
) -> None:
    """Ends 20 ms apart. Rank 0 may hold the first of them and rank 1 the next ones, if the clocks are 3 s apart."""
    ends = [20.0 * k for k in range(1, len(kinds) + 1)]
    one = stream([end - 7 for end in ends], [7.0] * len(ends), kinds)
    other = stream([end + 3_020 - 2 for end in ends], [2.0] * len(ends), kinds)
    pairing = found(one, other)
    assert pairing.found is matched
    assert matched or pairing.note


@pytest.mark.parametrize("seed", [3, 5])
def test_a_rank_is_of_the_unnamed_group_that_it_fits_best(seed: int) -> None:
    """64 ranks in eight data parallel groups without names. Few steps: the ends of two groups lie near each other on a
    host by chance."""
    run = GpuJob(hosts=8, gpus=8, tp=8, group_args=False, steps=6, clock_s=3.0, seed=seed).run()
    ranks = run.summaries()
    order = list(run.truth.arrival)
    sizes = []
    for one in match_streams(ranks)[0]:
        family = run.truth.families[order[int(one.stream.split()[-1])]]
        numbers = [ranks[index].identity.rank or 0 for index in one.ranks]
        assert len({int(family.group[number]) for number in numbers}) == 1, one.key
        sizes.append(len(numbers))
    assert sizes == [8] * 16
