"""One capture on one node, from the request to the archive."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import json
import time

import grpc
import pytest
from agent_lab import JOB, SPEC, Lab, in_loop, slow_disk, trace_of, until

from sameshot.agent import safefs
from sameshot.agent.dispatch import MAX_CANCELLED_EARLY
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.model import CaptureSpec, Encoding, FailureReason, JobRef, TargetState
from sameshot.profiler.daemon import BackendName, TriggerStatus


@in_loop
async def test_a_trace_goes_from_its_final_name_to_the_archive_and_leaves_the_node(lab: Lab) -> None:
    worker = lab.worker(rank=3)
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        assert caller.answer[worker.target_id].state >= TargetState.DISPATCHED
        queued = await caller.until_state(capture, worker, TargetState.QUEUED)
        assert queued.identity == worker.registration.identity
        request = lab.daemon.asked[0]
        assert (request.pid, request.kineto_job_id) == (worker.registration.pid, 7)
        assert request.output_path == str(worker.output_folder(capture) / "trace.json")

        final = worker.write_trace(capture)
        fact = await caller.until_archived(capture, worker)

        artifact = fact.artifact
        assert artifact is not None
        assert artifact.encoding is Encoding.GZIP
        stored = lab.archive / JOB.path / capture / artifact.uri
        assert artifact.uri == f"rank-3-{worker.registration.uuid[:8]}/trace.json.gz"
        assert (len(stored.read_bytes()), hashlib.sha256(stored.read_bytes()).hexdigest()) == (
            artifact.size,
            artifact.sha256,
        )
        raw = gzip.decompress(stored.read_bytes())
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (artifact.raw_size, artifact.raw_sha256)
        assert fact.announced_bytes == len(raw)
        assert not final.exists()
        await until(
            lambda: not any(p.name in ("raw.json", "stored", "columns") for p in lab.spool.rglob("*")), "an empty spool"
        )
        assert not list((lab.dir / "captures").iterdir())


@in_loop
async def test_two_workers_that_claim_one_rank_have_two_objects_in_the_archive(lab: Lab) -> None:
    """As on two nodes: the receipt of each must stay true whoever uploads last."""
    one, other = lab.worker(rank=1), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        capture = await caller.dispatch(one, other)
        for worker in (one, other):
            worker.write_trace(capture)
            await caller.until_archived(capture, worker)
        for worker in (one, other):
            artifact = (await caller.fact(capture, worker)).artifact
            assert artifact is not None
            stored = (lab.archive / JOB.path / capture / artifact.uri).read_bytes()
            assert hashlib.sha256(stored).hexdigest() == artifact.sha256
            assert worker.registration.uuid.encode() in gzip.decompress(stored)


@in_loop
async def test_only_the_final_name_with_the_workers_own_pid_is_taken(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        folder = worker.output_folder(capture)
        others = [folder / f"trace_{worker.registration.pid + 1}.json", folder / "trace.json", folder / "x.json.tmp"]
        for other in others:
            other.write_bytes(trace_of(worker.registration))
        looks = caller.agent.announcer.looks
        await until(lambda: caller.agent.announcer.looks > looks + 2, "more looks")
        assert (await caller.fact(capture, worker)).state < TargetState.ANNOUNCED
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)
        assert all(other.exists() for other in others)


@in_loop
async def test_repeating_a_dispatch_changes_nothing(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        await caller.until_state(capture, worker, TargetState.QUEUED)
        await caller.dispatch(worker, capture_id=capture)
        worker.write_trace(capture)
        done = await caller.until_archived(capture, worker)
        await caller.dispatch(worker, capture_id=capture)
        assert caller.answer[worker.target_id] == done
        assert len(lab.daemon.asked) == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.dispatch(worker, capture_id=capture, spec=CaptureSpec(duration_ms=999))
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS


@in_loop
async def test_waiting_for_the_profiler_says_for_what_and_goes_on_when_it_is_free(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        for status in (TriggerStatus.NOT_MATCHED, TriggerStatus.BUSY):
            lab.daemon.statuses[worker.target_id] = status
            capture = await caller.dispatch(worker)
            fact = await until(lambda c=capture: _noted(caller, c, worker), "a note")
            assert (fact.state, fact.note) == (TargetState.DISPATCHED, status.value)
            lab.daemon.statuses[worker.target_id] = TriggerStatus.CONSUMED
            fact = await caller.until_state(capture, worker, TargetState.CONSUMED)
            assert fact.note == ""
            worker.write_trace(capture)
            await caller.until_archived(capture, worker)


@in_loop
async def test_stock_dynolog_never_claims_that_a_config_was_fetched(lab: Lab) -> None:
    worker = lab.worker()
    lab.daemon.name = BackendName.DYNOLOG
    lab.daemon.statuses[worker.target_id] = TriggerStatus.CONSUMED
    async with lab.agent(backend=BackendName.DYNOLOG) as caller:
        capture = await caller.dispatch(worker)
        await caller.until_state(capture, worker, TargetState.QUEUED)
        asked = len(lab.daemon.asked)
        await until(lambda: caller.agent.announcer.looks > 10, "looks")
        assert (await caller.fact(capture, worker)).state is TargetState.QUEUED
        assert len(lab.daemon.asked) == asked


@in_loop
async def test_a_stock_daemon_is_asked_again_once_the_start_is_past_where_kineto_has_begun_no_file(lab: Lab) -> None:
    """What it held is gone after its restart, and no answer of it says so."""
    lost, accepted = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    lab.daemon.name = BackendName.DYNOLOG

    def again() -> list[tuple[str, str]]:
        return [(each.capture_id, each.target_id) for each in lab.daemon.asked if each.again]

    async with lab.agent(backend=BackendName.DYNOLOG) as caller:
        ahead = await caller.dispatch(lost, start_at_ns=time.time_ns() + 60 * 1_000_000_000)
        begun = await caller.dispatch(lost, accepted)
        accepted.final_name(begun).with_suffix(".json.tmp").touch()
        await caller.until_state(begun, lost, TargetState.QUEUED)
        await until(lambda: again().count((begun, lost.target_id)) > 2, "asked again")
        at_first = len(again())
        await until(lambda: len(again()) > at_first + 2, "asked again some more")
        assert (ahead, lost.target_id) not in again()
        assert set(again()[at_first:]) == {(begun, lost.target_id)}
        await caller.withdraw(begun)
        asked = len(again())
        looks = caller.agent.announcer.looks
        await until(lambda: caller.agent.announcer.looks > looks + 10, "looks")
        assert len(again()) <= asked + 1  # one may have been on its way


@in_loop
async def test_whether_a_start_was_late_is_read_from_the_trace_whatever_the_back_end_expected(lab: Lab) -> None:
    worker = lab.worker()
    start = time.time_ns()
    cases = [(None, 0, False), (None, 400_000_000, True), (False, 400_000_000, True), (True, 0, False)]
    async with lab.agent() as caller:
        for told, begins_after, expected in cases:
            lab.daemon.late = {} if told is None else {worker.target_id: told}
            capture = await caller.dispatch(worker, start_at_ns=start)
            await caller.until_state(capture, worker, TargetState.QUEUED)
            worker.write_trace(capture, trace_of(worker.registration, start_ns=start + begins_after))
            fact = await caller.until_archived(capture, worker)
            assert fact.late_start is expected
            assert fact.artifact is not None
            assert fact.artifact.late_start is expected


@in_loop
async def test_a_silent_daemon_is_named_and_asked_again(lab: Lab) -> None:
    from sameshot.errors import Unreachable

    worker = lab.worker()
    lab.daemon.silent = Unreachable("nobody home")
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        fact = await until(lambda: _noted(caller, capture, worker), "a note")
        assert "nobody home" in fact.note
        assert fact.state is TargetState.DISPATCHED
        lab.daemon.silent = None
        await caller.until_state(capture, worker, TargetState.QUEUED)


@in_loop
async def test_no_file_by_the_deadline_is_missing_and_a_daemon_that_never_matched_is_named(lab: Lab) -> None:
    queued, unmatched = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    lab.daemon.statuses[unmatched.target_id] = TriggerStatus.NOT_MATCHED
    async with lab.agent() as caller:
        capture = await caller.dispatch(queued, unmatched, announce_timeout_ms=1500)
        first = await caller.until_failed(capture, queued)
        second = await caller.until_failed(capture, unmatched)
        assert first.failure is not None
        assert second.failure is not None
        assert (first.failure.reason, first.failure.last_state) == (FailureReason.MISSING, TargetState.QUEUED)
        assert second.failure.reason is FailureReason.NOT_MATCHED


@in_loop
async def test_cancelling_takes_back_what_was_not_fetched_and_says_what_can_not_be(lab: Lab) -> None:
    queued, fetched = lab.worker(rank=0), lab.worker(rank=1, local_rank=1)
    lab.daemon.statuses[fetched.target_id] = TriggerStatus.CONSUMED
    async with lab.agent() as caller:
        capture = await caller.dispatch(queued, fetched)
        await caller.until_state(capture, queued, TargetState.QUEUED)
        await caller.until_state(capture, fetched, TargetState.CONSUMED)
        await caller.stub.Withdraw(
            pb.WithdrawRequest(job=to_proto(JOB, pb.JobRef()), capture_id=capture, reason="no need")
        )
        fact = await caller.until_failed(capture, queued)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.CANCELLED
        looks = caller.agent.announcer.looks
        await until(lambda: caller.agent.announcer.looks > looks + 5, "more answers of the daemon")
        still = await caller.fact(capture, fetched)
        assert still.state is TargetState.CONSUMED
        assert "can't be taken back" in still.note
        fetched.write_trace(capture)
        await caller.until_archived(capture, fetched)


@in_loop
async def test_a_cancel_that_overtakes_its_dispatch_still_holds(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = lab.capture_id()
        answer = await caller.stub.Withdraw(
            pb.WithdrawRequest(job=to_proto(JOB, pb.JobRef()), capture_id=capture, reason="too late")
        )
        assert not answer.known
        await caller.dispatch(worker, capture_id=capture)
        failure = caller.answer[worker.target_id].failure
        assert failure is not None
        assert failure.reason is FailureReason.CANCELLED
        assert not lab.daemon.asked


@in_loop
async def test_a_cancel_that_comes_while_the_dispatch_is_being_written_still_holds(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        with slow_disk(caller.agent) as disk:
            dispatch = asyncio.create_task(caller.dispatch(worker, capture_id="c" * 32))
            await until(lambda: disk.waiting, "a write under way")
            await caller.withdraw("c" * 32)
            disk.go_on()
            await dispatch
        fact = await caller.until_failed("c" * 32, worker)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.CANCELLED
        assert not lab.daemon.asked


@in_loop
async def test_of_too_many_early_cancels_the_oldest_are_forgotten(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        for n in range(MAX_CANCELLED_EARLY + 1):
            caller.agent.dispatch.cancel_early(JOB, f"{n:032x}", "no need")
        await caller.dispatch(worker, capture_id=f"{0:032x}")
        assert not caller.answer[worker.target_id].state.terminal
        await caller.dispatch(worker, capture_id=f"{MAX_CANCELLED_EARLY:032x}")
        failure = caller.answer[worker.target_id].failure
        assert failure is not None
        assert failure.reason is FailureReason.CANCELLED


@in_loop
async def test_a_dispatch_whose_caller_gave_up_is_written_once_and_its_repetition_shares_it(lab: Lab) -> None:
    """A slow disk: the handler ends with its caller's deadline, the thread that writes does not."""
    worker = lab.worker()
    capture = lab.capture_id()
    start = time.time_ns()
    async with lab.agent() as caller:
        with slow_disk(caller.agent) as disk:
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await caller.dispatch(worker, capture_id=capture, start_at_ns=start, deadline_s=1.0)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: disk.waiting, "a write under way")
            again = asyncio.create_task(caller.dispatch(worker, capture_id=capture, start_at_ns=start))
            other = asyncio.create_task(caller.dispatch(worker, capture_id=capture))  # not even the same request
            looks = caller.agent.announcer.looks
            await until(lambda: caller.agent.announcer.looks > looks + 5, "time for both")
            assert (disk.most_at_once, disk.writes) == (1, 1)
            assert not lab.daemon.asked
            disk.go_on()
            await asyncio.gather(again, other)
        assert caller.answer[worker.target_id].state >= TargetState.DISPATCHED
        assert not caller.answer[worker.target_id].state.terminal
        assert disk.writes == 1
        await caller.until_state(capture, worker, TargetState.QUEUED)
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)


@in_loop
async def test_a_dispatch_whose_caller_gave_up_is_followed_although_nobody_repeats_it(lab: Lab) -> None:
    worker = lab.worker()
    capture = lab.capture_id()
    async with lab.agent() as caller:
        with slow_disk(caller.agent) as disk:
            with pytest.raises(grpc.aio.AioRpcError):
                await caller.dispatch(worker, capture_id=capture, deadline_s=1.0)
            await until(lambda: disk.waiting, "a write under way")
            disk.go_on()
        await until(lambda: lab.daemon.asked, "a request to the daemon")


@in_loop
async def test_a_cancel_whose_caller_gave_up_is_carried_out(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        await caller.until_state(capture, worker, TargetState.QUEUED)
        with slow_disk(caller.agent) as disk:
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await caller.withdraw(capture, deadline_s=1.0)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert lab.daemon.withdrawn == [(capture, worker.target_id)]  # the disk did not stand before it
            await until(lambda: disk.waiting, "a write under way")
            disk.go_on()
            await until(
                lambda: b'"withdrawn":"no need"' in (lab.spool / "captures" / capture / "capture.json").read_bytes(),
                "the cancel on disk",
            )


@in_loop
async def test_one_worker_can_be_taken_back_while_its_neighbour_goes_on(lab: Lab) -> None:
    kept, left_out = lab.worker(rank=0, local_rank=0), lab.worker(rank=1, local_rank=1)
    async with lab.agent() as caller:
        capture = await caller.dispatch(kept, left_out)
        for worker in (kept, left_out):
            await caller.until_state(capture, worker, TargetState.QUEUED)
        facts = await caller.withdraw(capture, only=[left_out.target_id])
        assert facts[left_out.target_id].failure.reason is FailureReason.CANCELLED
        assert facts[kept.target_id].state is TargetState.QUEUED
        assert lab.daemon.withdrawn == [(capture, left_out.target_id)]
        assert caller.agent.book.get(capture).record.withdrawn is None
        assert await caller.withdraw("e" * 32, only=[kept.target_id]) == {}
        await caller.dispatch(kept, capture_id="e" * 32)  # that was no cancel of a capture yet to come
        await caller.until_state("e" * 32, kept, TargetState.QUEUED)


@in_loop
async def test_a_cancel_on_a_full_disk_is_taken_back_all_the_same(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = lab.worker()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        await caller.until_state(capture, worker, TargetState.QUEUED)
        monkeypatch.setattr(safefs, "write_atomically", full)
        failure = (await caller.withdraw(capture))[worker.target_id].failure
        assert failure is not None
        assert failure.reason is FailureReason.CANCELLED
        assert lab.daemon.withdrawn[0] == (capture, worker.target_id)


@in_loop
async def test_every_call_is_for_a_job_of_this_node_only(lab: Lab) -> None:
    worker = lab.worker()
    other = JobRef("local", "train", "uid-2", 0)
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        message = to_proto(other, pb.JobRef())
        calls = {
            "Dispatch": pb.DispatchRequest(
                job=message,
                capture_id="b" * 32,
                spec=to_proto(SPEC, pb.CaptureSpec()),
                announce_timeout_ms=1,
                start_at_ns=1,
            ),
            "GetFacts": pb.FactsRequest(job=message, capture_id=capture),
            "Withdraw": pb.WithdrawRequest(job=message, capture_id=capture),
            "PublishManifest": pb.PublishManifestRequest(job=message, capture_id=capture, manifest=b"{}"),
        }
        for name, request in calls.items():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await getattr(caller.stub, name)(request)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND, name
        assert await caller.workers(other) == {}
        known = await caller.stub.KnownCaptures(pb.KnownCapturesRequest(job=message, capture_ids=[capture]))
        assert list(known.capture_ids) == []
        assert (await caller.fact(capture, worker)).state is not TargetState.FAILED


@pytest.mark.parametrize("capture_id", ["", "../../etc", "a/b", "ABCDEF0123", "..", "0" * 65, "0123456\n"])
def test_a_capture_id_can_not_be_a_path(lab: Lab, capture_id: str) -> None:
    async def scenario() -> None:
        worker = lab.worker()
        async with lab.agent() as caller:
            request = pb.DispatchRequest(
                job=to_proto(JOB, pb.JobRef()),
                capture_id=capture_id,
                spec=to_proto(SPEC, pb.CaptureSpec()),
                announce_timeout_ms=1000,
                start_at_ns=1,
                targets=[pb.DispatchTarget(target_id=worker.target_id, registration=worker.registration.uuid)],
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.stub.Dispatch(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert not lab.daemon.asked

    in_loop(scenario)()


@in_loop
async def test_known_captures_survive_a_restart(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        asked = pb.KnownCapturesRequest(job=to_proto(JOB, pb.JobRef()), capture_ids=[capture, "f" * 32])
        assert list((await caller.stub.KnownCaptures(asked)).capture_ids) == [capture]
    async with lab.agent() as caller:
        assert list((await caller.stub.KnownCaptures(asked)).capture_ids) == [capture]
        record = json.loads((lab.spool / "captures" / capture / "capture.json").read_text())
        assert record["capture_id"] == capture


async def _noted(caller: object, capture: str, worker: object) -> object:
    fact = await caller.fact(capture, worker)  # type: ignore[attr-defined]
    return fact if fact.note else None
