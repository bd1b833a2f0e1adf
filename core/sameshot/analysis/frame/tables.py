"""The tables of one trace, and the trace as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.analysis.intervals import EMPTY, Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import Codes

Bools = npt.NDArray[np.bool_]

EMPTY_CODES: Codes = np.empty(0, dtype=np.int32)

COLUMNS = (
    "start",
    "end",
    "name",
    "lane",
    "event",
    "correlation",
    "external_id",
    "stream",
    "device",
    "bytes",
    "graph_id",
)


class Rows:
    """Spans of one kind, sorted by (start, longer first). All columns have the same length.

    `start`, `end` ns after the trace's base time. `name` indexes `Frame.names`. `lane` indexes `Frame.lanes`: what runs
    one after the other, a thread (pid, tid) or, on a device, a (device, stream). `event` is the index in traceEvents,
    the evidence. The others are int64 with `MISSING`, and empty for kinds that never have them: `correlation` for
    RUNTIME and devices, `external_id` also for OPERATOR, `stream`, `device`, `bytes`, `graph_id` for devices (where
    a copy states no `bytes`, they are those of the call that issued it, if that states any).
    """

    __slots__ = COLUMNS

    def __init__(self, **columns: Any) -> None:
        self.start: Ints = columns.get("start", EMPTY)
        self.end: Ints = columns.get("end", EMPTY)
        self.name: Codes = columns.get("name", EMPTY_CODES)
        self.lane: Codes = columns.get("lane", EMPTY_CODES)
        self.event: Ints = columns.get("event", EMPTY)
        self.correlation: Ints = columns.get("correlation", EMPTY)
        self.external_id: Ints = columns.get("external_id", EMPTY)
        self.stream: Ints = columns.get("stream", EMPTY)
        self.device: Ints = columns.get("device", EMPTY)
        self.bytes: Ints = columns.get("bytes", EMPTY)
        self.graph_id: Ints = columns.get("graph_id", EMPTY)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, keep: Any) -> Rows:
        """The rows that a mask, slice or index array chooses."""
        return Rows(**{c: column[keep] if len(column := getattr(self, c)) == len(self) else column for c in COLUMNS})

    @property
    def dur(self) -> Ints:
        return self.end - self.start

    @property
    def spans(self) -> Spans:
        return Spans.of(self.start, self.end)


class Messages:
    """Arguments of communication, one entry per event that states any, sorted by `event` (index in traceEvents).

    Strings are Python lists of `str | None`; numbers int64 with MISSING. `row(event)` finds an entry.
    """

    __slots__ = ("collective", "dtype", "event", "group_description", "group_name", "group_ranks", "group_size",
                 "in_nelems", "out_nelems", "seq")  # fmt: skip

    def __init__(self) -> None:
        self.event: Ints = EMPTY
        self.collective: list[str | None] = []
        self.dtype: list[str | None] = []
        self.group_name: list[str | None] = []
        self.group_ranks: list[str | None] = []
        self.group_description: list[str | None] = []
        self.in_nelems: Ints = EMPTY
        self.out_nelems: Ints = EMPTY
        self.group_size: Ints = EMPTY
        self.seq: Ints = EMPTY

    def __len__(self) -> int:
        return len(self.event)

    def row(self, event: int) -> int | None:
        """The entry of this event."""
        at = int(np.searchsorted(self.event, event))
        return at if at < len(self.event) and self.event[at] == event else None


class Frame:
    """All of one trace that analysis reads. Made by `FrameBuilder`."""

    def __init__(
        self,
        *,
        names: list[str],
        lanes: list[tuple[Any, Any]],
        tables: dict[Cat, Rows],
        messages: Messages,
        thread_names: dict[int, str],
        events: int,
        by_category: Counter[str],
        by_phase: Counter[str],
        unknown: Counter[str],
        oddities: Counter[str],
        placed: Rows | None = None,
    ) -> None:
        self.names = names
        self.lanes = lanes
        """(pid, tid) of a thread, or (device, stream) of a device lane, as given."""
        self.messages = messages
        self.thread_names = thread_names
        """Lane → the recorded name of that thread."""
        self.events = events
        self.by_category = by_category
        self.by_phase = by_phase
        self.unknown = unknown
        self.oddities = oddities
        self.placed = placed or Rows()
        """Host spans that state a stream, as those of Inductor's Triton kernels do (columns start, end, name, event,
        stream): work of the host all the same. They are among the rows of their kind, too."""
        self._tables = tables
        self._named: dict[Any, Bools] = {}

    def rows(self, cat: Cat) -> Rows:
        """Spans of this kind."""
        return self._tables.get(cat) or Rows()

    def named(self, predicate: Callable[[str], bool]) -> Bools:
        """For every entry of `names`, whether the predicate accepts it; index it with a `name` column. Cached."""
        found = self._named.get(predicate)
        if found is None:
            found = self._named[predicate] = np.fromiter(
                (bool(predicate(name)) for name in self.names), dtype=np.bool_, count=len(self.names)
            )
        return found

    @property
    def device(self) -> bool:
        """Was anything recorded on a device?"""
        return bool(len(self.rows(Cat.KERNEL)) or len(self.rows(Cat.MEMORY)))
