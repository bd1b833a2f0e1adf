"""Which kernels and copies took the time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from device_traces import NCCL, copy, frame_of, kernel, measured, written
from hypothesis import given
from hypothesis import strategies as st

from sameshot.analysis.device.kernels import OTHERS, TOP, kernel_breakdown
from sameshot.analysis.names import Cat
from sameshot.analysis.results import CopyRow, KernelRow
from sameshot.analysis.stats import grouped, spread

US = 1000


def test_each_kernel_has_its_distribution_and_its_share(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        kernel(0, 10),
        kernel(20, 20),
        kernel(50, 60),
        kernel(200, 10, name="relu"),
        kernel(300, 50, name=NCCL),
        copy(400, 5, 0, "Memcpy DtoD (Device -> Device)"),
    )
    assert measured(path).kernel_rows == (
        # 10, 20, 60: mean 30, deviations 20, 10, 30 → sqrt(1400 / 2); p90 = 20 + 0.8 × 40, p99 = 20 + 0.98 × 40
        KernelRow(
            "gemm", "compute", 3, 90 * US, 0.9, 30 * US, 26_457, 10 * US, 20 * US, 52 * US, 59_200, 60 * US
        ),
        KernelRow("relu", "compute", 1, 10 * US, 0.1, 10 * US, 0, *[10 * US] * 5),
        KernelRow(NCCL.partition("(")[0], "communication", 1, 50 * US, 1.0, 50 * US, 0, *[50 * US] * 5),
        KernelRow("Memcpy DtoD (Device -> Device)", "memory", 1, 5 * US, 1.0, 5 * US, 0, *[5 * US] * 5),
    )  # fmt: skip


def test_all_that_is_not_among_the_largest_stands_in_one_row(tmp_path: Path) -> None:
    sizes = range(1, TOP + 4)  # kernel k takes k µs; the three smallest are 1, 2, 3
    path = written(tmp_path, *(kernel(100 * k, k, name=f"kernel_{k}") for k in sizes), kernel(0, 3, name="kernel_3"))
    rows = measured(path).kernel_rows
    # kernel_3 ran twice, 6 µs together: as long as kernel_6, which it precedes. So kernel_4 is left out as well.
    assert [row.name for row in rows[:-1]] == [
        *(f"kernel_{k}" for k in reversed(sizes) if k > 6), "kernel_3", "kernel_6", "kernel_5",
    ]  # fmt: skip
    others = rows[-1]
    assert (others.name, others.kind, others.count, others.total) == (OTHERS, "compute", 3, 7 * US)
    assert (others.minimum, others.p50, others.maximum) == (1 * US, 2 * US, 4 * US)
    assert sum(row.total for row in rows) == (sum(sizes) + 3) * US
    assert math.isclose(sum(row.share for row in rows), 1)


def test_no_row_for_others_where_there_are_none(tmp_path: Path) -> None:
    rows = measured(written(tmp_path, *(kernel(100 * k, k, name=f"k{k}") for k in range(1, TOP + 1)))).kernel_rows
    assert len(rows) == TOP
    assert OTHERS not in [row.name for row in rows]


def test_kernels_of_no_duration_have_no_share_and_do_not_divide_by_it() -> None:
    rows = kernel_breakdown("compute", np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int64), ["gemm"])
    assert [(row.count, row.total, row.share, row.maximum) for row in rows] == [(2, 0, 0.0, 0)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50) | st.integers(2**61, 2**62)), max_size=30))
def test_groups_are_what_sorting_each_of_them_finds(rows: list[tuple[int, int]]) -> None:
    code = np.array([c for c, _ in rows], dtype=np.int32)
    found = grouped(code, np.array([d for _, d in rows], dtype=np.int64))
    by_code = {c: sorted(d for other, d in rows if other == c) for c, _ in rows}
    assert found.code.tolist() == sorted(by_code)
    for i, c in enumerate(sorted(by_code)):
        durations = by_code[c]
        assert found.count[i] == len(durations)
        assert (found.minimum[i], found.maximum[i]) == (durations[0], durations[-1])
        assert found.total[i] == (sum(durations) + 2**63) % 2**64 - 2**63
        middle = (len(durations) - 1) / 2
        assert found.quantile(50)[i] == (durations[math.floor(middle)] + durations[math.ceil(middle)]) // 2


def test_a_spread_of_nothing_is_unknown() -> None:
    assert spread(np.empty(0, dtype=np.int64)) is None


def test_copies_state_their_bandwidth_where_they_state_a_size(tmp_path: Path) -> None:
    pageable = "Memcpy HtoD (Pageable -> Device)"
    path = written(
        tmp_path,
        copy(0, 10, 0, pageable, bytes=100_000),
        copy(20, 30, 0, pageable, bytes=300_000),
        copy(60, 20, 0, pageable),  # no size: no part of the bandwidth
        copy(100, 10, 0, "Memcpy HtoD (Pinned -> Device)", bytes=250_000),
        copy(120, 7, 0, "Memcpy DtoH (Device -> Pinned)"),
        copy(140, 0, 0, "Memset (Device)", bytes=512),
    )
    assert measured(path).copies == (
        CopyRow("HtoD pageable", 3, 60 * US, 400_000, 10.0),
        CopyRow("HtoD pinned", 1, 10 * US, 250_000, 25.0),
        CopyRow("DtoH pinned", 1, 7 * US, None, None),
        CopyRow("Memset", 1, 0, 512, None),
    )


def test_real_copies_add_up(shared_data: Path) -> None:
    path = shared_data / "traces" / "single" / "nccl128_sampled_rank0.json.gz"
    memory = frame_of(path).rows(Cat.MEMORY)
    rows = {row.kind: row for row in measured(path).copies}
    assert {kind: row.count for kind, row in rows.items()} == {
        "HtoD pageable": 16, "Memset": 10, "DtoH pageable": 8, "DtoD": 8, "HtoD pinned": 8,
    }  # fmt: skip
    assert sum(row.total for row in rows.values()) == int(memory.dur.sum())


def test_copies_without_a_size_have_that_of_the_call_that_issued_them(shared_data: Path) -> None:
    """AMD's trace states it only there: twice 2,560 bytes."""
    (row,) = measured(shared_data / "traces" / "single" / "mi250_minitoy.json.gz").copies
    assert (row.kind, row.count, row.bytes) == ("HtoD", 2, 5120)
    assert row.total == 22_441 + 15_720
    assert row.gb_per_s == 5120 / 38_161
