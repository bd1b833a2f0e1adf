"""Data wait: what the main thread spent in the fetch, and what of it the GPU felt; worked out by hand, in ms."""

from __future__ import annotations

import bisect
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from gloo_job import FETCH, span
from test_rank_breakdown import MS, summary_of
from test_real_traces import target_of

from sameshot.analysis import map_rank
from sameshot.analysis.results import DataWait
from sameshot.cli.main import invoke

_ids = iter(range(1, 10**6))


def main(name: str, start: float, length: float, cat: str = "cpu_op", tid: int = 9, **more: Any) -> dict[str, Any]:
    return span(name, start, length, cat=cat, pid=9, tid=tid, **more)


def fetch(start: float, length: float, tid: int = 9) -> dict[str, Any]:
    return main(FETCH, start, length, cat="user_annotation", tid=tid)


def launched(
    start: float,
    length: float,
    *,
    at: float,
    tid: int = 9,
    name: str = "gemm",
    cat: str = "kernel",
    call: str = "cudaLaunchKernel",
    stream: int = 7,
) -> list[dict[str, Any]]:
    """Work on the device from `start` that the thread launched at `at`."""
    args = {"correlation": next(_ids), "stream": stream, "device": 0}
    return [
        main(call, at, 0.1, cat="cuda_runtime", tid=tid, args={"correlation": args["correlation"]}),
        span(name, start, length, cat=cat, pid=0, tid=stream, args=args),
    ]


def wait_of(*events: dict[str, Any]) -> DataWait:
    found = summary_of(*events).data_wait
    assert found is not None
    return found


def test_the_gpu_feels_a_fetch_from_when_it_runs_dry_until_its_next_kernel_starts() -> None:
    found = wait_of(
        *launched(0, 30, at=0),  # still running when the fetch begins
        fetch(20, 50),
        *launched(75, 25, at=72),
    )
    assert (found.method, found.fetches, found.raw) == ("dataloader", 1, 50 * MS)
    assert found.felt == (75 - 30) * MS
    assert found.hidden == 5 * MS
    assert found.share == pytest.approx(0.45)


def test_a_fetch_behind_queued_work_is_hidden_and_costs_nothing() -> None:
    found = wait_of(*launched(0, 80, at=0), fetch(20, 50), *launched(80, 20, at=72))
    assert (found.raw, found.felt, found.hidden) == (50 * MS, 0, 50 * MS)
    assert found.share == 0


def test_a_kernel_that_another_thread_launched_does_not_end_the_wait_but_is_no_idle_time() -> None:
    found = wait_of(*launched(0, 10, at=0), fetch(10, 20), *launched(40, 5, at=35, tid=44), *launched(60, 40, at=50))
    assert found.felt == (60 - 10 - 5) * MS
    assert found.hidden == 0, "never less than nothing"


def test_a_kernel_launched_before_the_fetch_ended_does_not_end_the_wait() -> None:
    found = wait_of(fetch(0, 30), *launched(10, 10, at=5), *launched(50, 50, at=40))
    assert found.felt == (50 - 10) * MS


def test_a_fetch_that_nothing_follows_is_felt_until_its_end() -> None:
    found = wait_of(*launched(0, 10, at=0), fetch(10, 30), main("aten::mm", 40, 60))
    assert found.felt == 30 * MS


def test_a_fetch_of_another_thread_is_not_the_main_threads() -> None:
    found = summary_of(
        main("Optimizer.step#SGD.step", 0, 100, cat="user_annotation"), fetch(10, 30, tid=77), *launched(0, 5, at=0)
    )
    assert found.data_wait is None


@pytest.mark.parametrize(
    ("name", "call", "stream", "counts"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", 20, True),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync", 20, False),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpy", 20, True),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync", 7, True),  # on the stream that computes
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", 7, False),
    ],
)
def test_copies_count_only_where_something_waits_for_them(name: str, call: str, stream: int, counts: bool) -> None:
    found = wait_of(
        *launched(0, 10, at=0),
        fetch(10, 30),
        *launched(42, 6, at=41, name=name, cat="gpu_memcpy", call=call, stream=stream),
        *launched(50, 50, at=49),
    )
    assert found.copies == (6 * MS if counts else 0)
    assert found.felt == (50 - 10 - 6) * MS, "while a copy runs the device is not idle"


def steps_with(fetching: float, queued: float) -> list[dict[str, Any]]:
    """Ten steps of 100 ms; of each the first `fetching` ms are in the fetch, `queued` of them with the GPU at work."""
    events: list[dict[str, Any]] = []
    for step in range(10):
        begin = step * 100.0
        events += [main(f"ProfilerStep#{step}", begin, 99.9, cat="user_annotation"), fetch(begin, fetching)]
        events += launched(begin + fetching + 2, 98 - fetching + queued, at=begin + fetching + 1)
        events += [main("aten::mm", begin + fetching + 1, 5)]
    return events


def test_a_starving_job_is_called_data_bound_with_its_spread_per_step() -> None:
    found = wait_of(*steps_with(40, 0))
    assert found.bound is True
    assert "Data-bound" in found.sentence
    assert found.felt_per_step is not None
    assert (found.felt_per_step.count, found.felt_per_step.median) == (10, 42 * MS)
    assert found.raw_per_step is not None
    assert found.raw_per_step.median == 40 * MS


def test_a_job_whose_fetches_are_hidden_is_not_called_data_bound() -> None:
    found = wait_of(*steps_with(40, 42))
    assert found.bound is False
    assert found.sentence.startswith("Not data-bound")
    assert found.felt_per_step is not None
    assert found.felt_per_step.median == 0


def test_one_fetch_is_too_little_for_a_verdict() -> None:
    assert wait_of(*launched(0, 5, at=0), fetch(5, 80), *launched(90, 5, at=88)).bound is None


def test_without_a_gpu_the_main_thread_is_what_waits() -> None:
    found = wait_of(fetch(0, 30), main("aten::mm", 30, 20), fetch(50, 30), main("aten::mm", 80, 20))
    assert (found.raw, found.felt, found.hidden) == (60 * MS, None, None)
    assert found.share == pytest.approx(0.6)
    assert found.bound is True
    assert "main thread" in found.sentence


def test_a_configured_annotation_is_the_fetch() -> None:
    from sameshot.analysis.frame import FrameBuilder
    from sameshot.analysis.host.data_wait import find_fetches
    from sameshot.trace.columns.build import ColumnBuilder

    frames = FrameBuilder()
    columns = ColumnBuilder(frames)
    events = [
        main("aten::mm", 0, 5),
        main("my_queue.pop", 10, 20, cat="user_annotation"),
        main("other", 40, 20, cat="user_annotation"),
    ]
    columns.take(columns.parse(json.dumps(events).encode()))
    columns.finish()
    frame = frames.frame()
    main_lane = frame.lanes.index((9, 9))
    found = find_fetches(frame, main_lane, (0, 100 * MS), r"queue\.pop")
    assert found is not None
    assert (found.method, found.spans.total) == ("annotation", 20 * MS)
    assert find_fetches(frame, main_lane, (0, 100 * MS)) is None, "nothing says that it fetches"


@pytest.mark.parametrize(
    ("name", "cat"),
    [
        ("## data_load ##", "user_annotation"),
        ("get_batch", "user_annotation"),
        ("torch/utils/data/dataloader.py(630): __next__", "python_function"),
    ],
)
def test_a_fetch_that_only_its_name_gives_away_is_labelled_as_inferred(name: str, cat: str) -> None:
    events = [e for at in (0, 50) for e in (main(name, at, 30, cat=cat), main("aten::mm", at + 30, 20))]
    found = wait_of(*events)
    assert (found.method, found.raw) == ("inferred", 60 * MS)
    assert "inferred" in found.sentence


def test_a_trace_in_which_nothing_looks_like_a_fetch_says_nothing() -> None:
    assert summary_of(main("aten::mm", 0, 10), main("database_commit", 10, 5, cat="user_annotation")).data_wait is None


# ---- real traces, against the definition read off the raw JSON


def by_hand(path: Path) -> tuple[int, int]:
    """(raw, felt) in µs, moment by moment."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    fetches = [e for e in events if str(e["name"]).startswith("enumerate(DataLoader)#")]
    busy = [False] * (max(e["ts"] + e["dur"] for e in events) - (first := min(e["ts"] for e in events)))
    kernels: dict[int, int] = {}
    for e in events:
        if e["cat"] in ("Kernel", "Memcpy", "Memset"):
            for moment in range(e["ts"], e["ts"] + e["dur"]):
                busy[moment - first] = True
            if e["cat"] == "Kernel":
                kernels[e["args"]["correlation"]] = e["ts"]
    launches = sorted(
        (e["ts"], kernels[e["args"]["correlation"]])
        for e in events
        if e["cat"] == "Runtime" and e["tid"] == fetches[0]["tid"] and e["args"].get("correlation") in kernels
    )
    raw = felt = 0
    for e in fetches:
        raw += e["dur"]
        until = launches[bisect.bisect_left(launches, (e["ts"] + e["dur"], 0))][1]
        felt += sum(not b for b in busy[e["ts"] - first : until - first])
    return raw, felt


@pytest.mark.parametrize(("workers", "bound"), [(0, True), (4, False)])
def test_a_real_starving_loader_is_called_data_bound_and_a_real_fed_one_is_not(
    shared_data: Path, workers: int, bound: bool
) -> None:
    path = shared_data / "traces" / "resnet50_dataloader" / f"num_workers_{workers}.json.gz"
    found = map_rank(path, target_of(path, 0)).data_wait
    raw, felt = by_hand(path)
    assert found is not None
    assert found.felt is not None
    assert (found.fetches, found.bound) == (6, bound)
    assert (found.raw, found.felt) == (raw * 1000, felt * 1000)
    per_step = found.felt / 6 / MS
    assert per_step == pytest.approx(60.0 if bound else 10.4, abs=0.1)
    assert found.sentence.startswith("Data-bound" if bound else "Not data-bound")


def test_a_real_single_fetch_gets_no_verdict(shared_data: Path) -> None:
    path = shared_data / "traces" / "dlrm8_v100" / "rank0.json.gz"
    found = map_rank(path, target_of(path, 0)).data_wait
    assert found is not None
    assert (found.raw, found.bound) == (1_101_000, None)


def test_the_command_takes_the_name_of_a_fetch_and_refuses_what_is_no_pattern(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        main("my_queue.pop", 10, 20, cat="user_annotation"),
        main("aten::mm", 40, 20),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events, "host_name": "one"}))
    assert invoke(["manifest", "create", "--out", str(tmp_path / "capture"), f"0={path}"]) == 0
    capsys.readouterr()
    command = ["analyze", str(tmp_path / "capture"), "--out", str(tmp_path / "out"), "-o", "json"]
    assert invoke(command) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["data_wait"] is None
    assert invoke([*command, "--fetch-pattern", r"my_queue\."]) == 0
    found = json.loads(capsys.readouterr().out)["ranks"][0]["data_wait"]
    assert (found["method"], found["raw_ns"]) == ("annotation", 20 * MS)
    assert invoke([*command, "--fetch-pattern", "("]) == 2
    assert "no regular expression" in capsys.readouterr().err
