"""From chunks of columns to a `Frame`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame.growing import Columns, GrowingTable
from sameshot.analysis.frame.halves import pairs_of
from sameshot.analysis.frame.lanes import Lanes, Words, used_codes
from sameshot.analysis.frame.tables import COLUMNS, Bools, Frame, Messages, Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, Codes, Dictionaries
from sameshot.trace.columns.schema import MESSAGES, Footer, Group
from sameshot.trace.columns.tally import Tally, cut
from sameshot.trace.window import FAR_NS

_DEVICE = (Cat.KERNEL, Cat.MEMORY, Cat.SYNC)
_NO_ROWS = (Cat.SKIPPED, Cat.UNKNOWN)
_PLACED = (Cat.OPERATOR, Cat.ANNOTATION, Cat.PYTHON)
_HALVES = ("B", "E")
_ALWAYS = ("ts", "dur", "name")
_EXTRA: dict[Cat, tuple[str, ...]] = {
    Cat.OPERATOR: ("external_id",),
    Cat.RUNTIME: ("correlation", "external_id"),
    **dict.fromkeys(_DEVICE, ("correlation", "external_id", "stream", "device", "bytes", "graph_id")),
}

# Sums of durations and sizes are int64, or float64, which is exact below 2^53. So nothing is larger than that, nor is
# all of a table together larger than 2^62: whatever a trace states, no sum wraps.
LONGEST_NS = 1 << 53
"""104 days: a span that lasts longer has no end that was recorded."""
MOST_BYTES = 1 << 53
MOST_SUM = 1 << 62
ENDLESS = "no end within any time, counted as instants"
_MOST_STATED = {"in_nelems": 1 << 43, "out_nelems": 1 << 43, "group_size": 1 << 19}  # whose products fit, too


class FrameBuilder:
    """A `ChunkSink` that sorts the spans of a trace by kind.

    From stored columns: `footer = read_columns(path, builder, builder.wanted)`, then `builder.frame(footer)`.
    """

    def __init__(self) -> None:
        self._tables: dict[Cat, GrowingTable] = {}
        self._halves: list[Columns] = []  # phases B and E, whose pairs are spans
        self._messages: list[Columns] = []
        self._labels: list[tuple[int, int, int]] = []  # event, lane, label
        self._placed = GrowingTable()
        self._call_sizes: list[tuple[Ints, Ints]] = []  # correlation and bytes of calls that state bytes
        self._words = Words()
        self._lanes = Lanes(self._words.thread)
        self._events = 0
        self._by_category, self._by_phase = Tally(), Tally()
        self.oddities: Counter[str] = Counter()

    def wanted(self, group: Group) -> Collection[str]:
        """Which stored columns of a row group are worth reading, asked before any is read (see `read_columns`)."""
        columns: set[str] = set()
        if group.phase is None or group.category is None:
            columns.update(group.columns)
        elif group.phase == "M":
            columns.update(("ts", "name", "pid", "tid", "label"))
        else:
            kind = names.category(group.category)
            if group.phase in _HALVES or (group.phase == "X" and kind not in _NO_ROWS):
                columns.update((*_ALWAYS, "pid", "tid", *_EXTRA.get(kind, ())))
                more = ("bytes",) if kind is Cat.RUNTIME else ("stream",) if kind in _PLACED else ()
                columns.update(column for column in more if column in group.columns)
                self._tables.setdefault(kind, GrowingTable()).room += group.rows
        columns.update(column for column in MESSAGES if column in group.columns)
        return columns

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        """Take the next chunk."""
        self._words.follow(words)
        self._events += len(chunk)
        if chunk.is_uniform:
            self._uniform(chunk, words)
        else:
            self._mixed(chunk, words)
        self._take_messages(chunk)

    def _uniform(self, chunk: Chunk, words: Dictionaries) -> None:
        """All rows are of one phase and category: whole columns are taken as they are."""
        phase, category = words.phase.values[chunk.phase[0]], words.category.values[chunk.category[0]]
        self._by_phase.add(phase, len(chunk))
        self._by_category.add(category, len(chunk))
        kind = names.category(category)
        if phase == "X" and kind not in _NO_ROWS:
            self._spans(kind, chunk, slice(None))
        elif phase in _HALVES:
            self._take_halves(chunk, slice(None), np.full(len(chunk), phase == "B"), np.full(len(chunk), kind))
        elif phase == "M":
            self._take_labels(chunk)

    def _mixed(self, chunk: Chunk, words: Dictionaries) -> None:
        phases, categories = words.phase.values, words.category.values
        self._by_phase.codes(chunk.phase, phases)
        self._by_category.codes(chunk.category, categories)
        kinds = np.fromiter((names.category(value) for value in categories), np.int8, len(categories))
        kind = kinds[chunk.category]
        kind[chunk.phase != words.phase.codes.get("X", NO_CODE - 1)] = -1
        for number in np.flatnonzero(np.bincount(kind + 1)[1:]).tolist():
            if (cat := Cat(number)) not in _NO_ROWS:
                self._spans(cat, chunk, np.flatnonzero(kind == number))
        begin, end = (words.phase.codes.get(phase, NO_CODE - 1) for phase in _HALVES)
        halves = np.flatnonzero((chunk.phase == begin) | (chunk.phase == end))
        if len(halves):
            self._take_halves(chunk, halves, chunk.phase[halves] == begin, kinds[chunk.category[halves]])
        if (chunk.label != NO_CODE).any():
            self._take_labels(chunk)

    def _spans(self, kind: Cat, chunk: Chunk, rows: Any) -> None:
        ts, dur = chunk.ts[rows], chunk.dur[rows]
        if len(ts) and (int(ts.min()) == MISSING or int(dur.min()) < 0):
            timed = ts != MISSING
            usable = timed & (dur >= 0)
            self._odd("no usable timestamp, left out", ~timed)
            self._odd("no usable duration, left out", timed & (dur == MISSING))
            self._odd("negative duration, left out", timed & (dur < 0) & (dur != MISSING))
            rows = np.arange(len(chunk))[rows][usable]
            ts, dur = ts[usable], dur[usable]
        if len(ts):
            part = self._columns(kind, chunk, rows)
            part["start"], part["end"] = ts, self._ended(ts, ts + dur)
            self._tables.setdefault(kind, GrowingTable()).add(part)
            if "bytes" in part:
                part["bytes"] = self._usable(part["bytes"], MOST_BYTES, "bytes")
            if kind is Cat.RUNTIME and (sized := (size := chunk.bytes[rows]) != MISSING).any():
                sized = (size := self._usable(size, MOST_BYTES, "bytes")) != MISSING
                self._call_sizes.append((part["correlation"][sized], size[sized]))
            if kind in _PLACED and (on := (stream := chunk.stream[rows]) != MISSING).any():
                self._placed.add({**{c: part[c][on] for c in ("start", "end", "name", "event")}, "stream": stream[on]})

    def _ended(self, start: Ints, end: Ints) -> Ints:
        """The ends of spans, as the window has them: one that lies beyond all time is none (see trace/window.py)."""
        if int(end.max()) < FAR_NS and int((end - start).max()) < LONGEST_NS:
            return end
        endless = (end >= FAR_NS) | (end - start >= LONGEST_NS)
        self._odd(ENDLESS, endless)
        return np.where(endless, start, end)

    def _usable(self, column: Any, below: int, what: str) -> Any:
        if not len(column) or int(column.max()) < below:
            return column
        self._odd(f"unusable number of {what}, left out", column >= below)
        return np.where(column >= below, MISSING, column)

    def _summable(self, rows: Rows) -> Rows:
        """The rows, whose durations and sizes can be summed in int64: of those that can't, the largest are left out."""
        if not len(rows):
            return rows
        limit = (MOST_SUM - 1) // len(rows)
        if _too_much(rows.dur):
            endless = rows.dur > limit
            self._odd(ENDLESS, endless)
            rows.end = np.where(endless, rows.start, rows.end)
            rows = rows[np.lexsort((-rows.end, rows.start))]
        if _too_much(rows.bytes):
            rows.bytes = self._usable(rows.bytes, limit + 1, "bytes")
        return rows

    def _columns(self, kind: Cat, chunk: Chunk, rows: Any) -> Columns:
        part: Columns = {
            "name": self._words.name.codes(chunk.name[rows]),
            "event": _events(chunk, rows),
            "lane": self._lanes.of(chunk, rows, on_device=kind in _DEVICE),
        }
        part.update((column, getattr(chunk, column)[rows]) for column in _EXTRA.get(kind, ()))
        return part

    def _take_halves(self, chunk: Chunk, rows: Any, begins: Bools, kind: Any) -> None:
        part = self._columns(Cat.KERNEL, chunk, rows)  # any kind may be among them
        part["lane"] = self._lanes.of(chunk, rows, on_device=False)
        part["ts"], part["begins"], part["kind"] = chunk.ts[rows], begins, kind
        part["row_lane"] = self._lanes.of(chunk, rows, on_device=True)
        self._halves.append(part)

    def _take_labels(self, chunk: Chunk) -> None:
        thread_name = self._words.name.known("thread_name")
        at = np.flatnonzero((chunk.label != NO_CODE) & (self._words.name.codes(chunk.name) == thread_name))
        lanes = self._lanes.of(chunk, at, on_device=False)
        labels = self._words.text.codes(chunk.label[at])
        self._labels += zip(_events(chunk, at).tolist(), lanes.tolist(), labels.tolist(), strict=True)

    def _take_messages(self, chunk: Chunk) -> None:
        messages = chunk.messages
        if len(messages.row):
            text = self._words.text
            part = {
                field: text.codes(column) if (column := getattr(messages, field)).dtype == np.int32 else column
                for field in messages.__struct_fields__
                if field != "row"
            }
            for field, below in _MOST_STATED.items():
                part[field] = self._usable(part[field], below, field)
            part["event"] = _events(chunk, messages.row)
            self._messages.append(part)

    def _odd(self, what: str, where: Bools) -> None:
        if times := int(np.count_nonzero(where)):
            self.oddities[what] += times

    def frame(self, footer: Footer | None = None) -> Frame:
        """All that was taken. Call it once.

        With the footer of stored columns also what was not read is counted, and what was odd when they were written.
        """
        self._pair_halves()
        tables = {kind: self._summable(self._tables.pop(kind).rows()) for kind in Cat if kind in self._tables}
        by_category, by_phase, events = self._by_category.result(), self._by_phase.result(), self._events
        if footer is not None:
            by_category, by_phase, events = cut(footer.categories), cut(footer.phases), footer.events
            self.oddities.update(footer.oddities)
        if by_category.get(names.BY_NAME):
            _sort_by_name(tables, self._words.name.values)
        if self._call_sizes and Cat.MEMORY in tables:
            correlation, size = (np.concatenate(columns) for columns in zip(*self._call_sizes, strict=True))
            _take_sizes(tables[Cat.MEMORY], correlation, size)
        placed = self._placed.rows()
        found_names = _renumbered([*tables.values(), placed], "name", self._words.name.values)
        lanes = self._lanes.renumbered(tables.values())
        thread_names = {}
        for _, lane, label in sorted(self._labels):
            if (number := self._lanes.number(lane)) is not None:
                thread_names[number] = self._words.text.values[label]
        return Frame(
            names=found_names,
            lanes=lanes,
            tables=tables,
            messages=self._joined_messages(),
            thread_names=thread_names,
            events=events,
            by_category=Counter({value: times for value, times in by_category.items() if value}),
            by_phase=by_phase,
            unknown=Counter({v: times for v, times in by_category.items() if names.category(v) is Cat.UNKNOWN}),
            oddities=self.oddities,
            placed=placed,
        )

    def _pair_halves(self) -> None:
        """B and E events that belong together become spans: an E ends the last B of its thread that is open."""
        if not self._halves:
            return
        halves = {field: np.concatenate([part[field] for part in self._halves]) for field in self._halves[0]}
        self._halves.clear()
        timed = halves["ts"] != MISSING
        self._odd("no usable timestamp, left out", ~timed)
        halves = {field: column[timed] for field, column in halves.items()}
        order = np.lexsort((halves["event"], halves["ts"], halves["lane"]))
        begin, end, lonely = pairs_of(halves["lane"][order], halves["begins"][order])
        self._odd("begin without an end, left out", halves["begins"][order][lonely])
        self._odd("end without a begin, left out", ~halves["begins"][order][lonely])
        begin, end = order[begin], order[end]
        for number in np.unique(halves["kind"][begin]).tolist():
            if (kind := Cat(number)) in _NO_ROWS:
                continue
            of_kind = halves["kind"][begin] == number
            rows = begin[of_kind]
            part = {field: halves[field][rows] for field in ("name", "event", "lane", *_EXTRA.get(kind, ()))}
            if kind in _DEVICE:
                part["lane"] = halves["row_lane"][rows]
            part["start"] = halves["ts"][rows]
            part["end"] = self._ended(part["start"], halves["ts"][end[of_kind]])
            if "bytes" in part:
                part["bytes"] = self._usable(part["bytes"], MOST_BYTES, "bytes")
            self._tables.setdefault(kind, GrowingTable()).add(part)

    def _joined_messages(self) -> Messages:
        found = Messages()
        if not self._messages:
            return found
        text: list[str | None] = [*self._words.text.values, None]  # NO_CODE is the last
        order = np.argsort(np.concatenate([part["event"] for part in self._messages]), kind="stable")
        for field in Messages.__slots__:
            column = np.concatenate([part[field] for part in self._messages])[order]
            setattr(found, field, [text[code] for code in column.tolist()] if column.dtype == np.int32 else column)
        return found


def _too_much(column: Ints) -> bool:
    """Is the sum of what is stated MOST_SUM or more, or nearly so?"""
    if not len(column) or int(column.max()) * len(column) < MOST_SUM:
        return False
    return float(np.maximum(column, 0).sum(dtype=np.float64)) >= MOST_SUM * 0.999


def _sort_by_name(tables: dict[Cat, Rows], words: list[str]) -> None:
    """Put rows of kernels where their names say that they belong, in order of start."""
    kernels = tables.get(Cat.KERNEL, Rows())
    kinds = np.fromiter((names.kind_by_name(word) for word in words), np.int8, len(words))[kernels.name]
    for number in np.unique(kinds).tolist():
        kind, rows = Cat(number), kernels[kinds == number]
        if kind is not Cat.KERNEL and kind in tables:
            rows = Rows(**{c: np.concatenate((getattr(tables[kind], c), getattr(rows, c))) for c in COLUMNS})
            rows = rows[np.lexsort((-rows.end, rows.start))]
        tables[kind] = rows
    if len(kinds) and not (kinds == Cat.KERNEL).any():
        del tables[Cat.KERNEL]


def _take_sizes(copies: Rows, correlation: Ints, size: Ints) -> None:
    """AMD's copies don't state their bytes; the call that issued one does, and both have the same correlation."""
    keys, first, times = np.unique(correlation, return_index=True, return_counts=True)
    keys, size = keys[times == 1], size[first[times == 1]]
    open_ = np.flatnonzero((copies.bytes == MISSING) & (copies.correlation != MISSING))
    if len(keys) and len(open_):
        at = np.minimum(np.searchsorted(keys, copies.correlation[open_]), len(keys) - 1)
        known = keys[at] == copies.correlation[open_]
        copies.bytes[open_[known]] = size[at[known]]


def _renumbered(tables: list[Rows], column: str, values: list[str]) -> list[str]:
    """Only the values that rows have, sorted, so that they do not depend on how the trace was read."""
    used = used_codes([getattr(rows, column) for rows in tables], len(values))
    order = sorted(used, key=values.__getitem__)
    new: Codes = np.zeros(len(values) + 1, np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    for rows in tables:
        setattr(rows, column, new[getattr(rows, column)])
    return [values[code] for code in order]


def _events(chunk: Chunk, rows: Any) -> Ints:
    events = np.arange(chunk.first, chunk.first + len(chunk)) if chunk.event is None else chunk.event
    found: Ints = events[rows]
    return found
