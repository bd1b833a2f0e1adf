"""Small traces as Kineto writes them, for tests of everything that handles traces."""

from __future__ import annotations

import json
from typing import Any

BASE_TIME_NS = 1_790_857_026_000_000_000
FIRST_US = 5_140_056_930_963.196  # µs after the base time
STEP_US = 10.5
SPAN_US = 7.25


def make_events(count: int, *, pid: int = 7040, first_us: float = FIRST_US) -> list[dict[str, Any]]:
    """`count` recorded spans, between the metadata and the marks that Kineto always adds."""
    spans = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op_{i % 17}",
            "pid": pid,
            "tid": pid,
            "ts": round(first_us + i * STEP_US, 3),
            "dur": SPAN_US,
            "args": {"External id": i + 1, "Record function id": 0, "Ev Idx": i},
        }
        for i in range(count)
    ]
    begin, end = round(first_us - 100, 3), round(first_us + count * STEP_US + 250, 3)
    return [
        {"ph": "M", "name": "process_name", "ts": begin, "pid": pid, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "ts": begin, "pid": pid, "tid": pid, "args": {"name": f"thread {pid}"}},
        *spans,
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": begin,
            "dur": round(end - begin, 3),
            "args": {"Op count": 0},
        },
        {
            "ph": "i",
            "s": "g",
            "name": "Iteration Start: PyTorch Profiler",
            "pid": "Traces",
            "tid": "Trace PyTorch Profiler",
            "ts": begin,
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end},
    ]


def make_document(
    registration: str | None = None,
    *,
    rank: int | None = None,
    world_size: int = 4,
    events: int = 20,
    base_time_ns: int = BASE_TIME_NS,
    **more: Any,
) -> dict[str, Any]:
    """The document of a trace; `more` adds or replaces top-level keys (before `traceEvents`)."""
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        head["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world_size}
    head["trace_id"] = "04B3C135904443FF8523D2D4206C1B53"
    if registration is not None:
        head["PT_PROFILER_JOB_NAME"] = f"sameshot/{registration}"
    head |= {"host_name": "node-a", "displayTimeUnit": "ms", "baseTimeNanoseconds": base_time_ns}
    head |= {key: value for key, value in more.items() if key != "traceEvents"}
    return {**head, "traceEvents": more.get("traceEvents", make_events(events)), "traceName": "/tmp/trace.json"}


def make_trace(registration: str | None = None, *, indent: int | None = 1, **options: Any) -> bytes:
    """`make_document` as JSON bytes, laid out like Kineto's own (or compact: `indent=None`)."""
    return json.dumps(make_document(registration, **options), indent=indent).encode()


def window_of(events: int, base_time_ns: int = BASE_TIME_NS) -> tuple[int, int]:
    """The window (CLOCK_REALTIME ns) that a trace of `events` recorded spans covers."""
    start = base_time_ns + round(FIRST_US * 1000)
    return start, start + round((events - 1) * STEP_US * 1000) + round(SPAN_US * 1000)
