"""GPU time that was lost because the next kernel had not been launched yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from device_traces import call, copy, kernel, measured, operator, python, span, written

from sameshot.analysis.intervals import Spans
from sameshot.analysis.results import HostBound, NamedTime

US = 1000
WINDOW = (0, 1000 * US)

# The GPU works at 0-100, 300-400 and 600-700. The second kernel starts as soon as it is launched; the third was
# launched long before it starts, so the GPU waited for something else.
LAUNCHES = (
    call(0, 5, 1),
    kernel(0, 100, 1),
    call(290, 5, 2),
    kernel(300, 100, 2),
    call(310, 5, 3),
    kernel(600, 100, 3),
)


def bound(folder: Path, *events: dict[str, Any], felt: Spans | None = None) -> HostBound:
    found = measured(written(folder, *events), window=WINDOW, felt=felt).host_bound
    assert found is not None
    return found


def test_idle_time_before_a_kernel_that_was_just_launched_is_host_bound(tmp_path: Path) -> None:
    assert bound(tmp_path, *LAUNCHES) == HostBound(total=200 * US, share=0.2, gaps=1, operators=(), python=())


def test_felt_data_wait_is_not_counted_twice(tmp_path: Path) -> None:
    part = bound(tmp_path, *LAUNCHES, felt=Spans.single(50 * US, 150 * US))
    assert (part.total, part.gaps) == (150 * US, 1)
    whole = bound(tmp_path, *LAUNCHES, felt=Spans.single(50 * US, 350 * US))
    assert (whole.total, whole.gaps) == (0, 0)


@pytest.mark.parametrize(("returned", "total"), [(280, 200), (279.999, 0)])
def test_the_limit_is_20_us_after_the_call_returned(tmp_path: Path, returned: float, total: int) -> None:
    events = (kernel(0, 100), call(returned - 5, 5, 2), kernel(300, 100, 2))
    assert bound(tmp_path, *events).total == total * US


def test_the_wait_for_the_first_kernel_counts_and_the_time_after_the_last_does_not(tmp_path: Path) -> None:
    found = bound(tmp_path, call(90, 5, 1), kernel(100, 10, 1))
    assert (found.total, found.gaps) == (100 * US, 1)


def test_gaps_that_end_with_a_copy_or_an_unknown_launch_are_not_counted(tmp_path: Path) -> None:
    events = (
        call(0, 5, 1),
        kernel(0, 100, 1),
        call(290, 5, 2, "cudaMemcpyAsync"),
        copy(300, 10, 2, "Memcpy HtoD (Pageable -> Device)"),
        kernel(500, 10, 99),
    )
    assert bound(tmp_path, *events).total == 0


def test_work_on_another_stream_or_device_fills_the_gap(tmp_path: Path) -> None:
    found = bound(tmp_path, *LAUNCHES, kernel(50, 200, stream=20, device=1))
    assert found.total == 50 * US


def test_a_kernel_of_no_duration_does_not_end_a_gap(tmp_path: Path) -> None:
    assert bound(tmp_path, *LAUNCHES, kernel(200, 0, 99)).total == 200 * US


def test_without_any_known_launch_nothing_can_be_said(tmp_path: Path) -> None:
    assert measured(written(tmp_path, kernel(0, 10), kernel(50, 10)), window=WINDOW).host_bound is None


def test_it_names_what_the_launching_thread_did_in_the_gap(tmp_path: Path) -> None:
    found = bound(
        tmp_path,
        *LAUNCHES,  # the gap is 100-300
        operator("outer", 50, 230),  # 50-280: 180 within the gap
        operator("inner", 90, 60),  # 90-150: 50 within the gap
        operator("inner", 200, 40),  # 200-240
        operator("late", 350, 50),  # after the gap
        operator("elsewhere", 100, 200, tid=11),  # a thread that launched nothing
        operator("ProfilerStep#3", 0, 1000),  # a mark, no work
        python("train.py(10): step", 0, 1000),
        python("loss.py(5): forward", 120, 60),
        span("user_annotation", "note", 100, 200, 10, 10),
    )
    assert found.operators == (
        NamedTime("outer", 1, 180 * US, 90 * US),
        NamedTime("inner", 2, 90 * US, 90 * US),
    )
    assert found.python == (
        NamedTime("train.py(10): step", 1, 200 * US, 140 * US),
        NamedTime("loss.py(5): forward", 1, 60 * US, 60 * US),
    )


def test_python_functions_that_differ_by_an_address_only_are_one(tmp_path: Path) -> None:
    found = bound(
        tmp_path,
        *LAUNCHES,
        python("<built-in method layer_norm of type object at 0x7499b741df60>", 100, 50),
        python("<built-in method layer_norm of type object at 0x7499b741df99>", 150, 50),
    )
    assert found.python == (NamedTime("<built-in method layer_norm of type object>", 2, 100 * US, 100 * US),)


def test_each_gap_is_laid_to_the_thread_that_launched_its_kernel(tmp_path: Path) -> None:
    found = bound(
        tmp_path,
        kernel(0, 100),
        call(190, 5, 1),
        kernel(200, 100, 1),  # gap 100-200 of thread 10
        call(390, 5, 2, tid=11),
        kernel(400, 100, 2),  # gap 300-400 of thread 11
        operator("forward", 150, 200),
        operator("backward", 50, 330, tid=11),
    )
    assert found.total == 200 * US
    assert found.operators == (
        NamedTime("backward", 1, 80 * US, 80 * US),
        NamedTime("forward", 1, 50 * US, 50 * US),
    )


def test_felt_data_wait_is_no_operator_time_either(tmp_path: Path) -> None:
    found = bound(tmp_path, *LAUNCHES, operator("outer", 100, 200), felt=Spans.single(100 * US, 250 * US))
    assert found.operators == (NamedTime("outer", 1, 50 * US, 50 * US),)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_clean_trace_of_three_steps_is_bound_by_its_launches(shared_data: Path, rank: int) -> None:
    """Each step begins with a gemm that starts 4 µs after its call; before it the GPU waited since the last kernel."""
    found = measured(shared_data / "traces" / "oddities" / "00_ok" / f"rank{rank}.json").host_bound
    gap = 100 - 20 * rank  # 1100 (1120) to 1200, and again
    assert found is not None
    assert (found.total, found.gaps) == ((10 + 2 * gap) * US, 3)
    assert found.operators == (NamedTime("aten::mm", 3, 24 * US, 24 * US),)  # 8 µs of each gap, before the gemm


def test_python_is_named_where_it_was_recorded(shared_data: Path) -> None:
    with_python = measured(shared_data / "traces" / "single" / "h100_bert_small.json.gz").host_bound
    without = measured(shared_data / "traces" / "single" / "a100_nccl_2ranks_rank0.json.gz").host_bound
    assert with_python is not None
    assert without is not None
    assert with_python.python[0].name == "<built-in function linear>"
    assert without.python == ()
    assert without.operators
