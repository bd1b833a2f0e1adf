"""Workers that were dispatched before the set was closed and turned out not to belong to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sameshot import manifest
from sameshot.errors import Unreachable
from sameshot.model import Outcome, TargetState
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating, in_loop, until
from support.fake_agent import FakeAgent, deliver, stay, worker


@contextlib.asynccontextmanager
async def old_and_new_world(archive: Path) -> AsyncIterator[tuple[FakeAgent, FakeAgent]]:
    """Both nodes have live workers for ranks 0 and 1; those of node-1 registered later."""
    storage = Storage.open(str(archive))
    async with FakeAgent("node-0", storage) as old, FakeAgent("node-1", storage) as new:
        old.workers = [worker(rank=rank, world_size=2, node="node-0", registered_at_ns=1) for rank in (0, 1)]
        new.workers = [worker(rank=rank, world_size=2, node="node-1", registered_at_ns=2) for rank in (0, 1)]
        yield old, new


@in_loop
async def test_a_hung_old_world_is_withdrawn_and_never_counted(tmp_path: Path) -> None:
    async with old_and_new_world(tmp_path) as (old, new), coordinating(tmp_path, [old, new]) as client:
        old.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC)
        view = await client.wait(started.capture_id)
        await until(lambda: old.withdrawn)
        read = manifest.decode(await client.manifest(started.capture_id))
    assert started.capture_id in old.accepted, "it was dispatched: nobody knew better yet"
    assert old.withdrawn == [()], "the whole capture there, and once"
    assert new.withdrawn == []
    assert {fact.state for fact in old.accepted[started.capture_id].facts.values()} == {TargetState.FAILED}
    assert (view.outcome, view.expected, view.archived, view.failed) == (Outcome.SUCCEEDED, 2, 2, 0)
    assert "Rank 0 is registered twice" in view.note
    assert [target.identity.node for target in read.targets] == ["node-1", "node-1"]


@in_loop
async def test_traces_that_left_out_workers_deliver_all_the_same_are_not_counted(tmp_path: Path) -> None:
    async with old_and_new_world(tmp_path) as (old, new), coordinating(tmp_path, [old, new]) as client:
        old.script = lambda agent, target, looks: deliver(agent, target, looks=9)  # at once: nothing can be taken back
        started = await client.start_capture(SPEC)
        views = [view async for view in client.watch(started.capture_id)]
    assert {fact.state for fact in old.accepted[started.capture_id].facts.values()} == {TargetState.ARCHIVED}
    assert (views[-1].outcome, views[-1].expected, views[-1].archived) == (Outcome.SUCCEEDED, 2, 2)
    assert [target.target_id for target in views[-1].targets] == ["node-1/main/0", "node-1/main/1"]


@in_loop
async def test_of_a_node_that_has_both_only_the_left_out_worker_is_withdrawn(tmp_path: Path) -> None:
    async with old_and_new_world(tmp_path) as (old, new), coordinating(tmp_path, [old, new]) as client:
        del new.workers[1]
        old.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC)
        await until(lambda: old.withdrawn)
        states = {key: fact.state for key, fact in old.accepted[started.capture_id].facts.items()}
        view = await client.get(started.capture_id)
    assert old.withdrawn == [("node-0/main/0",)]
    assert states == {"node-0/main/0": TargetState.FAILED, "node-0/main/1": TargetState.QUEUED}
    assert not view.targets[1].state.terminal, "its neighbour goes on"


@in_loop
async def test_a_withdrawal_that_is_not_heard_is_tried_again_and_holds_nobody_up(tmp_path: Path) -> None:
    async with old_and_new_world(tmp_path) as (old, new), coordinating(tmp_path, [old, new]) as client:
        old.script = stay(TargetState.QUEUED)
        old.refuse["Withdraw"] = Unreachable("its daemon does not answer")
        started = await client.start_capture(SPEC)
        await until(lambda: old.calls.count("Withdraw") > 1)
        old.refuse.clear()
        await until(lambda: old.withdrawn)
        assert (await client.wait(started.capture_id)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("left_out", [0, 1])
def test_nothing_is_withdrawn_where_the_set_is_what_was_dispatched(tmp_path: Path, left_out: int) -> None:
    @in_loop
    async def scenario() -> None:
        async with old_and_new_world(tmp_path) as nodes, coordinating(tmp_path, nodes) as client:
            nodes[left_out].workers = []
            assert (await client.wait((await client.start_capture(SPEC)).capture_id)).outcome is Outcome.SUCCEEDED
        assert [agent.withdrawn for agent in nodes] == [[], []]

    scenario()
