"""The traces of several ranks as one, on one clock."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from import_run import import_run
from make_job import GpuJob, Run

from sameshot.analysis.merged import Merged, merge_capture
from sameshot.cli.main import invoke
from sameshot.errors import UsageError, VerificationFailed
from sameshot.storage import Storage

MS = 1_000_000


@pytest.fixture(scope="module")
def run() -> Run:
    """Two hosts whose clocks are seconds apart."""
    return GpuJob(hosts=2, gpus=2, steps=20, clock_s=3.0, seed=5).run()


@pytest.fixture(scope="module")
def folder(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_run(tmp_path_factory.mktemp("merged"), run)


def merged(folder: Path, out: Path, **options: Any) -> tuple[Merged, list[dict[str, Any]]]:
    found = merge_capture(str(folder), out / "m.json.gz", **options)
    document = json.loads(gzip.decompress((out / "m.json.gz").read_bytes()))
    assert document["sameshot"]["start_ns"] == str(found.start_ns)
    return found, document["traceEvents"]


def nccl_ends(events: list[dict[str, Any]]) -> dict[int, list[float]]:
    """Rank → ends of its communication kernels, in µs."""
    ends: defaultdict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["name"].startswith("ncclDevKernel"):
            ends[event["pid"] // 1_000_000].append(event["ts"] + event["dur"])
    return {rank: sorted(found) for rank, found in ends.items()}


def test_what_ended_together_ends_together_although_the_clocks_are_seconds_apart(folder: Path, tmp_path: Path) -> None:
    found, events = merged(folder, tmp_path)
    assert [part.label for part in found.parts] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert {part.host for part in found.parts} == {"host-0", "host-1"}
    moved = {part.host: part.offset_ns for part in found.parts}
    assert None not in moved.values()
    assert max(abs(offset or 0) for offset in moved.values()) > 100 * MS  # there was something to align
    ends = nccl_ends(events)
    apart = sorted(abs(a - b) for a, b in zip(ends[0], ends[2], strict=True))
    assert apart[len(apart) // 2] < 50  # µs


def test_every_event_of_every_rank_is_there_once(run: Run, folder: Path, tmp_path: Path) -> None:
    found, events = merged(folder, tmp_path)
    given = sum(len(document["traceEvents"]) for document in run.traces().values())
    assert sum(part.events for part in found.parts) == given
    spans = Counter(event["name"] for event in events if event["ph"] == "X" and event.get("cat") != "sameshot")
    expected = Counter(
        event["name"] for document in run.traces().values() for event in document["traceEvents"] if event["ph"] == "X"
    )
    assert spans == expected


def test_processes_of_different_ranks_stay_apart_and_say_whose_they_are(folder: Path, tmp_path: Path) -> None:
    _, events = merged(folder, tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert {event["pid"] for event in events} == set(names)
    for pid, name in names.items():
        assert name.startswith(f"rank {pid // 1_000_000}")


def test_arrows_of_different_ranks_are_never_joined(folder: Path, tmp_path: Path) -> None:
    """Kineto numbers flows anew in every process; the same number on two ranks is two arrows."""
    given = tmp_path / "given"
    given.mkdir()
    files = []
    for rank in range(2):
        flows = [
            {"ph": phase, "id": 7, "cat": "ac2g", "name": "ac2g", "pid": 5, "tid": 5, "ts": 10.0 + at}
            for phase, at in (("s", 0), ("f", 5))
        ]
        span = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 5, "tid": 5, "ts": 9.0, "dur": 9.0}
        path = given / f"{rank}.json"
        path.write_text(json.dumps({"traceEvents": [span, *flows], "host_name": "one", "traceName": str(rank)}))
        files.append(f"{rank}={path}")
    assert invoke(["manifest", "create", "--out", str(tmp_path / "capture"), *files]) == 0
    _, events = merged(tmp_path / "capture", tmp_path)
    ids = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ids[event["id"]].append((event["pid"], event["ph"]))
    assert len(ids) == 2
    for ends in ids.values():
        assert len({pid for pid, _ in ends}) == 1
        assert [phase for _, phase in ends] == ["s", "f"]


def test_what_a_window_cuts_through_is_kept_whole_and_a_missing_duration_stays_missing(tmp_path: Path) -> None:
    def event(phase: str, name: str, at_ms: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "name": name, "cat": "cpu_op", "pid": 5, "tid": 5, "ts": at_ms * 1000, **more}

    files = []
    for rank in range(2):
        events = [
            event("X", "first", 0, dur=10.0),
            event("B", "around", 50),
            event("E", "around", 350),
            event("b", "async", 60, id=3),
            event("e", "async", 340, id=3),
            event("X", "open", 150, dur=None),
            event("X", "late", 390, dur=10.0),
        ]
        path = tmp_path / f"{rank}.json"
        path.write_text(json.dumps({"traceEvents": events, "host_name": "one", "traceName": str(rank)}))
        files.append(f"{rank}={path}")
    assert invoke(["manifest", "create", "--out", str(tmp_path / "capture"), *files]) == 0
    _, found = merged(tmp_path / "capture", tmp_path, window_ns=(100 * MS, 200 * MS))
    kept = Counter(one["name"] for one in found if one["pid"] // 1_000_000 == 1 and one["ph"] != "M")
    assert kept == {"around": 2, "async": 2, "open": 1}
    assert [one["dur"] for one in found if one["name"] == "open"] == [None, None]
    ids = {one["pid"] // 1_000_000: one["id"] for one in found if one["name"] == "async"}
    assert len(set(ids.values())) == 2  # of two ranks, never joined


def test_a_window_and_a_choice_of_ranks_leave_the_rest_out(folder: Path, tmp_path: Path) -> None:
    whole, _ = merged(folder, tmp_path)
    found, events = merged(folder, tmp_path, ranks=[1, 3], window_ns=(100 * MS, 200 * MS))
    assert [part.label for part in found.parts] == ["rank 1", "rank 3"]
    spans = [event for event in events if event["ph"] == "X"]
    assert spans
    assert all(event["ts"] <= 200_000 and event["ts"] + event["dur"] >= 100_000 for event in spans)
    for part in found.parts:
        assert part.left_out > part.events
        assert part.events + part.left_out == next(w.events for w in whole.parts if w.label == part.label)


def test_a_rank_without_a_trace_is_refused_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no trace of rank 9.*0, 1, 2, 3"):
        merge_capture(str(folder), tmp_path / "m.json.gz", ranks=[0, 9])
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_not_those_of_the_manifest_end_it(run: Run, tmp_path: Path) -> None:
    broken = import_run(tmp_path / "b", run)
    trace = next((broken / "rank-2").glob("trace*"))
    changed = gzip.decompress(trace.read_bytes()).replace(b"nccl", b"mccl", 1)
    trace.write_bytes(gzip.compress(changed))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(VerificationFailed):
        merge_capture(str(broken), out / "m.json.gz")
    assert list(out.iterdir()) == []


def test_each_trace_is_read_once_and_only_those_that_were_chosen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    opened = Storage.open_read

    def noted(storage: Storage, key: str) -> Any:
        read.append(key)
        return opened(storage, key)

    monkeypatch.setattr(Storage, "open_read", noted)
    merged(folder, tmp_path, ranks=[1, 3])
    assert sorted(key for key in read if "trace.json" in key) == ["rank-1/trace.json.gz", "rank-3/trace.json.gz"]


def test_inferred_steps_are_a_track_of_their_own(folder: Path, tmp_path: Path) -> None:
    _, events = merged(folder, tmp_path)
    steps = [event for event in events if event.get("cat") == "sameshot"]
    assert {event["pid"] // 1_000_000 for event in steps} == {0, 1, 2, 3}
    assert all(event["args"]["method"] == "profiler_step" for event in steps)


def test_the_command_says_how_each_clock_was_aligned(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.json.gz"
    assert invoke(["merge", str(folder), "--ranks", "0,2-3", "--to", "50ms", "--out", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rank 2:" in text
    assert "rank 1:" not in text
    assert "clock moved by" in text
    assert out.is_file()
    assert invoke(["merge", str(folder), "--ranks", "x", "--out", str(out)]) == 2
