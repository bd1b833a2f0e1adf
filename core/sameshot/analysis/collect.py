"""A sink that keeps, of every decoded event, only the columns that the first analysis needs.

Times become exact integer nanoseconds here: integer microseconds times 1000, fractional ones rounded to the nearest
nanosecond (exact below 2^43 µs), text as a decimal. Anything strange is counted under a name, never dropped in silence
and never fatal: the verifier has already decided that the file is a trace.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.trace.events import Event
from sameshot.trace.window import to_ns

_EXACT_US = 2.0**43  # beyond, a float64 of microseconds no longer resolves nanoseconds
_FAR = 1 << 62  # ns; so that a start plus a duration still fits into int64

Number = int | float | str | None


class Collective(msgspec.Struct, frozen=True):
    """One communication span: a gloo span on a worker thread, or an NCCL kernel."""

    start: int
    end: int
    name: str
    source: str
    lane: str
    group: str | None
    nelems: int | None
    dtype: str | None
    seq: int | None


class Table:
    """Events of one category: start, end, name and lane (a thread, or a GPU stream)."""

    __slots__ = ("_end", "_lane", "_name", "_start")

    def __init__(self) -> None:
        self._start, self._end, self._name, self._lane = array("q"), array("q"), array("q"), array("q")

    def add(self, start: int, end: int, name: int, lane: int) -> None:
        self._start.append(start)
        self._end.append(end)
        self._name.append(name)
        self._lane.append(lane)

    def __len__(self) -> int:
        return len(self._start)

    # Copies, not views: a numpy view would pin the array and the next append would fail.
    @property
    def start(self) -> Ints:
        return np.array(self._start, dtype=np.int64)

    @property
    def end(self) -> Ints:
        return np.array(self._end, dtype=np.int64)

    @property
    def name(self) -> Ints:
        return np.array(self._name, dtype=np.int64)

    @property
    def lane(self) -> Ints:
        return np.array(self._lane, dtype=np.int64)

    def spans(self, keep: Any = slice(None)) -> Spans:
        return Spans.of(self.start[keep], self.end[keep])


class Names:
    """Strings to small numbers and back."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}
        self.values: list[Any] = []

    def id(self, value: Any) -> int:
        found = self.of.get(value)
        if found is None:
            found = self.of[value] = len(self.values)
            self.values.append(value)
        return found


class Collector:
    """Feed it blocks of events; afterwards read the tables."""

    def __init__(self) -> None:
        self.events = 0
        self.tables: dict[Cat, Table] = {
            cat: Table()
            for cat in (Cat.OPERATOR, Cat.ANNOTATION, Cat.PYTHON, Cat.RUNTIME, Cat.KERNEL, Cat.MEMORY, Cat.SYNC)
        }
        self.names = Names()
        self.lanes = Names()
        self.collectives: list[Collective] = []
        self.by_category: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.oddities: Counter[str] = Counter()
        self._cats: dict[str | None, Cat] = {}

    def block(self, events: list[Event]) -> None:
        """Take one decoded block (the `EventSink` protocol)."""
        self.events += len(events)
        for event in events:
            raw = event.cat
            cat = self._cats.get(raw)
            if cat is None:
                cat = self._cats[raw] = names.category(raw)
            if raw:
                self.by_category[raw] += 1
            if cat is Cat.UNKNOWN:
                self.unknown[str(raw)] += 1
            if event.ph == "X" and cat not in (Cat.SKIPPED, Cat.UNKNOWN):
                self._complete(event, cat)

    def _complete(self, event: Event, cat: Cat) -> None:
        start, duration = self._ns(event.ts, "timestamp"), self._ns(event.dur, "duration")
        if start is None or duration is None:
            return
        if duration < 0:
            self.oddities["negative duration, left out"] += 1
            return
        name = event.name if isinstance(event.name, str) else "" if event.name is None else str(event.name)
        args = event.args
        if cat in (Cat.KERNEL, Cat.MEMORY):
            stream = args.stream if args is not None and args.stream is not None else event.tid
            device = args.device if args is not None and args.device is not None else event.pid
            lane = self.lanes.id((str(device), str(stream)))
        else:
            lane = self.lanes.id((event.pid, event.tid))
        self.tables[cat].add(start, start + duration, self.names.id(name), lane)
        if cat is Cat.KERNEL and names.is_nccl_kernel(name):
            self._communication(event, start, start + duration, name, "nccl", str(self.lanes.values[lane][1]))
        elif cat is Cat.ANNOTATION and name.startswith("gloo:"):
            self._communication(event, start, start + duration, name, "gloo", "gloo threads")

    def _communication(self, event: Event, start: int, end: int, name: str, source: str, lane: str) -> None:
        args = event.args
        group = nelems = dtype = seq = None
        if args is not None:
            if args.process_group_name is not None:
                group = str(args.process_group_name)
                if args.process_group_ranks is not None:
                    group += f" {args.process_group_ranks}"
            nelems = args.in_msg_nelems if isinstance(args.in_msg_nelems, int) else None
            dtype = args.dtype if isinstance(args.dtype, str) else None
            seq = args.collective_sequence if isinstance(args.collective_sequence, int) else None
            if isinstance(args.collective_name, str) and args.collective_name:
                name = args.collective_name
        self.collectives.append(Collective(start, end, name, source, lane, group, nelems, dtype, seq))

    def _ns(self, value: Number, what: str) -> int | None:
        """Microseconds as written → integer ns; None (and counted) where that can't be had."""
        ns = to_ns(value)
        if ns is not None and -_FAR < ns < _FAR:
            if value.__class__ is float and not -_EXACT_US < value < _EXACT_US:
                self.oddities[f"fractional {what} beyond 2^43 µs, no longer exact to 1 ns"] += 1
            elif value.__class__ is str:
                self.oddities[f"{what} written as text"] += 1
            return ns
        self.oddities[f"no {what}, left out" if value is None else f"unusable {what}, left out"] += 1
        return None
