"""All work of a rank's devices in one table, and the host call that launched each piece of it.

A host call and what it launched state the same correlation id (CUPTI, rocprofiler and PTI all do this, and Kineto
writes it down as `correlation`; 0 means none). Usually there is one of each; a graph launch has many kernels. Some
traces give one id to several host calls (a runtime call and the driver call below it, or marks): then the one that is
named like a launch counts, and of several such the last that began before the work did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.analysis.nesting import threads

NO_CALL = -1
MOST_STREAMS = 256
"""Streams that get a row of their own in a summary."""


class Stream(msgspec.Struct, frozen=True):
    """One (device, stream), with its rows of `Work.rows` in order of start."""

    lane: int
    label: str
    at: Ints


class Work(msgspec.Struct, frozen=True):
    """Kernels, copies and memsets, sorted by (start, longer first). Synchronisations only wait: they are not here."""

    rows: Rows
    memory: Bools  # a copy or memset
    communication: Bools  # a kernel that communicates
    runtime: Rows
    call: Ints  # the row of `runtime` that launched each, or NO_CALL
    shared: int  # host calls that state the same correlation id as another one
    streams: tuple[Stream, ...]

    @property
    def kernel(self) -> Bools:
        return ~self.memory

    @property
    def linked(self) -> Bools:
        known: Bools = self.call != NO_CALL
        return known


def gather(frame: Frame) -> Work:
    """The device work of a frame with its launches."""
    rows, memory = merged(frame.rows(Cat.KERNEL), frame.rows(Cat.MEMORY))
    runtime = frame.rows(Cat.RUNTIME)
    call, shared = launched_by(rows, runtime, frame.named(names.is_launch))
    return Work(
        rows=rows,
        memory=memory,
        communication=frame.named(names.is_communication_kernel)[rows.name] & ~memory,
        runtime=runtime,
        call=call,
        shared=shared,
        streams=streams(rows, frame.lanes),
    )


_COLUMNS = ("start", "end", "name", "lane", "correlation", "bytes", "graph_id")  # what the measures read


def merged(kernels: Rows, memory: Rows) -> tuple[Rows, Bools]:
    """Both in one table (of the columns that the measures read), and which rows are of the second."""
    start = np.concatenate((kernels.start, memory.start))
    end = np.concatenate((kernels.end, memory.end))
    order = np.argsort(start, kind="stable")  # merges two sorted runs
    begin, finish = start[order], end[order]
    if ((begin[1:] == begin[:-1]) & (finish[1:] > finish[:-1])).any():
        order = np.lexsort((-end, start))
    rows = Rows(**{c: np.concatenate((getattr(kernels, c), getattr(memory, c)))[order] for c in _COLUMNS})
    return rows, order >= len(kernels)


def launched_by(work: Rows, runtime: Rows, is_launch: Bools) -> tuple[Ints, int]:
    """(row of `runtime` that launched each row of `work`, or NO_CALL; calls that share their id with another one).

    `is_launch` is a mask over names.
    """
    call: Ints = np.full(len(work), NO_CALL, dtype=np.int64)
    has = np.flatnonzero(work.correlation > 0)
    if not len(has) or not len(runtime):
        return call, 0
    ids = work.correlation[has]
    wanted, where = _dense(ids, runtime.correlation)
    if not len(wanted):
        return call, 0
    table: Ints = np.full(int(max(where[0].max(), where[1].max())) + 1, NO_CALL, dtype=np.int64)
    mine, theirs = where
    table[theirs] = wanted
    twice = table[theirs] != wanted
    shared = 0
    if twice.any():
        shared = int(twice.sum())
        wanted, theirs = _only_launches(wanted, theirs, is_launch[runtime.name[wanted]])
        table[:] = NO_CALL
        table[theirs] = wanted
        if (table[theirs] != wanted).any():
            call[has] = _latest_before(mine, work.start[has], theirs, runtime.start[wanted], wanted)
            return call, shared
    call[has] = table[mine]
    return call, shared


def _dense(ids: Ints, correlation: Ints) -> tuple[Ints, tuple[Ints, Ints]]:
    """(rows of `correlation` with an id that occurs in `ids`, (slot of each id, slot of each of these rows))."""
    low, high = int(ids.min()), int(ids.max())
    rows = np.flatnonzero((correlation >= low) & (correlation <= high))
    if high - low < 8 * (len(ids) + len(correlation)) + 1024:  # ids count calls, so this is the rule
        used = np.zeros(high - low + 1, dtype=np.bool_)
        used[ids - low] = True
        slots = correlation[rows] - low
        keep = used[slots]
        return rows[keep], (ids - low, slots[keep])
    unique, mine = np.unique(ids, return_inverse=True)
    slots = np.searchsorted(unique, correlation[rows])
    keep = unique[slots] == correlation[rows]
    return rows[keep], (mine.reshape(-1), slots[keep])


def _only_launches(calls: Ints, slot: Ints, launches: Bools) -> tuple[Ints, Ints]:
    """Without the calls that are no launches, where the same id has a launch as well."""
    has_launch = np.bincount(slot[launches], minlength=int(slot.max()) + 1) > 0
    keep = launches | ~has_launch[slot]
    return calls[keep], slot[keep]


def _latest_before(mine: Ints, start: Ints, theirs: Ints, began: Ints, calls: Ints) -> Ints:
    """For each piece of work the last call of its slot that began by its start, else the slot's first call."""
    slot = np.concatenate((theirs, mine))
    is_work = np.arange(len(slot)) >= len(theirs)
    order = np.lexsort((is_work, np.concatenate((began, start)), slot))
    at_call = np.where(is_work[order], -1, np.arange(len(order)))
    latest = np.maximum.accumulate(at_call)
    slots = slot[order]
    stale = (latest < 0) | (slots[latest] != slots)
    found = np.where(stale, NO_CALL, np.append(calls, np.full(len(mine), NO_CALL))[order[latest]])
    first: Ints = np.full(int(slot.max()) + 1, NO_CALL, dtype=np.int64)
    by_time = np.lexsort((-began, theirs))
    first[theirs[by_time]] = calls[by_time]
    found = np.where(found == NO_CALL, first[slots], found)
    result: Ints = np.empty(len(mine), dtype=np.int64)
    work = is_work[order]
    result[order[work] - len(theirs)] = found[work]
    return result


def busiest(found: tuple[Stream, ...]) -> tuple[Stream, ...]:
    """At most `MOST_STREAMS` of them, in the same order: those with most work."""
    if len(found) <= MOST_STREAMS:
        return found
    most_first = sorted(range(len(found)), key=lambda at: -len(found[at].at))
    return tuple(found[at] for at in sorted(most_first[:MOST_STREAMS]))


def streams(rows: Rows, lanes: Sequence[tuple[Any, Any]]) -> tuple[Stream, ...]:
    """The rows by stream. The label is the stream's number, with the device where there are several."""
    found = list(threads(rows.lane))
    several = len({lanes[lane][0] for lane, _ in found}) > 1
    return tuple(
        Stream(lane, f"device {lanes[lane][0]} stream {lanes[lane][1]}" if several else f"{lanes[lane][1]}", at)
        for lane, at in sorted(found, key=lambda each: [_order(part) for part in lanes[each[0]]])
    )


def _order(part: Any) -> tuple[int, int, str]:
    return (0, part, "") if isinstance(part, int) else (1, 0, str(part))
