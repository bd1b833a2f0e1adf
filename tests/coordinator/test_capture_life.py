"""One capture from the request to its manifest, against scripted agents over the real protocol."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from sameshot import manifest
from sameshot.api import sameshot_pb2 as pb
from sameshot.coordinator.directory import AgentsFile
from sameshot.errors import InvalidSpec, NoSuchJob, Unreachable
from sameshot.model import CaptureSpec, CaptureState, FailureReason, Outcome, Phase, TargetState
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, JumpClock, coordinating, in_loop, pass_time, until, until_view
from support.fake_agent import FakeAgent, deliver, failing, stay, worker


@contextlib.asynccontextmanager
async def two_nodes(archive: Path):
    """Two nodes with two ranks each."""
    storage = Storage.open(str(archive))
    async with FakeAgent("node-0", storage) as first, FakeAgent("node-1", storage) as second:
        first.workers = [worker(rank=rank, world_size=4, node="node-0", local_rank=rank) for rank in (0, 1)]
        second.workers = [worker(rank=rank, world_size=4, node="node-1", local_rank=rank - 2) for rank in (2, 3)]
        yield first, second


@in_loop
async def test_every_rank_is_delivered_and_the_manifest_says_so(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        started = await client.start_capture(SPEC)
        view = await client.wait(started.capture_id)
        data = await client.manifest(started.capture_id)
    assert (view.outcome, view.published, view.archived, view.failed) == (Outcome.SUCCEEDED, True, 4, 0)
    assert [target.identity.rank for target in view.targets] == [0, 1, 2, 3]
    read = manifest.decode(data)
    assert read.capture.capture_id == started.capture_id
    assert read.capture.generation == view.generation != ""
    assert read.totals.archived == 4
    assert (tmp_path / manifest.manifest_key(view.job, view.capture_id)).read_bytes() == data


@in_loop
async def test_all_targets_are_offered_the_same_start_after_poll_warmup_and_margin(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        first.poll_interval_s = second.poll_interval_s = 5.0
        await until(lambda: first.calls.count("ListWorkers") and second.calls.count("ListWorkers"))
        before = time.time_ns()
        view = await client.wait((await client.start_capture(CaptureSpec(duration_ms=500, warmup_ms=3000))).capture_id)
        requests = [agent.accepted[view.capture_id].request for agent in (first, second)]
    assert {request.start_at_ns for request in requests} == {view.start_at_ns}
    assert 10.0 <= (view.start_at_ns - before) / 1e9 <= 12.0
    assert {request.announce_timeout_ms for request in requests} == {31_000}


@in_loop
async def test_a_start_delay_of_the_spec_overrides_the_offered_start(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        before = time.time_ns()
        spec = CaptureSpec(duration_ms=500, start_delay_ms=60_000)
        view = await client.wait((await client.start_capture(spec)).capture_id)
    assert 60.0 <= (view.start_at_ns - before) / 1e9 <= 62.0


@in_loop
async def test_one_failed_rank_makes_it_partial_with_the_reason(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.script = lambda agent, target, looks: (
            failing(FailureReason.WORKER_EXITED)(agent, target, looks)
            if target.identity.rank == 3
            else deliver(agent, target, looks)
        )
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
        read = manifest.decode(await client.manifest(view.capture_id))
    assert (view.outcome, view.archived, view.failed) == (Outcome.PARTIAL, 3, 1)
    assert read.totals.missing_ranks == (3,)
    assert read.targets[3].failure.reason is FailureReason.WORKER_EXITED


@in_loop
async def test_a_rank_that_nobody_registered_is_a_failed_target_and_never_a_smaller_success(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        del second.workers[0]
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert (view.outcome, view.world_size, view.expected) == (Outcome.PARTIAL, 4, 4)
    missing = view.targets[2]
    assert (missing.target_id, missing.identity.rank) == ("rank/2", 2)
    assert missing.failure.reason is FailureReason.NEVER_REGISTERED


@in_loop
async def test_a_job_without_workers_fails_with_words_and_without_a_manifest(tmp_path: Path) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent, coordinating(tmp_path, [agent]) as client:
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert (view.outcome, view.published, view.expected) == (Outcome.FAILED, False, 0)
    assert "No worker of this job is registered" in view.note


@in_loop
async def test_silence_until_the_announce_deadline_is_missing_and_named_by_what_was_seen_last(tmp_path: Path) -> None:
    clock = JumpClock()
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second], clock=clock) as client:
        first.script = stay(TargetState.CONSUMED)
        second.script = stay(TargetState.DISPATCHED, "BUSY")
        started = await client.start_capture(SPEC)
        await until_view(client, started.capture_id, lambda view: all(target.state for target in view.targets))
        assert not (await client.get(started.capture_id)).state.terminal
        await pass_time(clock, 60, first, second)
        view = await client.wait(started.capture_id)
    assert view.outcome is Outcome.FAILED
    assert [target.failure.reason for target in view.targets] == [
        *[FailureReason.MISSING] * 2,
        *[FailureReason.BUSY] * 2,
    ]
    assert view.targets[0].failure.last_state is TargetState.CONSUMED
    assert view.published


@in_loop
async def test_a_slow_verification_is_never_missing(tmp_path: Path) -> None:
    clock = JumpClock()
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second], clock=clock) as client:
        second.script = stay(TargetState.ANNOUNCED)
        started = await client.start_capture(SPEC)
        await until_view(client, started.capture_id, lambda view: view.archived == 2)
        await pass_time(clock, 40, second)  # beyond the announce deadline, within the allowance for verifying
        assert not (await client.get(started.capture_id)).state.terminal
        await pass_time(clock, 60, second)
        view = await client.wait(started.capture_id)
    assert {target.failure.reason for target in view.targets[2:]} == {FailureReason.VERIFY_TIMEOUT}


@in_loop
async def test_a_frozen_agent_fails_only_its_own_targets_and_delays_nobody_elses(tmp_path: Path) -> None:
    """The same capture with and without the freeze, in one run: the healthy node is dispatched and delivered alike."""
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        await client.workers()

        async def took() -> tuple[float, float, str]:
            began = time.monotonic()
            started = await client.start_capture(SPEC, request_key=f"key-{began}")
            await until(lambda: started.capture_id in first.accepted)
            dispatched = first.accepted[started.capture_id].at - began
            await until_view(client, started.capture_id, lambda view: view.archived >= 2)
            return dispatched, time.monotonic() - began, started.capture_id

        healthy = await took()
        await client.wait(healthy[2])
        second.frozen.clear()
        frozen = await took()
        view = await client.wait(frozen[2])
        second.frozen.set()
    assert frozen[0] < healthy[0] + 1.5, "the dispatch waited for the frozen agent's freeze (2 s)"
    assert frozen[1] < healthy[1] + 1.5, "the delivery waited for the frozen agent"
    assert view.outcome is Outcome.PARTIAL
    assert [target.identity.rank for target in view.targets if target.artifact] == [0, 1]
    for target in view.targets[2:]:
        assert target.failure.reason is FailureReason.AGENT_UNREACHABLE
        assert target.identity.registration is not None, "the identity is known from the earlier listing"
        assert "node-1" in target.failure.detail


@in_loop
async def test_ranks_on_an_agent_that_never_answered_are_unreachable_not_unregistered(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second):
        second.frozen.clear()
        timings = msgspec.structs.replace(QUICK, freeze_s=0.4)
        async with coordinating(tmp_path, [first, second], timings=timings) as client:
            view = await client.wait((await client.start_capture(SPEC)).capture_id)
        second.frozen.set()
    assert view.outcome is Outcome.PARTIAL
    assert {target.failure.reason for target in view.targets[2:]} == {FailureReason.AGENT_UNREACHABLE}
    assert second.address in view.targets[2].failure.detail


@in_loop
async def test_an_agent_that_dies_after_the_dispatch_is_unreachable_at_the_deadline(tmp_path: Path) -> None:
    clock = JumpClock()
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second], clock=clock) as client:
        second.script = stay(TargetState.CONSUMED)
        started = await client.start_capture(SPEC)
        await until_view(client, started.capture_id, lambda view: view.archived == 2)
        await second.stop()
        await pass_time(clock, 60)
        view = await client.wait(started.capture_id)
    assert {target.failure.reason for target in view.targets[2:]} == {FailureReason.AGENT_UNREACHABLE}
    assert "last thing known was CONSUMED" in view.targets[2].failure.detail


@in_loop
async def test_an_agent_that_forgot_the_capture_is_dispatched_again(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC)
        await until_view(
            client,
            started.capture_id,
            lambda view: [each.state for each in view.targets[2:]] == [TargetState.QUEUED] * 2,
        )
        second.forget()
        second.script = deliver
        view = await client.wait(started.capture_id)
    assert view.outcome is Outcome.SUCCEEDED
    assert second.calls.count("Dispatch") >= 2
    assert first.calls.count("Dispatch") == 1


@in_loop
async def test_an_agent_that_refuses_fails_its_targets_at_once_with_its_own_words(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.refuse["Dispatch"] = InvalidSpec("xpu is not supported by this torch")
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert view.outcome is Outcome.PARTIAL
    assert {target.failure.reason for target in view.targets[2:]} == {FailureReason.REFUSED}
    assert "xpu is not supported" in view.targets[2].failure.detail


@in_loop
async def test_an_agent_that_no_longer_knows_the_job_is_asked_once_more_before_its_answer_counts(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC)
        await until(lambda: second.calls.count("GetFacts") > 1)
        second.refuse["GetFacts"] = NoSuchJob("no worker of this job is known here")
        await until(lambda: second.calls.count("Dispatch") > 1)
        second.refuse.clear()
        second.script = deliver
        view = await client.wait(started.capture_id)
    assert view.outcome is Outcome.SUCCEEDED


@in_loop
async def test_a_reason_that_only_a_newer_agent_knows_is_a_failure_in_its_own_words(tmp_path: Path) -> None:
    class Newer(FakeAgent):
        def _facts(self, capture_id: str, *, look: bool) -> pb.CaptureFacts:
            answer = super()._facts(capture_id, look=look)
            for target in answer.targets:
                if target.state == pb.FAILED:
                    target.failure.reason = "MELTED"
            return answer

    async with Newer("node-0", Storage.open(str(tmp_path))) as agent, coordinating(tmp_path, [agent]) as client:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = failing(FailureReason.EMPTY, "too hot")
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert view.outcome is Outcome.FAILED
    assert view.targets[0].failure.detail == "MELTED: too hot"


@in_loop
async def test_a_busy_agent_is_asked_again_until_it_takes_the_request(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.refuse["Dispatch"] = Unreachable("the daemon of node-1 does not answer")
        started = await client.start_capture(SPEC)
        await until(lambda: second.calls.count("Dispatch") >= 3)
        second.refuse.clear()
        view = await client.wait(started.capture_id)
    assert view.outcome is Outcome.SUCCEEDED


@in_loop
async def test_workers_restarted_between_captures_make_a_new_generation(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        before = await client.wait((await client.start_capture(SPEC)).capture_id)
        old = [*first.workers, *second.workers]
        for agent, ranks in ((first, (0, 1)), (second, (2, 3))):
            stale = [type(each)(each.registration, alive=False, current=False) for each in agent.workers]
            agent.workers = stale + [
                worker(
                    rank=rank, world_size=4, node=agent.node, local_rank=rank % 2, registered_at_ns=2, pid=2000 + rank
                )
                for rank in ranks
            ]
        after = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert (before.outcome, after.outcome) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED)
    assert before.generation != after.generation
    assert {each.identity.registration for each in after.targets}.isdisjoint({each.registration.uuid for each in old})
    assert [each.target_id for each in before.targets] == [each.target_id for each in after.targets]


@in_loop
async def test_nothing_is_sent_to_a_worker_that_is_exiting(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.workers[1] = worker(rank=3, world_size=4, node="node-1", local_rank=1, phase=Phase.EXITING)
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
        sent = [each.target_id for each in second.accepted[view.capture_id].request.targets]
    assert sent == ["node-1/main/0"]
    assert view.targets[3].failure.reason is FailureReason.WORKER_EXITED


@in_loop
async def test_an_agent_that_joins_the_list_later_takes_part_in_the_next_capture(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    async with two_nodes(tmp_path) as (first, second):
        agents.write_text(f"{first.address}\n")
        async with coordinating(tmp_path, directory=AgentsFile(agents)) as client:
            before = await client.wait((await client.start_capture(SPEC)).capture_id)
            agents.write_text(f"{first.address}\n{second.address}\n")
            after = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert (before.outcome, after.outcome) == (Outcome.PARTIAL, Outcome.SUCCEEDED)


@in_loop
async def test_watching_shows_states_that_never_go_back_and_ends_with_the_outcome(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        started = await client.start_capture(SPEC)
        views = [view async for view in client.watch(started.capture_id)]
    assert views[-1].state is CaptureState.SUCCEEDED
    assert not any(view.state.terminal for view in views[:-1])
    seen: dict[str, TargetState] = {}
    for view in views:
        for target in view.targets:
            assert target.state >= seen.get(target.target_id, TargetState.PENDING)
            seen[target.target_id] = target.state
