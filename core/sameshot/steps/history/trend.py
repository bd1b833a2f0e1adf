"""What the captures of a series say together: did the time per step change its level, where, and what else did? Pure.

Only that is claimed which the rows prove (`levels` has the rules). One slow capture at the end is said to be one slow
capture. Only captures that were recorded like the latest one are looked at (`alike`): with other options, or of another
world size, a step takes another time. What changed between the two captures around a break is what their rows record,
world size, recording options, image and commit: a place to look, not a cause; what they do not record is said to be
unknown.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec

from sameshot.analysis.text import count, ms, percent
from sameshot.errors import UsageError
from sameshot.model import Outcome
from sameshot.steps.history.alike import OPTIONS, alike, options_known
from sameshot.steps.history.levels import LEAST_BEFORE, LEAST_NOW, Levels, levels
from sameshot.steps.history.row import HistoryRow
from sameshot.steps.results import shortened

RELEVANT = 0.1  # a smaller change of the time per step is not spoken of
LEAST = LEAST_BEFORE + LEAST_NOW
_MOST = 200  # captures that are looked at; older ones are history
_USABLE = (Outcome.SUCCEEDED, Outcome.PARTIAL)


class Change(enum.StrEnum):
    SLOWER = "slower"  # than at the level before
    FASTER = "faster"
    STEADY = "steady"  # one level, as far as can be told
    UNKNOWN = "unknown"  # too few captures with a step time


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the level changed. `shift` is the change as a share of the level before (0.3: 30 % slower)."""

    previous: HistoryRow  # the last capture of the level before
    first: HistoryRow  # the first one of the new level
    shift: float
    before_ns: int
    after_ns: int
    captures_before: int
    captures_after: int
    changed: tuple[str, ...]  # "commit 1a2b → 3c4d"
    unchanged: tuple[str, ...]  # names of what is known of both and equal
    unknown: tuple[str, ...] = ()  # names of what is not known of both


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """`found` is the latest break, the one whose level still holds. `apart` counts the last captures that lie off
    that level, all on one side: not yet a trend."""

    change: Change
    sentence: str
    captures: int  # with a step time
    left_out: int  # rows without one, or of a capture that failed or was cancelled
    unlike: int = 0  # captures with a step time that were recorded with other options, or of another world size
    level_ns: int | None = None  # the current one
    noise: float | None = None  # standard deviation around the levels, as a share
    found: Break | None = None
    apart: int = 0
    apart_shift: float | None = None

    @property
    def brief(self) -> str:
        """A few words, where there is no room for the sentence."""
        if self.change is Change.UNKNOWN:
            return f"too few captures, it takes {LEAST}"
        said = "steady"
        if (found := self.found) is not None:
            said = f"{_relative(found.shift)} since {when(found.first)}"
        return said if self.apart_shift is None else f"{said}; the last one {_relative(self.apart_shift)}"


def usable(rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    """The rows that have a say in the trend, in the order of time."""
    found = [row for row in rows if row.outcome in _USABLE and (row.headline.step_time_ns or 0) > 0]
    return sorted(found, key=lambda row: row.key)


def trend(rows: Iterable[HistoryRow], *, relevant: float = RELEVANT) -> Trend:
    """The trend of one series from its rows, in any order.

    `relevant` is the least change of the time per step that is claimed. Raises UsageError where that is not above 0.
    """
    if not 0 < relevant < math.inf:
        raise UsageError(f"A relevant change of {relevant} is impossible; 0.1 stands for 10 %.")
    every = list(rows)
    with_time = usable(every)
    same = alike(with_time)
    timed = same[-_MOST:]
    unlike = len(with_time) - len(same)
    left_out = len(every) - len(timed) - unlike
    times = [float(row.headline.step_time_ns or 0) for row in timed]
    known = levels([math.log(time) for time in times], math.log1p(relevant))
    if known is None:
        return Trend(
            change=Change.UNKNOWN,
            sentence=f"{count(len(timed), 'capture')} with a step time: it takes {LEAST} to tell a change from chance."
            + _others(unlike),
            captures=len(timed),
            left_out=left_out,
            unlike=unlike,
        )
    level = round(math.exp(known.current))
    apart, away = _apart(times, known, relevant)
    found = _break(timed, known) if known.cuts else None
    change = Change.STEADY if found is None else Change.SLOWER if found.shift > 0 else Change.FASTER
    said = _steady(len(timed), level, known.noise, relevant) if found is None else _broken(found)
    return Trend(
        change=change,
        sentence=(said if away is None else f"{said} {_not_yet(apart, away)}") + _others(unlike),
        captures=len(timed),
        left_out=left_out,
        unlike=unlike,
        level_ns=level,
        noise=math.expm1(known.noise),
        found=found,
        apart=apart,
        apart_shift=away,
    )


def _apart(times: Sequence[float], known: Levels, relevant: float) -> tuple[int, float | None]:
    """How many captures at the end lie relevantly off the current level on one side, one of them by more than noise;
    and how far the last one does."""
    away = [known.off(math.log(time)) for time in times]
    side = math.copysign(1, away[-1])
    ending = list(itertools.takewhile(lambda one: one * side >= math.log1p(relevant), reversed(away)))
    if not any(known.surely(known.current + one) for one in ending):
        return 0, None
    return len(ending), math.expm1(away[-1])


def _break(timed: Sequence[HistoryRow], known: Levels) -> Break:
    at, start = known.cuts[-1], known.cuts[-2] if len(known.cuts) > 1 else 0
    previous, first = timed[at - 1], timed[at]
    pairs = {
        "world size": (previous.world_size, first.world_size),
        "recording options": (_options(previous), _options(first)),
        "image": (previous.image, first.image),
        "commit": (previous.commit, first.commit),
    }
    told = {name: pair for name, pair in pairs.items() if None not in pair}
    return Break(
        previous=previous,
        first=first,
        shift=math.expm1(known.medians[-1] - known.medians[-2]),
        before_ns=round(math.exp(known.medians[-2])),
        after_ns=round(math.exp(known.medians[-1])),
        captures_before=at - start,
        captures_after=len(timed) - at,
        changed=tuple(f"{name} {_brief(old)} → {_brief(new)}" for name, (old, new) in told.items() if old != new),
        unchanged=tuple(name for name, (old, new) in told.items() if old == new),
        unknown=tuple(name for name in pairs if name not in told),
    )


def _options(row: HistoryRow) -> tuple[object, ...] | None:
    return tuple(getattr(row, name) for name in OPTIONS) if options_known(row) else None


def when(row: HistoryRow) -> str:
    """`2026-01-31 12:00 UTC`"""
    return f"{row.captured_at[:16].replace('T', ' ')} UTC"


def _broken(found: Break) -> str:
    word = "Slower" if found.shift > 0 else "Faster"
    if found.changed:
        why = f"Between the two changed: {', '.join(found.changed)}."
    elif found.unchanged:
        why = f"Between the two did not change: {', '.join(found.unchanged)}."
    else:
        why = ""
    if found.unknown:
        why = f"{why} Not known of both: {', '.join(found.unknown)}."
    shift = f"{percent(abs(found.shift))} {'more' if found.shift > 0 else 'less'}"
    return (
        f"{word} since {when(found.first)}, capture {found.first.capture_id}: {ms(found.after_ns)} per step over "
        f"{count(found.captures_after, 'capture')}, {shift} than the {ms(found.before_ns)} of the "
        f"{found.captures_before} before, of which {found.previous.capture_id} is the last. {why.strip()}"
    ).rstrip()


def _others(unlike: int) -> str:
    if not unlike:
        return ""
    return f" Left out: {count(unlike, 'capture')} with other recording options or of another world size."


def _steady(number: int, level: int, noise: float, relevant: float) -> str:
    return (
        f"Steady at {ms(level)} per step over {count(number, 'capture')}: no change of level of {percent(relevant)} "
        f"or more (they scatter by {percent(math.expm1(noise))})."
    )


def _not_yet(number: int, away: float) -> str:
    if number == 1:
        return f"The last capture alone is {_relative(away)}: one capture, not yet a trend."
    return f"The last {number} captures lie off that level, the last one is {_relative(away)}: not yet a trend."


def _relative(shift: float) -> str:
    return f"{percent(abs(shift))} {'slower' if shift > 0 else 'faster'}"


def _brief(value: object) -> str:
    """Whole where that is short; of a commit's digest as much as people write."""
    text = str(value)
    if len(text) == 40 and set(text) <= set("0123456789abcdef"):
        return text[:12]
    return shortened(text, 60)
