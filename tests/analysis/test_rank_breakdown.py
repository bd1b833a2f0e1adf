"""One rank's trace, small enough to work out every number by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gloo_job import FETCH, OPTIMIZER, span

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.rank import summarise
from sameshot.analysis.results import DeviceTimes, Part, PartTimes, RankSummary
from sameshot.model import Identity
from sameshot.trace.columns.build import ColumnBuilder

MS = 1_000_000


def summary_of(*events: dict[str, Any], base_ns: int = 0) -> RankSummary:
    frames = FrameBuilder()
    columns = ColumnBuilder(frames)
    columns.take(columns.parse(json.dumps(events).encode()))
    columns.finish()
    window = columns.window
    frames.oddities.update(columns.oddities)
    return summarise(
        frames.frame(),
        target_id="t",
        identity=Identity(rank=0),
        base_ns=base_ns,
        window_ns=(base_ns + window.start_ns, base_ns + window.end_ns) if window.is_timed else (base_ns, base_ns),
        raw_size=1,
        raw_sha256="0" * 64,
    )


def parts(**milliseconds: float) -> PartTimes:
    return PartTimes(**{name: round(value * MS) for name, value in milliseconds.items()})


def main(name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    return span(name, start, length, pid=9, tid=9, **more)


def test_each_moment_belongs_to_one_part() -> None:
    found = summary_of(
        main(FETCH, 0, 10, cat="user_annotation"),
        main("aten::stack", 2, 3),  # inside the fetch: data wait, not operators
        main("aten::mm", 12, 8),
        main("aten::copy_", 14, 2),  # nested: not counted twice
        main("c10d::allreduce_", 20, 1),
        span("gloo:all_reduce", 21, 20, cat="user_annotation", pid=9, tid=77),
        main("aten::add", 30, 5),  # hides that much of the collective
        main(OPTIMIZER, 50, 10, cat="user_annotation"),
        main("aten::sqrt", 55, 5),
    )
    assert found.parts == parts(
        data_wait=10,
        operators=8 + 5 + 5,
        communication=1 + 20 - 5,
        untraced=2 + (50 - 41) + 5,  # between fetch and mm, after the collective, in the optimizer outside operators
    )
    assert found.parts.total == found.window == 60 * MS
    assert found.main_thread == "9/9"
    assert found.device is None


@pytest.mark.parametrize("backend", ["nccl", "gloo", "hccl", "xccl", "ucc", "mpi"])
def test_spans_of_any_process_group_are_communication(backend: str) -> None:
    found = summary_of(
        main("aten::mm", 0, 10),
        main(f"{backend}:all_reduce", 10, 5, cat="user_annotation"),
        main(f"{backend}_like:all_reduce", 15, 5, cat="user_annotation"),
    )
    assert found.parts == parts(operators=10, communication=5, untraced=5)


def test_the_window_is_that_of_all_recorded_events_not_of_the_interpreted_ones_alone() -> None:
    found = summary_of(
        main("aten::mm", 10, 20),
        {"ph": "X", "cat": "brand_new", "name": "?", "ts": 0, "dur": 1000, "pid": 9, "tid": 9},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 50_000, "pid": 9, "tid": 9},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": -5000, "dur": 99_000, "pid": 9, "tid": 9},
    )
    assert (found.window_start_ns, found.window_end_ns) == (0, 50 * MS)
    assert found.parts == parts(operators=20, untraced=30)


def test_a_collective_in_the_background_of_computation_costs_the_main_thread_nothing() -> None:
    found = summary_of(main("aten::mm", 0, 30), span("gloo:all_reduce", 5, 20, cat="user_annotation", pid=9, tid=77))
    assert found.parts == parts(operators=30)


def test_operators_of_the_backward_thread_are_what_the_main_thread_waits_for() -> None:
    backward = "autograd::engine::evaluate_function: MmBackward0"
    found = summary_of(main("aten::mm", 0, 10), span(backward, 10, 20, pid=9, tid=44), main("aten::add", 35, 5))
    assert found.parts == parts(operators=15, backward_thread=20, untraced=5)


def test_a_thread_with_step_marks_is_the_main_thread_even_if_another_is_busier() -> None:
    found = summary_of(
        span("aten::mm", 0, 100, pid=9, tid=9),
        span(OPTIMIZER, 10, 5, pid=9, tid=12, cat="user_annotation"),
    )
    assert found.main_thread == "9/12"


def test_gpu_time_is_split_without_overlap_and_a_wait_on_a_stream_is_no_work() -> None:
    def kernel(name: str, start: float, length: float, stream: int, cat: str = "kernel") -> dict[str, Any]:
        return span(name, start, length, cat=cat, pid=0, tid=stream, args={"stream": stream, "device": 0})

    found = summary_of(
        main("aten::mm", 0, 100),
        kernel("gemm", 0, 40, 7),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 30, 30, 20),
        kernel("Memcpy HtoD", 55, 15, 8, cat="gpu_memcpy"),
        kernel("Stream Wait Event", 70, 25, 7, cat="cuda_sync"),
    )
    assert found.device == DeviceTimes(
        compute=40 * MS,
        communication=20 * MS,
        memory=10 * MS,
        idle=30 * MS,
        kernels=2,
        overlapped=10 * MS,
        hidden_memory=5 * MS,
    )
    assert [stream.source for stream in found.streams] == ["nccl"]
    assert found.streams[0].signatures == ("all_reduce",)


def test_top_operators_are_ranked_by_their_own_time() -> None:
    found = summary_of(main("aten::linear", 0, 100), main("aten::addmm", 10, 80), main("aten::linear", 110, 5))
    assert [(o.name, o.count, o.total, o.self_time) for o in found.operators] == [
        ("aten::addmm", 1, 80 * MS, 80 * MS),
        ("aten::linear", 2, 105 * MS, 25 * MS),
    ]


def test_recorded_python_says_what_ran_where_no_operator_did() -> None:
    def python(name: str, start: float, length: float) -> dict[str, Any]:
        return main(name, start, length, cat="python_function")

    found = summary_of(
        python("train.py(3): main", 0, 100),
        python("train.py(9): step", 10, 80),
        python("<built-in function sleep>", 20, 35),
        main("aten::mm", 60, 20),
    )
    assert found.parts == parts(operators=20, untraced=80)
    assert [(f.name, f.self_time) for f in found.untraced_python] == [
        ("<built-in function sleep>", 35 * MS),
        ("train.py(9): step", 25 * MS),
        ("train.py(3): main", 20 * MS),
    ]


def test_one_python_builtin_is_one_name_whatever_object_it_belongs_to() -> None:
    found = summary_of(
        main("train.py(3): main", 0, 100, cat="python_function"),
        *(
            main(f"<built-in method get of Queue object at 0x7f{at}0>", at, 8, cat="python_function")
            for at in (10, 30, 60)
        ),
    )
    assert [(f.name, f.count, f.self_time) for f in found.untraced_python] == [
        ("train.py(3): main", 1, 76 * MS),
        ("<built-in method get of Queue object>", 3, 24 * MS),
    ]


def test_backward_operators_of_older_torch_are_known_by_their_own_names() -> None:
    found = summary_of(main("aten::mm", 0, 10), span("MmBackward", 10, 20, pid=9, tid=44), main("aten::add", 35, 5))
    assert found.parts == parts(operators=15, backward_thread=20, untraced=5)


def test_a_thread_that_only_fetches_is_not_the_main_thread_where_another_steps() -> None:
    """Some loops fetch on a thread of their own, ahead of time: then the main thread does not wait."""
    found = summary_of(
        *(main(OPTIMIZER, at, 5, cat="user_annotation") for at in (20, 50)),
        *(span(FETCH, at, 9, cat="user_annotation", pid=9, tid=5) for at in (0, 10, 20, 30)),
    )
    assert found.main_thread == "9/9"
    assert found.parts.data_wait == 0
    assert found.data_wait is None


def test_a_collective_cut_off_by_the_end_of_the_recording_is_no_evidence() -> None:
    def gloo(start: float, length: float, tid: int) -> dict[str, Any]:
        return span("gloo:all_reduce", start, length, cat="user_annotation", pid=9, tid=tid)

    found = summary_of(main("aten::mm", 0, 50), gloo(10, 20, 1), gloo(40, 20, 2))
    assert len(found.streams[0].dur) == 1
    assert found.streams[0].left_out == 1


def test_unknown_categories_are_counted_and_named() -> None:
    found = summary_of(main("aten::mm", 0, 10), *(main("?", i, 1, cat="quantum_op") for i in range(3)))
    assert found.trace.unknown_categories == {"quantum_op": 3}
    assert found.trace.events == 4
    assert found.parts == parts(operators=10)


@pytest.mark.parametrize(
    ("strange", "oddity"),
    [
        ({"dur": -5}, "negative duration, left out"),
        ({"dur": None}, "no usable duration, left out"),
        ({"ts": "soon"}, "no usable timestamp, left out"),
        ({"ts": 2**70}, "no usable timestamp, left out"),
        ({"dur": 1e300}, "no usable duration, left out"),
    ],
)
def test_strange_values_are_counted_and_left_out(strange: dict[str, Any], oddity: str) -> None:
    found = summary_of(main("aten::mm", 0, 10), main("aten::add", 10, 5) | strange)
    assert found.trace.oddities == {oddity: 1}
    assert found.parts == parts(operators=10)


def test_times_are_exact_to_the_nanosecond() -> None:
    found = summary_of(
        main("aten::mm", 0, 0) | {"ts": 5140131373156.354, "dur": 20765.231},
        main("aten::mm", 0, 0) | {"ts": "5140131393921.586", "dur": 0.001},
        base_ns=1_790_857_026_000_000_000,
    )
    assert found.window_start_ns == 1_790_857_026_000_000_000 + 5_140_131_373_156_354
    assert found.window == 20_765_233
    assert found.parts == PartTimes(operators=20_765_232, untraced=1)
    assert found.trace.oddities == {"timestamp written as text": 1}


def test_a_fractional_time_too_large_for_nanoseconds_is_flagged() -> None:
    found = summary_of(main("aten::mm", 0, 0) | {"ts": 1694128201431930.25, "dur": 10.5})
    assert list(found.trace.oddities) == ["fractional timestamp beyond 2^43 µs, no longer exact to 1 ns"]


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "cat": None, "name": None, "ts": 0, "dur": 1, "pid": None, "tid": None},
        {"ph": "X", "cat": "cpu_op", "name": {"a": [1]}, "ts": 0, "dur": 1, "pid": "Spans", "tid": 1.5},
        {"ph": "X", "cat": "kernel", "name": "nccl", "ts": 0, "dur": 1, "args": {"stream": [], "device": {}}},
        {"ph": "", "cat": "cpu_op", "name": "x"},
        {"ph": "X", "cat": "cpu_op", "name": "zero", "ts": 0, "dur": 0, "pid": 1, "tid": 1},
    ],
)
def test_no_oddity_stops_the_analysis(event: dict[str, Any]) -> None:
    found = summary_of(event)
    assert found.parts.total == found.window
    assert summary_of(event, main("aten::mm", 0, 10)).parts.get(Part.OPERATORS) == 10 * MS


def test_a_trace_without_spans_has_an_empty_window() -> None:
    found = summary_of({"ph": "M", "name": "process_name"})
    assert (found.window, found.main_thread, found.timeline) == (0, None, None)
    assert found.parts == PartTimes()


def test_the_timeline_covers_the_whole_window() -> None:
    found = summary_of(main("aten::mm", 0, 30), main(FETCH, 60, 40, cat="user_annotation"))
    assert found.timeline is not None
    assert sum(length for _, length in found.timeline.runs) == found.timeline.buckets
    assert [part for part, _ in found.timeline.runs] == [Part.OPERATORS, Part.UNTRACED, Part.DATA_WAIT]
