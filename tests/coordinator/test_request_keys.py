"""One request key is one capture: twice, concurrently, later, and after the coordinator was restarted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sameshot.client import AsyncClient
from sameshot.coordinator.links import ask_most
from sameshot.errors import RequestKeyConflict, StorageError, UnknownCapture, UsageError
from sameshot.model import CaptureSpec, CaptureState, FailureReason, Outcome, TargetState, keyed_capture_id
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, coordinating, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, failing, stay, worker

KEY = "dag/run/task/0/1"


@contextlib.asynccontextmanager
async def one_node(archive: Path) -> AsyncIterator[FakeAgent]:
    async with FakeAgent("node-0", Storage.open(str(archive))) as agent:
        agent.workers = [worker(rank=rank, world_size=2) for rank in (0, 1)]
        yield agent


async def finished(client: AsyncClient, spec: CaptureSpec = SPEC, key: str = KEY, **more: str):
    return await client.wait((await client.start_capture(spec, key, **more)).capture_id)


@in_loop
async def test_the_same_key_twice_is_the_same_capture_while_it_runs(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.CONSUMED)
        first = await client.start_capture(SPEC, KEY)
        second = await client.start_capture(SPEC, KEY)
        assert first.capture_id == second.capture_id == keyed_capture_id(JOB, "ana", KEY, 1)
        agent.script = deliver
        await client.wait(first.capture_id)
    assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_many_concurrent_starts_with_one_key_make_one_capture(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        started = await asyncio.gather(*(client.start_capture(SPEC, KEY) for _ in range(20)))
        await client.wait(started[0].capture_id)
        listed = await client.captures()
    assert len({view.capture_id for view in started}) == 1
    assert len(listed) == 1
    assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_without_a_key_every_start_is_another_capture(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        first, second = await client.start_capture(SPEC), await client.start_capture(SPEC)
        assert first.capture_id != second.capture_id
        assert first.capture_id[:12] <= second.capture_id[:12], "UUIDv7 sorts by time, in ms"
        await client.wait(second.capture_id)


@in_loop
async def test_a_succeeded_and_a_partial_capture_are_returned_and_not_repeated(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        done = await finished(client)
        assert (await client.start_capture(SPEC, KEY)).capture_id == done.capture_id
        agent.workers.pop()
        agent.workers[0] = worker(rank=0, world_size=2)
        partial = await finished(client, key="other")
        assert partial.outcome is Outcome.PARTIAL
        assert (await client.start_capture(SPEC, "other")).capture_id == partial.capture_id


@in_loop
async def test_a_failed_capture_is_followed_by_the_next_n_or_handed_back(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = failing(FailureReason.EMPTY)
        failed = await finished(client)
        assert (failed.outcome, failed.n) == (Outcome.FAILED, 1)
        returned = await client.start_capture(SPEC, KEY, "RETURN")
        assert (returned.capture_id, returned.state) == (failed.capture_id, CaptureState.FAILED)
        agent.script = deliver
        again = await finished(client)
        assert (again.outcome, again.n) == (Outcome.SUCCEEDED, 2)
        assert again.capture_id == keyed_capture_id(JOB, "ana", KEY, 2)
        assert (await client.get(request_key=KEY)).capture_id == again.capture_id


@in_loop
async def test_the_same_key_with_another_spec_is_a_typed_error_running_finished_and_after_a_restart(
    tmp_path: Path,
) -> None:
    other = CaptureSpec(duration_ms=1500)
    async with one_node(tmp_path) as agent:
        async with coordinating(tmp_path, [agent]) as client:
            agent.script = stay(TargetState.QUEUED)
            started = await client.start_capture(SPEC, KEY)
            with pytest.raises(RequestKeyConflict):
                await client.start_capture(other, KEY)
            agent.script = deliver
            await client.wait(started.capture_id)
            with pytest.raises(RequestKeyConflict, match=started.capture_id):
                await client.start_capture(other, KEY)
        async with coordinating(tmp_path, [agent]) as client:
            with pytest.raises(RequestKeyConflict):
                await client.start_capture(other, KEY)
    assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_the_order_in_which_activities_are_named_makes_no_other_spec(tmp_path: Path) -> None:
    one, same = (CaptureSpec(duration_ms=1000, activities=each) for each in (("cpu", "cuda"), ("cuda", "cpu")))
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        first = await finished(client, one)
        assert (await client.start_capture(same, KEY)).capture_id == first.capture_id
        with pytest.raises(RequestKeyConflict):
            await client.start_capture(CaptureSpec(duration_ms=1000, activities=("cpu",)), KEY)


@in_loop
async def test_a_restarted_coordinator_finds_the_finished_capture_in_the_archive(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent:
        async with coordinating(tmp_path, [agent]) as client:
            before = await finished(client)
        async with coordinating(tmp_path, [agent]) as client:
            after = await client.start_capture(SPEC, KEY)
            assert [view.capture_id for view in await client.captures()] == [before.capture_id]
            found = await client.get(before.capture_id)
            assert [(each.target_id, each.identity, each.artifact) for each in found.targets] == [
                (each.target_id, each.identity, each.artifact) for each in before.targets
            ]
            assert (await client.wait(request_key=KEY)).outcome is Outcome.SUCCEEDED
            assert await client.manifest(request_key=KEY)
    assert (after.capture_id, after.state, after.published) == (before.capture_id, CaptureState.SUCCEEDED, True)
    assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_an_unfinished_capture_is_unknown_after_a_restart_and_its_key_goes_on_with_the_next_n(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as agent:
        agent.script = stay(TargetState.CONSUMED)
        async with coordinating(tmp_path, [agent]) as client:
            lost = await client.start_capture(SPEC, KEY)
            await until(lambda: lost.capture_id in agent.accepted)
        async with coordinating(tmp_path, [agent]) as client:
            for ask in (client.get, client.cancel, client.wait, client.manifest):
                with pytest.raises(UnknownCapture):
                    await ask(lost.capture_id)
            with pytest.raises(UnknownCapture, match="lost"):
                await client.get(request_key=KEY)
            returned = await client.start_capture(SPEC, KEY, "RETURN")
            assert (returned.capture_id, returned.state) == (lost.capture_id, CaptureState.UNKNOWN)
            agent.script = deliver
            again = await finished(client)
    assert (again.n, again.outcome) == (2, Outcome.SUCCEEDED)
    assert again.capture_id != lost.capture_id


@in_loop
async def test_an_agent_that_was_silent_at_the_look_up_is_never_asked_for_a_lost_id_again(tmp_path: Path) -> None:
    """It alone knows that the id was used: its old traces must not be taken for new ones."""
    async with one_node(tmp_path) as agent, FakeAgent("node-1", agent.archive) as other:
        agent.workers = [worker(rank=0, world_size=2)]
        other.workers = [worker(rank=1, world_size=2, node="node-1", local_rank=0)]
        other.known.add(keyed_capture_id(JOB, "ana", KEY, 1))
        async with coordinating(tmp_path, [agent, other]) as client:
            other.delay["KnownCaptures"] = asyncio.Event()
            started = await client.start_capture(SPEC, KEY)
            other.delay["KnownCaptures"].set()
            view = await client.wait(started.capture_id)
    assert view.n == 1
    assert view.targets[1].failure.reason is FailureReason.REFUSED
    assert "Dispatch" not in other.calls


@in_loop
async def test_keys_are_scoped_to_the_caller(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as ana:
        mine = await finished(ana)
        async with AsyncClient(ana.address, caller="bob") as bob:
            with pytest.raises(UnknownCapture):
                await bob.get(request_key=KEY)
            theirs = await finished(bob, CaptureSpec(duration_ms=700))
    assert mine.capture_id != theirs.capture_id
    assert theirs.caller == "bob"


@in_loop
async def test_get_watch_and_cancel_accept_the_key(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        agent.script = stay(TargetState.QUEUED)
        started = await client.start_capture(SPEC, KEY)
        assert (await client.get(request_key=KEY)).capture_id == started.capture_id
        cancelled = await client.cancel(request_key=KEY)
        assert (cancelled.capture_id, cancelled.cancel_requested) == (started.capture_id, True)
        assert (await client.wait(request_key=KEY)).outcome is Outcome.CANCELLED
        again = await client.start_capture(SPEC, KEY)
        assert again.n == 2
        late = await client.cancel(started.capture_id)  # an id names one n: a late cancel can't hit the next
        assert late.capture_id == started.capture_id
        assert not (await client.get(again.capture_id)).cancel_requested


@in_loop
async def test_ids_that_could_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    async with one_node(tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
        for bad in ("../../etc", "a" * 31, "A" * 32, f"{'a' * 32}/.."):
            with pytest.raises(UsageError):
                await client.get(bad)
        with pytest.raises(UsageError):
            await client.start_capture(SPEC, "line\nbreak")


@in_loop
async def test_an_archive_that_cannot_be_read_refuses_keyed_starts_instead_of_guessing(tmp_path: Path) -> None:
    blocked = tmp_path / "archive"
    blocked.symlink_to(blocked)
    (tmp_path / "other").mkdir()
    async with one_node(tmp_path / "other") as agent, coordinating(blocked, [agent]) as client:
        with pytest.raises(StorageError):
            await client.start_capture(SPEC, KEY)
    assert "Dispatch" not in agent.calls


@in_loop
async def test_the_look_up_does_not_wait_for_agents_that_are_known_to_be_silent(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(one_node(tmp_path))
        silent = await stack.enter_async_context(FakeAgent("node-1"))
        async with coordinating(tmp_path, [agent, silent]) as client:
            await until(lambda: "ListWorkers" in silent.calls)
            silent.frozen.clear()
            await until_listing_failed(client, silent.address)
            calls = silent.calls.count("KnownCaptures")
            await client.start_capture(SPEC, KEY)
            assert silent.calls.count("KnownCaptures") == calls
            await until_view(client, keyed_capture_id(JOB, "ana", KEY, 1), lambda view: view.archived == 2)
            silent.frozen.set()


@in_loop
async def test_an_agent_that_fell_silent_a_moment_ago_hardly_delays_the_others(tmp_path: Path) -> None:
    """Nobody knows it yet: the look-up ends soon after the last answer, long before the silent agent's timeout."""
    timings = msgspec.structs.replace(QUICK, lookup_s=20.0, listing_s=100.0)
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(one_node(tmp_path))
        silent = await stack.enter_async_context(FakeAgent("node-1"))
        async with coordinating(tmp_path, [agent, silent], timings=timings) as client:
            await until(lambda: "ListWorkers" in silent.calls)
            silent.frozen.clear()
            async with asyncio.timeout(15):
                started = await client.start_capture(SPEC, KEY)
                await until_view(client, started.capture_id, lambda view: view.archived == 2)
            assert "KnownCaptures" in silent.calls
            silent.frozen.set()


@pytest.mark.parametrize("connected", [True, False])
def test_who_has_not_even_taken_the_connection_is_waited_for_a_quarter_of_the_moment(connected: bool) -> None:
    class Node:
        def __init__(self, key: str, *, silent: bool = False) -> None:
            self.key, self.silent, self.connected = key, silent, connected or not silent

    async def ask(node: Node) -> str:
        if node.silent:
            await asyncio.Event().wait()
        return node.key

    @in_loop
    async def scenario() -> None:
        began = time.monotonic()
        nodes = [Node("a"), Node("b"), Node("dead", silent=True)]
        answers = await ask_most(nodes, ask, quiet_s=4.0)  # type: ignore[arg-type, type-var]
        took = time.monotonic() - began
        assert answers == {"a": "a", "b": "b"}
        assert took >= 4.0 if connected else 1.0 <= took < 4.0

    scenario()


async def until_listing_failed(client: AsyncClient, address: str) -> None:
    while True:
        status = next(each for each in (await client.workers()).agents if each.address == address)
        if not status.reachable:
            return
