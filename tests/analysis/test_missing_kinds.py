"""A trace need not hold every kind of event: whatever is missing, its summary states less and nothing breaks."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import msgspec
import pytest

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.rank import summarise
from sameshot.analysis.results import RankSummary
from sameshot.model import Identity
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def span(category: str, name: str, start: int, length: int, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}


KINDS: dict[str, list[dict[str, Any]]] = {
    "fetch": [span("user_annotation", FETCH, 100 * i, 20) for i in range(4)],
    "step": [span("user_annotation", f"ProfilerStep#{i}", 100 * i, 99) for i in range(4)],
    "operator": [span("cpu_op", "aten::add", 100 * i + 30, 20) for i in range(4)],
    "call": [span("cuda_runtime", "cudaLaunchKernel", 100 * i + 35, 5, correlation=10 * i + 1) for i in range(4)]
    + [span("cuda_runtime", "cudaMemcpy", 100 * i + 25, 5, correlation=10 * i + 2) for i in range(4)],
    "kernel": [span("kernel", "gemm", 100 * i + 50, 5, 7, device=0, stream=7, correlation=10*i + 1) for i in range(4)],
    "nccl": [
        span("kernel", "ncclDevKernel_AllReduce", 100 * i + 60, 5, 8, device=0, stream=8, correlation=10 * i + 3)
        for i in range(4)
    ],
    "copy": [
        span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 100 * i + 40, 5, 7, device=0, stream=7, bytes=4,
             correlation=10 * i + 2)
        for i in range(4)
    ],
    "sync": [span("cuda_sync", "Stream Sync", 100 * i + 70, 5, 7, device=0, stream=7) for i in range(4)],
    "python": [span("python_function", "train.py(1): step", 100 * i, 90) for i in range(4)],
}  # fmt: skip


def summary_of(events: list[dict[str, Any]], **header: Any) -> RankSummary:
    frames = FrameBuilder()
    columns = ColumnBuilder(frames)
    found = read_trace(io.BytesIO(json.dumps({"traceEvents": events, **header}).encode()), columns)
    summary = summarise(
        frames.frame(),
        target_id="rank/0",
        identity=Identity(rank=0),
        base_ns=found.base_time_ns or 0,
        window_ns=(found.window_start_ns, found.window_end_ns),
        raw_size=found.raw_size,
        raw_sha256=found.raw_sha256,
    )
    msgspec.json.encode(summary)
    return summary


SETS = [
    *itertools.combinations(KINDS, 1),
    *itertools.combinations(KINDS, 2),
    *itertools.combinations(KINDS, 3),
    *(tuple(kind for kind in KINDS if kind not in left) for left in itertools.combinations(KINDS, 1)),
    *(tuple(kind for kind in KINDS if kind not in left) for left in itertools.combinations(KINDS, 2)),
]


@pytest.mark.parametrize("kinds", SETS, ids="+".join)
def test_a_trace_of_these_kinds_alone_is_summarised(kinds: tuple[str, ...]) -> None:
    summary = summary_of([event for kind in kinds for event in KINDS[kind]])
    assert (summary.device is not None) == bool({"kernel", "nccl", "copy"} & set(kinds))
    assert (summary.data_wait is not None) == ("fetch" in kinds)
    assert summary.trace.events == sum(len(KINDS[kind]) for kind in kinds)


@pytest.mark.parametrize(("memory", "cost"), [("Pageable", 4 * 5000), ("Pinned", 0)])
def test_a_copy_whose_call_was_not_recorded_costs_only_what_its_memory_shows(memory: str, cost: int) -> None:
    copies = [
        span("gpu_memcpy", f"Memcpy HtoD ({memory} -> Device)", 100 * i + 10, 5, 9, device=0, stream=9, correlation=9)
        for i in range(4)
    ]
    waited = summary_of([*KINDS["fetch"], *KINDS["kernel"], *copies]).data_wait
    assert waited is not None
    assert waited.copies == cost
