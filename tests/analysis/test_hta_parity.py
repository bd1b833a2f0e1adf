"""Our numbers under HTA's rounding are HTA 0.5.0's own, digit by digit, on every real trace; what differs is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("hta", reason="HTA is an extra: pip install 'sameshot[hta]'")

from hta_lab import by_hta, by_us, differences

from sameshot.analysis.hta.result import ANALYSES, LOADING
from sameshot.analysis.hta.tables import Rounding

TABLES = {*ANALYSES, "gpu_kernel_type_breakdown"}

SETS = {
    "eight ranks of DLRM": [f"dlrm8_v100/rank{rank}.json.gz" for rank in range(8)],
    "two of 128 ranks": [f"single/nccl128_sampled_rank{rank}.json.gz" for rank in range(2)],
    "A100, NCCL, fractions of µs": ["single/a100_nccl_2ranks_rank0.json.gz"],
    "A100, waits across streams": ["single/a100_event_sync_multi_stream.json.gz"],
    "MI250, stream 0": ["single/mi250_minitoy.json.gz"],
    "V100, starving loader": ["resnet50_dataloader/num_workers_0.json.gz"],
    "V100, fed loader": ["resnet50_dataloader/num_workers_4.json.gz"],
}
LARGE = {"V100, starving loader", "V100, fed loader", "two of 128 ranks"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full if name in LARGE else ()) for name in SETS])
def test_real_traces_agree_to_the_last_digit(shared_data: Path, tmp_path: Path, name: str) -> None:
    files = {rank: shared_data / "traces" / path for rank, path in enumerate(SETS[name])}
    result, theirs = by_hta(tmp_path, files)
    assert result.failures == ()
    assert set(theirs) == TABLES
    assert all(theirs[table] for table in TABLES - {"cuda_kernel_launch_stats"})
    assert differences(by_us(files, Rounding.HTA), theirs) == []


def test_exact_numbers_of_a_trace_in_ns_are_not_those_of_hta(shared_data: Path, tmp_path: Path) -> None:
    """Else the comparison above would compare nothing."""
    files = {0: shared_data / "traces/single/h100_bert_small.json.gz"}
    _, theirs = by_hta(tmp_path, files)
    assert differences(by_us(files, Rounding.HTA), theirs) == []
    exact = by_us(files, Rounding.EXACT)
    found = {text.split(":")[0] for text in differences(exact, theirs)}
    assert {"temporal_breakdown", "gpu_kernel_breakdown", "cuda_kernel_launch_stats"} <= found
    # 60 kernels and a copy, in order: their true durations by the trace itself.
    events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    true = sorted(e["dur"] for e in events if e.get("cat") in ("kernel", "gpu_memcpy"))
    listed = sum(row["sum (us)"] for row in exact["gpu_kernel_breakdown"])
    assert listed == pytest.approx(sum(true), abs=1e-6)
    assert sum(row["sum (us)"] for row in theirs["gpu_kernel_breakdown"]) < 0.95 * sum(true)


def test_where_hta_crashes_our_answer_stands(shared_data: Path, tmp_path: Path) -> None:
    """A CPU-only trace: IndexError and ValueError in HTA, and no row in our tables of devices."""
    files = {34: shared_data / "traces/single/gloo300_cpu_rank34.json.gz"}
    result, theirs = by_hta(tmp_path, files)
    assert {(f.analysis, f.rank, f.error) for f in result.failures} == {
        ("temporal_breakdown", 34, "IndexError"),
        ("idle_time_breakdown", 34, "ValueError"),
    }
    assert differences(by_us(files, Rounding.HTA), theirs) == []
    assert by_us(files, Rounding.EXACT)["temporal_breakdown"] == []


ODD = [
    "00_ok", "01_minified_no_space", "06_no_distributedInfo", "11_dur_missing_one_kernel",
    "14_submicrosecond_kernels", "16b_stream_null", "17_stream0", "19_no_ProfilerStep", "22_cuda_sync_events",
    "23_old_nccl_name", "27_uncompressed_named_gz", "30_duplicate_correlation",
]  # fmt: skip


def odd(shared_data: Path, name: str) -> dict[int, Path]:
    folder = shared_data / "traces" / "oddities" / name
    return {rank: next(folder.glob(f"rank{rank}.json*")) for rank in range(2)}


@pytest.mark.full
@pytest.mark.parametrize("name", ODD)
def test_odd_traces_agree_too(shared_data: Path, tmp_path: Path, name: str) -> None:
    """Named apart, HTA gets through these: with a folder it loses ranks of some, and calls a plain file gzip."""
    files = odd(shared_data, name)
    result, theirs = by_hta(tmp_path, files)
    assert result.failures == ()
    assert differences(by_us(files, Rounding.HTA), theirs) == []


@pytest.mark.full
def test_a_negative_duration_is_the_one_difference(shared_data: Path, tmp_path: Path) -> None:
    """HTA takes the gemm of −40 µs for time that was given back (idle 170 µs of 280); it is counted and left out."""
    files = odd(shared_data, "12_negative_dur")
    _, theirs = by_hta(tmp_path, files)
    ours = by_us(files, Rounding.HTA)
    different = differences(ours, theirs)
    assert different
    assert not [text for text in different if "'rank': 1" in text]
    assert ours["temporal_breakdown"][1] == theirs["temporal_breakdown"][1]


@pytest.mark.full
def test_times_written_as_text_cost_hta_a_rank(shared_data: Path, tmp_path: Path) -> None:
    files = odd(shared_data, "13_ts_strings")
    result, theirs = by_hta(tmp_path, files)
    assert [(f.analysis, f.rank, f.error) for f in result.failures] == [(LOADING, 0, "TypeError")]
    assert result.ranks == (1,)
    assert differences(by_us({1: files[1]}, Rounding.HTA), theirs) == []
    assert [row["rank"] for row in by_us(files, Rounding.HTA)["temporal_breakdown"]] == [0, 1]
