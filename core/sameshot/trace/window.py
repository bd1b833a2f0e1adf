"""What was recorded, and when: the first start and the last end among a trace's recorded events.

Recorded events are what the profiler saw the process do. These are not:
- metadata (`M`) and flow arrows (`s`, `t`, `f`), which only repeat the times of events they connect;
- Kineto's own marks: the span of category `Trace` and the instants "Iteration Start: …" and "Record Window End". They
  enclose the profiler's start and stop; the end mark came 0.2 to 33 ms after the last real event (measured);
- category `overhead`: work of the profiler itself, which may lie in the warm-up.

A trace without recorded events is empty however long it is. Times are integer nanoseconds: integer µs × 1000,
fractional µs → nearest ns (exact while |ts| < 2^43 µs), decimal text exactly. An event whose time is missing or not a
number is recorded but moves no border; a negative duration counts as none. So does one without end: Kineto gives a
Python function that it never saw return the largest int64 as its end (torch 2.13, once in 2,400 traces with stacks).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.trace.columns.chunk import MISSING as _MISSING
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.decode import AnyEvent, Decoded, Phased

Bools = npt.NDArray[np.bool_]

NOT_RECORDED_PHASES = frozenset({"M", "s", "t", "f"})
NOT_RECORDED_CATEGORIES = frozenset({"Trace", "overhead"})
_MARKS = ("Iteration Start", "Record Window End")
_INSTANTS = frozenset({"i", "I"})

FAR_NS = 1 << 62  # ns: base time plus start plus duration still fit into int64
_FAR_US = float(FAR_NS // 1000)
_CLOSE_US = 0.02  # far more than float64 loses in ts + dur, for every |ts| that is exact in it
EXACT_US = float(1 << 43)
_DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?\s*")


def to_ns(value: Any) -> int | None:
    """Microseconds as written in a trace → integer ns; None when that is no usable time (beyond ± 2^62 ns)."""
    if value.__class__ is float:
        if math.isfinite(value):
            # Not round(value * 1000): from 2^42 µs on that product is itself rounded, to half ns, and misses by 1 ns.
            whole = math.floor(value)
            ns = whole * 1000 + round((value - whole) * 1000.0)
        else:
            ns = None
    elif value.__class__ is int:
        ns = value * 1000
    elif value.__class__ is str and _DECIMAL.fullmatch(value):
        ns = round(Decimal(value) * 1000)
    else:
        ns = None
    return ns if ns is not None and -FAR_NS < ns < FAR_NS else None


def is_recorded(event: Phased | AnyEvent) -> bool:
    """Did the profiler record this, rather than add it (see above)?"""
    if event.ph in NOT_RECORDED_PHASES:
        return False
    category = getattr(event, "cat", None)
    if category:
        return category not in NOT_RECORDED_CATEGORIES
    name = getattr(event, "name", None)
    return not (event.ph in ("i", "I") and isinstance(name, str) and name.startswith(_MARKS))


class Window:
    """Accumulates over blocks of events."""

    def __init__(self) -> None:
        self.recorded = 0
        self.start_ns = FAR_NS  # relative to the base time
        self.end_ns = -FAR_NS
        self.negative_durations = 0
        self.untimed = 0  # recorded events without a usable start
        self.endless = 0  # events whose end lies beyond all time
        # Is the border a float so large that it no longer carries single ns?
        self._start_is_lossy = False
        self._end_is_lossy = False
        # The same borders in µs, for a quick comparison of numbers: whatever does not pass them moves no border.
        self._early: float = math.inf
        self._late: float = -math.inf

    @property
    def is_timed(self) -> bool:
        return self.end_ns > -FAR_NS

    @property
    def is_lossy(self) -> bool:
        """A border no longer carries single ns."""
        return self._start_is_lossy or self._end_is_lossy

    def add_columns(self, chunk: Chunk, words: Dictionaries, lossy: Bools | None, endless: Bools | None) -> None:
        """Take in the same events as columns: with the same result as `add`.

        `lossy` are starts, and `endless` durations, that are floats too large for ns and for any time (None: none is).
        """
        phases = words.phase.values
        recorded = ~_table(phases, NOT_RECORDED_PHASES)[chunk.phase]
        recorded &= ~_table(words.category.values, NOT_RECORDED_CATEGORIES)[chunk.category]
        nameless = words.category.codes.get("")
        marks = (chunk.category == nameless) & _table(phases, _INSTANTS)[chunk.phase]
        if marks.any():
            at = np.flatnonzero(marks)
            names, where = np.unique(chunk.name[at], return_inverse=True)
            is_mark = np.array([words.name.values[name].startswith(_MARKS) for name in names.tolist()])
            recorded[at[is_mark[where.reshape(-1)]]] = False
        self.recorded += int(np.count_nonzero(recorded))
        timed = recorded & (chunk.ts != _MISSING)
        self.untimed += int(np.count_nonzero(recorded) - np.count_nonzero(timed))
        rows = np.flatnonzero(timed)
        if not len(rows):
            return
        start = chunk.ts[rows]
        is_span = chunk.phase[rows] == words.phase.codes.get("X", -1)
        length = np.where(is_span, chunk.dur[rows], 0)
        negative = (length < 0) & (length != _MISSING)
        self.negative_durations += int(np.count_nonzero(negative))
        if endless is not None:
            self.endless += int(np.count_nonzero(endless[rows] & is_span))
        end = start + np.maximum(length, 0)
        far = end >= FAR_NS
        if far.any():
            self.endless += int(np.count_nonzero(far))
            end[far] = start[far]
        first, last = int(start.argmin()), int(end.argmax())
        if start[first] < self.start_ns:
            self.start_ns = int(start[first])
            self._start_is_lossy = lossy is not None and bool(lossy[rows[first]])
        if end[last] > self.end_ns:
            self.end_ns = int(end[last])
            self._end_is_lossy = lossy is not None and bool(lossy[rows[last]])
        # Numbers may follow, by `add`.
        self._early, self._late = _inside(self.start_ns, 1), _inside(self.end_ns, -1)

    def add(self, events: Decoded) -> None:
        """Take in one block."""
        count = 0
        early, late = self._early, self._late
        # In a trace sorted by time every span ends later than all before. Only the latest is worth an exact look:
        # those whose ends float64 can't tell apart, kept until the block is through.
        latest: list[tuple[float, float]] = []
        peak = late
        items: Sequence[Any] = events
        for event in items:
            ph = event.ph
            if ph == "X":
                if event.cat in NOT_RECORDED_CATEGORIES:
                    continue
                count += 1
                ts, dur = event.ts, event.dur
                kind = ts.__class__
                if (kind is float or kind is int) and kind is dur.__class__ and ts >= early and dur >= 0:
                    end = ts + dur
                    if end <= late:
                        continue
                    if -_FAR_US < end < _FAR_US:
                        if end - peak > _CLOSE_US:
                            latest = [(ts, dur)]
                            peak = end
                        else:
                            latest.append((ts, dur))
                            peak = end if end > peak else peak  # noqa: FURB136 - the hottest loop here
                        late = peak - _CLOSE_US
                        continue
            elif ph in NOT_RECORDED_PHASES or not is_recorded(event):
                continue
            else:
                count += 1
                ts, dur = event.ts, None  # only a span has a duration
                kind = ts.__class__
                if (kind is float or kind is int) and early <= ts <= late:
                    continue
            self._add(ts, dur)
            early, late = self._early, max(late, self._late)
        for ts, dur in latest:
            self._add(ts, dur)
        self.recorded += count

    def _add(self, ts: Any, dur: Any) -> None:
        start = to_ns(ts)
        if start is None:
            self.untimed += 1
            return
        length = to_ns(dur)
        if length is None:
            self.endless += isinstance(dur, int | float) and dur > 0
            length = 0
        if length < 0:
            self.negative_durations += 1
            length = 0
        end = start + length
        if end >= FAR_NS:
            self.endless += 1
            end = start
        lossy = ts.__class__ is float and abs(ts) >= EXACT_US
        if start < self.start_ns:
            self.start_ns = start
            self._start_is_lossy = lossy
            # Text stays on the slow path, so only a number may narrow the quick comparison.
            self._early = ts if ts.__class__ is not str else _inside(start, 1)
        if end > self.end_ns:
            self.end_ns = end
            self._end_is_lossy = lossy
            self._late = _inside(end, -1)


def _inside(border: int, inwards: int) -> float:
    """µs by which no number that moves this border lies: a margin for what float64 loses, a few units at this size."""
    return (border + inwards * (10 + (abs(border) >> 48))) / 1000


def _table(values: Sequence[str], wanted: frozenset[str]) -> Bools:
    """For every code, whether its value is one of these."""
    return np.fromiter((value in wanted for value in values), dtype=np.bool_, count=len(values))
