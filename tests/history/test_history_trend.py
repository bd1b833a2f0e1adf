"""What a trend claims: nothing of jitter, a planted change where it was planted, and one slow capture as one."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable

import msgspec
import pytest
from history_lab import MS, row, series
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.errors import UsageError
from sameshot.model import Outcome
from sameshot.steps.history.levels import LEAST_BEFORE, LEAST_NOW, _cut, levels
from sameshot.steps.history.trend import LEAST, Change, trend

RELEVANT = math.log1p(0.1)


# -- an independent simulation: multiplicative jitter of several kinds


def gauss(dice: random.Random) -> float:
    return dice.gauss(0, 1)


def laplace(dice: random.Random) -> float:
    return dice.choice((-1, 1)) * dice.expovariate(math.sqrt(2))


def student3(dice: random.Random) -> float:
    return dice.gauss(0, 1) / math.sqrt(dice.gammavariate(1.5, 2) / 3)


def lognormal(dice: random.Random) -> float:
    """Mostly fast, sometimes much slower, as a shared cluster is."""
    return math.exp(dice.gauss(0, 0.8)) - 1


KINDS: dict[str, Callable[[random.Random], float]] = {
    "gauss": gauss, "laplace": laplace, "student3": student3, "lognormal": lognormal,
}  # fmt: skip


def jittered(dice: random.Random, kind: str, size: float, count: int, doubled: float = 0.0) -> list[float]:
    """Logarithms of times around one level; a share `doubled` of them is that of a step twice as long."""
    return [size * KINDS[kind](dice) + (math.log(2) if dice.random() < doubled else 0.0) for _ in range(count)]


def claims(values: list[float]) -> bool:
    found = levels(values, RELEVANT)
    assert found is not None
    return bool(found.cuts)


FEW_AND_MANY = pytest.mark.parametrize("number", [200, pytest.param(2_000, marks=pytest.mark.full)])


@FEW_AND_MANY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.02, 0.05, 0.15])
def test_jitter_alone_is_called_steady(kind: str, size: float, number: int) -> None:
    """Measured with 2,000 series a kind and size: at most 0.6 % claim a change (lognormal of 15 %)."""
    dice = random.Random(f"{kind}{size}")
    lengths = [dice.randint(LEAST, 40) for _ in range(number)]
    wrong = sum(claims(jittered(dice, kind, size, length)) for length in lengths)
    print(f"{kind} {size:.0%}: {100 * wrong / number:.2f} % of {number}")
    assert wrong <= 0.01 * len(lengths)


@FEW_AND_MANY
@pytest.mark.parametrize("size", [0.02, 0.05, 0.15])
def test_a_tenth_of_the_captures_twice_as_slow_is_no_change_of_level(size: float, number: int) -> None:
    dice = random.Random(f"doubled{size}")
    lengths = [dice.randint(LEAST, 40) for _ in range(number)]
    wrong = sum(claims(jittered(dice, "gauss", size, length, doubled=0.1)) for length in lengths)
    print(f"a tenth doubled, {size:.0%}: {100 * wrong / number:.2f} % of {number}")
    assert wrong <= 0.02 * len(lengths)


@pytest.mark.parametrize(
    ("shift", "jitter", "before", "after", "exactly"),
    [
        (0.15, 0.02, 10, 5, 0.95),
        (0.15, 0.02, 30, 10, 0.95),
        (0.30, 0.02, 6, 3, 0.95),
        (0.30, 0.05, 10, 5, 0.9),
        (0.50, 0.05, 6, 3, 0.9),
        (0.50, 0.10, 20, 10, 0.8),
        (-0.30, 0.02, 10, 5, 0.95),
    ],
)
def test_a_planted_change_is_found_at_the_right_capture(
    shift: float, jitter: float, before: int, after: int, exactly: float
) -> None:
    dice = random.Random(f"{shift}{jitter}{before}{after}")
    right, off = 0, []
    for _ in range(200):
        values = jittered(dice, "gauss", jitter, before + after)
        values = [value + (math.log1p(shift) if at >= before else 0.0) for at, value in enumerate(values)]
        found = levels(values, RELEVANT)
        assert found is not None
        if found.cuts == (before,):
            right += 1
            off.append(abs(math.expm1(found.medians[1] - found.medians[0]) - shift))
    print(f"{shift:+.0%} in jitter of {jitter:.0%}, {before} + {after}: {right / 2:.1f} % at the very capture")
    assert right >= exactly * 200
    assert statistics.median(off) < 2 * jitter


def brute_force(values: list[float], price: float) -> float:
    """The least cost over all ways to cut, by trying every one."""
    count, best = len(values), math.inf
    for number in range(count // LEAST_BEFORE + 1):
        for cuts in itertools.combinations(range(1, count), number):
            edges = [0, *cuts, count]
            pieces = [values[begin:end] for begin, end in itertools.pairwise(edges)]
            if all(len(piece) >= LEAST_BEFORE for piece in pieces[:-1]) and len(pieces[-1]) >= LEAST_NOW:
                away = sum(abs(value - statistics.median(piece)) for piece in pieces for value in piece)
                best = min(best, away + price * number)
    return best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=LEAST, max_size=16), st.floats(0.01, 5))
def test_the_cuts_are_the_cheapest_there_are(values: list[float], price: float) -> None:
    edges = [0, *_cut(values, price), len(values)]
    pieces = [values[begin:end] for begin, end in itertools.pairwise(edges)]
    cost = sum(abs(value - statistics.median(piece)) for piece in pieces for value in piece)
    assert cost + price * (len(pieces) - 1) == pytest.approx(brute_force(values, price), abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=LEAST, max_size=40), st.floats(-3, 3))
def test_only_differences_count(values: list[float], moved: float) -> None:
    """A series in other units is the same series."""
    here, there = levels(values, RELEVANT), levels([value + moved for value in values], RELEVANT)
    assert here is not None
    assert there is not None
    assert there.noise == pytest.approx(here.noise, abs=1e-9)


# -- what is said


def wobbling(count: int, seed: int = 1, size: float = 0.02) -> list[float]:
    dice = random.Random(seed)
    return [100 * math.exp(size * gauss(dice)) for _ in range(count)]


def test_where_it_became_slower_the_first_capture_the_last_before_and_what_changed_are_named() -> None:
    times = [time * (1.3 if at >= 12 else 1) for at, time in enumerate(wobbling(17))]
    rows = [
        msgspec.structs.replace(
            each, world_size=4, commit=("a" if at < 12 else "b") * 40, image="img:1" if at < 12 else "img:2"
        )
        for at, each in enumerate(series(times))
    ]
    found = trend(rows)
    assert found.change is Change.SLOWER
    assert found.found is not None
    assert (found.found.previous, found.found.first) == (rows[11], rows[12])
    assert (found.found.captures_before, found.found.captures_after) == (12, 5)
    assert found.found.shift == pytest.approx(0.3, abs=0.03)
    assert found.found.before_ns == round(statistics.median(times[:12]) * MS) or found.found.before_ns == pytest.approx(
        statistics.median(times[:12]) * MS, rel=1e-3
    )
    assert found.level_ns == found.found.after_ns == pytest.approx(statistics.median(times[12:]) * MS, rel=1e-3)
    assert found.found.changed == ("image img:1 → img:2", "commit aaaaaaaaaaaa → bbbbbbbbbbbb")
    assert found.found.unchanged == ("world size",)
    for word in ("Slower since 2026-01-01 12:00 UTC", "c012", "c011", "5 captures", "12 before", "commit aaaaaaaaaaaa"):
        assert word in found.sentence
    assert "trend" not in found.sentence, "it is one"
    assert "world size" not in found.sentence
    assert found.found.unknown == ("recording options",)
    assert found.sentence.endswith("Not known of both: recording options.")
    assert trend(rows[::-1]) == found, "the order of the rows does not matter"


def test_what_is_unknown_of_either_capture_is_not_said_to_have_changed() -> None:
    times = [100.0] * 8 + [130.0] * 4
    rows = [msgspec.structs.replace(each, commit=None if at < 8 else "b", world_size=None) for at, each in
            enumerate(series(times))]  # fmt: skip
    found = trend(rows).found
    assert found is not None
    assert (found.changed, found.unchanged) == ((), ())
    assert "Between" not in trend(rows).sentence
    assert found.unknown == ("world size", "recording options", "image", "commit")


PLAIN = {
    "activities": "cpu,cuda", "with_stack": False, "record_shapes": False, "profile_memory": False, "with_flops": False,
}  # fmt: skip


def test_captures_with_other_recording_options_make_no_level() -> None:
    """Three captures on demand, with stacks: they cost 40 % and say nothing of the training."""
    plain = series(wobbling(12), **PLAIN)
    costly = [row(12 + number, 140, **PLAIN | {"with_stack": True}) for number in range(3)]
    told = trend([*plain, *costly])
    assert (told.change, told.captures, told.unlike) == (Change.UNKNOWN, 3, 12)
    assert told.sentence.endswith(" Left out: 12 captures with other recording options or of another world size.")
    after = trend([*plain, *costly, row(15, 100, **PLAIN)])
    assert (after.change, after.captures, after.unlike, after.apart) == (Change.STEADY, 13, 3, 0)
    assert "Left out: 3 captures" in after.sentence
    assert "Left out" not in trend(plain).sentence


def test_captures_of_another_world_size_make_no_level() -> None:
    rows = [*series([100.0] * 12, **PLAIN), *(row(12 + number, 140, **PLAIN, world_size=8) for number in range(9))]
    found = trend(rows)
    assert (found.change, found.captures, found.unlike) == (Change.STEADY, 9, 12)


def test_captures_alike_are_said_to_be_and_what_is_not_recorded_is_said_to_be_unknown() -> None:
    times = [100.0] * 12 + [140.0] * 3
    alike = trend(series(times, **PLAIN, image="i", commit="c"))
    assert "Between the two did not change: world size, recording options, image, commit." in alike.sentence
    assert "Not known" not in alike.sentence
    silent = trend(series(times, image="i", commit="c"))
    assert "did not change: world size, image, commit. Not known of both: recording options." in silent.sentence


def test_captures_known_to_differ_are_not_joined_by_one_that_says_nothing() -> None:
    plain, costly = series([100.0] * 9, **PLAIN), [row(9 + n, 140, **PLAIN | {"with_stack": True}) for n in range(9)]
    found = trend([*plain, *costly, row(18, 140)])
    assert (found.change, found.captures, found.unlike) == (Change.STEADY, 10, 9)


def test_an_improvement_is_one() -> None:
    found = trend(series([100.0] * 8 + [80.0] * 3))
    assert found.change is Change.FASTER
    assert found.found is not None
    assert found.found.shift == pytest.approx(-0.2)
    assert found.sentence.startswith("Faster since 2026-01-01 08:00 UTC")
    assert "20 % less" in found.sentence


def test_of_several_breaks_the_one_whose_level_still_holds_is_told() -> None:
    times = [time * (1 if at < 10 else 1.5 if at < 20 else 1.2) for at, time in enumerate(wobbling(28, 5))]
    found = trend(series(times))
    assert found.change is Change.FASTER
    assert found.found is not None
    assert found.found.first.capture_id == "c020"
    assert found.found.shift == pytest.approx(1.2 / 1.5 - 1, abs=0.03)
    assert found.found.captures_before == 10, "of the level before, not of all"


def test_a_level_that_came_and_went_long_ago_is_history() -> None:
    """Back at the old level: what is said is the way back, not the regression."""
    times = [time * (1.5 if 10 <= at < 20 else 1) for at, time in enumerate(wobbling(30, 6))]
    found = trend(series(times))
    assert found.change is Change.FASTER
    assert found.found is not None
    assert found.found.first.capture_id == "c020"


def test_a_short_burst_is_no_level() -> None:
    times = [time * (1.5 if 10 <= at < 13 else 1) for at, time in enumerate(wobbling(24, 7))]
    assert trend(series(times)).change is Change.STEADY


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_one_capture_off_at_the_end_is_one_capture_and_not_yet_a_trend(factor: float) -> None:
    found = trend(series([*wobbling(15), 100 * factor]))
    assert found.change is Change.STEADY
    assert found.found is None
    assert found.apart == 1
    assert found.apart_shift == pytest.approx(factor - 1, abs=0.02)
    assert f"The last capture alone is 40 % {'slower' if factor > 1 else 'faster'}" in found.sentence
    assert "not yet a trend" in found.sentence
    assert "the last one 40 %" in found.brief


def test_two_are_not_yet_one_either_and_three_are() -> None:
    calm = wobbling(15)
    two = trend(series([*calm, 140.0, 138.0]))
    assert (two.change, two.apart) == (Change.STEADY, 2)
    assert "The last 2 captures lie off that level" in two.sentence
    three = trend(series([*calm, 140.0, 138.0, 141.0]))
    assert (three.change, three.apart) == (Change.SLOWER, 0)
    assert three.found is not None
    assert three.found.first.capture_id == "c015"


def test_an_outlier_in_the_middle_is_not_spoken_of() -> None:
    times = wobbling(20)
    times[9] = 300.0
    found = trend(series(times))
    assert (found.change, found.apart, found.found) == (Change.STEADY, 0, None)
    assert "not yet" not in found.sentence


def test_one_more_slow_capture_after_a_break_is_said_beside_it() -> None:
    found = trend(series([*wobbling(10), *(1.3 * time for time in wobbling(8, 2)), 200.0]))
    assert found.change is Change.SLOWER
    assert found.apart == 1
    assert found.sentence.endswith("one capture, not yet a trend.")


def test_a_change_below_the_threshold_is_none_and_the_threshold_is_the_callers() -> None:
    rows = series([100.0] * 10 + [105.0] * 10)
    assert trend(rows).change is Change.STEADY
    assert "10 % or more" in trend(rows).sentence
    assert trend(rows, relevant=0.03).change is Change.SLOWER
    assert trend(series([100.0] * 10 + [130.0] * 10), relevant=0.5).change is Change.STEADY
    for wrong in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(UsageError):
            trend(rows, relevant=wrong)


@pytest.mark.parametrize("count", range(LEAST))
def test_too_few_captures_are_said_to_be_too_few(count: int) -> None:
    found = trend(series([100.0 * 2**at for at in range(count)]))
    assert found.change is Change.UNKNOWN
    assert found.sentence == (
        f"{count} capture{'' if count == 1 else 's'} with a step time: it takes 8 to tell a change from chance."
    )
    assert (found.level_ns, found.noise, found.found, found.apart) == (None, None, None, 0)


def test_equal_times_have_no_noise_and_a_change_among_them_is_sure() -> None:
    assert trend(series([100.0] * 8)).change is Change.STEADY
    found = trend(series([100.0] * 5 + [120.0] * 3))
    assert (found.change, found.noise) == (Change.SLOWER, 0.0)


def test_failed_cancelled_and_stepless_captures_count_for_nothing() -> None:
    rows = series([100.0] * 8)
    noise = [
        row(20, 500, outcome=Outcome.FAILED), row(21, 500, outcome=Outcome.CANCELLED), row(22, None),
        row(23, 0), row(24, 500, outcome=Outcome.FAILED), row(25, 500, outcome=Outcome.UNKNOWN),
    ]  # fmt: skip
    found = trend([*rows, *noise])
    assert (found.change, found.captures, found.left_out) == (Change.STEADY, 8, 6)
    partial = [row(20 + number, 130, outcome=Outcome.PARTIAL) for number in range(3)]
    assert trend([*rows, *partial]).change is Change.SLOWER, "most ranks are enough for a step time"


def test_a_long_history_is_looked_at_as_far_as_it_matters() -> None:
    """A break of 300 captures ago is no news."""
    found = trend(series([100.0] * 50 + [150.0] * 300))
    assert (found.change, found.captures, found.left_out) == (Change.STEADY, 200, 150)
