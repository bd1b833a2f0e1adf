"""HTA's six analyses, operation by operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from sameshot.analysis.frame import Bools, Frame
from sameshot.analysis.hta.compat.kinds import is_launch, is_queued
from sameshot.analysis.hta.compat.read import NONE, Events, Numbers, read
from sameshot.analysis.hta.shape import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    RankTables,
    describe,
    rounded,
    types_name,
)
from sameshot.analysis.intervals import Ints

_KERNEL_WAIT_US = 30
_TOP = 10  # names of a type before the rest becomes "others"
_TOP_SHARE = 0.8


def rank_tables(frame: Frame, rank: int | None, *, drop_last_step: bool) -> RankTables:
    """What HTA's six analyses give for this rank. Empty where HTA finds nothing on a device (there it may crash)."""
    events = read(frame, drop_last_step=drop_last_step)
    device, host = events[events.stream != NONE], events[events.stream == NONE]
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
    stated: Ints = correlation[correlation != NONE]
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
