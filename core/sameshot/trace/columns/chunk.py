"""Consecutive elements of `traceEvents` as columns of numbers; strings are codes into dictionaries that only grow."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

MISSING = -(1 << 63)
"""What stands in an int64 column where the event states no (usable) value: null is not 0."""

NO_CODE = -1
"""What stands in a column of codes where the event states no value."""


class Dictionary:
    """Values to small codes and back; a code keeps its meaning as long as the dictionary lives."""

    __slots__ = ("codes", "values")

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}
        self.values: list[str] = []

    def code(self, value: str) -> int:
        """The code of this value, which may be new."""
        found = self.codes.get(value)
        if found is None:
            found = self.codes[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)


class Dictionaries(msgspec.Struct, frozen=True):
    """The dictionaries of one trace, or of one part of a trace: whoever makes chunks may go on with fresh ones where a
    trace names millions of things, so a `ChunkSink` compares `words` with those of the chunk before.

    `phase` ("X"), `category` ("cpu_op") and `name` as written; `thread` holds pids and tids as JSON text (`7040`,
    `"stream 7"`), so that a number and its text stay apart; `text` holds all other strings (dtype, group names, thread
    labels).
    """

    phase: Dictionary = msgspec.field(default_factory=Dictionary)
    category: Dictionary = msgspec.field(default_factory=Dictionary)
    name: Dictionary = msgspec.field(default_factory=Dictionary)
    thread: Dictionary = msgspec.field(default_factory=Dictionary)
    text: Dictionary = msgspec.field(default_factory=Dictionary)


class Messages(msgspec.Struct, frozen=True):
    """What few events state: the arguments of communication. `row` is the index within the chunk; one entry per event.

    `in_nelems`, `out_nelems`, `group_size`, `seq` are int64 with MISSING; the others codes of `text` with NO_CODE.
    `group_ranks` is the recorded list as text, which Kineto truncates ("[0, 1, ..., 7]").
    """

    row: Ints
    collective: Codes
    dtype: Codes
    group_name: Codes
    group_ranks: Codes
    group_description: Codes
    in_nelems: Ints
    out_nelems: Ints
    group_size: Ints
    seq: Ints


class Chunk(msgspec.Struct, frozen=True):
    """Columns of `len(ts)` consecutive elements of traceEvents; the first of them is element `first`.

    Times are ns after the trace's base time. `correlation` … `graph_id` are int64 with MISSING. `label` is `args.name`
    of metadata events (`process_name`, `thread_name`), a code of `text`. `messages` is sparse.

    `event` is None where the rows are consecutive elements; columns that were stored are grouped by phase and category
    and sorted by start within a group, and there it states each row's index in traceEvents. `flow` is the id that
    connects the arrows `s`, `t`, `f` (int64 with MISSING); None: not read. `is_uniform`: all rows are of one phase and
    category.
    """

    first: int
    ts: Ints
    dur: Ints
    phase: Codes
    category: Codes
    name: Codes
    pid: Codes
    tid: Codes
    correlation: Ints
    external_id: Ints
    stream: Ints
    device: Ints
    bytes: Ints
    graph_id: Ints
    label: Codes
    messages: Messages
    event: Ints | None = None
    flow: Ints | None = None
    is_uniform: bool = False

    def __len__(self) -> int:
        return len(self.ts)


class ChunkSink(Protocol):
    """Receives the columns of a trace, chunk by chunk, from whoever builds or reads them."""

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None: ...


def event_order(start: Ints, length: Ints) -> Ints | None:
    """The order of rows by (start, longer first), else as they are; None: they are in that order already."""
    if len(start) < 2:
        return None
    step = start[1:] >= start[:-1]
    order: Ints | None = None
    if not step.all():
        order = np.argsort(start, kind="stable")
        start, length = start[order], length[order]
    tied = start[1:] == start[:-1]
    wrong = tied & (length[1:] > length[:-1])
    if not wrong.any():
        return order
    # Few rows start at the same time: only these are sorted again.
    in_tie = np.zeros(len(start), np.bool_)
    in_tie[1:] |= tied
    in_tie[:-1] |= tied
    rows = np.flatnonzero(in_tie)
    again = rows[np.lexsort((~length[rows], start[rows]))]
    if order is None:
        order = np.arange(len(start))
        order[rows] = again
    else:
        order[rows] = order[again]
    return order
