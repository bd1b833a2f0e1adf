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

from sameshot.trace.decode import AnyEvent, Decoded, Phased
from sameshot.trace.events import Event

NOT_RECORDED_PHASES = frozenset({"M", "s", "t", "f"})
NOT_RECORDED_CATEGORIES = frozenset({"Trace", "overhead"})
_MARKS = ("Iteration Start", "Record Window End")

_FAR = 1 << 62  # ns: base time plus start plus duration still fit into int64
_FAR_US = float(_FAR // 1000)
_CLOSE_US = 0.02  # far more than float64 loses in ts + dur, for every |ts| that is exact in it
_EXACT_US = float(1 << 43)
_DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?\s*")


def to_ns(value: Any) -> int | None:
    """Microseconds as written in a trace → integer ns; None when that is no usable time (beyond ± 2^62 ns)."""
    if value.__class__ is float:
        ns = round(value * 1000.0) if math.isfinite(value * 1000.0) else None
    elif value.__class__ is int:
        ns = value * 1000
    elif value.__class__ is str and _DECIMAL.fullmatch(value):
        ns = round(Decimal(value) * 1000)
    else:
        ns = None
    return ns if ns is not None and -_FAR < ns < _FAR else None


def is_recorded(event: Phased | AnyEvent | Event) -> bool:
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
        self.start_ns = _FAR  # relative to the base time
        self.end_ns = -_FAR
        self.negative_durations = 0
        self.untimed = 0  # recorded events without a usable start
        self.endless = 0  # events whose end lies beyond all time
        self.is_lossy = False  # a border is a float so large that it no longer carries single ns
        # The same borders in µs, for a quick comparison of numbers: whatever does not pass them moves no border.
        self._early: float = math.inf
        self._late: float = -math.inf

    @property
    def is_timed(self) -> bool:
        return self.end_ns > -_FAR

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
        if end >= _FAR:
            self.endless += 1
            end = start
        lossy = ts.__class__ is float and abs(ts) > _EXACT_US
        if start < self.start_ns:
            self.start_ns = start
            self.is_lossy |= lossy
            # Text stays on the slow path, so only a number may narrow the quick comparison.
            self._early = ts if ts.__class__ is not str else start / 1000
        if end > self.end_ns:
            self.end_ns = end
            self.is_lossy |= lossy
            # A margin for what float64 loses: more than a few units in the last place at this size.
            self._late = (end - 10 - (abs(end) >> 48)) / 1000
