"""An agent that is killed at any point goes on where it was: everything is on disk or can be seen again."""

from __future__ import annotations

import msgspec
import psutil
import pytest
from agent_lab import JOB, Caller, Lab, in_loop, trace_of, until, write_large_trace

from sameshot.agent import capturebook, verifypool
from sameshot.agent.agent import Agent
from sameshot.agent.capturebook import Status
from sameshot.agent.verifypool import VerifyPool
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.errors import Unreachable, UsageError
from sameshot.model import FailureReason, TargetState
from sameshot.profiler.daemon import BackendName, TriggerStatus


@in_loop
async def test_an_agent_killed_while_verifying_goes_on_when_it_is_back(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.process() as agent:
        async with agent.caller() as caller:
            capture = await caller.dispatch(worker)
            large = lab.root / "large"
            write_large_trace(large, worker.registration, 200 << 20)
            size = large.stat().st_size
            large.rename(worker.final_name(capture))
            await until(lambda: list(lab.spool.rglob("stored.*")), "a verification under way")
            fact = await caller.fact(capture, worker)
            assert (fact.state, fact.announced_bytes) == (TargetState.ANNOUNCED, size)
            verifiers = agent.verifiers()
            assert verifiers
        for each in verifiers:
            each.suspend()  # it can neither finish nor see that its input ended
        agent.kill()
        # Nobody may go on writing into the spool that the next agent owns.
        await until(lambda: not any(_runs(each) for each in verifiers), "the end of the verifiers")
        await agent.start()
        async with agent.caller() as caller:
            fact = await caller.until_archived(capture, worker)
            assert fact.artifact is not None
            assert fact.artifact.raw_size == size
            await until(lambda: not list(lab.spool.rglob("stored*")), "an empty spool")


@in_loop
async def test_an_agent_that_was_told_to_end_leaves_cleanly_and_goes_on_later(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.process() as agent:
        async with agent.caller() as caller:
            capture = await caller.dispatch(worker)
        assert agent.terminate() == 0
        worker.write_trace(capture)  # nobody is there to see it
        await agent.start()
        async with agent.caller() as caller:
            await caller.until_archived(capture, worker)


@in_loop
async def test_two_agents_never_share_a_spool(lab: Lab) -> None:
    async with lab.process() as agent:
        second = Agent(lab.config(), make_daemon=lambda where: lab.daemon)
        with pytest.raises(UsageError, match="already uses the spool"):
            await second.start()
        agent.kill()
        third = Agent(lab.config(), make_daemon=lambda where: lab.daemon)
        await third.start()
        await third.close()


@in_loop
async def test_a_config_that_died_with_the_broker_is_asked_for_again_and_a_fetched_one_is_not(lab: Lab) -> None:
    queued, fetched = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    lab.daemon.statuses[fetched.target_id] = TriggerStatus.CONSUMED
    async with lab.agent() as caller:
        capture = await caller.dispatch(queued, fetched)
        await caller.until_state(capture, queued, TargetState.QUEUED)
        await caller.until_state(capture, fetched, TargetState.CONSUMED)
        await until(lambda: _on_disk(lab) == {"QUEUED", "CONSUMED"}, "both on disk")
    lab.daemon.held.clear()
    lab.daemon.asked.clear()
    async with lab.agent() as caller:
        await until(lambda: lab.daemon.asked, "a second request")
        looks = caller.agent.announcer.looks
        await until(lambda: caller.agent.announcer.looks > looks + 5, "looks")
        assert {request.target_id for request in lab.daemon.asked} == {queued.target_id}
        for worker in (queued, fetched):
            worker.write_trace(capture)
            await caller.until_archived(capture, worker)


@in_loop
async def test_a_stock_daemon_outlives_the_agent_and_is_not_asked_twice(lab: Lab) -> None:
    worker = lab.worker()
    lab.daemon.name = BackendName.DYNOLOG
    async with lab.agent(backend=BackendName.DYNOLOG) as caller:
        capture = await caller.dispatch(worker)
        await until(lambda: _on_disk(lab) == {"QUEUED"}, "QUEUED on disk")
    lab.daemon.held.clear()
    async with lab.agent(backend=BackendName.DYNOLOG) as caller:
        await until(lambda: caller.agent.announcer.looks > 5, "looks")
        assert len(lab.daemon.asked) == 1
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)


@in_loop
async def test_a_cancel_that_its_daemon_never_heard_of_holds_after_a_restart(lab: Lab) -> None:
    queued, fetched = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    lab.daemon.statuses[fetched.target_id] = TriggerStatus.CONSUMED
    async with lab.agent() as caller:
        capture = await caller.dispatch(queued, fetched)
        await caller.until_state(capture, queued, TargetState.QUEUED)
        await caller.until_state(capture, fetched, TargetState.CONSUMED)
        await until(lambda: _on_disk(lab) == {"QUEUED", "CONSUMED"}, "both on disk")
        lab.daemon.silent = Unreachable("nobody home")
        await caller.agent.withdraw(caller.agent.book.get(capture), "enough")
        assert not (await caller.fact(capture, queued)).state.terminal  # nobody knows whether it was taken back
    lab.daemon.silent = None
    lab.daemon.held.clear()
    lab.daemon.asked.clear()
    lab.daemon.statuses.clear()  # a new broker remembers nothing, not even a fetch
    async with lab.agent() as caller:
        fact = await caller.until_failed(capture, queued)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.CANCELLED
        looks = caller.agent.announcer.looks
        await until(lambda: caller.agent.announcer.looks > looks + 5, "looks")
        assert not lab.daemon.asked
        fetched.write_trace(capture)
        await caller.until_archived(capture, fetched)


@in_loop
async def test_a_cancelled_target_that_waits_for_a_stock_daemon_is_not_asked_for_again(lab: Lab) -> None:
    worker = lab.worker()
    lab.daemon.name = BackendName.DYNOLOG
    async with lab.agent(backend=BackendName.DYNOLOG) as caller:
        capture = await caller.dispatch(worker)
        await caller.until_state(capture, worker, TargetState.QUEUED)
        await caller.agent.withdraw(caller.agent.book.get(capture), "enough")
        lab.daemon.statuses[worker.target_id] = TriggerStatus.BUSY  # as if it had forgotten
        looks, asked = caller.agent.announcer.looks, len(lab.daemon.asked)
        await until(lambda: caller.agent.announcer.looks > looks + 5, "looks")
        assert len(lab.daemon.asked) == asked
        assert (await caller.fact(capture, worker)).state is TargetState.QUEUED


@pytest.mark.parametrize("damage", ["older", "garbage", "gone"])
def test_a_trace_in_the_spool_counts_even_where_its_status_is_lost(lab: Lab, damage: str) -> None:
    async def scenario() -> None:
        worker = lab.worker()
        async with lab.agent() as caller:
            capture = await caller.dispatch(worker)
            await caller.until_state(capture, worker, TargetState.QUEUED)
        [status] = lab.spool.rglob("status.json")
        raw = status.with_name("raw.json")
        raw.write_bytes(trace_of(worker.registration))  # moved there, and then the power went
        if damage == "garbage":
            status.write_bytes(b"\0" * 100)
        elif damage == "gone":
            status.unlink()
        worker.kill()
        async with lab.agent() as caller:
            fact = await caller.until_archived(capture, worker)
            assert fact.identity == worker.registration.identity

    in_loop(scenario)()


@in_loop
async def test_what_was_verified_is_uploaded_without_being_read_again(lab: Lab) -> None:
    worker = lab.worker()
    lab.archive.write_text("a file where the archive's folder should be")
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture)
        await caller.until_state(capture, worker, TargetState.VERIFIED)
    [status] = lab.spool.rglob("status.json")
    assert msgspec.json.decode(status.read_bytes(), type=Status).verified is not None
    lab.archive.unlink()
    async with lab.agent() as caller:
        await caller.until_archived(capture, worker)
        assert [entry.event for entry in caller.agent.journal.entries()].count("verified") == 1
        assert not caller.agent.pool.pids


@in_loop
async def test_terminal_facts_stay_what_they_are(lab: Lab) -> None:
    good, bad = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        capture = await caller.dispatch(good, bad)
        good.write_trace(capture)
        bad.write_trace(capture, b"{")
        before = [await caller.until_archived(capture, good), await caller.until_failed(capture, bad)]
    async with lab.agent() as caller:
        assert [await caller.fact(capture, worker) for worker in (good, bad)] == before


@in_loop
async def test_a_damaged_record_harms_no_other_capture(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        first = await caller.dispatch(worker)
        second = await caller.dispatch(worker)
    (lab.spool / "captures" / first / "capture.json").write_text("{")
    (lab.spool / "captures" / "stray").write_text("")
    async with lab.agent() as caller:
        assert await caller.facts(first) == {}
        worker.write_trace(second)
        await caller.until_archived(second, worker)


# --- what is kept -------------------------------------------------------------------------------------------------


@in_loop
async def test_old_settled_captures_are_forgotten_but_never_their_bytes_nor_young_ones(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturebook, "KEEP_SETTLED", 1)
    worker = lab.worker()
    async with lab.agent() as caller:

        async def settled(data: bytes | None = None) -> str:
            capture = await caller.dispatch(worker)
            worker.write_trace(capture, data)
            await caller.until_state(capture, worker, TargetState.ARCHIVED, TargetState.FAILED)
            await until(lambda: not caller.agent.delivery._tasks, "the end of the delivery")
            return capture

        delivered = await settled()
        lab.archive.rename(lab.root / "away")
        lab.archive.write_text("a file where the archive's folder should be")
        caller.agent.delivery._allowance_share = 0.02
        failed = await settled()  # with its bytes still here
        lab.archive.unlink()
        newest = await settled()
        waiting = await caller.dispatch(worker)
        folders = {each: lab.spool / "captures" / each for each in (delivered, failed, newest, waiting)}
        assert all(folder.exists() for folder in folders.values())  # they are young

        monkeypatch.setattr(capturebook, "KEEP_ALL_NS", 0)
        latest = await caller.dispatch(worker)  # any dispatch clears up
        assert {each for each, folder in folders.items() if folder.exists()} == {failed, newest, waiting}
        assert list(folders[failed].rglob("raw.json"))
        assert await _known(caller, delivered, failed, newest, waiting, latest) == {failed, newest, waiting, latest}
        assert {one.id for one in caller.agent.book.unsettled()} == {waiting, latest}
    async with lab.agent() as caller:  # nor does a restart bring it back
        assert await _known(caller, delivered, failed, newest, waiting) == {failed, newest, waiting}


async def _known(caller: Caller, *captures: str) -> set[str]:
    asked = pb.KnownCapturesRequest(job=to_proto(JOB, pb.JobRef()), capture_ids=captures)
    return set((await caller.stub.KnownCaptures(asked)).capture_ids)


# --- the verifying processes -----------------------------------------------------------------------------------


@in_loop
async def test_a_verifier_that_is_killed_is_replaced_and_its_file_read_again(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        large = lab.root / "large"
        write_large_trace(large, worker.registration, 100 << 20)
        large.rename(worker.final_name(capture))
        await until(lambda: list(lab.spool.rglob("stored.*")), "a verification under way")
        [scratch] = lab.spool.rglob("stored.*")
        pid = int(scratch.suffix[1:])
        assert pid in caller.agent.pool.pids
        psutil.Process(pid).kill()
        await caller.until_archived(capture, worker)
        assert pid not in caller.agent.pool.pids
        await until(lambda: not list(lab.spool.rglob("stored*")), "a clean spool")


@in_loop
async def test_a_file_that_brings_every_verifier_down_fails_with_its_bytes_archived(lab: Lab) -> None:
    bad, good = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        pool = VerifyPool(1, 0, command=("/bin/sh", "-c", "read job; kill -9 $$"))
        pool.start()
        caller.agent.delivery._pool, healthy = pool, caller.agent.delivery._pool
        capture = await caller.dispatch(bad, good)
        data = trace_of(bad.registration)
        bad.write_trace(capture, data)
        fact = await caller.until_failed(capture, bad)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.VERIFY_FAILED
        assert "SIGKILL" in fact.failure.detail
        assert fact.failure.raw is not None
        assert (lab.archive / JOB.path / capture / fact.failure.raw.uri).read_bytes() == data
        caller.agent.delivery._pool = healthy
        good.write_trace(capture)
        await caller.until_archived(capture, good)
        await pool.close()


@in_loop
async def test_a_verification_that_nobody_waits_for_is_ended(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent(allowance_share=0.03) as caller:  # 2 s
        capture = await caller.dispatch(worker)
        large = lab.root / "large"
        write_large_trace(large, worker.registration, 300 << 20)
        await caller.agent.pool.warm()
        [reader] = [psutil.Process(pid) for pid in caller.agent.pool.pids]
        reader.suspend()  # however fast this machine is
        large.rename(worker.final_name(capture))
        await until(lambda: caller.agent.pool._regular[0].reading, "a reading under way")
        fact = await caller.until_failed(capture, worker)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.VERIFY_TIMEOUT
        [raw] = lab.spool.rglob("raw.json")
        assert str(raw) in fact.failure.detail
        # Well before the end that an idle process would come to by itself.
        await until(lambda: not _runs(reader), "the end of the process that read", verifypool.IDLE_S / 2)
        assert not list(lab.spool.rglob("stored*"))
        assert raw.exists()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _on_disk(lab: Lab) -> set[str]:
    return {
        msgspec.json.decode(path.read_bytes(), type=Status).fact.state.name for path in lab.spool.rglob("status.json")
    }
