"""Which host call launched what, how long that took, and what the queues held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device_traces import call, copy, frame_of, kernel, measured, written
from hypothesis import given
from hypothesis import strategies as st

from sameshot.analysis.device.idle import Idle, idle_of_stream
from sameshot.analysis.device.queues import longest
from sameshot.analysis.device.work import NO_CALL, gather, launched_by
from sameshot.analysis.frame import Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import IdleRow, Launches, QueueRow, Spread
from sameshot.trace.columns.chunk import MISSING

US = 1000


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


# ---- links


def test_a_launch_is_followed_to_its_kernel(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call(0, 5, 1),
        call(10, 6, 2),
        call(20, 7, 3, "cudaMemsetAsync"),
        call(30, 9, 4),  # its kernel was not recorded
        kernel(8, 10, 1),  # delay 3
        kernel(18, 4, 2),  # delay 2; shorter than its call
        copy(25, 20, 3, "Memset (Device)"),  # began before its call returned: no delay
        kernel(50, 30, 99),  # its launch was not recorded
        kernel(90, 10),  # correlation 0: none
    )
    assert measured(path, window=(0, 100 * US)).launches == Launches(
        count=3,
        call=Spread(3, median=6 * US, p10=5200, p90=6800, minimum=5 * US, maximum=7 * US),
        delay=Spread(3, median=2 * US, p10=400, p90=2800, minimum=0, maximum=3 * US),
        kernel=Spread(3, median=10 * US, p10=5200, p90=18 * US, minimum=4 * US, maximum=20 * US),
        longer_than_kernel=1,
        without_launch=2,
        graph_launches=0,
        graph_kernels=0,
    )


def test_one_graph_launch_has_many_kernels(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call(0, 10, 1, "cudaGraphLaunch"),
        call(20, 10, 2, "cudaGraphLaunch"),  # nothing of it was recorded
        kernel(15, 10, 1),
        kernel(25, 10, 1),
        kernel(35, 10, 1),
        call(30, 3, 3),
        kernel(50, 10, 3),
    )
    found = measured(path)
    assert found.launches is not None
    assert (found.launches.count, found.launches.graph_launches, found.launches.graph_kernels) == (2, 2, 3)
    assert found.launches.delay == Spread(2, median=11 * US, p10=6200, p90=15_800, minimum=5 * US, maximum=17 * US)
    assert found.launches.longer_than_kernel == 0  # 10 µs against 30 µs of kernels
    assert found.oddities == {}


def test_kernels_of_a_graph_are_known_without_its_launch(tmp_path: Path) -> None:
    """A graph that was launched before the recording began; Kineto writes `graph id` 0 for kernels of no graph."""
    in_graph, plain = {"graph id": 5, "graph node id": 7}, {"graph id": 0, "graph node id": 0}
    found = measured(
        written(tmp_path, kernel(0, 10, 8, **in_graph), kernel(20, 10, 8, **in_graph), kernel(40, 9, **plain))
    )
    assert found.launches is not None
    assert (found.launches.graph_launches, found.launches.graph_kernels, found.launches.without_launch) == (0, 2, 3)
    assert (found.launches.count, found.launches.delay) == (0, None)


def test_several_kernels_of_a_launch_that_is_no_graph_are_counted_as_odd(tmp_path: Path) -> None:
    found = measured(written(tmp_path, call(0, 5, 1), kernel(10, 5, 1), kernel(20, 5, 1)))
    assert found.oddities == {"launches with several kernels, no graph": 1}
    assert found.launches is not None
    assert (found.launches.count, found.launches.without_launch) == (1, 0)


def test_of_calls_that_share_an_id_the_launch_counts(tmp_path: Path) -> None:
    events = (
        call(0, 1, 1, "cudaEventRecord"),
        call(2, 5, 1),
        call(8, 1, 1, "cudaEventRecord"),
        kernel(10, 5, 1),
    )
    found = measured(written(tmp_path, *events))
    assert found.oddities == {"host calls that share a correlation id": 2}
    assert found.launches is not None
    assert found.launches.count == 1
    assert found.launches.call == Spread(1, *[5 * US] * 5)


def test_of_two_launches_with_one_id_the_last_before_the_kernel_counts(tmp_path: Path) -> None:
    """Ids that began anew: a trace put together from two."""
    events = (call(0, 2, 1), kernel(5, 5, 1), call(20, 4, 1), kernel(30, 5, 1), call(40, 3, 2), kernel(45, 5, 2))
    frame = frame_of(written(tmp_path, *events))
    work = gather(frame)
    assert work.runtime.start[work.call].tolist() == [0, 20 * US, 40 * US]
    assert work.shared == 1


def test_work_that_began_before_any_call_of_its_id_goes_to_the_first(tmp_path: Path) -> None:
    """Clocks of device and host may differ by more than a launch takes."""
    events = (call(6, 2, 1), call(20, 4, 1), kernel(5, 5, 1), kernel(30, 5, 1))
    work = gather(frame_of(written(tmp_path, *events)))
    assert work.runtime.start[work.call].tolist() == [6 * US, 20 * US]


@st.composite
def linked(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int, bool]]]:
    scale = draw(st.sampled_from([1, 10**15]))  # ids that lie close together, or far apart
    ids = st.integers(0, 4).map(lambda value: value * scale)
    work = draw(st.lists(st.tuples(st.integers(0, 30), ids), max_size=8))
    calls = draw(st.lists(st.tuples(st.integers(0, 30), ids, st.booleans()), max_size=8, unique_by=lambda c: c[:2]))
    return sorted(work), sorted(calls)


@given(linked())
def test_links_are_those_of_a_plain_search(case: tuple[list[tuple[int, int]], list[tuple[int, int, bool]]]) -> None:
    work, calls = case
    rows = Rows(start=ints(*(at for at, _ in work)), correlation=ints(*(number for _, number in work)))
    runtime = Rows(
        start=ints(*(at for at, _, _ in calls)),
        correlation=ints(*(number for _, number, _ in calls)),
        name=np.array([int(launch) for _, _, launch in calls], dtype=np.int32),
    )
    found, _ = launched_by(rows, runtime, np.array([False, True]))

    def search(at: int, number: int) -> int:
        same = [i for i, (_, other, _) in enumerate(calls) if other == number and number > 0]
        same = [i for i in same if calls[i][2]] or same
        before = [i for i in same if calls[i][0] <= at]
        return before[-1] if before else same[0] if same else NO_CALL

    assert found.tolist() == [search(*each) for each in work]


def test_oddly_shared_ids_change_nothing_but_the_count(shared_data: Path) -> None:
    odd = measured(shared_data / "traces" / "oddities" / "30_duplicate_correlation" / "rank0.json")
    clean = measured(shared_data / "traces" / "oddities" / "00_ok" / "rank0.json")
    assert odd.oddities == {"host calls that share a correlation id": 3}
    assert (odd.launches, odd.idle, odd.queues, odd.host_bound) == (
        clean.launches,
        clean.idle,
        clean.queues,
        clean.host_bound,
    )
    five, four = Spread(9, *[5 * US] * 5), Spread(9, *[4 * US] * 5)
    assert clean.launches == Launches(9, five, four, Spread(9, 40 * US, 20 * US, 60 * US, 20 * US, 60 * US), 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "count", "without"),
    [
        ("mi250_minitoy", 16, 0),  # hipLaunchKernel 12, hipExtModuleLaunchKernel 2, hipMemcpyWithStream 2
        ("h100_bert_small", 61, 0),  # cudaLaunchKernel 34, …ExC 4, cuLaunchKernel 22, cudaMemcpyAsync 1
        ("a100_nccl_2ranks_rank0", 3774, 0),  # 2,700 kernels, 960 copies, 114 memsets
    ],
)
def test_launches_of_every_vendor_are_followed(shared_data: Path, name: str, count: int, without: int) -> None:
    launches = measured(shared_data / "traces" / "single" / f"{name}.json.gz").launches
    assert launches is not None
    assert (launches.count, launches.without_launch) == (count, without)


# ---- idle


def test_idle_time_has_the_reason_of_the_gap(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call(0, 5, 1),
        kernel(10, 10, 1),
        call(12, 5, 2),
        kernel(25, 10, 2),  # launched at 12, before 20: 5 µs of the device's own delay
        call(40, 5, 3),
        kernel(50, 10, 3),  # launched at 40, after 35: 15 µs of waiting for the host
        call(52, 5, 4),
        kernel(100, 10, 4),  # launched at 52, and yet 40 µs: something else
        kernel(115, 5),  # no launch known: 5 µs count as delay, as with HTA
        kernel(0, 200, stream=9),  # another stream fills no gap of this one
    )
    assert measured(path).idle == (IdleRow("7", 15 * US, 10 * US, 40 * US), IdleRow("9", 0, 0, 0))


def test_the_limit_of_a_short_gap_is_30_us() -> None:
    at = ints(0, 10 + 29_999, 10 + 29_999 + 10 + 30_000)
    assert idle_of_stream(at, at + 10, ints(0, 0, 0)) == Idle(0, 29_999, 30_000)
    assert idle_of_stream(at, at + 10, ints(0, 0, 0), consecutive=30) == Idle(0, 0, 59_999)


def test_a_launch_at_the_very_end_of_the_last_kernel_was_in_time() -> None:
    assert idle_of_stream(ints(0, 20), ints(10, 30), ints(MISSING, 10)) == Idle(0, 10, 0)
    assert idle_of_stream(ints(0, 20), ints(10, 30), ints(MISSING, 11)) == Idle(10, 0, 0)


def test_overlapping_kernels_of_one_stream_leave_no_gap_between_them() -> None:
    start, end, began = ints(0, 10, 60), ints(50, 20, 70), ints(0, 0, 0)
    assert idle_of_stream(start, end, began) == Idle(0, 10, 0)
    assert idle_of_stream(start, end, began, previous_row=True) == Idle(0, 0 - 40 + 40, 0)


@st.composite
def a_stream(draw: st.DrawFn) -> list[tuple[int, int, int | None]]:
    """(start, end, when its launch call began)."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 60), st.integers(0, 12), st.none() | st.integers(-5, 60)), min_size=1, max_size=9
        )
    )
    return sorted(((start, start + dur, began) for start, dur, began in rows), key=lambda r: (r[0], -r[1]))


@given(a_stream(), st.integers(0, 20))
def test_idle_is_what_a_walk_over_each_moment_finds(rows: list[tuple[int, int, int | None]], short: int) -> None:
    busy = {moment for start, end, _ in rows for moment in range(start, end)}
    host = kernel_wait = other = 0
    for i in range(1, len(rows)):
        start, _, began = rows[i]
        since = max(end for _, end, _ in rows[:i])
        gap = [moment for moment in range(since, start) if moment not in busy]
        assert len(gap) == max(start - since, 0)
        if began is not None and began > since:
            host += len(gap)
        elif len(gap) < short:
            kernel_wait += len(gap)
        else:
            other += len(gap)
    start, end = ints(*(r[0] for r in rows)), ints(*(r[1] for r in rows))
    began_at = ints(*(MISSING if r[2] is None else r[2] for r in rows))
    assert idle_of_stream(start, end, began_at, consecutive=short) == Idle(host, kernel_wait, other)


def test_a_stream_number_on_two_devices_is_two_streams(tmp_path: Path) -> None:
    path = written(tmp_path, kernel(0, 10, device=0), kernel(5, 10, device=1), kernel(40, 10, device=0))
    assert measured(path).idle == (
        IdleRow("device 0 stream 7", 0, 0, 30 * US),
        IdleRow("device 1 stream 7", 0, 0, 0),
    )


# ---- queues


def test_the_queue_holds_what_is_launched_and_not_finished(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call(0, 5, 1),
        call(10, 5, 2),
        call(20, 5, 3),
        kernel(5, 25, 1),  # in the queue 0-30
        kernel(30, 10, 2),  # 10-40
        kernel(40, 10, 3),  # 20-50: three from 20 to 30
        kernel(80, 10, 77),  # no launch known: at least from its start, 80-90
        kernel(60, 5, 78, stream=9),  # nothing known on this stream: nothing to say
    )
    assert measured(path, window=(0, 100 * US)).queues == (
        QueueRow("7", mean=(30 + 30 + 30 + 10) / 100, maximum=3, empty_share=0.4),
    )


def test_what_leaves_as_another_comes_makes_the_queue_no_longer() -> None:
    assert longest(ints(0, 10), ints(10, 20)) == 1
    assert longest(ints(0, 10), ints(11, 20)) == 2
    assert longest(ints(5), ints(5)) == 0
    assert longest(ints(), ints()) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=9))
def test_queues_are_what_a_count_at_each_moment_finds(spans: list[tuple[int, int]]) -> None:
    entered = ints(*(at for at, _ in spans))
    left = ints(*(at + stay for at, stay in spans))

    def inside(moment: int) -> int:
        return sum(a <= moment < b for a, b in zip(entered.tolist(), left.tolist(), strict=True))

    assert longest(entered, left) == max((inside(moment) for moment in range(32)), default=0)
