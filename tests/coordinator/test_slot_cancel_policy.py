"""Captures that overlap, that are cancelled, and that are not allowed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sameshot import manifest
from sameshot.errors import InvalidSpec, JobBusy, PolicyRefused
from sameshot.model import CapturePolicy, CaptureSpec, CaptureState, FailureReason, Outcome, TargetFact, TargetState
from sameshot.profiler.daemon import BackendName
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, JumpClock, coordinating, in_loop, pass_time, until, until_view
from support.fake_agent import FakeAgent, deliver, stay, worker


@contextlib.asynccontextmanager
async def one_node(archive: Path, ranks: int = 2) -> AsyncIterator[FakeAgent]:
    async with FakeAgent("node-0", Storage.open(str(archive))) as agent:
        agent.workers = [worker(rank=rank, world_size=ranks) for rank in range(ranks)]
        yield agent


@in_loop
async def test_a_second_capture_waits_for_the_slot_says_so_and_both_converge(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.CONSUMED)
        first = await client.start_capture(SPEC)
        await until(lambda: first.capture_id in agent.accepted)
        second = await client.start_capture(SPEC)
        waiting = await until_view(client, second.capture_id, lambda view: view.note)
        assert waiting.state is CaptureState.WAITING
        assert first.capture_id in waiting.note
        assert "2 of its workers may still be recording" in waiting.note
        assert second.capture_id not in agent.accepted
        agent.script = deliver
        done = [await client.wait(each.capture_id) for each in (first, second)]
    assert [view.outcome for view in done] == [Outcome.SUCCEEDED] * 2
    assert done[1].start_at_ns > done[0].start_at_ns


@in_loop
async def test_the_slot_is_free_once_every_file_is_announced_however_slow_the_rest_is(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.CONSUMED)
        first = await client.start_capture(SPEC)
        await until(lambda: first.capture_id in agent.accepted)
        second = await client.start_capture(SPEC)
        agent.script = stay(TargetState.ANNOUNCED)
        await until(lambda: second.capture_id in agent.accepted)
        assert (await client.get(first.capture_id)).state is CaptureState.COLLECTING
        agent.script = deliver
        assert (await client.wait(second.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_waiting_captures_start_in_the_order_they_came(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        ids = [(await client.start_capture(SPEC)).capture_id for _ in range(4)]
        views = [await client.wait(each) for each in ids]
    starts = [view.start_at_ns for view in views]
    assert starts == sorted(starts)


@in_loop
async def test_a_waiting_capture_can_be_cancelled_and_the_next_one_moves_up(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.CONSUMED)
        first, second, third = [await client.start_capture(SPEC) for _ in range(3)]
        cancelled = await client.cancel(second.capture_id)
        assert cancelled.state is CaptureState.CANCELLED
        assert cancelled.withdrawn == "It was cancelled before anything was dispatched."
        assert not cancelled.published
        agent.script = deliver
        assert [(await client.wait(each.capture_id)).outcome for each in (first, third)] == [Outcome.SUCCEEDED] * 2
    assert second.capture_id not in agent.accepted


def mixed(states: dict[int, TargetState]):
    """Each rank stays at its own state; ARCHIVED comes with its artifact."""

    def script(agent: FakeAgent, target: TargetFact, looks: int) -> TargetFact:
        state = states[target.identity.rank]
        if state is TargetState.ARCHIVED:
            return msgspec.structs.replace(target, state=state, artifact=agent.artifact(target))
        return msgspec.structs.replace(target, state=state)

    return script


@in_loop
async def test_a_cancel_converges_at_once_and_says_what_it_really_did(tmp_path: Path) -> None:
    async with one_node(tmp_path, ranks=4) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = mixed(
            {0: TargetState.QUEUED, 1: TargetState.CONSUMED, 2: TargetState.ARCHIVED, 3: TargetState.ANNOUNCED}
        )
        started = await client.start_capture(SPEC)
        await until_view(client, started.capture_id, lambda view: view.archived == 1)
        cancelled = await client.cancel(started.capture_id)
        assert cancelled.state is CaptureState.CANCELLED
        assert all(target.state.terminal for target in cancelled.targets)
        view = await client.wait(started.capture_id)
        read = manifest.decode(await client.manifest(started.capture_id))
    assert view.outcome is read.capture.outcome is Outcome.CANCELLED
    assert view.withdrawn.startswith("1 of 3 configs were withdrawn before any worker fetched them")
    assert "2 were already fetched" in view.withdrawn
    assert [target.failure and target.failure.reason for target in view.targets] == [
        FailureReason.CANCELLED,
        FailureReason.CANCELLED,
        None,
        FailureReason.CANCELLED,
    ]
    assert view.targets[1].failure.last_state is TargetState.CONSUMED


@pytest.mark.parametrize("backend", BackendName)
def test_a_queued_config_that_was_not_taken_back_is_never_said_to_be(tmp_path: Path, backend: BackendName) -> None:
    @in_loop
    async def scenario() -> None:
        async with one_node(tmp_path) as agent:
            agent.backend, agent.keeps_queued = backend.value, True
            agent.script = stay(TargetState.QUEUED)
            async with coordinating(tmp_path, [agent], backend=backend) as client:
                started = await client.start_capture(SPEC)
                await until_view(
                    client,
                    started.capture_id,
                    lambda view: {each.state for each in view.targets} == {TargetState.QUEUED},
                )
                view = await client.cancel(started.capture_id)
        assert view.withdrawn.startswith("0 of 2 configs were withdrawn")
        assert "2 could not be taken back and may still be recorded" in view.withdrawn
        assert "may still record" in view.targets[0].failure.detail

    scenario()


@in_loop
async def test_a_back_end_is_never_believed_beyond_what_it_can_see(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent:
        agent.backend = "dynolog"
        agent.script = stay(TargetState.CONSUMED)
        async with coordinating(tmp_path, [agent], backend=BackendName.DYNOLOG) as client:
            started = await client.start_capture(SPEC)
            await until(lambda: agent.calls.count("GetFacts") > 3)
            view = await client.get(started.capture_id)
    assert {target.state for target in view.targets} == {TargetState.QUEUED}


@in_loop
async def test_a_cancel_with_a_frozen_agent_ends_all_the_same_and_says_what_is_not_known(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC)
        await until_view(
            client, started.capture_id, lambda view: {each.state for each in view.targets} == {TargetState.QUEUED}
        )
        agent.frozen.clear()
        view = await client.cancel(started.capture_id)
        agent.frozen.set()
    assert "of 2 nothing is known" in view.withdrawn
    assert {target.failure.reason for target in view.targets} == {FailureReason.CANCELLED}


@in_loop
async def test_a_cancel_after_convergence_changes_nothing(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        done = await client.wait((await client.start_capture(SPEC)).capture_id)
        late = await client.cancel(done.capture_id)
    assert late == done
    assert "Withdraw" not in agent.calls


@in_loop
async def test_the_slot_of_a_cancelled_capture_stays_taken_while_workers_may_still_record(tmp_path: Path) -> None:
    clock = JumpClock()
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent], clock=clock) as client:
        agent.script = stay(TargetState.CONSUMED)
        started = await client.start_capture(SPEC)
        await until_view(
            client, started.capture_id, lambda view: {each.state for each in view.targets} == {TargetState.CONSUMED}
        )
        await client.cancel(started.capture_id)
        agent.script = deliver
        second = await client.start_capture(SPEC)
        waiting = await until_view(client, second.capture_id, lambda view: view.note)
        assert waiting.state is CaptureState.WAITING
        clock.jump(10)
        assert (await client.wait(second.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_the_slot_of_a_capture_that_was_withdrawn_everywhere_is_free_at_once(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.QUEUED)
        started = await client.start_capture(CaptureSpec(duration_ms=1000, start_delay_ms=600_000))
        await until_view(
            client, started.capture_id, lambda view: {each.state for each in view.targets} == {TargetState.QUEUED}
        )
        assert (await client.cancel(started.capture_id)).withdrawn.startswith("2 of 2 configs were withdrawn")
        agent.script = deliver
        assert (await client.wait((await client.start_capture(SPEC)).capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_the_policy_is_checked_before_anything_is_sent(tmp_path: Path) -> None:
    policy = CapturePolicy(max_duration_ms=2000, max_duration_with_stack_ms=500, max_captures_at_once=1)
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent], policy=policy) as client:
        for spec in (CaptureSpec(duration_ms=2001), CaptureSpec(duration_ms=501, with_stack=True)):
            with pytest.raises(PolicyRefused):
                await client.start_capture(spec)
        assert "Dispatch" not in agent.calls
        agent.script = stay(TargetState.QUEUED)
        running = await client.start_capture(SPEC, "key")
        with pytest.raises(JobBusy, match=r"1 captures of this job are still running.*try again") as busy:
            await client.start_capture(SPEC)
        assert busy.value.exit_code == 75, "it is not refused for ever"
        with pytest.raises(PolicyRefused):  # what is never allowed is said first
            await client.start_capture(CaptureSpec(duration_ms=2001))
        assert (await client.start_capture(SPEC, "key")).capture_id == running.capture_id, "not a new one"
        assert (await client.describe()).policy == policy


@in_loop
async def test_captures_keep_the_interval_that_the_policy_asks_for(tmp_path: Path) -> None:
    clock = JumpClock()
    policy = CapturePolicy(min_interval_ms=60_000)
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent], policy=policy, clock=clock) as client:
        assert (await client.describe()).pause_ms == 0
        await client.wait((await client.start_capture(SPEC)).capture_id)
        clock.jump(20)
        assert 30_000 < (await client.describe()).pause_ms <= 40_000
        with pytest.raises(JobBusy, match=r"60000 ms between captures.*try again in"):
            await client.start_capture(SPEC)
        clock.jump(41)
        assert (await client.describe()).pause_ms == 0
        await client.wait((await client.start_capture(SPEC)).capture_id)


@in_loop
async def test_a_spec_that_no_client_of_ours_would_send_is_refused_by_the_coordinator_too(tmp_path: Path) -> None:
    from sameshot.api import sameshot_pb2 as pb

    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        for spec in (pb.CaptureSpec(duration_ms=500, activities=["gpu"]), pb.CaptureSpec(duration_ms=0)):
            with pytest.raises(InvalidSpec):
                await client._call(client._stub.StartCapture, pb.StartCaptureRequest(spec=spec))
    assert "Dispatch" not in agent.calls


@in_loop
async def test_a_frozen_agents_targets_do_not_hold_the_slot_against_the_next_capture(tmp_path: Path) -> None:
    clock = JumpClock()
    storage = Storage.open(str(tmp_path))
    async with FakeAgent("node-0", storage) as first, FakeAgent("node-1", storage) as second:
        first.workers = [worker(rank=0, world_size=2, local_rank=0)]
        second.workers = [worker(rank=1, world_size=2, node="node-1", local_rank=0)]
        timings = msgspec.structs.replace(QUICK, call_s=0.5)
        async with coordinating(tmp_path, [first, second], clock=clock, timings=timings) as client:
            second.script = stay(TargetState.CONSUMED)
            stuck = await client.start_capture(SPEC)
            await until_view(client, stuck.capture_id, lambda view: view.archived == 1)
            second.frozen.clear()
            following = await client.start_capture(SPEC)
            await until_view(client, following.capture_id, lambda view: view.archived == 1)
            assert (await client.get(stuck.capture_id)).state is CaptureState.COLLECTING
            await pass_time(clock, 60)
            assert (await client.wait(stuck.capture_id)).outcome is Outcome.PARTIAL
            second.frozen.set()
