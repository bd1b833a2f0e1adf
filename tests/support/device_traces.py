"""Small traces of a GPU and the thread that feeds it, written and read as files. Times are µs after the base time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sameshot.analysis.device import DeviceMeasures, measure
from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.analysis.intervals import Spans
from sameshot.analysis.names import Cat
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace

HOST, THREAD = 10, 10
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"


def span(cat: str, name: str, ts: float, dur: float | None, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
    return {key: value for key, value in event.items() if value is not None}


def kernel(
    ts: float,
    dur: float | None,
    correlation: int = 0,
    name: str = "gemm",
    *,
    stream: int = 7,
    device: int = 0,
    cat: str = "kernel",
    **args: Any,
) -> dict[str, Any]:
    return span(cat, name, ts, dur, device, stream, correlation=correlation, stream=stream, device=device, **args)


def copy(ts: float, dur: float, correlation: int, name: str, **args: Any) -> dict[str, Any]:
    return kernel(ts, dur, correlation, name, cat="gpu_memcpy", **args)


def call(
    ts: float,
    dur: float,
    correlation: int,
    name: str = "cudaLaunchKernel",
    *,
    tid: int = THREAD,
    cat: str = "cuda_runtime",
) -> dict[str, Any]:
    return span(cat, name, ts, dur, HOST, tid, correlation=correlation)


def operator(name: str, ts: float, dur: float, *, tid: int = THREAD) -> dict[str, Any]:
    return span("cpu_op", name, ts, dur, HOST, tid)


def python(name: str, ts: float, dur: float, *, tid: int = THREAD) -> dict[str, Any]:
    return span("python_function", name, ts, dur, HOST, tid)


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}))
    return path


def frame_of(path: Path) -> Frame:
    builder = FrameBuilder()
    read_trace(path, ColumnBuilder(builder))
    return builder.frame()


def window_of(frame: Frame) -> tuple[int, int]:
    """From the first to the last recorded event."""
    tables = [rows for cat in Cat if len(rows := frame.rows(cat))]
    return min(int(rows.start.min()) for rows in tables), max(int(rows.end.max()) for rows in tables)


def measured(path: Path, window: tuple[int, int] | None = None, felt: Spans | None = None) -> DeviceMeasures:
    """`window` in ns."""
    frame = frame_of(path)
    return measure(frame, window=window or window_of(frame), felt=felt or Spans())
