"""Whatever numbers a trace states, no sum wraps and no step ends beyond the window."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.frame.build import ENDLESS, LONGEST_NS, MOST_SUM
from sameshot.analysis.names import Cat
from sameshot.analysis.rank import summarise
from sameshot.analysis.results import Confidence, RankSummary
from sameshot.model import Identity
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.read import read_trace

END_OF_TIME_US = (1 << 62) // 1000
LONG_US = (1 << 61) // 1000


def span(category: str, name: str, start: int, length: int, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}


def summaries_of(events: list[dict[str, Any]], folder: Path) -> RankSummary:
    """From the trace and from its columns, which must be the same."""
    data = json.dumps({"traceEvents": events}).encode()
    frames, writer = FrameBuilder(), ColumnWriter(folder / "columns")
    columns = ColumnBuilder(frames)
    found = read_trace(io.BytesIO(data), columns)
    frames.oddities.update(columns.oddities)
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(read_trace(io.BytesIO(data), builder)))
    stored = FrameBuilder()
    footer = read_columns(folder / "columns", stored, stored.wanted)
    one, two = (
        summarise(
            frame,
            target_id="rank/0",
            identity=Identity(rank=0),
            base_ns=found.base_time_ns or 0,
            window_ns=(found.window_start_ns, found.window_end_ns),
            raw_size=found.raw_size,
            raw_sha256=found.raw_sha256,
        )
        for frame in (frames.frame(), stored.frame(footer))
    )
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
    return one


def negatives(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in negatives(each, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for each in value for found in negatives(each, path)]
    return [path] if isinstance(value, int | float) and value < 0 else []


STEPS = [span("user_annotation", f"ProfilerStep#{at}", 100 * at, 99) for at in range(5)]
OPERATORS = [span("cpu_op", "aten::x", 100 * at + by, 3) for at in range(6) for by in (5, 20, 40)]


@pytest.mark.parametrize("with_operators", [True, False])
def test_a_step_whose_end_lies_beyond_all_time_is_no_step(tmp_path: Path, with_operators: bool) -> None:
    endless = span("user_annotation", "ProfilerStep#5", 500, END_OF_TIME_US)
    summary = summaries_of([*STEPS, endless, *(OPERATORS if with_operators else [])], tmp_path)
    assert summary.steps.edges == (0, 100_000, 200_000, 300_000, 400_000, 500_000)
    assert summary.steps.confidence is Confidence.HIGH
    assert summary.trace.oddities[ENDLESS] == 1
    assert "cut off" in summary.steps.note
    assert max(summary.steps.edges) <= summary.window_end_ns - summary.window_start_ns


KERNELS = [
    span("kernel", "gemm", at, LONG_US, at, device=0, stream=at, correlation=at, bytes=(1 << 63) - 1)
    for at in range(1, 9)
]


@pytest.mark.parametrize(
    "events",
    [
        KERNELS,
        [event | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"} for event in KERNELS],
        [event | {"name": "ncclDevKernel_AllReduce"} for event in KERNELS],
        [event | {"cat": "cpu_op", "name": f"aten::{at}"} for at, event in enumerate(KERNELS)],
        [event | {"cat": "python_function", "tid": 1} for event in KERNELS],
    ],
    ids=["kernels", "copies", "communication", "operators", "python"],
)
def test_spans_of_absurd_length_are_instants_and_counted(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    small = span("cpu_op", "aten::y", 0, 10)
    summary = summaries_of([small, *events], tmp_path)
    assert negatives(msgspec.to_builtins(summary)) == []
    assert summary.trace.oddities[ENDLESS] == len(events)
    assert [(row.total, row.bytes) for row in summary.copies] in ([], [(0, None)])


def test_a_span_that_begins_at_the_end_of_time_is_an_instant_as_in_the_window(tmp_path: Path) -> None:
    begin = END_OF_TIME_US - 100
    events = [span("cpu_op", "aten::x", begin, 20), span("cpu_op", "aten::y", begin, 1000)]
    summary = summaries_of(events, tmp_path)
    assert summary.window_end_ns - summary.window_start_ns == 20_000
    assert {row.name: row.total for row in summary.operators} == {"aten::x": 20_000, "aten::y": 0}
    assert summary.trace.oddities[ENDLESS] == 1


def test_the_longest_spans_that_count_are_not_touched(tmp_path: Path) -> None:
    longest = LONGEST_NS // 1000
    summary = summaries_of([span("kernel", "gemm", at, longest, at, device=0, stream=at) for at in range(3)], tmp_path)
    assert ENDLESS not in summary.trace.oddities
    assert [row.total for row in summary.kernel_rows] == [3 * longest * 1000]
    longer = summaries_of([span("kernel", "gemm", 0, longest + 1, 1, device=0, stream=1)], tmp_path)
    assert longer.trace.oddities[ENDLESS] == 1
    assert [row.total for row in longer.kernel_rows] == [0]


def test_many_long_spans_and_sizes_do_not_wrap_together() -> None:
    rows = 3000  # each just usable, all together beyond int64
    length, size = LONGEST_NS // 1000, (1 << 53) - 1
    short = [span("gpu_memcpy", "Memcpy DtoD", 0, 10, 1, device=0, stream=1, bytes=5)]
    events = [span("gpu_memcpy", "Memcpy DtoD", 0, length, 1, device=0, stream=1, bytes=size) for _ in range(rows)]
    frames = FrameBuilder()
    read_trace(io.BytesIO(json.dumps({"traceEvents": [*events, *short]}).encode()), ColumnBuilder(frames))
    frame = frames.frame()
    copies = frame.rows(Cat.MEMORY)
    assert rows * length * 1000 > MOST_SUM
    assert (int(copies.dur.sum()), int(copies.bytes[copies.bytes >= 0].sum())) == (10_000, 5)
    assert frame.oddities == {ENDLESS: rows, "unusable number of bytes, left out": rows}


def test_sizes_of_messages_that_no_memory_holds_are_not_stated() -> None:
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1 << 60, "Out msg nelems": 7}
    events = [span("user_annotation", "record_param_comms", 0, 10, **said, **{"Group size": 1 << 40})]
    frames = FrameBuilder()
    read_trace(io.BytesIO(json.dumps({"traceEvents": events}).encode()), ColumnBuilder(frames))
    messages = frames.frame().messages
    assert (messages.in_nelems.tolist(), messages.out_nelems.tolist()) == ([-(1 << 63)], [7])
    assert messages.group_size.tolist() == [-(1 << 63)]
