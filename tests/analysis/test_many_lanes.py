"""Lanes are what a trace calls them, and a trace of very many costs no more than its events do."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sameshot.analysis import host
from sameshot.analysis.device.work import MOST_STREAMS, gather
from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.analysis.names import Cat
from sameshot.analysis.nesting import nest, self_times, threads, without_children
from sameshot.analysis.rank import summarise
from sameshot.analysis.results import RankSummary
from sameshot.model import Identity
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.read import read_trace


def span(category: str, start: int, length: int, tid: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "n", "pid": 0, "tid": tid, "ts": start, "dur": length, "args": args}


def frame_of(events: list[dict[str, Any]]) -> Frame:
    frames = FrameBuilder()
    read_trace(io.BytesIO(json.dumps({"traceEvents": events}).encode()), ColumnBuilder(frames))
    return frames.frame()


def summary_of(frame: Frame, last: int) -> RankSummary:
    return summarise(
        frame,
        target_id="rank/0",
        identity=Identity(rank=0),
        base_ns=0,
        window_ns=(0, last),
        raw_size=1,
        raw_sha256="",
    )


def test_threads_that_python_takes_for_equal_stay_apart(tmp_path: Path) -> None:
    tids = [1, 1.0, "1", 0, -0.0, "0", None]
    events = [span("cpu_op", at, 1, tid) for at, tid in enumerate(tids)]
    writer = ColumnWriter(tmp_path / "c")
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(read_trace(io.BytesIO(json.dumps({"traceEvents": events}).encode()), builder)))
    stored = FrameBuilder()
    footer = read_columns(tmp_path / "c", stored, stored.wanted)
    for frame in (frame_of(events), stored.frame(footer), frame_of(events[::-1])):
        rows = frame.rows(Cat.OPERATOR)
        assert len(frame.lanes) == len(tids)
        found = [json.dumps(frame.lanes[lane][1]) for lane in rows.lane.tolist()]
        assert found == [json.dumps(tid) for tid in tids]


def test_a_device_is_one_lane_whether_its_number_is_an_argument_or_the_process() -> None:
    stated = span("kernel", 0, 1, 7, device=0, stream=7)
    frame = frame_of([stated, span("kernel", 5, 1, 7, device=0), span("kernel", 9, 1, 7)])
    assert frame.lanes == [(0, 7)]


@pytest.mark.parametrize("seed", range(5))
def test_self_times_of_many_lanes_are_those_of_each_lane_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = 3000
    start = random.integers(-500, 500, rows)
    end = start + random.integers(0, 60, rows)
    lane = random.integers(0, 200, rows).astype(np.int32)
    order = np.lexsort((-end, start))
    start, end, lane = start[order], end[order], lane[order]
    expected = np.zeros(rows, np.int64)
    for _, at in threads(lane):
        parent, cut = nest(start[at], end[at])
        expected[at] = without_children(cut - start[at], parent)
    assert self_times(start, end, lane).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_the_main_thread_is_the_busiest_by_time_covered(seed: int) -> None:
    random = np.random.default_rng(seed)
    spans = [(int(random.integers(0, 60)), int(random.integers(1, 15)), int(random.integers(1, 7))) for _ in range(30)]
    frame = frame_of([span("cpu_op", start, length, tid) for start, length, tid in spans])
    covered: dict[int, set[int]] = {}
    for start, length, tid in spans:
        covered.setdefault(tid, set()).update(range(start, start + length))
    best = max(covered, key=lambda tid: (len(covered[tid]), -tid))
    main = host.main_thread(frame)
    assert main is not None
    assert frame.lanes[main] == (0, best)


@pytest.mark.parametrize("kind", ["threads", "overlaps"])
def test_time_grows_with_events_not_with_lanes_or_depth(kind: str) -> None:
    rows = 100_000
    if kind == "threads":
        events = [span("cpu_op", at, 5, at + 2) for at in range(rows)]
    else:
        events = [span("cpu_op", at, rows // 2 + at % 3, 1) for at in range(rows)]
    frame = frame_of(events)
    begin = time.process_time()
    summary_of(frame, 2 * rows * 1000)
    assert time.process_time() - begin < 0.8  # 2 s and more where each lane looks at all rows


def test_only_the_busiest_streams_have_rows_and_the_others_are_counted() -> None:
    many = MOST_STREAMS + 44
    kernels = [span("kernel", at, 1, at, device=0, stream=at, correlation=at + 1) for at in range(many)]
    calls = [span("cuda_runtime", at, 1, 9999, correlation=at + 1) for at in range(many)]
    more = span("kernel", many + 5, 1, many - 1, device=0, stream=many - 1)
    frame = frame_of([*kernels, *calls, more])
    assert len(gather(frame).streams) == many
    summary = summary_of(frame, 2 * many * 1000)
    expected = [str(at) for at in (*range(MOST_STREAMS - 1), many - 1)]
    assert [row.stream for row in summary.idle] == [row.stream for row in summary.queues] == expected
    assert summary.trace.oddities["streams beyond the 256 busiest, without rows of their own"] == 44
