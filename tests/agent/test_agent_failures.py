"""Everything that can go wrong for one target: a typed reason, the others untouched, the bytes kept."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_lab import JOB, Lab, give_away, in_loop, trace_of, until

from sameshot.agent.announce import discard_leftover
from sameshot.agent.discovery import FixedDirs, WorkerDir
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.manifest import Job, build, encode
from sameshot.model import CaptureSpec, Encoding, FailureReason, Phase, TargetFact, TargetState
from support.manifests import archived, make_capture
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_client, s3_environment


def reason_of(fact: TargetFact) -> FailureReason:
    assert fact.failure is not None
    return fact.failure.reason


def detail_of(fact: TargetFact) -> str:
    assert fact.failure is not None
    return fact.failure.detail


# --- workers -------------------------------------------------------------------------------------------------


@in_loop
async def test_a_worker_killed_in_its_window_has_exited_and_the_others_are_delivered(lab: Lab) -> None:
    killed, other = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        capture = await caller.dispatch(killed, other)
        await caller.until_state(capture, killed, TargetState.QUEUED)
        leftover = killed.output_folder(capture) / f"trace_{killed.registration.pid}.json.tmp"
        leftover.touch()
        killed.kill()
        fact = await caller.until_failed(capture, killed)
        assert reason_of(fact) is FailureReason.WORKER_EXITED
        assert not leftover.exists()
        # Nobody with that pid may fetch what was meant for the dead worker.
        await until(lambda: (capture, killed.target_id) in lab.daemon.withdrawn, "a withdrawal")
        other.write_trace(capture)
        await caller.until_archived(capture, other)


@in_loop
async def test_the_empty_file_of_a_refused_start_is_removed_so_that_its_worker_need_not_wait_for_it(lab: Lab) -> None:
    """Kineto leaves one where it can't meet a start (measured); a window that is still written to keeps its own."""
    refused, late = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    long_ago = time.time_ns() - 60_000_000_000
    async with lab.agent() as caller:
        capture = await caller.dispatch(refused, late, announce_timeout_ms=61_000, start_at_ns=long_ago)
        empty, growing = (each.final_name(capture).with_suffix(".json.tmp") for each in (refused, late))
        empty.touch()
        os.utime(empty, ns=(long_ago, long_ago))
        growing.write_bytes(b"{")
        for worker in (refused, late):
            assert reason_of(await caller.until_failed(capture, worker)) is FailureReason.MISSING
        await until(lambda: not empty.parent.exists(), "the end of the empty file and its folder")
        assert growing.read_bytes() == b"{"


@in_loop
async def test_a_trace_finished_right_before_the_end_of_its_worker_is_delivered(lab: Lab) -> None:
    async with lab.agent() as caller:
        for _ in range(10):
            worker = lab.worker()
            capture = await caller.dispatch(worker)
            worker.write_trace(capture)
            worker.kill()
            await caller.until_archived(capture, worker)


@in_loop
async def test_stale_registrations_are_refused_by_reason(lab: Lab) -> None:
    replaced = lab.worker(registered_at_ns=1)
    current = lab.worker(registered_at_ns=2)
    dead = lab.worker(rank=1, local_rank=1)
    dead.kill()
    exiting = lab.worker(rank=2, local_rank=2)
    exiting.register(phase=Phase.EXITING)
    async with lab.agent() as caller:
        for worker, reason in [
            (replaced, FailureReason.STALE_REGISTRATION),
            (dead, FailureReason.WORKER_EXITED),
            (exiting, FailureReason.WORKER_EXITED),
        ]:
            await caller.dispatch(worker)
            assert reason_of(caller.answer[worker.target_id]) is reason, detail_of(caller.answer[worker.target_id])
        capture = lab.capture_id()
        answer = await caller.stub.Dispatch(
            pb.DispatchRequest(
                job=to_proto(JOB, pb.JobRef()),
                capture_id=capture,
                spec=to_proto(CaptureSpec(duration_ms=100), pb.CaptureSpec()),
                start_at_ns=1,
                announce_timeout_ms=1000,
                targets=[
                    pb.DispatchTarget(target_id="node-a/main/0", registration="never-seen"),
                    pb.DispatchTarget(target_id="node-b/main/0", registration=current.registration.uuid),
                ],
            )
        )
        assert [target.failure.reason for target in answer.targets] == ["STALE_REGISTRATION"] * 2
        assert not lab.daemon.asked


@in_loop
async def test_a_reused_pid_is_not_mistaken_for_the_old_worker(lab: Lab) -> None:
    old = lab.worker(registered_at_ns=1)
    old.kill()
    new = lab.worker(registered_at_ns=2)
    old.register(pid=new.registration.pid)  # as if the kernel had given the number out again
    async with lab.agent() as caller:
        await caller.dispatch(old)
        assert reason_of(caller.answer[old.target_id]) is FailureReason.STALE_REGISTRATION
        capture = await caller.dispatch(new)
        new.write_trace(capture, trace_of(old.registration))  # a file with the right name and the old identity
        assert reason_of(await caller.until_failed(capture, new)) is FailureReason.WRONG_IDENTITY


# --- room ----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_window_that_would_not_fit_is_refused_before_anything_is_sent(lab: Lab) -> None:
    worker, second = lab.worker(), lab.worker(rank=1, local_rank=1)
    async with lab.agent(free=lambda path: 71_000_000) as caller:
        # 2 × 30 MB, and of each byte 1/8 stored and 1/16 as columns
        capture = await caller.dispatch(worker, second, spec=CaptureSpec(duration_ms=100))
        assert {reason_of(fact) for fact in caller.answer.values()} == {FailureReason.NO_ROOM}
        detail = detail_of(caller.answer[worker.target_id])
        assert "2 windows may write 60 MB" in detail
        assert "(stored form, columns) may take 11 MB" in detail
        assert not worker.output_folder(capture).exists()
        assert not lab.daemon.asked

        capture = await caller.dispatch(worker, spec=CaptureSpec(duration_ms=100))  # one fits …
        await caller.until_state(capture, worker, TargetState.QUEUED)
        await caller.dispatch(second, spec=CaptureSpec(duration_ms=100))  # … and its room is promised
        assert reason_of(caller.answer[second.target_id]) is FailureReason.NO_ROOM
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)
        await caller.dispatch(second, spec=CaptureSpec(duration_ms=100))
        assert not caller.answer[second.target_id].state.terminal


@pytest.mark.parametrize(
    ("free_mb", "fits", "options"),
    [
        (35.5, False, {}),
        (35.7, True, {}),
        (33.7, False, {"columns": False}),
        (33.8, True, {"columns": False}),
        (59.9, False, {"encoding": Encoding.IDENTITY, "columns": False}),
        (60.1, True, {"encoding": Encoding.IDENTITY, "columns": False}),
    ],
)
def test_room_is_counted_for_what_the_archive_gets_too(
    lab: Lab, free_mb: float, fits: bool, options: dict[str, Any]
) -> None:
    @in_loop
    async def scenario() -> None:
        worker = lab.worker()
        async with lab.agent(free=lambda path: int(free_mb * 1e6), **options) as caller:
            await caller.dispatch(worker, spec=CaptureSpec(duration_ms=100))  # 30 MB
            assert caller.answer[worker.target_id].state.terminal is not fits

    scenario()


@in_loop
async def test_a_trace_that_is_not_read_yet_still_needs_room_for_what_the_archive_gets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = lab.worker(), lab.worker(rank=1, local_rank=1)
    kinds = CaptureSpec(duration_ms=100), CaptureSpec(duration_ms=100, with_stack=True)  # 30 MB and 5.6 for the archive
    free = 38_000_000
    async with lab.agent(free=lambda path: free) as caller:

        async def never(*job: Any, owner: str) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(caller.agent.pool, "verify", never)
        capture = await caller.dispatch(one, spec=kinds[0])
        one.write_trace(capture, bytes(16_000_000))
        await caller.until_state(capture, one, TargetState.ANNOUNCED)
        await caller.dispatch(two, spec=kinds[1])
        assert reason_of(caller.answer[two.target_id]) is FailureReason.NO_ROOM
        assert "other captures 3 MB" in detail_of(caller.answer[two.target_id])
        free = 39_000_000
        await caller.dispatch(two, spec=kinds[1])
        assert not caller.answer[two.target_id].state.terminal


@in_loop
async def test_windows_that_would_fill_a_pods_own_storage_are_refused(lab: Lab) -> None:
    """A pod above its ephemeral-storage limit is evicted, however much room the node has."""
    where = WorkerDir(lab.dir, str(lab.dir), node="node-a", owner_uid=os.geteuid(), limit_bytes=50_000_000)
    one, two, three = (lab.worker(rank=rank, local_rank=rank) for rank in range(3))
    spec = CaptureSpec(duration_ms=100)  # 30 MB at the default rate
    async with lab.agent(worker_dirs=FixedDirs.of(where), free=lambda path: 1 << 50) as caller:
        await caller.dispatch(one, two, spec=spec)
        for worker in (one, two):
            fact = caller.answer[worker.target_id]
            assert reason_of(fact) is FailureReason.NO_ROOM
            assert "2 windows may write 60 MB" in detail_of(fact)
            assert "their pod may still store 50 MB" in detail_of(fact)
        assert not lab.daemon.asked
        capture = await caller.dispatch(three, spec=spec)  # one fits …
        await caller.until_state(capture, three, TargetState.QUEUED)
        await caller.dispatch(two, spec=spec)  # … and its room is promised
        assert reason_of(caller.answer[two.target_id]) is FailureReason.NO_ROOM


@in_loop
async def test_the_rate_of_the_last_real_trace_replaces_the_default(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent(free=lambda path: 40_000_000) as caller:
        capture = await caller.dispatch(worker, spec=CaptureSpec(duration_ms=100))
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)
        await until(lambda: (lab.spool / "rates.json").exists(), "rates")
    async with lab.agent(free=lambda path: 40_000_000) as caller:  # 10 s at the default would be 3 GB
        await caller.dispatch(worker, spec=CaptureSpec(duration_ms=10_000))
        assert not caller.answer[worker.target_id].state.terminal
        await caller.dispatch(worker, spec=CaptureSpec(duration_ms=1_000, with_stack=True))  # another kind of trace
        assert reason_of(caller.answer[worker.target_id]) is FailureReason.NO_ROOM


# --- files ---------------------------------------------------------------------------------------------------


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def _hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


def _socket(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _of_another_user(path: Path, outside: Path) -> None:
    path.write_bytes(outside.read_bytes())
    give_away(path)


FILES = {
    "a symbolic link": _link,
    "a hard link": _hard_link,
    "a FIFO": lambda path, outside: os.mkfifo(path),
    "a socket": _socket,
    "a directory": lambda path, outside: path.mkdir(),
    "another user's file": _of_another_user,
}


@pytest.mark.parametrize("trick", FILES)
def test_what_is_no_plain_file_of_the_worker_is_neither_read_nor_moved_nor_uploaded(lab: Lab, trick: str) -> None:
    async def scenario() -> None:
        worker, honest = lab.worker(), lab.worker(rank=1, local_rank=1)
        secret = lab.root / "secret.json"
        content = trace_of(worker.registration)
        secret.write_bytes(content)
        async with lab.agent() as caller:
            capture = await caller.dispatch(worker, honest)
            path = worker.final_name(capture)
            FILES[trick](path, secret)
            before = path.lstat()
            fact = await caller.until_failed(capture, worker)
            assert reason_of(fact) is FailureReason.UNSAFE_FILE
            assert fact.failure is not None
            assert fact.failure.raw is None
            after = path.lstat()
            assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
            assert secret.read_bytes() == content
            honest.write_trace(capture)
            await caller.until_archived(capture, honest)
            assert {path.name for path in lab.archive.rglob("*") if path.is_file()} == {
                "trace.json.gz",
                "columns.parquet",
            }
            folder = f"rank-1-{honest.registration.uuid[:8]}"
            assert (lab.archive / JOB.path / capture / folder / "trace.json.gz").exists()

    in_loop(scenario)()


@in_loop
async def test_a_folder_exchanged_for_a_link_is_not_followed(lab: Lab) -> None:
    worker = lab.worker()
    outside = lab.root / "outside"
    outside.mkdir()
    (outside / f"trace_{worker.registration.pid}.json").write_bytes(trace_of(worker.registration))
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        folder = worker.output_folder(capture)
        folder.rename(lab.root / "moved")
        folder.symlink_to(outside)
        fact = await caller.until_failed(capture, worker)
        assert reason_of(fact) is FailureReason.UNSAFE_FILE
        assert len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("way", ["a link to elsewhere", "a folder from elsewhere behind a link", "a link in its place"])
def test_cleaning_up_deletes_nothing_outside(lab: Lab, way: str) -> None:
    async def scenario() -> None:
        worker = lab.worker()
        name = f"trace_{worker.registration.pid}.json.tmp"
        outside = lab.root / "outside"
        (outside / "main" / "0" / "empty").mkdir(parents=True)
        for folder in (outside, outside / "main", outside / "main" / "0"):
            (folder / name).write_text("precious")
        before = sorted(str(path) for path in outside.rglob("*"))
        async with lab.agent() as caller:
            capture = await caller.dispatch(worker)
            await caller.until_state(capture, worker, TargetState.QUEUED)
            folder = worker.output_folder(capture)
            if way == "a link to elsewhere":
                folder.rmdir()
                folder.symlink_to(outside)
            elif way == "a folder from elsewhere behind a link":
                folder.rmdir()
                folder.parent.rmdir()
                folder.parent.symlink_to(outside / "main")
            else:
                (folder / name).symlink_to(outside / name)
            worker.kill()
            await caller.until_failed(capture, worker)
            await until(lambda: not caller.agent._tasks, "the end of all cleaning up")
            [watched] = [
                caller.agent._watch(one, target) for one in caller.agent.book for target in one.targets.values()
            ]
            discard_leftover(watched)
            caller.agent._tidy(*next((one, target) for one in caller.agent.book for target in one.targets.values()))
        assert sorted(str(path) for path in outside.rglob("*")) == before
        assert all((outside / part / name).read_text() == "precious" for part in ("", "main", "main/0"))

    in_loop(scenario)()


@in_loop
async def test_a_captures_folder_that_leads_elsewhere_is_refused_before_dispatch(lab: Lab) -> None:
    worker = lab.worker()
    outside = lab.root / "outside"
    outside.mkdir()
    (lab.dir / "captures").symlink_to(outside)
    async with lab.agent() as caller:
        await caller.dispatch(worker)
        assert reason_of(caller.answer[worker.target_id]) is FailureReason.SPOOL_FAILED
        assert not list(outside.iterdir())
        assert not lab.daemon.asked


@in_loop
async def test_a_spool_on_another_mount_is_refused_before_dispatch(lab: Lab) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == lab.dir.stat().st_dev:
        pytest.skip("no second mount here")
    worker = lab.worker()
    spool = shm / lab.root.name
    try:
        async with lab.agent(spool=spool) as caller:
            await caller.dispatch(worker)
            fact = caller.answer[worker.target_id]
            assert reason_of(fact) is FailureReason.SPOOL_FAILED
            assert "different mounts" in detail_of(fact)
    finally:
        for path in sorted(spool.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        spool.rmdir()


# --- bytes ---------------------------------------------------------------------------------------------------

BROKEN = {
    "truncated_tail.json": FailureReason.INVALID,
    "empty.json": FailureReason.EMPTY,
    "brace_only.json": FailureReason.INVALID,
    "truncated.json.gz": FailureReason.INVALID,
    "bitflip.json.gz": FailureReason.INVALID,
    "two_members.json.gz": FailureReason.INVALID,
    "ctrl_char.json": FailureReason.INVALID,
    "bare_quote.json": FailureReason.INVALID,
    "invalid_utf8.json": FailureReason.INVALID,
    "nan.json": FailureReason.INVALID,
    "metadata_only.json": FailureReason.EMPTY,
    "no_events.json": FailureReason.EMPTY,
    "rank5_claims_rank0.json": FailureReason.WRONG_IDENTITY,
}
SOUND = ["ok.json", "ok.json.gz", "no_distinfo.json", "cpu_only.json", "list_form.json"]


def test_the_list_of_broken_and_sound_files_is_the_whole_folder(shared_data: Path) -> None:
    found = {path.name for path in (shared_data / "traces" / "broken").iterdir()}
    assert found == {*BROKEN, *SOUND}


@pytest.mark.parametrize("bound_by", ["path", "bytes"])
def test_every_broken_file_gets_its_reason_and_its_raw_bytes_are_archived(
    lab: Lab, shared_data: Path, bound_by: str
) -> None:
    async def scenario() -> None:
        rank = {"rank5_claims_rank0.json": 5}
        async with lab.agent() as caller:
            for name, reason in BROKEN.items():
                data = (shared_data / "traces" / "broken" / name).read_bytes()
                worker = lab.worker(rank=rank.get(name, 0), **({"job_name": "mine"} if bound_by == "path" else {}))
                if bound_by == "bytes":
                    data = with_job_name(data, worker.registration.uuid)
                capture = await caller.dispatch(worker)
                worker.write_trace(capture, data)
                fact = await caller.until_failed(capture, worker)
                assert reason_of(fact) is reason, f"{name}: {detail_of(fact)}"
                if reason is FailureReason.INVALID and name != "brace_only.json":  # what is not there is nowhere
                    assert "at byte" in detail_of(fact), f"{name}: {detail_of(fact)}"
                assert fact.failure is not None
                assert fact.failure.last_state is TargetState.ANNOUNCED
                raw = fact.failure.raw
                assert raw is not None, name
                stored = (lab.archive / JOB.path / capture / raw.uri).read_bytes()
                assert stored == data, name
                assert (raw.size, raw.sha256) == (len(data), hashlib.sha256(data).hexdigest())
                worker.close()

    in_loop(scenario)()


def test_sound_oddities_are_delivered(lab: Lab, shared_data: Path) -> None:
    async def scenario() -> None:
        async with lab.agent() as caller:
            for name in SOUND:
                worker = lab.worker(job_name="mine")
                capture = await caller.dispatch(worker)
                worker.write_trace(capture, (shared_data / "traces" / "broken" / name).read_bytes())
                await caller.until_archived(capture, worker)
                worker.close()

    in_loop(scenario)()


def with_job_name(data: bytes, uid: str) -> bytes:
    """The same bytes with our identity in them, as far as they have a place for it."""
    mark = f'"PT_PROFILER_JOB_NAME": "sameshot/{uid}", '.encode()
    if data[:2] == b"\x1f\x8b":
        return data  # damaged streams are judged before identity; a sound one is not in this list
    return data.replace(b"{", b"{" + mark, 1) if len(data) > 2 else data


@in_loop
async def test_swapping_the_files_of_two_ranks_is_wrong_identity_for_both(lab: Lab) -> None:
    one, two = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        capture = await caller.dispatch(one, two)
        one.write_trace(capture, trace_of(two.registration))
        two.write_trace(capture, trace_of(one.registration))
        for worker in (one, two):
            assert reason_of(await caller.until_failed(capture, worker)) is FailureReason.WRONG_IDENTITY


# --- the archive ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        make_bucket(url, "agents")
        yield url


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(endpoint, checks_digests=True) as proxy, s3_environment(proxy.url):
        yield proxy


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_ANSWER])
def test_a_passing_fault_of_the_store_is_survived(lab: Lab, proxy: FaultyProxy, endpoint: str, fault: Fault) -> None:
    async def scenario() -> None:
        proxy.add(fault, method="PUT", times=2)
        async with lab.agent(archive=f"s3://agents/{fault.name}") as caller:
            worker = lab.worker()
            capture = await caller.dispatch(worker)
            worker.write_trace(capture)
            fact = await caller.until_archived(capture, worker)
            assert proxy.count(fault=fault) == 2
            assert fact.artifact is not None
            key = f"{fault.name}/{JOB.path}/{capture}/{fact.artifact.uri}"
            body = s3_client(endpoint).get_object(Bucket="agents", Key=key)["Body"].read()
            assert gzip.decompress(body).startswith(b'{"schemaVersion"')

    in_loop(scenario)()


def test_a_slow_upload_outlasts_the_announce_deadline_without_becoming_missing(lab: Lab, proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        proxy.add(Fault.SLOW, method="PUT", delay_s=4)
        async with lab.agent(archive="s3://agents/slow") as caller:
            worker = lab.worker()
            capture = await caller.dispatch(worker, announce_timeout_ms=2500)
            worker.write_trace(capture)
            await caller.until_state(capture, worker, TargetState.VERIFIED)
            deadline = caller.agent.book.get(capture).record.announce_by_ns  # type: ignore[union-attr]
            await until(lambda: time.time_ns() > deadline, "the end of the announce deadline")
            assert (await caller.fact(capture, worker)).state is TargetState.VERIFIED
            await caller.until_archived(capture, worker)
            assert proxy.count(fault=Fault.SLOW) == 1

    in_loop(scenario)()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.DENIED])
def test_a_store_that_stays_down_is_archive_failed_and_the_bytes_are_kept_where_it_says(
    lab: Lab, proxy: FaultyProxy, fault: Fault
) -> None:
    async def scenario() -> None:
        proxy.add(fault, times=10_000)
        async with lab.agent(archive=f"s3://agents/down-{fault.name}", allowance_share=0.05) as caller:  # 3 s
            worker, broken = lab.worker(), lab.worker(rank=1, local_rank=1)
            capture = await caller.dispatch(worker, broken)
            worker.write_trace(capture)
            broken.write_trace(capture, b"{")
            fact = await caller.until_failed(capture, worker)
            assert reason_of(fact) is FailureReason.ARCHIVE_FAILED
            assert fact.failure is not None
            assert fact.failure.last_state is TargetState.VERIFIED
            [kept] = [path for path in lab.spool.rglob("raw.json") if str(path) in detail_of(fact)]
            assert kept.read_bytes()
            # A broken trace keeps its own reason; that its bytes are still on the node is said beside it.
            fact = await caller.until_failed(capture, broken)
            assert reason_of(fact) is FailureReason.INVALID
            assert fact.failure is not None
            assert fact.failure.raw is None
            [kept] = [path for path in lab.spool.rglob("raw.json") if str(path) in detail_of(fact)]
            assert kept.read_bytes() == b"{"

    in_loop(scenario)()


# As a file system whose server is dead: the call never comes back and can't be ended from outside.
_HANGS = """
import threading
import sameshot.storage.local as local
local._copy = lambda *_: threading.Event().wait()
"""


@in_loop
async def test_an_archive_that_hangs_takes_nothing_but_its_uploads_and_the_agent_ends_when_told(lab: Lab) -> None:
    workers = [lab.worker(rank=rank, local_rank=rank) for rank in range(3)]
    async with lab.process(prelude=_HANGS, allowance_share=0.05, uploads=3) as agent:  # 3 s
        async with agent.caller() as caller:
            capture = await caller.dispatch(*workers)
            for worker in workers:
                worker.write_trace(capture)
            for worker in workers:
                fact = await caller.until_failed(capture, worker)
                assert reason_of(fact) is FailureReason.ARCHIVE_FAILED
                assert "kept on the node" in detail_of(fact)
            await caller.dispatch(workers[0])
            assert not caller.answer[workers[0].target_id].state.terminal
        assert agent.terminate() == 0  # with three calls that never come back


@in_loop
async def test_a_manifest_is_published_once_and_only_where_it_belongs(lab: Lab) -> None:
    def manifest(capture_id: str, name: str = JOB.name, caller: str = "me") -> bytes:
        job = Job(JOB.namespace, name, JOB.uid, JOB.attempt)
        return encode(build(make_capture(capture_id=capture_id, caller=caller, job=job, world_size=1), [archived(0)]))

    async with lab.agent() as caller:
        lab.worker()
        capture = lab.capture_id()

        async def publish(data: bytes) -> pb.PublishManifestResponse:
            return await caller.stub.PublishManifest(
                pb.PublishManifestRequest(job=to_proto(JOB, pb.JobRef()), capture_id=capture, manifest=data)
            )

        for wrong in (manifest("e" * 32), manifest(capture, name="other"), b"{}", manifest(capture)[:-9]):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await publish(wrong)
            assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS)
        assert not lab.archive.exists()

        answer = await publish(manifest(capture))
        path = lab.archive / JOB.path / capture / "manifest.json"
        assert answer.uri == path.as_uri()
        assert not answer.already_there
        assert (await publish(manifest(capture))).already_there
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await publish(manifest(capture, caller="somebody else"))
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert path.read_bytes() == manifest(capture)
