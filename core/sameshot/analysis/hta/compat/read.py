"""What HTA reads of a trace, rounded as HTA rounds."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.hta.compat.kinds import is_mtia_mark, is_step, is_sync, kernel_type
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING

Numbers = npt.NDArray[Any]
"""Times in µs: int64, or float64 where HTA has floats."""

NONE = -1
_HOST_CATS = (Cat.OPERATOR, Cat.ANNOTATION, Cat.PYTHON, Cat.RUNTIME, Cat.MIRROR)


class Events(msgspec.Struct, frozen=True):
    """Everything with a stream or a correlation, as HTA reads it and in HTA's order."""

    start: Numbers
    key: Numbers  # `start` in the narrowest type that holds all of the file, as pandas stores and sorts it
    dur: Numbers
    name: Ints
    kind: Ints
    stream: Ints  # -1: none, so it is an event of the host
    correlation: Ints  # -1: none
    work: Bools  # of a category that the idle breakdown accepts: neither a call nor cuda_sync
    linked: Bools  # HTA knows what this call launched
    called: npt.NDArray[np.float64]  # when the call that HTA links began; NaN: none

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, keep: Any) -> Events:
        return Events(*(getattr(self, field)[keep] for field in self.__struct_fields__))


def step_names(frame: Frame) -> tuple[str, ...]:
    """Names with "ProfilerStep" in them. Two or more over all ranks, and HTA drops the last step of each."""
    marks = frame.named(is_step)
    codes = {
        int(c) for cat in _HOST_CATS if len(rows := frame.rows(cat)) for c in np.unique(rows.name[marks[rows.name]])
    }
    return tuple(sorted(frame.names[code] for code in codes))


def read(frame: Frame, *, drop_last_step: bool) -> Events:
    """Select and round as HTA does."""
    to_us = _Clock(frame)
    rows, work = _rows(frame)
    start, dur = to_us(rows)
    stream, correlation = (np.where(c == MISSING, NONE, c) for c in (rows.stream, rows.correlation))
    on_device = ((stream >= 0) & (correlation >= 0)) | frame.named(is_sync)[rows.name]
    last = _last_step(frame, to_us) if drop_last_step else np.inf
    kept = ~on_device & (start < last)
    kinds = np.fromiter((kernel_type(name) for name in frame.names), dtype=np.int64, count=len(frame.names))
    host, device = np.flatnonzero(~on_device & (correlation >= 0)), np.flatnonzero(on_device & (correlation >= 0))
    call = _last_of(correlation[device], correlation[host])
    piece = _last_of(correlation[host], correlation[device])
    called, linked = np.full(len(rows), np.nan), np.zeros(len(rows), dtype=np.bool_)
    began = np.where(kept[host], start[host], np.nan)
    # "Launched by nothing recorded" is 0 in HTA, which it then takes for the event with index 0.
    called[device] = np.where(call >= 0, np.append(began, np.nan)[call], _first_event(frame, to_us, last))
    linked[host] = (piece >= 0) & (np.append(rows.event[device], 0)[piece] > 0)
    key = start.astype(to_us.narrowest)
    events = Events(
        start, key, dur, rows.name.astype(np.int64), kinds[rows.name], stream, correlation, work, linked, called
    )
    if not drop_last_step:
        return events
    # An inner join with what was called before the last step began, then the rest.
    ids, times = np.unique(correlation[kept & (correlation >= 0)], return_counts=True)
    at = np.searchsorted(ids, correlation[device])
    found = np.append(ids, NONE)[at] == correlation[device]
    joined = np.repeat(device, np.where(found, np.append(times, 0)[at], 0))
    return events[np.concatenate((joined, np.flatnonzero(kept)))]


class _Clock:
    """ns → HTA's µs. It rounds start up and end down, but only where some start is no whole µs."""

    def __init__(self, frame: Frame) -> None:
        tables = [rows for cat in Cat if len(rows := frame.rows(cat))]
        self.rounds = any(bool((rows.start % 1000).any()) for rows in tables)
        ends = [self(rows[at : at + 1])[0][0] for rows in tables for at in (0, len(rows) - 1)]  # sorted by start
        self.narrowest = np.result_type(*(np.min_scalar_type(min(end, -1 - end)) for end in ends)) if ends else np.int64

    def __call__(self, rows: Rows) -> tuple[Numbers, Numbers]:
        if self.rounds:  # in HTA's own floats: a sum may differ from the exact one in its last digit
            start = rows.start / 1000.0
            if (
                np.abs(rows.start) >> 53
            ).any():  # since the epoch: whole ns don't fit into a float, but quarters of µs do
                start = rows.start // 1000 + rows.start % 1000 / 1000.0
            end = np.floor(start + rows.dur / 1000.0).astype(np.int64)
            whole = np.ceil(start).astype(np.int64)
            return whole, end - whole
        return rows.start // 1000, rows.dur / 1000.0


def _rows(frame: Frame) -> tuple[Rows, Bools]:
    """(calls, and all that states a stream, in the order of the file; which of them are work)."""
    found = [
        (rows, cat in (Cat.KERNEL, Cat.MEMORY))
        for cat in (Cat.RUNTIME, Cat.KERNEL, Cat.MEMORY, Cat.SYNC)
        if len(rows := frame.rows(cat))
    ]
    if len(frame.placed):
        found.append((frame.placed, False))
    if not found:
        return Rows(name=np.empty(0, dtype=np.int32)), np.empty(0, dtype=np.bool_)
    columns = ("start", "end", "name", "event", "correlation", "stream")
    absent = [np.full(len(rows), MISSING) for rows, _ in found]
    rows = Rows(
        **{
            c: np.concatenate(
                [getattr(r, c) if len(getattr(r, c)) else no for (r, _), no in zip(found, absent, strict=True)]
            )
            for c in columns
        }
    )
    work = np.concatenate([np.full(len(part), is_work) for part, is_work in found])
    if frame.by_category[names.BY_NAME]:  # one category, so all of it is work for HTA
        work |= frame.named(is_mtia_mark)[rows.name]
    order = np.argsort(rows.event)
    return rows[order], work[order]


def _last_step(frame: Frame, to_us: _Clock) -> float:
    """When the last step began; its mirror on the device counts, too. NaN: no step here, and HTA keeps nothing."""
    marks = frame.named(is_step)
    starts = [
        to_us(rows[chosen])[0].max() for cat in _HOST_CATS if (chosen := marks[(rows := frame.rows(cat)).name]).any()
    ]
    return float(max(starts)) if starts else float("nan")


def _last_of(wanted: Ints, ids: Ints) -> Ints:
    """The index of the last one with each wanted id; -1: there is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[order], wanted, side="right") - 1
    found: Ints = np.where((at >= 0) & (ids[order][at] == wanted), order[at], -1)
    return found


def _first_event(frame: Frame, to_us: _Clock, before: float) -> float:
    """HTA takes "launched by nothing recorded" for "launched by the event with index 0"."""
    for cat in Cat:
        rows = frame.rows(cat)
        if len(at := np.flatnonzero(rows.event == 0)):
            start = float(to_us(rows[at])[0][0])
            return start if start < before else float("nan")
    return float("nan")
