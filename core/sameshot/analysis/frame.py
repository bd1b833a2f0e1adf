"""One rank's events as analysis wants them: one table per kind of event, sorted by start, in integer nanoseconds.

    builder = FrameBuilder()                    # a ChunkSink: fed while the trace is verified, or from stored columns
    frame = builder.frame()
    kernels = frame.rows(Cat.KERNEL)
    compute = kernels[~frame.named(names.is_nccl_kernel)[kernels.name]]

Only spans with a usable start and duration are rows. Everything else is counted under a name, never dropped in silence
and never fatal: the verifier has already decided that the file is a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.intervals import EMPTY, Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, Codes, Dictionaries

Bools = npt.NDArray[np.bool_]

_EMPTY_CODES: Codes = np.empty(0, dtype=np.int32)
_DEVICE = (Cat.KERNEL, Cat.MEMORY, Cat.SYNC)
_LINKED = (*_DEVICE, Cat.RUNTIME)

_COLUMNS = (
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
    RUNTIME and devices, `external_id` also for OPERATOR, `stream`, `device`, `bytes`, `graph_id` for devices.
    """

    __slots__ = _COLUMNS

    def __init__(self, **columns: Any) -> None:
        self.start: Ints = columns.get("start", EMPTY)
        self.end: Ints = columns.get("end", EMPTY)
        self.name: Codes = columns.get("name", _EMPTY_CODES)
        self.lane: Codes = columns.get("lane", _EMPTY_CODES)
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
        return Rows(**{c: column[keep] if len(column := getattr(self, c)) == len(self) else column for c in _COLUMNS})

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


class FrameBuilder:
    """A `ChunkSink` that sorts the spans of a trace by kind."""

    def __init__(self) -> None:
        self._parts: dict[Cat, list[dict[str, Any]]] = {}
        self._messages: list[dict[str, Any]] = []
        self._labels: list[tuple[int, int, int]] = []
        self._words = Dictionaries()
        self._events = 0
        self._by_category: Counter[int] = Counter()
        self._by_phase: Counter[int] = Counter()
        self.oddities: Counter[str] = Counter()

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        """Take the next chunk."""
        self._words = words
        self._events += len(chunk)
        self._count(self._by_category, chunk.category)
        self._count(self._by_phase, chunk.phase)
        kinds = np.asarray([names.category(value) for value in words.category.values], dtype=np.int8)
        kind = kinds[chunk.category]
        span = chunk.phase == words.phase.codes.get("X", NO_CODE - 1)
        span &= (kind != Cat.SKIPPED) & (kind != Cat.UNKNOWN)
        usable = span & (chunk.ts != MISSING) & (chunk.dur >= 0)
        if not usable.all():
            self._odd("no usable timestamp, left out", span & (chunk.ts == MISSING))
            self._odd("no usable duration, left out", span & (chunk.ts != MISSING) & (chunk.dur == MISSING))
            self._odd("negative duration, left out", span & (chunk.dur < 0) & (chunk.dur != MISSING))
        for cat in np.unique(kind[usable]).tolist():
            self._take(Cat(cat), chunk, np.flatnonzero(usable & (kind == cat)))
        self._take_messages(chunk)
        metadata = np.flatnonzero(chunk.label != NO_CODE)
        if len(metadata):
            thread_name = words.name.codes.get("thread_name", NO_CODE - 1)
            at = metadata[chunk.name[metadata] == thread_name]
            self._labels += zip(chunk.pid[at].tolist(), chunk.tid[at].tolist(), chunk.label[at].tolist(), strict=True)

    def _count(self, counter: Counter[int], codes: Codes) -> None:
        values, counts = np.unique(codes, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            counter[value] += count

    def _odd(self, what: str, where: Bools) -> None:
        if times := int(where.sum()):
            self.oddities[what] += times

    def _take(self, cat: Cat, chunk: Chunk, at: Ints) -> None:
        start = chunk.ts[at]
        part: dict[str, Any] = {
            "start": start,
            "end": start + chunk.dur[at],
            "name": chunk.name[at],
            "event": at + chunk.first,
        }
        part["pid"], part["tid"] = chunk.pid[at], chunk.tid[at]
        if cat in _LINKED:
            part["correlation"] = chunk.correlation[at]
        if cat in _LINKED or cat is Cat.OPERATOR:
            part["external_id"] = chunk.external_id[at]
        if cat in _DEVICE:
            for column in ("stream", "device", "bytes", "graph_id"):
                part[column] = getattr(chunk, column)[at]
        self._parts.setdefault(cat, []).append(part)

    def _take_messages(self, chunk: Chunk) -> None:
        messages = chunk.messages
        if len(messages.row):
            part = {field: getattr(messages, field) for field in messages.__struct_fields__ if field != "row"}
            part["event"] = messages.row + chunk.first
            self._messages.append(part)

    def frame(self) -> Frame:
        """All that was taken. Call it once."""
        words = self._words
        lanes: dict[tuple[Any, Any], int] = {}
        tables = {cat: self._table(cat, self._parts.pop(cat), lanes) for cat in list(self._parts)}
        threads = [_value(text) for text in words.thread.values]
        thread_names = {
            lanes[key]: words.text.values[label]
            for pid, tid, label in self._labels
            if (key := (_at(threads, pid), _at(threads, tid))) in lanes
        }
        unknown = Counter(
            {
                words.category.values[code]: times
                for code, times in self._by_category.items()
                if names.category(words.category.values[code]) is Cat.UNKNOWN
            }
        )
        return Frame(
            names=words.name.values,
            lanes=list(lanes),
            tables=tables,
            messages=self._joined_messages(),
            thread_names=thread_names,
            events=self._events,
            by_category=Counter(
                {words.category.values[c]: n for c, n in self._by_category.items() if words.category.values[c]}
            ),
            by_phase=Counter({words.phase.values[c]: n for c, n in self._by_phase.items()}),
            unknown=unknown,
            oddities=self.oddities,
        )

    def _table(self, cat: Cat, parts: list[dict[str, Any]], lanes: dict[tuple[Any, Any], int]) -> Rows:
        columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        parts.clear()
        pid, tid = columns.pop("pid"), columns.pop("tid")
        columns["lane"] = self._lanes(cat, columns, pid, tid, lanes)
        if (nameless := columns["name"] == NO_CODE).any():
            columns["name"] = np.where(nameless, np.int32(self._words.name.code("")), columns["name"])
        order = np.lexsort((-columns["end"], columns["start"]))
        return Rows(**{name: column[order] for name, column in columns.items()})

    def _lanes(
        self, cat: Cat, columns: dict[str, Any], pid: Codes, tid: Codes, lanes: dict[tuple[Any, Any], int]
    ) -> Codes:
        threads = [_value(text) for text in self._words.thread.values]
        if cat in _DEVICE:
            # Where an event does not state device and stream, its process and thread stand for them.
            keys = np.stack((columns["device"], columns["stream"], pid.astype(np.int64), tid.astype(np.int64)))
            stated = (columns["device"] != MISSING) & (columns["stream"] != MISSING)
            keys[2:, stated] = NO_CODE
        else:
            keys = np.stack((pid, tid))
        unique, where = np.unique(keys, axis=1, return_inverse=True)
        ids = []
        for key in unique.T.tolist():
            pair = (_at(threads, key[-2]), _at(threads, key[-1]))
            if cat in _DEVICE:
                pair = (key[0] if key[0] != MISSING else pair[0], key[1] if key[1] != MISSING else pair[1])
            ids.append(lanes.setdefault(pair, len(lanes)))
        return np.asarray(ids, dtype=np.int32)[where.reshape(-1)]

    def _joined_messages(self) -> Messages:
        found = Messages()
        if not self._messages:
            return found
        text: list[str | None] = [*self._words.text.values, None]  # NO_CODE is the last
        for field in Messages.__slots__:
            column = np.concatenate([part[field] for part in self._messages])
            setattr(found, field, [text[code] for code in column.tolist()] if column.dtype == np.int32 else column)
        return found


def _value(text: str) -> Any:
    """A pid or tid as given, from its JSON text."""
    return text[1:-1] if text.startswith('"') else int(text) if text.lstrip("-").isdigit() else text


def _at(values: list[Any], code: int) -> Any:
    return None if code == NO_CODE else values[code]
