"""How a rank's devices spent the window. All right answers are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_traces import NCCL, copy, frame_of, kernel, measured, window_of, written

from sameshot.analysis.results import DeviceTimes, Timeline

US = 1000


def test_each_moment_belongs_to_the_most_useful_thing_that_ran(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        kernel(10, 40),  # compute 10-50
        kernel(30, 40, name=NCCL, stream=20),  # communication 30-70: 20 overlapped, 20 exposed
        copy(60, 30, 0, "Memcpy HtoD (Pageable -> Device)", stream=9),  # 60-90: 10 hidden, 20 exposed
        kernel(85, 10, device=1),  # compute 85-95 on another device: hides 5 more of the copy
    )
    assert measured(path, window=(0, 100 * US)).device == DeviceTimes(
        compute=50 * US,
        communication=20 * US,
        memory=15 * US,
        idle=15 * US,
        kernels=3,
        overlapped=20 * US,
        hidden_memory=15 * US,
    )


def test_only_the_window_counts(tmp_path: Path) -> None:
    path = written(tmp_path, kernel(0, 40), kernel(60, 40, name=NCCL))
    device = measured(path, window=(30 * US, 70 * US)).device
    assert device is not None
    assert (device.compute, device.communication, device.idle) == (10 * US, 10 * US, 20 * US)


# Of 00_ok: per step of 190 µs compute runs at 10-50 and 70-90, communication at 40-100 (rank 1: 40-120).
CLEAN = DeviceTimes(180 * US, 90 * US, 0, 300 * US, kernels=9, overlapped=90 * US)
LATER = DeviceTimes(180 * US, 150 * US, 0, 240 * US, kernels=9, overlapped=90 * US)
# Without the first gemm (10-50) step 0 computes at 70-90 only, and 10 µs of communication lose their cover.
ONE_LOST = DeviceTimes(140 * US, 100 * US, 0, 330 * US, kernels=8, overlapped=80 * US)


@pytest.mark.parametrize(
    ("oddity", "rank", "right"),
    [
        ("00_ok", 0, CLEAN),
        ("00_ok", 1, LATER),
        ("11_dur_missing_one_kernel", 0, ONE_LOST),
        ("12_negative_dur", 0, ONE_LOST),
        ("13_ts_strings", 0, CLEAN),
        # three times 1.15 µs and 0.6 µs of compute, 1.15 µs of communication, nothing overlaps
        ("14_submicrosecond_kernels", 0, DeviceTimes(5250, 3450, 0, 561_300, kernels=9, overlapped=0)),
        ("16b_stream_null", 0, CLEAN),
        ("17_stream0", 0, CLEAN),
        ("22_cuda_sync_events", 0, CLEAN),
        ("23_old_nccl_name", 0, CLEAN),
        ("30_duplicate_correlation", 0, CLEAN),
    ],
)
def test_odd_traces_are_measured_right(shared_data: Path, oddity: str, rank: int, right: DeviceTimes) -> None:
    assert measured(shared_data / "traces" / "oddities" / oddity / f"rank{rank}.json").device == right


@pytest.mark.parametrize(
    ("oddity", "what"),
    [
        ("11_dur_missing_one_kernel", "no usable duration, left out"),
        ("12_negative_dur", "negative duration, left out"),
    ],
)
def test_what_is_left_out_is_counted(shared_data: Path, oddity: str, what: str) -> None:
    assert frame_of(shared_data / "traces" / "oddities" / oddity / "rank0.json").oddities == {what: 1}


def test_kernels_of_no_duration_are_counted_and_take_no_time(tmp_path: Path) -> None:
    found = measured(written(tmp_path, kernel(0, 10), kernel(20, 0, name="tiny"), kernel(30, 10)), window=(0, 40 * US))
    assert found.device is not None
    assert (found.device.kernels, found.device.compute, found.device.idle) == (3, 20 * US, 20 * US)
    assert {row.name: (row.count, row.total) for row in found.kernel_rows} == {"gemm": (2, 20 * US), "tiny": (1, 0)}


def test_the_timeline_shows_what_filled_most_of_each_bucket(tmp_path: Path) -> None:
    # 480 buckets of 1 µs.
    path = written(
        tmp_path,
        kernel(100, 39.4),  # of bucket 139 only 0.4: it is idle
        kernel(200, 10, name=NCCL),
        kernel(205, 10),  # compute wins over communication
        copy(300, 20.6, 0, "Memset (Device)"),  # of bucket 320 0.6: it is memory
        kernel(400, 0.4),  # of bucket 400 0.4, and 0.35 of communication and 0.25 idle: it is compute
        kernel(400.4, 0.35, name=NCCL),
    )
    assert measured(path, window=(0, 480 * US)).device_timeline == Timeline(
        480,
        (
            ("idle", 100),
            ("compute", 39),
            ("idle", 61),
            ("communication", 5),
            ("compute", 10),
            ("idle", 85),
            ("memory", 21),
            ("idle", 79),
            ("compute", 1),
            ("idle", 79),
        ),
    )


def test_a_window_too_short_for_a_timeline_has_none(tmp_path: Path) -> None:
    assert measured(written(tmp_path, kernel(0, 0.1)), window=(0, 100)).device_timeline is None


REAL = [
    *(f"single/{name}.json.gz" for name in ("a100_event_sync_multi_stream", "a100_nccl_2ranks_rank0", "h100_bert_small",
                                           "mi250_minitoy", "nccl128_sampled_rank0", "nccl128_sampled_rank1")),
    *(f"dlrm8_v100/rank{rank}.json.gz" for rank in (0, 7)),
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_the_parts_of_real_traces_add_up(shared_data: Path, name: str) -> None:
    path = shared_data / "traces" / name
    first, last = window_of(frame_of(path))
    found = measured(path)
    device = found.device
    assert device is not None
    assert device.total == last - first
    assert min(device.compute, device.communication, device.memory, device.idle) >= 0
    assert sum(row.count for row in found.kernel_rows if row.kind != "memory") == device.kernels
    assert sum(row.count for row in found.kernel_rows if row.kind == "memory") == sum(row.count for row in found.copies)
    assert found.device_timeline is not None
    assert sum(length for _, length in found.device_timeline.runs) == 480
    assert found.host_bound is not None
    assert found.host_bound.total <= device.idle
    assert sum(row.self_time for row in found.host_bound.operators) <= found.host_bound.total
    assert len({row.stream for row in found.idle}) == len(found.idle)


@pytest.mark.parametrize(("name", "kernels"), [("nccl128_sampled_rank0", 10), ("a100_nccl_2ranks_rank0", 21)])
def test_the_communication_of_real_traces_is_recognised(shared_data: Path, name: str, kernels: int) -> None:
    rows = measured(shared_data / "traces" / "single" / f"{name}.json.gz").kernel_rows
    assert sum(row.count for row in rows if row.kind == "communication") == kernels
