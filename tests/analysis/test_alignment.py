"""Matching the collectives of two ranks: right, or refused; never wrong."""

from __future__ import annotations

import random

import pytest

from sameshot.analysis.align import Lag, find_lag, sequence
from sameshot.analysis.summary import Stream


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


def pair(
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


def found(one: Stream, other: Stream, *, same_host: bool = False) -> Lag:
    numbers: dict[str, int] = {}
    return find_lag(sequence(one, 0, numbers), sequence(other, 0, numbers), same_host=same_host)


@pytest.mark.parametrize("seed", range(20))
def test_the_rhythm_of_uneven_steps_gives_the_lag_without_any_clock(seed: int) -> None:
    dice = random.Random(seed)
    drop = dice.randint(0, 8)
    lag = found(*pair(dice, jitter=8, skew=0.03, drop=drop, offset=dice.uniform(-5000, 5000)))
    assert (lag.lag, lag.method) == (-drop, "intervals")


@pytest.mark.parametrize("seed", range(60))
def test_a_purely_periodic_sequence_is_never_matched_by_rhythm(seed: int) -> None:
    dice = random.Random(seed)
    lag = found(*pair(dice, jitter=0, skew=0.03, drop=dice.randint(0, 8), offset=dice.uniform(-5000, 5000)))
    assert lag.method != "intervals"


@pytest.mark.parametrize("seed", range(20))
def test_a_periodic_sequence_is_matched_by_clocks_that_agree_to_a_fraction_of_a_step(seed: int) -> None:
    dice = random.Random(seed)
    drop = dice.randint(0, 8)
    lag = found(*pair(dice, jitter=0, skew=0.03, drop=drop, offset=dice.uniform(-8, 8)))
    assert (lag.lag, lag.method) == (-drop, "wall-clock")
    assert "hosts' clocks" in lag.note


def test_clocks_that_differ_by_about_half_a_step_are_not_believed() -> None:
    lag = found(*pair(random.Random(1), jitter=0, skew=0.03, drop=3, offset=20.0))
    assert (lag.lag, lag.method) == (None, "none")
    assert lag.note


def test_recorded_numbers_win_over_everything_else() -> None:
    one = stream([0, 40, 80, 120], [2] * 4, seq=[7, 8, 9, 10])
    other = stream([0, 40, 80], [2] * 3, seq=[9, 10, 11])
    assert (found(one, other).lag, found(one, other).method) == (-2, "sequence")


def test_numbers_with_a_gap_are_refused() -> None:
    one = stream([0, 40, 80, 120], [2] * 4, seq=[7, 8, 9, 10])
    other = stream([0, 40, 80], [2] * 3, seq=[8, 10, 11])
    assert found(one, other).lag is None


def test_shifts_under_which_kinds_differ_are_impossible() -> None:
    kinds = ["all_gather", "all_reduce", "all_reduce", "reduce_scatter"] * 8
    starts = [10.0 * i for i in range(32)]
    one, other = stream(starts, [1.0] * 32, kinds), stream(starts[5:], [1.0] * 27, kinds[5:])
    lag = found(one, other)
    assert lag.lag == -5


def test_sequences_of_different_kinds_are_not_matched() -> None:
    one = stream([0, 40, 80, 120, 160], [2] * 5, ["all_reduce"] * 5)
    other = stream([0, 40, 80, 120, 160], [2] * 5, ["all_gather"] * 5)
    assert found(one, other).lag is None


def test_rhythm_and_clock_of_one_host_must_agree() -> None:
    one, other = pair(random.Random(3), jitter=8, skew=0.03, drop=4, offset=200.0)
    assert found(one, other, same_host=False).lag == -4
    assert found(one, other, same_host=True).lag is None


def test_nothing_is_matched_with_nothing() -> None:
    assert found(stream([], []), stream([1.0], [1.0])).lag is None
