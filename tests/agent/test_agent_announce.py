"""Announcing is O(files): whatever is being read elsewhere, a finished file is seen at the next look."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_lab import AWorker, Caller, Lab, in_loop, trace_of, until, write_large_trace

from sameshot.agent.announce import Announcer, Sight, Sighting, Watch
from sameshot.agent.config import AgentConfig
from sameshot.agent.discovery import FixedDirs
from sameshot.agent.journal import Journal
from sameshot.model import CaptureSpec, FailureReason, TargetFact, TargetState
from sameshot.profiler.daemon import TriggerStatus

ANNOUNCED_OR_LATER = (TargetState.ANNOUNCED, TargetState.VERIFIED, TargetState.ARCHIVED)


async def _order_of_events(lab: Lab, caller: Caller, large_size: int, small: int) -> None:
    """While one large trace is being read, `small` others appear one after the other."""
    reader = lab.worker(rank=0)
    others = [lab.worker(rank=rank, local_rank=rank) for rank in range(1, small + 1)]
    capture = await caller.dispatch(reader, *others, spec=CaptureSpec(duration_ms=1))
    large = lab.root / "large"
    write_large_trace(large, reader.registration, large_size)
    large.rename(reader.final_name(capture))
    await until(lambda: list(lab.spool.rglob("stored.*")), "a verification under way")
    placed: dict[str, int] = {}
    for worker in others:
        placed[worker.target_id] = caller.agent.announcer.looks
        worker.write_trace(capture)
        await caller.until_state(capture, worker, *ANNOUNCED_OR_LATER)
    entries = caller.agent.journal.entries()
    assert not [entry for entry in entries if (entry.event, entry.target_id) == ("read", reader.target_id)], (
        "the large trace was read too fast"
    )
    announced = {entry.target_id: entry for entry in entries if entry.event == "announced"}
    for worker in others:
        look = announced[worker.target_id].look
        assert look is not None
        # The look that was under way when the file got its name may have passed it; the next one may not.
        assert look - placed[worker.target_id] <= 2, (look, placed[worker.target_id])
    await caller.until_archived(capture, reader)
    for worker in others:
        await caller.until_archived(capture, worker)


@in_loop
async def test_a_large_trace_under_verification_delays_no_announcement(lab: Lab) -> None:
    async with lab.agent(announce_period_s=0.2) as caller:
        await _order_of_events(lab, caller, 200 << 20, small=3)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_gibibytes_under_verification_delay_no_announcement(lab: Lab) -> None:
    async def scenario() -> None:
        async with lab.agent(announce_period_s=0.2) as caller:
            await _order_of_events(lab, caller, 2 << 30, small=7)

    import asyncio

    asyncio.run(asyncio.wait_for(scenario(), 580))


@in_loop
async def test_small_traces_are_delivered_while_a_large_one_is_being_read(lab: Lab) -> None:
    """Their allowances are their own: with a single verifier they would expire behind a large file."""
    large, second, small = (lab.worker(rank=rank, local_rank=rank) for rank in range(3))
    async with lab.agent() as caller:
        capture = await caller.dispatch(large, second, small, spec=CaptureSpec(duration_ms=1))
        for worker, size in ((large, 200 << 20), (second, 40 << 20)):
            path = lab.root / "large"
            write_large_trace(path, worker.registration, size)
            path.rename(worker.final_name(capture))
            await caller.until_state(capture, worker, *ANNOUNCED_OR_LATER)
        small.write_trace(capture)
        for worker in (large, second, small):
            await caller.until_archived(capture, worker)
        order = [entry.target_id for entry in caller.agent.journal.entries() if entry.event == "read"]
        assert order == [small.target_id, large.target_id, second.target_id]


# --- one look ------------------------------------------------------------------------------------------------


def _watch(lab: Lab, worker: AWorker, give_up_at_ns: int = 2**62, announce_by_ns: int = 2**62) -> Watch:
    folder = worker.output_folder("c0")
    folder.mkdir(parents=True)
    lab.spool.mkdir(exist_ok=True)
    return Watch(
        capture_id="c0",
        target_id=worker.target_id,
        registration=worker.registration,
        root=lab.dir,
        parts=folder.relative_to(lab.dir).parts,
        file_name=worker.final_name("c0").name,
        uid=os.geteuid(),
        destination=lab.spool / "raw.json",
        announce_by_ns=min(announce_by_ns, give_up_at_ns),
        give_up_at_ns=give_up_at_ns,
    )


def _announcer(now_ns: int = 0) -> Announcer:
    return Announcer(0.1, lambda sighting: None, Journal(), clock=lambda: now_ns)


def test_a_dead_worker_gets_one_more_look_before_it_has_exited(lab: Lab) -> None:
    worker = lab.worker()
    announcer = _announcer()
    announcer.watch(_watch(lab, worker))
    assert announcer.look() == []
    worker.kill()
    assert announcer.look() == []
    worker.write_trace("c0")  # finished between our look at the folder and its end
    assert [sighting.sight for sighting in announcer.look()] == [Sight.ANNOUNCED]

    second = lab.worker(local_rank=1, rank=1)
    announcer.watch(_watch(lab, second))
    second.kill()
    assert announcer.look() == []
    assert [sighting.sight for sighting in announcer.look()] == [Sight.EXITED]
    assert announcer.look() == []


def test_a_file_that_is_there_counts_even_after_the_deadline(lab: Lab) -> None:
    worker = lab.worker()
    late = _announcer(now_ns=100)
    late.watch(_watch(lab, worker, give_up_at_ns=50))
    worker.write_trace("c0")
    assert [sighting.sight for sighting in late.look()] == [Sight.ANNOUNCED]


def test_a_look_that_fails_does_not_end_the_looking(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full spool may be mended: the file stays where it is and is taken later."""
    worker = lab.worker()
    announcer = _announcer()
    announcer.watch(_watch(lab, worker))
    worker.write_trace("c0")
    real = os.rename

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    [sighting] = announcer.look()
    assert sighting.sight is Sight.HINDERED  # said at once
    assert "appeared but can't be moved into the spool: No space left on device" in sighting.detail
    worker.kill()
    assert announcer.look() == announcer.look() == []  # said once, nor is a dead worker's finished file given up
    monkeypatch.setattr(os, "rename", real)
    assert [sighting.sight for sighting in announcer.look()] == [Sight.ANNOUNCED]


def test_a_file_that_can_not_be_taken_is_given_up_at_the_announce_deadline_and_not_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator decides right after it; a late look is for files that nobody has seen yet."""
    stuck, unseen = lab.worker(), lab.worker(rank=1, local_rank=1)
    now = [0]
    announcer = Announcer(0.1, lambda sighting: None, Journal(), clock=lambda: now[0])
    for worker in (stuck, unseen):
        announcer.watch(_watch(lab, worker, announce_by_ns=50, give_up_at_ns=100))
    stuck.write_trace("c0")
    monkeypatch.setattr(os, "rename", _refusing(errno.EROFS))
    assert [sighting.sight for sighting in announcer.look()] == [Sight.HINDERED]
    now[0] = 50
    assert announcer.look() == []
    now[0] = 51
    [sighting] = announcer.look()
    assert (sighting.sight, sighting.watch.target_id) == (Sight.STUCK, stuck.target_id)
    assert stuck.final_name("c0").exists()
    now[0] = 101
    [sighting] = announcer.look()
    assert (sighting.sight, sighting.watch.target_id) == (Sight.GAVE_UP, unseen.target_id)


def test_a_spool_that_is_gone_is_no_missing_file(lab: Lab) -> None:
    worker = lab.worker()
    announcer = _announcer()
    watch = _watch(lab, worker)
    announcer.watch(watch)
    worker.write_trace("c0")
    lab.spool.rmdir()
    [sighting] = announcer.look()
    assert (sighting.sight, sighting.size) == (Sight.HINDERED, worker.final_name("c0").stat().st_size)
    lab.spool.mkdir()
    assert [sighting.sight for sighting in announcer.look()] == [Sight.ANNOUNCED]


def test_a_folder_that_can_not_be_looked_into_says_nothing_about_the_file(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = lab.worker()
    announcer = _announcer()
    announcer.watch(_watch(lab, worker))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _refusing(errno.EIO))
        [sighting] = announcer.look()
    assert (sighting.sight, sighting.size) == (Sight.HINDERED, None)
    assert "can't be looked into" in sighting.detail
    assert "appeared" not in sighting.detail
    [sighting] = announcer.look()
    assert (sighting.sight, sighting.detail) == (Sight.HINDERED, "")  # over
    assert announcer.look() == []


def _refusing(code: int) -> Callable[..., None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@in_loop
async def test_a_file_that_can_not_be_taken_is_named_at_once_and_decided_in_time(lab: Lab) -> None:
    """With the default late look, which is much longer than a coordinator waits for the agent's own verdict."""
    worker = lab.worker()
    late_look_s = AgentConfig(node="", worker_dirs=FixedDirs(), spool=lab.spool, archive="").late_look_s
    lab.daemon.statuses[worker.target_id] = TriggerStatus.CONSUMED
    async with lab.agent(late_look_s=late_look_s) as caller:
        capture = await caller.dispatch(worker, announce_timeout_ms=6000)
        await caller.until_state(capture, worker, TargetState.CONSUMED)
        record = caller.agent.book.get(capture).record  # type: ignore[union-attr]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "rename", _refusing(errno.EROFS))
            final = worker.write_trace(capture, elsewhere=True)
            fact = await until(lambda: _noted(caller, capture, worker), "a note")
            assert fact.state is TargetState.CONSUMED
            assert "Read-only file system" in fact.note
            rounds = caller.agent.announcer.looks + 20  # the daemon's answers, which know less, don't replace it
            await until(lambda: caller.agent.announcer.looks > rounds, "looks")
            fact = await caller.fact(capture, worker)
            assert fact.state is TargetState.FAILED or "Read-only file system" in fact.note
            fact = await caller.until_failed(capture, worker)
            assert time.time_ns() < record.announce_by_ns + int(late_look_s * 1e9)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.SPOOL_FAILED
        assert str(final) in fact.failure.detail
        assert final.exists()
        assert (capture, worker.target_id) in lab.daemon.withdrawn  # its window is over: nobody offers it once more


async def _noted(caller: Caller, capture: str, worker: AWorker) -> TargetFact | None:
    fact = await caller.fact(capture, worker)
    return fact if "moved" in fact.note else None


def test_a_file_exchanged_while_it_is_taken_does_not_pass_for_a_trace(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = lab.worker()
    announcer = _announcer()
    watch = _watch(lab, worker)
    announcer.watch(watch)
    final = worker.write_trace("c0")
    secret = lab.root / "secret"
    secret.write_text("secret")
    real = os.rename

    def exchanged(*args: object, **kwargs: object) -> None:
        if final.exists() and not final.is_symlink():
            final.unlink()
            final.symlink_to(secret)
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", exchanged)
    [sighting] = announcer.look()
    assert sighting.sight is Sight.UNSAFE
    assert not watch.destination.exists()
    assert secret.read_text() == "secret"


def test_a_forgotten_target_is_not_looked_at(lab: Lab) -> None:
    worker = lab.worker()
    announcer = _announcer()
    announcer.watch(_watch(lab, worker))
    announcer.forget("c0", worker.target_id)
    final = worker.write_trace("c0")
    found: list[Sighting] = announcer.look()
    assert found == []
    assert final.exists()


# --- a full disk ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    at.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def test_a_full_node_is_archive_failed_with_the_bytes_kept_and_room_lets_it_go_on(lab: Lab) -> None:
    async def scenario() -> None:
        node = lab.root / "disk"
        with small_disk(node, "16m"):
            lab.dir, lab.spool = node / "n0", node / "spool"
            lab.dir.mkdir()
            failing, lucky = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
            ballast = node / "ballast"
            async with lab.agent(free=lambda path: 1 << 40, allowance_share=0.05) as caller:  # 3 s
                capture = await caller.dispatch(failing, spec=CaptureSpec(duration_ms=1))
                failing.write_trace(capture, trace_of(failing.registration, filler=os.urandom(1 << 20).hex()))
                fill(ballast)
                fact = await caller.until_failed(capture, failing)
                assert fact.failure is not None
                assert fact.failure.reason is FailureReason.ARCHIVE_FAILED
                assert "full" in fact.failure.detail
                [kept] = lab.spool.rglob("raw.json")
                assert str(kept) in fact.failure.detail
                assert len(kept.read_bytes()) > 2 << 20
                # What can't be written down is not accepted.
                ballast.unlink()
                fill(ballast)
                await caller.dispatch(lucky, spec=CaptureSpec(duration_ms=1))
                refused = caller.answer[lucky.target_id].failure
                assert refused is not None
                assert refused.reason is FailureReason.NO_ROOM
            async with lab.agent(free=lambda path: 1 << 40) as caller:
                ballast.unlink()
                capture = await caller.dispatch(lucky, spec=CaptureSpec(duration_ms=1))
                lucky.write_trace(capture, trace_of(lucky.registration, filler=os.urandom(1 << 20).hex()))
                fill(ballast)
                fact = await until(lambda: _waits_for_room(caller, capture, lucky), "the wait for room")
                ballast.unlink()
                archived = await caller.until_archived(capture, lucky)
                assert archived.artifact is not None
                assert archived.artifact.columns is None, "a disk that was full is for traces first"

    in_loop(scenario)()


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def _waits_for_room(caller: Caller, capture: str, worker: AWorker) -> bool:
    return "room" in (await caller.fact(capture, worker)).note
