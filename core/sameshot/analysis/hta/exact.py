"""The contents of HTA's six tables in exact nanoseconds, from everything that the trace holds.

Same columns and same meaning as HTA's, in µs with a fraction; what HTA gets wrong is right: nothing is rounded, waits
of a stream are no work, devices are kept apart, the last `ProfilerStep` counts, kernels without a stream do, too, every
vendor's launch calls are launches, and no kernel disappears in a row "others".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.analysis.device.idle import called, idle_of_stream
from sameshot.analysis.device.work import Work, gather
from sameshot.analysis.frame import Bools, Frame
from sameshot.analysis.hta.shape import COMMUNICATION, COMPUTATION, KINDS, MEMORY, RankTables, describe, types_name
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.stats import grouped
from sameshot.trace.columns.chunk import MISSING

Floats = npt.NDArray[np.float64]


def rank_tables(frame: Frame, rank: int | None, work: Work | None = None) -> RankTables:
    """This rank's part of the six tables. `work` is what `device.work.gather` made of the frame, where it is known."""
    work = gather(frame) if work is None else work
    if not len(work.rows):
        return RankTables(rank)
    kinds = {
        COMPUTATION: ~(work.communication | work.memory),
        COMMUNICATION: work.communication,
        MEMORY: work.memory,
    }
    spans = {kind: work.rows[chosen].spans if chosen.any() else Spans() for kind, chosen in kinds.items()}
    whole = int(work.rows.end.max()) - int(work.rows.start[0])
    types = _kernel_types(spans)
    busy, compute, communication = (
        sum(time for value, time in types.items() if value & mask) for mask in (7, 1 << COMPUTATION, 1 << COMMUNICATION)
    )
    both = sum(time for value, time in types.items() if value & 3 == 3)
    return RankTables(
        rank,
        temporal={
            "idle": us(whole - busy),
            "compute": us(compute),
            "non_compute": us(busy - compute),
            "kernel": us(whole),
        },
        idle=_idle(work, frame),
        kernel_types={types_name(value): us(time) for value, time in types.items()},
        kernels=_kernels(work, kinds, frame.names),
        overlap=both / communication if communication else None,
        launches=_launches(work),
        queues=_queues(work, frame),
    )


def us(ns: int) -> float:
    return ns / 1000


def _us(ns: Ints) -> Floats:
    return ns / 1000.0


def _kernel_types(spans: dict[int, Spans]) -> dict[int, int]:
    """ns by what ran at once: a bit per kind."""
    kinds = {kind: each for kind, each in spans.items() if len(each)}
    if len(kinds) == 1:
        return {1 << kind: each.total for kind, each in kinds.items()}
    time = np.concatenate([edge for each in kinds.values() for edge in (each.start, each.end)])
    bits = [np.full(len(each), sign << kind, dtype=np.int64) for kind, each in kinds.items() for sign in (1, -1)]
    order = np.argsort(time, kind="stable")
    running = np.cumsum(np.concatenate(bits)[order])[:-1]
    length = np.diff(time[order])
    found = {value: int(length[running == value].sum()) for value in range(1, 1 << len(KINDS))}
    return {value: time for value, time in found.items() if time}


def _idle(work: Work, frame: Frame) -> dict[str, list[Any]]:
    began = called(work.runtime, work.call)
    table: dict[str, list[Any]] = {c: [] for c in ("device", "stream", "idle_category", "idle_time", "idle_time_ratio")}
    for stream in work.streams:
        device, number = frame.lanes[stream.lane]
        found = idle_of_stream(work.rows.start[stream.at], work.rows.end[stream.at], began[stream.at])
        whole = found.host_wait + found.kernel_wait + found.other
        for category in ("host_wait", "kernel_wait", "other"):
            time = getattr(found, category)
            ratio = time / whole if whole else None
            for column, value in zip(table, (device, number, category, us(time), ratio), strict=True):
                table[column].append(value)
    return table


def _kernels(work: Work, kinds: dict[int, Bools], words: list[str]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {c: [] for c in ("name", "sum", "max", "min", "stddev", "mean", "kernel_type")}
    duration = work.rows.dur
    for kind, chosen in kinds.items():
        found = grouped(work.rows.name[chosen], duration[chosen])
        table["name"] += [words[code] for code in found.code.tolist()]
        table["sum"] += _us(found.total).tolist()
        table["max"] += _us(found.maximum).tolist()
        table["min"] += _us(found.minimum).tolist()
        table["stddev"] += (found.deviation / 1000.0).tolist()
        table["mean"] += (found.total / np.maximum(found.count, 1) / 1000.0).tolist()
        table["kernel_type"] += [KINDS[kind]] * len(found.code)
    return table


def _launches(work: Work) -> dict[str, Any]:
    """One entry per piece of work whose launch was recorded, in order of the calls."""
    linked = np.flatnonzero(work.linked)
    linked = linked[np.argsort(work.call[linked], kind="stable")]
    call = work.call[linked]
    return {
        "correlation": work.rows.correlation[linked],
        "cpu_duration": _us(work.runtime.dur[call]),
        "gpu_duration": _us(work.rows.dur[linked]),
        "launch_delay": _us(np.maximum(work.rows.start[linked] - work.runtime.end[call], 0)),
    }


def _queues(work: Work, frame: Frame) -> dict[str, list[Any]]:
    """Launched and not yet started work, described over its changes, as HTA does: not weighted by time."""
    began = called(work.runtime, work.call)
    table: dict[str, list[Any]] = {"device": [], "stream": []}
    for stream in work.streams:
        start, launch = work.rows.start[stream.at], began[stream.at]
        known = launch != MISSING
        if not known.any():
            continue
        # Of changes at one moment, a launch comes before a start: a length is never below 0 by chance.
        time = np.concatenate((np.minimum(launch, start)[known], start[known]))
        change = np.repeat(np.array([1, -1]), (int(known.sum()), int(known.sum())))
        length = np.cumsum(change[np.argsort(time, kind="stable")])
        device, number = frame.lanes[stream.lane]
        for column, value in {"device": device, "stream": number, **describe(length)}.items():
            table.setdefault(column, []).append(value)
    return table
