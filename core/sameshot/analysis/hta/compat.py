"""HTA's own reading of a trace, operation by operation: for comparing with HTA 0.5.0, not for answers.

It loses up to 1 µs of each event, mixes up devices that use the same stream number, takes waits of a stream
(`cuda_sync`) and host operators that state a stream for computation, and drops the last `ProfilerStep`;
docs/analysis.md has the events that show it. Here each of these is repeated faithfully, because a difference that
remains is then one that matters. Even the order of events at equal times is HTA's: pandas sorts with numpy's unstable
sort, and queue lengths and idle categories depend on it, so the same call sorts the same numbers in the same order
here.

Sources (HTA 0.5.0): common/trace_parser.py `round_down_time_stamps`; common/trace.py `transform_correlation_to_index`,
`_filter_irrelevant_gpu_kernels`; utils/utils.py `get_kernel_type`, `merge_kernel_intervals`; and per table below.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.hta.shape import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    OTHER,
    RankTables,
    describe,
    rounded,
    types_name,
)
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING

Numbers = npt.NDArray[Any]
"""Times in µs: int64, or float64 where HTA has floats."""

_NONE = -1
_HOST_CATS = (Cat.OPERATOR, Cat.ANNOTATION, Cat.PYTHON, Cat.RUNTIME, Cat.MIRROR)
_KERNEL_WAIT_US = 30
_TOP = 10  # names of a type before the rest becomes "others"
_TOP_SHARE = 0.8

# hta/common/trace_symbol_table.py get_runtime_launch_events_query
_QUEUED = frozenset({
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution", "hipLaunchKernel", "hipExtModuleLaunchKernel",
    "hipMemsetAsync", "hipMemcpyAsync", "hipMemcpyWithStream",
})  # fmt: skip
# hta/analyzers/cuda_kernel_analysis.py cuda_kernel_launch_stats
_LAUNCHES = frozenset({
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemsetAsync", "cudaMemcpyAsync",
    "runFunction - job_prep_and_submit_for_execution",
})  # fmt: skip
_SYNCS = frozenset({"Event Sync", "Context Sync"})

_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NO_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")


def kernel_type(name: str) -> int:
    if _COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NO_COMPUTE.match(name) else COMPUTATION


def is_step(name: str) -> bool:
    return "ProfilerStep" in name


def is_queued(name: str) -> bool:
    return name in _QUEUED


def is_launch(name: str) -> bool:
    return name in _LAUNCHES


def is_sync(name: str) -> bool:
    return name in _SYNCS


def is_mtia_mark(name: str) -> bool:
    return names.kind_by_name(name) is Cat.SYNC


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


def rank_tables(frame: Frame, rank: int | None, *, drop_last_step: bool) -> RankTables:
    """What HTA's six analyses give for this rank. Empty where HTA finds nothing on a device (there it may crash)."""
    events = read(frame, drop_last_step=drop_last_step)
    device, host = events[events.stream != _NONE], events[events.stream == _NONE]
    if not len(device):
        return RankTables(rank)
    return RankTables(
        rank,
        temporal=_temporal(device),
        idle=_idle(device),
        kernel_types=_kernel_types(device),
        kernels=_kernels(device, frame.names),
        overlap=_overlap(device),
        launches=_launch_stats(events, device, host, frame.named(is_launch)),
        queues=_queues(events, device, frame.named(is_queued)),
    )


# ---- reading


def read(frame: Frame, *, drop_last_step: bool) -> Events:
    """Select and round as HTA does."""
    to_us = _Clock(frame)
    rows, work = _rows(frame)
    start, dur = to_us(rows)
    stream, correlation = (np.where(c == MISSING, _NONE, c) for c in (rows.stream, rows.correlation))
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
    found = np.append(ids, _NONE)[at] == correlation[device]
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


# ---- arithmetic


def _sorted(times: Numbers) -> Ints:
    """pandas' `sort_values` of one column."""
    order: Ints = np.argsort(times, kind="quicksort")
    return order


def _merged(events: Events) -> tuple[Numbers, Numbers]:
    """`merge_kernel_intervals`; an event that rounding turned around stays one, of negative length."""
    events = events[_sorted(events.key)]
    start, end = events.start, events.start + events.dur
    if not len(start):
        return start, end
    opens = np.concatenate(([True], start[1:] > np.maximum.accumulate(end)[:-1]))
    at = np.flatnonzero(opens)
    return np.minimum.reduceat(start, at), np.maximum.reduceat(end, at)


def _of(device: Events, kind: int) -> tuple[Numbers, Numbers]:
    return _merged(device[device.kind == kind])


def _temporal(device: Events) -> dict[str, Any]:
    """breakdown_analysis.py get_temporal_breakdown."""
    start, end = _merged(device)
    whole = end[-1] - start[0]
    idle = whole - (end - start).sum()
    start, end = _of(device[_sorted(device.key)], COMPUTATION)  # HTA sorts in place, and here what is sorted already
    compute = (end - start).sum()
    parts = {"idle": idle, "compute": compute, "non_compute": whole - compute - idle, "kernel": whole}
    return {part: time.item() for part, time in parts.items()}


def _idle(device: Events) -> dict[str, list[Any]]:
    """breakdown_analysis.py _analyze_idle_time_for_stream."""
    device = device[device.work]
    table: dict[str, list[Any]] = {"stream": [], "idle_category": [], "idle_time": [], "idle_time_ratio": []}
    streams, first = np.unique(device.stream, return_index=True)
    for stream in streams[np.argsort(first)].tolist():
        rows = device[device.stream == stream]
        rows = rows[_sorted(rows.key)]
        ended = (rows.start + rows.dur)[:-1]
        gap = (rows.start[1:] - ended).astype(np.float64)
        host = rows.called[1:] > ended
        near = ~host & (gap < _KERNEL_WAIT_US)
        parts = [("host_wait", host), ("kernel_wait", near), ("other", ~host & ~near)]
        whole = gap.sum()
        for category, chosen in parts:
            if chosen.any() or category == "other":  # the first kernel has no gap, and counts as "other"
                idle = gap[chosen].sum()
                table["stream"].append(stream)
                table["idle_category"].append(category)
                table["idle_time"].append(rounded(idle, 2))
                table["idle_time_ratio"].append(rounded(idle / whole, 2) if whole else None)
    return table


def _kernel_types(device: Events) -> dict[str, Any]:
    """breakdown_analysis.py _get_gpu_kernel_type_time; type → µs, also of types at once."""
    status = np.empty(0, dtype=np.int64)
    time: Numbers = np.empty(0, dtype=np.int64)
    for kind in (COMPUTATION, COMMUNICATION, MEMORY):
        value = 1 << kind
        start, end = _of(device, kind)
        status = np.concatenate((status, np.full(len(start), value), np.full(len(end), -value)))
        time = np.concatenate((time, start, end))
        order = _sorted(time)
        status, time = status[order], time[order]
    running = np.cumsum(status)[:-1]
    length = time[1:] - time[:-1]
    sums: dict[str, Any] = {}
    for value in np.unique(running[running > 0]).tolist():
        if name := types_name(value):
            sums[name] = sums.get(name, 0) + int(length[running == value].sum())
    return sums


def _kernels(device: Events, words: list[str]) -> dict[str, list[Any]]:
    """breakdown_analysis.py _aggr_gpu_kernel_time, with its defaults."""
    table: dict[str, list[Any]] = {c: [] for c in ("name", "sum", "max", "min", "stddev", "mean", "kernel_type")}
    for kind, label in enumerate(KINDS):
        chosen = device.kind == kind
        names, stats = _by_name([words[c] for c in device.name[chosen].tolist()], device.dur[chosen])
        for name, row in zip(names, stats, strict=True):
            values = (name, *row, label)
            for column, value in zip(table, values, strict=True):
                table[column].append(value)
    return table


def _by_name(names: list[str], dur: Numbers) -> tuple[list[str], list[tuple[Any, ...]]]:
    unique = sorted(set(names))
    if not unique:
        return [], []
    code = {name: i for i, name in enumerate(unique)}
    stats = _stats(np.fromiter((code[name] for name in names), dtype=np.int64, count=len(names)), dur)
    sums = np.array([row[0] for row in stats])
    order = (len(sums) - 1 - _sorted(sums[::-1]))[::-1]  # how pandas sorts downwards
    ordered = [unique[i] for i in order.tolist()]
    rows = [stats[i] for i in order.tolist()]
    if len(ordered) <= _TOP:
        return ordered, rows
    reached = np.cumsum(sums[order])
    limit = np.quantile(reached, _TOP_SHARE)
    kept = [
        "others" if row[0] >= 0 and (above or i >= _TOP) else name
        for i, (name, row, above) in enumerate(zip(ordered, rows, (reached > limit).tolist(), strict=True))
    ]
    again = sorted(set(kept))
    code = {name: i for i, name in enumerate(again)}
    return again, _stats(np.array([code[name] for name in kept]), sums[order])


def _stats(code: Ints, values: Numbers) -> list[tuple[Any, ...]]:
    """(sum, max, min, deviation of the sample, mean) by code."""
    order = np.argsort(code, kind="stable")
    found = []
    for part in np.split(values[order], np.flatnonzero(np.diff(code[order])) + 1):
        deviation = float(part.std(ddof=1)) if len(part) > 1 else 0.0
        found.append((part.sum().item(), part.max().item(), part.min().item(), deviation, float(part.mean())))
    return found


def _overlap(device: Events) -> float | None:
    """communication_analysis.py get_comm_comp_overlap, as a share. None: no communication."""
    comm, comp = _of(device, COMMUNICATION), _of(device, COMPUTATION)
    time = np.concatenate((*comm, *comp))
    status = np.repeat(np.array([1, -1, 2, -2]), [len(comm[0]), len(comm[1]), len(comp[0]), len(comp[1])])
    order = _sorted(time)
    both = np.cumsum(status[order])[:-1] == 3
    whole = (comm[1] - comm[0]).sum()
    return float(np.diff(time[order])[both].sum() / whole) if whole else None


def _launch_stats(events: Events, device: Events, host: Events, launch: Bools) -> dict[str, Numbers]:
    """cuda_kernel_analysis.py cuda_kernel_launch_stats: one entry per pair of a call and what it launched."""
    calls = host[np.isin(host.correlation, _stated(events[launch[events.name]].correlation))]
    call, piece = _pairs(calls.correlation, device.correlation)
    delay = device.start[piece] - calls.start[call] - calls.dur[call]
    return {
        "correlation": calls.correlation[call],
        "cpu_duration": calls.dur[call],
        "gpu_duration": device.dur[piece],
        "launch_delay": np.maximum(delay, 0),
    }


def _stated(correlation: Ints) -> Ints:
    stated: Ints = correlation[correlation != _NONE]
    return stated


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """pandas' inner join of two columns, as indices: every pair of equal values, in the order of the left one."""
    order = np.argsort(right, kind="stable")
    low = np.searchsorted(right[order], left, side="left")
    count = np.searchsorted(right[order], left, side="right") - low
    mine = np.repeat(np.arange(len(left)), count)
    theirs = np.repeat(low - np.cumsum(count) + count, count) + np.arange(len(mine))
    pairs: tuple[Ints, Ints] = (mine, order[theirs])
    return pairs


def _queues(events: Events, device: Events, queued: Bools) -> dict[str, list[Any]]:
    """trace_counters.py _get_queue_length_time_series_for_rank, described by stream: over changes, not over time."""
    calls = events[queued[events.name] & events.linked]
    pieces = device[np.isin(device.correlation, _stated(calls.correlation))]
    call, piece = _pairs(calls.correlation, device.correlation)
    time = np.concatenate((calls.key[call], pieces.key))
    streams = np.concatenate((device.stream[piece], pieces.stream))
    change = np.repeat(np.array([1, -1]), [len(call), len(pieces)])
    order = _sorted(time)
    streams, change = streams[order], change[order]
    table: dict[str, list[Any]] = {"stream": []}
    for each in np.unique(streams).tolist():
        table["stream"].append(each)
        for column, value in describe(np.cumsum(change[streams == each])).items():
            table.setdefault(column, []).append(value)
    return table
