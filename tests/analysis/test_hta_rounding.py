"""The six tables worked out by hand: exact, and by HTA's rules, each shown by the event that it gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from device_traces import frame_of

from sameshot.analysis import device
from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.analysis.hta.compat.kinds import kernel_type
from sameshot.analysis.hta.shape import COMMUNICATION, COMPUTATION, MEMORY, OTHER
from sameshot.analysis.hta.tables import Rounding, part_of, tables_of, write_tables
from sameshot.analysis.intervals import Spans
from sameshot.trace.columns.read import read_columns
from sameshot.trace.imported import Import, import_traces
from sameshot.trace.window import to_ns

EXACT, HTA = Rounding.EXACT, Rounding.HTA
Event = dict[str, Any]


def kernel(
    ts: float, dur: float, name: str = "gemm", stream: int = 7, correlation: int = 0, gpu: int = 0, **more: Any
) -> Event:
    args = {"device": gpu, "stream": stream, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": gpu, "tid": stream, "ts": ts, "dur": dur,
            "args": args} | more  # fmt: skip


def call(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}}  # fmt: skip


def step(number: int, ts: float, dur: float) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": ts,
            "dur": dur}  # fmt: skip


def framed(tmp_path: Path, events: list[Event]) -> Frame:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return frame_of(path)


def tables(tmp_path: Path, rounding: Rounding, *ranks: list[Event]) -> dict[str, list[dict[str, Any]]]:
    parts = [part_of(framed(tmp_path, events), rank, rounding) for rank, events in enumerate(ranks)]
    return {name: table.to_pylist() for name, table in tables_of(parts).items()}


def times(row: dict[str, Any]) -> tuple[float, float, float, float]:
    idle, compute, other, whole = (row[f"{part}_time(us)"] for part in ("idle", "compute", "non_compute", "kernel"))
    return idle, compute, other, whole


def test_hta_rounds_starts_up_and_ends_down_so_that_short_kernels_give_time_back(tmp_path: Path) -> None:
    events = [kernel(10.5, 0.4), kernel(20.0, 1.5), kernel(30.5, 2.0)]  # → 11..10, 20..21, 31..32
    (row,) = tables(tmp_path, HTA, events)["temporal_breakdown"]
    assert times(row) == (20, 1, 0, 21)  # −1 + 1 + 1 µs of computation between 11 and 32
    (row,) = tables(tmp_path, EXACT, events)["temporal_breakdown"]
    assert times(row) == (18.1, 3.9, 0, 22.0)
    assert row["compute_time_pctg"] == 17.73


def test_whole_microseconds_need_no_rounding(tmp_path: Path) -> None:
    events = [kernel(10, 5), kernel(20, 5, "ncclDevKernel_AllReduce_f32", stream=20), kernel(22, 10)]
    for rounding in Rounding:
        (row,) = tables(tmp_path, rounding, events)["temporal_breakdown"]
        assert times(row) == (5, 15, 2, 22)
        (row,) = tables(tmp_path, rounding, events)["comm_comp_overlap"]
        assert row["comp_comm_overlap_pctg"] == 60  # 22..25 of 20..25
        types = {
            row["kernel_type"]: row["sum"] for row in tables(tmp_path, rounding, events)["gpu_kernel_type_breakdown"]
        }
        assert types == {"COMPUTATION": 12, "COMMUNICATION": 2, "COMPUTATION overlapping COMMUNICATION": 3}


def test_hta_takes_a_waiting_stream_for_computation(tmp_path: Path) -> None:
    wait = kernel(20, 50, "Stream Wait Event", correlation=5, cat="cuda_sync")
    events = [kernel(10, 10), wait, kernel(70, 10)]
    (row,) = tables(tmp_path, HTA, events)["temporal_breakdown"]
    assert times(row) == (0, 70, 0, 70)
    (row,) = tables(tmp_path, EXACT, events)["temporal_breakdown"]
    assert times(row) == (50, 20, 0, 70)


def test_hta_takes_a_wait_of_mtia_for_work(tmp_path: Path) -> None:
    """All that MTIA's command processors do is in one category."""
    events = [kernel(0, 10, "fc"), kernel(10, 50, "event_wait", correlation=5), kernel(60, 10, "fc")]
    events = [event | {"cat": "mtia_ccp_events"} for event in events]
    found = {rounding: tables(tmp_path, rounding, events) for rounding in Rounding}
    assert times(found[HTA]["temporal_breakdown"][0]) == (0, 70, 0, 70)
    assert times(found[EXACT]["temporal_breakdown"][0]) == (50, 20, 0, 70)
    idle = {rounding: sum(row["idle_time"] for row in found[rounding]["idle_time_breakdown"]) for rounding in Rounding}
    assert idle == {HTA: 0, EXACT: 50}


@pytest.mark.parametrize("stored", [False, True])
def test_hta_takes_a_host_operator_that_states_a_stream_for_computation(tmp_path: Path, stored: bool) -> None:
    """As torch records Inductor's Triton kernels on the host: an operator with `stream`, and a kernel below it."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "triton_poi_fused_add_0", "pid": 1, "tid": 1, "ts": 0, "dur": 95}
    operator["args"] = {"External id": 3, "stream": 0, "kernel_backend": "triton"}
    events = [operator, call(80, 5, 35, "cuLaunchKernel"), kernel(90, 2, "triton_poi_fused_add_0", correlation=35)]
    frame = framed(tmp_path, events)
    if stored:
        import_traces(Import(files={0: tmp_path / "trace.json"}, out=tmp_path / "capture"))
        frames = FrameBuilder()
        frame = frames.frame(read_columns(tmp_path / "capture/rank-0/columns.parquet", frames, frames.wanted))
    found = {
        rounding: {name: t.to_pylist() for name, t in tables_of([part_of(frame, 0, rounding)]).items()}
        for rounding in Rounding
    }
    assert times(found[HTA]["temporal_breakdown"][0]) == (0, 95, 0, 95)
    assert found[HTA]["gpu_kernel_breakdown"][0]["sum (us)"] == 97
    assert times(found[EXACT]["temporal_breakdown"][0]) == (0, 2, 0, 2)
    assert found[EXACT]["gpu_kernel_breakdown"][0]["sum (us)"] == 2
    assert not any(row["idle_time"] for tables in found.values() for row in tables["idle_time_breakdown"])


def test_hta_leaves_out_the_last_step_where_it_knows_two_names_of_steps_in_any_rank(tmp_path: Path) -> None:
    def rank(*numbers: int) -> list[Event]:
        events = []
        for i, number in enumerate(numbers):
            events += [
                step(number, 100 * i, 90),
                call(100 * i + 1, 2, number),
                kernel(100 * i + 10, 20, correlation=number),
            ]
        return events

    both = tables(tmp_path, HTA, rank(1, 2), rank(1, 2))["temporal_breakdown"]
    assert [times(row) for row in both] == [(0, 20, 0, 20)] * 2
    one = tables(tmp_path, HTA, rank(1), rank(1))["temporal_breakdown"]
    assert [times(row) for row in one] == [(0, 20, 0, 20)] * 2  # one name alone: nothing is left out
    # Each rank has one step, but under different names: both lose it, and with it everything.
    assert tables(tmp_path, HTA, rank(1), rank(2))["temporal_breakdown"] == []
    exact = tables(tmp_path, EXACT, rank(1, 2), rank(1))["temporal_breakdown"]
    assert [times(row) for row in exact] == [(80, 40, 0, 120), (0, 20, 0, 20)]


def test_hta_mixes_up_streams_of_two_devices(tmp_path: Path) -> None:
    events = [kernel(0, 100, gpu=0), kernel(50, 10, gpu=1), kernel(110, 10, gpu=0), kernel(90, 10, gpu=1)]
    rows = tables(tmp_path, HTA, events)["idle_time_breakdown"]
    # 50 − 100 = −50 (kernel wait), 90 − 60 = 30 (other), 110 − 100 = 10 (kernel wait)
    assert {(row["stream"], row["idle_category"]): row["idle_time"] for row in rows} == {
        (7, "kernel_wait"): -40,
        (7, "other"): 30,
    }
    rows = tables(tmp_path, EXACT, events)["idle_time_breakdown"]
    assert {(row["device"], row["idle_category"]): row["idle_time"] for row in rows if row["idle_time"]} == {
        (0, "kernel_wait"): 10,
        (1, "other"): 30,
    }


@pytest.mark.parametrize("rounding", list(Rounding))
def test_idle_time_is_sorted_by_when_the_launch_began(tmp_path: Path, rounding: Rounding) -> None:
    events = [
        call(0, 2, 1), kernel(10, 10, correlation=1),
        call(25, 2, 2), kernel(40, 10, correlation=2),  # called after the first had ended: 20 of host wait
        call(30, 2, 3), kernel(55, 10, correlation=3),  # in time, 5 later: kernel wait
        call(31, 2, 4), kernel(165, 10, correlation=4),  # in time, 100 later: other
    ]  # fmt: skip
    found = tables(tmp_path, rounding, events)
    rows = {row["idle_category"]: (row["idle_time"], row["idle_time_ratio"]) for row in found["idle_time_breakdown"]}
    assert rows == {
        "host_wait": (20, pytest.approx(0.16)),
        "kernel_wait": (5, pytest.approx(0.04)),
        "other": (100, pytest.approx(0.8)),
    }
    launches = [tuple(row.values()) for row in found["cuda_kernel_launch_stats"]]
    assert launches == [(0, 1, 2, 10, 8), (0, 2, 2, 10, 13), (0, 3, 2, 10, 23), (0, 4, 2, 10, 132)]
    (queue,) = found["queue_length_summary"]
    # Calls at 0 25 30 31, starts at 10 40 55 165: lengths 1 0 1 2 3 2 1 0
    assert (queue["count"], queue["mean"], queue["max"], queue["50%"]) == (8, 1.25, 3, 1)


def test_hta_knows_no_launches_of_amd(tmp_path: Path) -> None:
    events = [call(0, 2, 1, "hipLaunchKernel"), kernel(10, 10, correlation=1)]
    assert tables(tmp_path, HTA, events)["cuda_kernel_launch_stats"] == []
    (row,) = tables(tmp_path, EXACT, events)["cuda_kernel_launch_stats"]
    assert (row["cpu_duration"], row["gpu_duration"], row["launch_delay"]) == (2, 10, 8)


def test_with_more_than_ten_names_hta_gives_sums_for_maxima(tmp_path: Path) -> None:
    events = [kernel(100 * i + j * 20, 10 + i, f"k{i:02}") for i in range(12) for j in range(2)]
    rows = {row["name"]: row for row in tables(tmp_path, HTA, events)["gpu_kernel_breakdown"]}
    assert len(rows) == 10  # nine and "others": what lies above 80 % of the running sum goes there, too
    assert rows["k11"]["max (us)"] == rows["k11"]["sum (us)"] == 42
    rows = {row["name"]: row for row in tables(tmp_path, EXACT, events)["gpu_kernel_breakdown"]}
    assert len(rows) == 12
    assert (rows["k11"]["sum (us)"], rows["k11"]["max (us)"], rows["k11"]["mean (us)"]) == (42, 21, 21)


def test_names_decide_what_a_kernel_is_for_hta() -> None:
    kinds = {
        "ncclDevKernel_AllReduce_Sum_bf16": COMMUNICATION,
        "ncclKernel_SendRecv": COMMUNICATION,
        "void ncclDevKernel_Generic()": COMPUTATION,  # RCCL and templates are no communication for it
        "Memcpy HtoD (Pageable -> Device)": MEMORY,
        "Memset (Device)": MEMORY,
        "dma_in": MEMORY,
        "SyncBatchNorm_forward": OTHER,  # nor is this computation
        "Stream Wait Event": COMPUTATION,
        "gemm": COMPUTATION,
    }
    assert {name: kernel_type(name) for name in kinds} == kinds


def test_exact_tables_say_what_the_summary_says(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "traces" / "single" / "a100_nccl_2ranks_rank0.json.gz"
    frame = frame_of(path)
    last = max(int(frame.rows(cat).end.max()) for cat in device.names.Cat if len(frame.rows(cat)))
    found = device.measure(frame, window=(0, last), felt=Spans())
    exact = {name: table.to_pylist() for name, table in tables_of([part_of(frame, 0)]).items()}
    assert found.device is not None
    (row,) = exact["temporal_breakdown"]
    assert row["compute_time(us)"] * 1000 == pytest.approx(found.device.compute)
    assert row["non_compute_time(us)"] * 1000 == pytest.approx(found.device.communication + found.device.memory)
    assert found.device.overlap is not None
    assert exact["comm_comp_overlap"][0]["comp_comm_overlap_pctg"] == round(100 * found.device.overlap, 2)
    for row in found.idle:
        mine = {
            r["idle_category"]: r["idle_time"] for r in exact["idle_time_breakdown"] if str(r["stream"]) == row.stream
        }
        assert [round(mine[c] * 1000) for c in ("host_wait", "kernel_wait", "other")] == [
            row.host_wait, row.kernel_wait, row.other,
        ]  # fmt: skip
    assert len(exact["cuda_kernel_launch_stats"]) == len(frame.rows(device.names.Cat.KERNEL)) + len(
        frame.rows(device.names.Cat.MEMORY)
    ) - (found.launches.without_launch if found.launches else 0)


def test_a_rank_without_a_device_has_no_row(tmp_path: Path) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    for rounding in Rounding:
        found = tables(tmp_path, rounding, [operator], [kernel(1, 2)])
        assert [row["rank"] for row in found["temporal_breakdown"]] == [1]
        assert [row["rank"] for row in found["comm_comp_overlap"]] == [0, 1]


def test_tables_keep_their_types_when_there_is_nothing_to_say(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    written = write_tables(tables_of([part_of(framed(tmp_path, [operator]), 0)]), tmp_path / "tables")
    assert len(written) == 7
    schema = pq.read_schema(tmp_path / "tables" / "queue_length_summary.parquet")
    assert [str(kind) for kind in schema.types] == ["int64", "int64"] + ["double"] * 8
    assert not list((tmp_path / "tables").glob(".*"))


def test_a_time_beyond_2_to_the_42_is_exact_to_the_nanosecond(tmp_path: Path) -> None:
    """One of a real trace: × 1000 in floating point makes 364 of it, and a launch longer by 1 µs after rounding."""
    assert to_ns(4458676569036.363) == 4458676569036363
    events = [call(4458676569036.363, 7.636, 1), kernel(4458676569046.123, 84.254, correlation=1)]
    (row,) = tables(tmp_path, HTA, events)["cuda_kernel_launch_stats"]
    assert (row["cpu_duration"], row["gpu_duration"], row["launch_delay"]) == (6, 83, 4)
    (row,) = tables(tmp_path, EXACT, events)["cuda_kernel_launch_stats"]
    assert (row["cpu_duration"], row["gpu_duration"], row["launch_delay"]) == (7.636, 84.254, 2.124)


def test_times_since_the_epoch_keep_the_quarters_that_a_float_has_of_them(tmp_path: Path) -> None:
    """Whole ns since 1970 don't fit into a float: that way 5008.0 became 5008.25, rounded up to 5009."""
    base = 1712195495500000
    events = [kernel(base + 5008.0, 3.0), kernel(base + 6000.5, 2.752)]  # 5008..5011, 6000.5..6003.252 → 6001..6003
    (row,) = tables(tmp_path, HTA, events)["temporal_breakdown"]
    assert times(row) == (990, 5, 0, 995)
    (row,) = tables(tmp_path, EXACT, events)["temporal_breakdown"]
    assert times(row) == (989.5, 5.752, 0, 995.252)
