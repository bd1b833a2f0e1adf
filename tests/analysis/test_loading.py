"""How a trace comes to its analysis: from columns or from JSON, here or elsewhere, never from unproven bytes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from gloo_job import GlooJob

from sameshot.analysis import (
    RankSummary,
    Summary,
    analyze,
)
from sameshot.analysis import load as loading
from sameshot.errors import VerificationFailed
from sameshot.manifest import build, decode, encode
from sameshot.trace.capture_check import inspect_capture, locate
from sameshot.trace.imported import Import, import_traces
from sameshot.trace.pool import WorkerKilled, in_processes
from support.one_rank import map_one
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_environment

JOB = GlooJob(seed=3, late={1: 20.0})


def capture(folder: Path, *, columns: bool = True, ranks: int = 2) -> Path:
    traces = folder / "traces"
    traces.mkdir(parents=True)
    files = {}
    for rank, trace in list(JOB.traces().items())[:ranks]:
        files[rank] = traces / f"{rank}.json"
        files[rank].write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    return import_traces(Import(files=files, out=folder / "capture", columns=columns, world_size=ranks)).path


def edit(path: Path, change: Any) -> None:
    """Write the manifest again, as somebody with write access can, after `change` of the first artifact."""
    manifest = decode(path.read_bytes())
    first, *others = manifest.targets
    assert first.artifact is not None
    changed = msgspec.structs.replace(first, artifact=change(first.artifact))
    path.write_bytes(encode(build(manifest.capture, [changed, *others])))


def file_of(path: Path, *, rank: int = 0, columns: bool = True) -> Path:
    artifact = decode(path.read_bytes()).targets[rank].artifact
    assert artifact is not None
    assert artifact.columns is not None or not columns
    return path.parent / (artifact.columns.uri if columns and artifact.columns else artifact.uri)


def same(one: Summary, two: Summary) -> bool:
    """But for when, and from which manifest."""

    def rest(summary: Summary) -> Summary:
        return msgspec.structs.replace(summary, generated_at="", capture=None)  # type: ignore[arg-type]

    return rest(one) == rest(two)


# -- stored columns -----------------------------------------------------------------------------------------------


def test_columns_give_the_same_answer_as_the_trace_that_they_were_made_from(tmp_path: Path) -> None:
    stored, bare = capture(tmp_path / "a"), capture(tmp_path / "b", columns=False)
    for rank in range(2):
        assert map_one(str(stored), f"rank/{rank}") == map_one(str(bare), f"rank/{rank}")
    assert same(analyze(str(stored), None), analyze(str(bare), None))


def test_a_trace_with_columns_is_not_read_at_all(tmp_path: Path) -> None:
    path = capture(tmp_path)
    before = analyze(str(path), None)
    for rank in range(2):
        file_of(path, rank=rank, columns=False).unlink()
    assert same(analyze(str(path), None), before)


@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_one_flipped_bit_in_columns_is_a_failed_verification_naming_the_rank(tmp_path: Path, at: float) -> None:
    path = capture(tmp_path)
    file = file_of(path, rank=1)
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    file.write_bytes(data)
    with pytest.raises(VerificationFailed, match=r"columns of rank 1 .*sha256"):
        analyze(str(path), tmp_path / "out")
    assert not (tmp_path / "out/summary.json").exists()
    [bad] = inspect_capture(*locate(str(path))).failed
    assert "has other bytes" in bad.problems[0]


def test_columns_that_are_not_there_are_a_failed_verification(tmp_path: Path) -> None:
    path = capture(tmp_path)
    file_of(path).unlink()
    with pytest.raises(VerificationFailed, match=r"columns of rank 0 .* not at rank-0/columns\.parquet"):
        analyze(str(path), None)


def test_columns_of_another_trace_are_refused_though_their_digest_is_right(tmp_path: Path) -> None:
    path = capture(tmp_path)
    other = file_of(path, rank=1).read_bytes()
    file_of(path).write_bytes(other)

    def claim(artifact: Any) -> Any:
        digest = hashlib.sha256(other).hexdigest()
        columns = msgspec.structs.replace(artifact.columns, size=len(other), sha256=digest)
        return msgspec.structs.replace(artifact, columns=columns)

    edit(path, claim)
    with pytest.raises(VerificationFailed, match=r"columns of rank 0 .* were not made from"):
        analyze(str(path), None)
    [bad] = inspect_capture(*locate(str(path))).failed
    assert (bad.rank, len(bad.problems)) == (0, 1)
    assert "was made from another trace" in bad.problems[0]


def test_where_published_columns_cannot_be_used_the_trace_is_read_and_the_summary_says_so(tmp_path: Path) -> None:
    path = capture(tmp_path)
    before = map_one(str(path), "rank/0")
    file_of(path).write_bytes(b"nothing")

    def claim(artifact: Any) -> Any:
        columns = msgspec.structs.replace(artifact.columns, size=7, sha256=hashlib.sha256(b"nothing").hexdigest())
        return msgspec.structs.replace(artifact, columns=columns)

    edit(path, claim)
    after = map_one(str(path), "rank/0")
    assert loading.UNUSABLE_COLUMNS not in before.trace.oddities
    assert after.trace.oddities == before.trace.oddities | {loading.UNUSABLE_COLUMNS: 1}
    assert msgspec.structs.replace(after, trace=before.trace) == before
    [bad] = inspect_capture(*locate(str(path))).failed
    assert "is not the file of columns" in bad.problems[0]
    file_of(path, columns=False).unlink()
    with pytest.raises(VerificationFailed, match=r"columns of rank 0 .* Nor does the trace stand in"):
        analyze(str(path), None)


def test_columns_of_a_schema_from_the_future_are_left_alone_and_the_trace_is_read(tmp_path: Path) -> None:
    path = capture(tmp_path)
    before = analyze(str(path), None)

    def claim(artifact: Any) -> Any:
        columns = msgspec.structs.replace(artifact.columns, schema="sameshot.dev/columns/v2")
        return msgspec.structs.replace(artifact, columns=columns)

    edit(path, claim)
    assert same(analyze(str(path), None), before)
    assert not inspect_capture(*locate(str(path))).failed
    file_of(path, columns=False).unlink()
    with pytest.raises(VerificationFailed, match="trace of rank 0"):
        analyze(str(path), None)


def test_columns_in_a_bucket_are_fetched_once_and_compared_on_the_way(tmp_path: Path) -> None:
    path = capture(tmp_path)
    before = analyze(str(path), None)
    with moto_server() as endpoint, FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        client = make_bucket(endpoint, "archive")
        for file in path.parent.rglob("*"):
            if file.is_file():
                key = f"c1/{file.relative_to(path.parent)}"
                client.put_object(Bucket="archive", Key=key, Body=file.read_bytes())
        assert same(analyze("s3://archive/c1", None), before)
        proxy.add(Fault.FLIP_ANSWER, method="GET", query="rank-1/columns.parquet")
        with pytest.raises(VerificationFailed, match="columns of rank 1"):
            analyze("s3://archive/c1", None)


# -- columns of our own -------------------------------------------------------------------------------------------


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small traces are worth keeping, for once."""
    monkeypatch.setattr(loading, "CACHE_FROM", 0)


def kept(out: Path) -> list[Path]:
    return sorted((out / "columns").iterdir()) if (out / "columns").exists() else []


@pytest.mark.usefixtures("cached")
def test_analysis_keeps_columns_of_its_own_and_uses_them_the_next_time(tmp_path: Path) -> None:
    path, out = capture(tmp_path, columns=False), tmp_path / "out"
    before = analyze(str(path), out)
    raws = {target.artifact.raw_sha256 for target in decode(path.read_bytes()).targets if target.artifact}
    assert {file.name.split(".")[0] for file in kept(out)} == raws
    for rank in range(2):
        file_of(path, rank=rank, columns=False).unlink()  # so it must be the columns that are read
    assert same(analyze(str(path), out), before)
    with pytest.raises(VerificationFailed):
        analyze(str(path), tmp_path / "elsewhere")


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_damaged_columns_of_our_own_are_made_again_never_trusted(tmp_path: Path, damage: str) -> None:
    path, out = capture(tmp_path, columns=False), tmp_path / "out"
    before = analyze(str(path), out)
    one, other = kept(out)
    data = bytearray(one.read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 4
    one.write_bytes({"cut": data[:-20], "empty": b"", "other": other.read_bytes()}.get(damage, data))
    if damage == "other":  # under a name that its own digest fits
        one = one.rename(one.with_name(f"{one.name.split('.')[0]}.{other.name.split('.')[1]}.parquet"))
    broken = one.read_bytes()
    assert same(analyze(str(path), out), before)
    assert len(kept(out)) == 2
    assert broken not in [file.read_bytes() for file in kept(out) if file != other]


@pytest.mark.usefixtures("cached")
def test_a_trace_that_is_not_what_the_manifest_states_leaves_no_columns(tmp_path: Path) -> None:
    path, out = capture(tmp_path, columns=False), tmp_path / "out"
    edit(path, lambda artifact: msgspec.structs.replace(artifact, raw_sha256="0" * 64))
    with pytest.raises(VerificationFailed, match="decodes to"):
        analyze(str(path), out)
    assert not kept(out)


@pytest.mark.usefixtures("cached")
def test_a_place_where_nothing_can_be_kept_changes_nothing(tmp_path: Path) -> None:
    path = capture(tmp_path, columns=False)
    (tmp_path / "file").touch()
    assert map_one(str(path), "rank/0", cache=tmp_path / "file" / "columns") == map_one(str(path), "rank/0")


def test_small_traces_are_not_worth_keeping(tmp_path: Path) -> None:
    path, out = capture(tmp_path, columns=False), tmp_path / "out"
    analyze(str(path), out)
    assert not kept(out)


# -- in processes ----------------------------------------------------------------------------------------------------


def test_processes_find_the_same_and_an_error_of_one_rank_names_it(tmp_path: Path) -> None:
    path = capture(tmp_path, columns=False)
    assert same(analyze(str(path), None, workers=2), analyze(str(path), None, workers=1))
    file = file_of(path, rank=1, columns=False)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(VerificationFailed, match="rank 1"):
        analyze(str(path), None, workers=2)


def die_on_two(job: int) -> int:
    if job == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def never_end(folder: Path) -> None:
    """The first of two fails once the second is under way; that one never ends."""
    (folder / str(os.getpid())).touch()
    if folder.name == "second":
        (folder.parent / "under way").touch()
        time.sleep(600)
    while not (folder.parent / "under way").exists():
        time.sleep(0.01)
    raise ValueError("the first one fails")


def test_a_killed_process_ends_it_all_at_once_and_what_it_read_is_named() -> None:
    began = time.monotonic()
    with pytest.raises(WorkerKilled, match="rank 2"):
        list(in_processes(die_on_two, [2], 2, name=lambda job: f"rank {job}"))
    assert time.monotonic() - began < 60


def test_after_an_error_the_other_processes_are_ended_and_not_waited_for(tmp_path: Path) -> None:
    jobs = [tmp_path / "first", tmp_path / "second"]
    for job in jobs:
        job.mkdir()
    began = time.monotonic()
    with pytest.raises(ValueError, match="the first one fails"):
        list(in_processes(never_end, jobs, 2, name=str))
    assert time.monotonic() - began < 60
    [second] = [int(file.name) for file in jobs[1].iterdir()]
    assert not psutil.pid_exists(second)


def test_a_caller_that_wants_no_more_ends_the_processes(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "under way").touch()
    results = in_processes(sleep_unless_told, [None, tmp_path / "second"], 2, name=str)
    assert next(results) == (None, None)
    wait_until(lambda: any((tmp_path / "second").iterdir()))
    [second] = [int(file.name) for file in (tmp_path / "second").iterdir()]
    results.close()
    assert not psutil.pid_exists(second)


def sleep_unless_told(folder: Path | None) -> None:
    if folder is not None:
        never_end(folder)


def wait_until(look: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_summary_stays_small(tmp_path: Path) -> None:
    summary: RankSummary = map_one(str(capture(tmp_path)), "rank/0")
    assert len(msgspec.json.encode(summary)) < 256 << 10
