"""One rank's events as analysis wants them: one table per kind of event, sorted by start, in integer nanoseconds.

    builder = FrameBuilder()                    # a ChunkSink: fed while the trace is verified, or from stored columns
    frame = builder.frame()
    kernels = frame.rows(Cat.KERNEL)
    compute = kernels[~frame.named(names.is_nccl_kernel)[kernels.name]]

Only spans with a usable start and duration are rows. Everything else is counted under a name, never dropped in silence
and never fatal: the verifier has already decided that the file is a trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.intervals import EMPTY, Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, Codes, Dictionaries, Dictionary, event_order
from sameshot.trace.columns.schema import MESSAGES, Footer, Group

Bools = npt.NDArray[np.bool_]

_EMPTY_CODES: Codes = np.empty(0, dtype=np.int32)
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
_SMALL = 1 << 20  # entries of a look-up table that is cheaper than sorting
_LEAST_ROOM = 1 << 10
_Columns = dict[str, Any]

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
    RUNTIME and devices, `external_id` also for OPERATOR, `stream`, `device`, `bytes`, `graph_id` for devices (where
    a copy states no `bytes`, they are those of the call that issued it, if that states any).
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


class FrameBuilder:
    """A `ChunkSink` that sorts the spans of a trace by kind.

    From stored columns: `footer = read_columns(path, builder, builder.wanted)`, then `builder.frame(footer)`.
    """

    def __init__(self) -> None:
        self._tables: dict[Cat, _Table] = {}
        self._halves: list[_Columns] = []  # phases B and E, whose pairs are spans
        self._messages: list[_Columns] = []
        self._labels: list[tuple[int, int, int]] = []  # event, lane, label
        self._placed = _Table()
        self._call_sizes: list[tuple[Ints, Ints]] = []  # correlation and bytes of calls that state bytes
        self._words = _Words()
        self._lanes = _Lanes(self._words.thread)
        self._events = 0
        self._by_category: Counter[str] = Counter()
        self._by_phase: Counter[str] = Counter()
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
                self._tables.setdefault(kind, _Table()).room += group.rows
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
        self._by_phase[phase] += len(chunk)
        self._by_category[category] += len(chunk)
        kind = names.category(category)
        if phase == "X" and kind not in _NO_ROWS:
            self._spans(kind, chunk, slice(None))
        elif phase in _HALVES:
            self._take_halves(chunk, slice(None), np.full(len(chunk), phase == "B"), np.full(len(chunk), kind))
        elif phase == "M":
            self._take_labels(chunk)

    def _mixed(self, chunk: Chunk, words: Dictionaries) -> None:
        phases, categories = words.phase.values, words.category.values
        _count(self._by_phase, chunk.phase, phases)
        _count(self._by_category, chunk.category, categories)
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
            part["start"], part["end"] = ts, ts + dur
            self._tables.setdefault(kind, _Table()).add(part)
            if kind is Cat.RUNTIME and (sized := (size := chunk.bytes[rows]) != MISSING).any():
                self._call_sizes.append((part["correlation"][sized], size[sized]))
            if kind in _PLACED and (on := (stream := chunk.stream[rows]) != MISSING).any():
                self._placed.add({**{c: part[c][on] for c in ("start", "end", "name", "event")}, "stream": stream[on]})

    def _columns(self, kind: Cat, chunk: Chunk, rows: Any) -> _Columns:
        part: _Columns = {
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
        tables = {kind: self._tables.pop(kind).rows() for kind in Cat if kind in self._tables}
        if (self._by_category if footer is None else footer.categories).get(names.BY_NAME):
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
        by_category, by_phase, events = self._by_category, self._by_phase, self._events
        if footer is not None:
            by_category, by_phase, events = Counter(footer.categories), Counter(footer.phases), footer.events
            self.oddities.update(footer.oddities)
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
        begin, end, lonely = _pairs(halves["lane"][order], halves["begins"][order])
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
            part["start"], part["end"] = halves["ts"][rows], halves["ts"][end[of_kind]]
            self._tables.setdefault(kind, _Table()).add(part)

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


class _Word:
    """One dictionary that outlives those of the chunks: usually the first of these, and then nothing is translated."""

    def __init__(self) -> None:
        self._own: Dictionary | None = None
        self._now: Dictionary | None = None
        self._new: Codes = _EMPTY_CODES

    @property
    def values(self) -> list[str]:
        return self._own.values if self._own is not None else []

    def follow(self, dictionary: Dictionary) -> None:
        if self._own is None:
            self._own = dictionary
        if dictionary is self._now:
            return
        self._now, self._new = dictionary, _EMPTY_CODES

    def codes(self, codes: Codes) -> Codes:
        """These codes of the chunk, in this dictionary."""
        own, now = self._own, self._now
        if own is now or own is None or now is None:
            return codes
        if len(self._new) != len(now) + 1:
            fresh = [own.code(value) for value in now.values[max(0, len(self._new) - 1) :]]
            self._new = np.array([*self._new[:-1].tolist(), *fresh, NO_CODE], np.int32)
        return self._new[codes]

    def known(self, value: str) -> int:
        """The code of this value; one that no row has where it was never met."""
        return NO_CODE - 1 if self._own is None else self._own.codes.get(value, NO_CODE - 1)


class _Words:
    def __init__(self) -> None:
        self.name, self.thread, self.text = _Word(), _Word(), _Word()

    def follow(self, words: Dictionaries) -> None:
        self.name.follow(words.name)
        self.thread.follow(words.thread)
        self.text.follow(words.text)


_Key = tuple[Any, Any]


class _Lanes:
    """(pid, tid) or (device, stream) of rows → small numbers, chunk by chunk."""

    def __init__(self, threads: _Word) -> None:
        self._threads = threads
        self._lanes: dict[_Key, int] = {}
        self._values: list[Any] = []  # of thread codes, as given
        self._new: list[int | None] = []

    def of(self, chunk: Chunk, rows: Any, *, on_device: bool) -> Codes:
        pid, tid = (self._threads.codes(column[rows]) for column in (chunk.pid, chunk.tid))
        if not on_device:
            return self._numbers(pid, tid, self._thread, self._thread)
        device, stream = chunk.device[rows], chunk.stream[rows]
        stated = (device != MISSING) & (stream != MISSING)
        if stated.all():
            return self._numbers(device, stream, int, int)
        # Where an event does not state its device or stream, its process or thread stands for it.
        lanes: Codes = np.empty(len(pid), np.int32)
        for use_pid in (False, True):
            for use_tid in (False, True):
                at = np.flatnonzero(((device == MISSING) == use_pid) & ((stream == MISSING) == use_tid))
                if len(at):
                    lanes[at] = self._numbers(
                        (pid if use_pid else device)[at],
                        (tid if use_tid else stream)[at],
                        self._thread if use_pid else int,
                        self._thread if use_tid else int,
                    )
        return lanes

    def _thread(self, code: int) -> Any:
        if code == NO_CODE:
            return None
        for text in self._threads.values[len(self._values) :]:
            self._values.append(_value(text))
        return self._values[code]

    def _numbers(self, first: Any, second: Any, value: Callable[[int], Any], other: Callable[[int], Any]) -> Codes:
        if not len(first):
            return _EMPTY_CODES
        low, high, low2, high2 = int(first.min()), int(first.max()), int(second.min()), int(second.max())
        wide = high2 - low2 + 1
        if (high - low + 1) * wide <= _SMALL:
            key = (first.astype(np.int64) - low) * wide + (second.astype(np.int64) - low2)
            seen = np.zeros((high - low + 1) * wide, np.bool_)
            seen[key] = True
            keys = np.flatnonzero(seen)
            pairs = [(key_ // wide + low, key_ % wide + low2) for key_ in keys.tolist()]
            table: Codes = np.empty(len(seen), np.int32)
            table[keys] = [self._lane((value(a), other(b))) for a, b in pairs]
            numbers: Codes = table[key]
            return numbers
        if (high - low + 1) * wide < 1 << 62:
            key = (first.astype(np.int64) - low) * wide + (second.astype(np.int64) - low2)
            keys, where = np.unique(key, return_inverse=True)
            lanes = [self._lane((value(key_ // wide + low), other(key_ % wide + low2))) for key_ in keys.tolist()]
        else:
            unique, where = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
            lanes = [self._lane((value(a), other(b))) for a, b in unique.T.tolist()]
        found: Codes = np.asarray(lanes, np.int32)[where.reshape(-1)]
        return found

    def _lane(self, key: _Key) -> int:
        return self._lanes.setdefault(key, len(self._lanes))

    def renumbered(self, tables: Iterable[Rows]) -> list[_Key]:
        """Lanes that rows are on, in an order that does not depend on how the trace was read."""
        keys = list(self._lanes)
        used = _used([rows.lane for rows in tables if len(rows)], len(keys))
        order = sorted(used, key=lambda lane: tuple(map(_rank, keys[lane])))
        new: Codes = np.full(len(keys), NO_CODE, np.int32)
        new[order] = np.arange(len(order), dtype=np.int32)
        for rows in tables:
            rows.lane = new[rows.lane]
        self._new = [number if number != NO_CODE else None for number in new.tolist()]
        return [keys[lane] for lane in order]

    def number(self, lane: int) -> int | None:
        """The final number of a lane; None: no row is on it."""
        return self._new[lane]


class _Table:
    """Rows of one kind, as they come. `room` is how many are expected: memory is touched once, and nothing joined."""

    def __init__(self) -> None:
        self.room = 0
        self._size = 0
        self._columns: _Columns = {}

    def add(self, part: _Columns) -> None:
        start, stop = self._size, self._size + len(part["start"])
        if stop > self.room or not self._columns:
            self.room = max(stop, self.room if not self._columns else self.room * 3 // 2, _LEAST_ROOM)
            for name, column in part.items():
                wider = np.empty(self.room, column.dtype)
                if start:
                    wider[:start] = self._columns[name][:start]
                self._columns[name] = wider
        for name, column in part.items():
            self._columns[name][start:stop] = column
        self._size = stop

    def rows(self) -> Rows:
        """All rows, in order. Call it once."""
        columns = {name: column[: self._size] for name, column in self._columns.items()}
        self._columns.clear()
        if columns and (order := event_order(columns["start"], columns["end"])) is not None:
            for name in columns:
                columns[name] = columns[name][order]
        return Rows(**columns)


def _sort_by_name(tables: dict[Cat, Rows], words: list[str]) -> None:
    """Put rows of kernels where their names say that they belong, in order of start."""
    kernels = tables.get(Cat.KERNEL, Rows())
    kinds = np.fromiter((names.kind_by_name(word) for word in words), np.int8, len(words))[kernels.name]
    for number in np.unique(kinds).tolist():
        kind, rows = Cat(number), kernels[kinds == number]
        if kind is not Cat.KERNEL and kind in tables:
            rows = Rows(**{c: np.concatenate((getattr(tables[kind], c), getattr(rows, c))) for c in _COLUMNS})
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
    used = _used([getattr(rows, column) for rows in tables], len(values))
    order = sorted(used, key=values.__getitem__)
    new: Codes = np.zeros(len(values) + 1, np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    for rows in tables:
        setattr(rows, column, new[getattr(rows, column)])
    return [values[code] for code in order]


def _used(columns: list[Codes], size: int) -> list[int]:
    seen = np.zeros(size + 1, np.bool_)
    for codes in columns:
        seen[codes] = True
    return np.flatnonzero(seen[:size]).tolist()


def _pairs(lane: Codes, begins: Bools) -> tuple[Ints, Ints, Ints]:
    """Places of begins, of their ends, and of halves without the other, in events sorted by lane and time."""
    lonely = []
    place = np.arange(len(lane))
    while True:
        # Depth within each lane; an end at depth 0 has no begin: taken out, all others keep their partners.
        depth = np.cumsum(np.where(begins[place], 1, -1))
        first = np.flatnonzero(np.diff(lane[place], prepend=-2))
        before = np.concatenate(([0], depth))[first]
        depth -= np.repeat(before, np.diff(np.append(first, len(place))))
        floor = np.minimum.accumulate(np.minimum(depth, 0) + _falling(first, len(place)))
        floor -= _falling(first, len(place))
        previous = np.concatenate(([0], floor[:-1]))
        previous[first] = 0
        bad = ~begins[place] & (floor < previous)
        if not bad.any():
            break
        lonely.append(place[bad])
        place = place[~bad]
    level = depth + ~begins[place]  # of a begin and its end
    order = np.lexsort((place, level, lane[place]))
    sorted_begin = begins[place][order]
    same = np.zeros(len(order), np.bool_)
    if len(order) > 1:
        same[:-1] = (
            sorted_begin[:-1]
            & ~sorted_begin[1:]
            & (lane[place][order][:-1] == lane[place][order][1:])
            & (level[order][:-1] == level[order][1:])
        )
    at = np.flatnonzero(same)
    paired = np.zeros(len(order), np.bool_)
    paired[at] = paired[at + 1] = True
    lonely.append(place[order[~paired]])
    return place[order[at]], place[order[at + 1]], np.concatenate(lonely)


def _falling(first: Ints, size: int) -> Ints:
    """For each place a number that falls from lane to lane, so that a running minimum starts anew in each."""
    lane = np.zeros(size, np.int64)
    lane[first] = 1
    return -np.cumsum(lane) * (2 * size + 2)


def _events(chunk: Chunk, rows: Any) -> Ints:
    events = np.arange(chunk.first, chunk.first + len(chunk)) if chunk.event is None else chunk.event
    found: Ints = events[rows]
    return found


def _count(counter: Counter[str], codes: Codes, values: list[str]) -> None:
    counts = np.bincount(codes, minlength=len(values))
    for code in np.flatnonzero(counts).tolist():
        counter[values[code]] += int(counts[code])


def _value(text: str) -> Any:
    """A pid or tid as given, from its JSON text."""
    return json.loads(text)


def _rank(value: Any) -> tuple[int, float, str]:
    """An order of values of any type: numbers, then texts."""
    return (1, value, "") if isinstance(value, int | float) else (2, 0, value) if isinstance(value, str) else (0, 0, "")
