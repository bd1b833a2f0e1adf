"""The manifest reaches the archive through an agent, once, and never over another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import msgspec
import pytest

from sameshot import manifest
from sameshot.errors import TryAgain, Unreachable
from sameshot.model import CaptureState, Outcome, TargetFact, TargetState, keyed_capture_id
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, coordinating, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, stay, worker


@contextlib.asynccontextmanager
async def two_nodes(archive: Path) -> AsyncIterator[tuple[FakeAgent, FakeAgent]]:
    storage = Storage.open(str(archive))
    async with FakeAgent("node-0", storage) as first, FakeAgent("node-1", storage) as second:
        first.workers = [worker(rank=0, world_size=2, local_rank=0)]
        second.workers = [worker(rank=1, world_size=2, node="node-1", local_rank=0)]
        yield first, second


@in_loop
async def test_without_an_agent_that_takes_it_the_outcome_says_unpublished_and_it_is_tried_on(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        first.refuse["PublishManifest"] = second.refuse["PublishManifest"] = Unreachable("storage is away")
        view = await client.wait((await client.start_capture(SPEC)).capture_id)
        assert (view.outcome, view.published) == (Outcome.SUCCEEDED, False)
        assert "tried again" in view.note
        assert "storage is away" in view.note
        with pytest.raises(TryAgain):
            await client.manifest(view.capture_id)
        second.refuse.clear()
        key = manifest.manifest_key(JOB, view.capture_id)
        await until(lambda: (tmp_path / key).exists())
        while not (await client.get(view.capture_id)).published:
            pass
        assert manifest.decode(await client.manifest(view.capture_id)).capture.outcome is Outcome.SUCCEEDED
        assert "not published yet" not in (await client.get(view.capture_id)).note


@contextlib.asynccontextmanager
async def five_nodes(archive: Path) -> AsyncIterator[list[FakeAgent]]:
    async with contextlib.AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(FakeAgent(f"node-{index}", Storage.open(str(archive))))
            for index in range(5)
        ]
        for rank, agent in enumerate(agents):
            agent.workers = [worker(rank=rank, world_size=5, node=agent.node, local_rank=0)]
        yield agents


@in_loop
async def test_agents_that_are_stuck_cost_a_moment_each_and_the_healthy_one_publishes(tmp_path: Path) -> None:
    """All but one take the manifest and never answer: nobody waits for their time-outs (8 s each)."""
    timings = msgspec.structs.replace(QUICK, publish_call_s=8.0, publish_within_s=60.0, publish_stagger_s=0.1)
    async with five_nodes(tmp_path) as agents, coordinating(tmp_path, agents, timings=timings) as client:
        for agent in agents[1:]:
            agent.delay["PublishManifest"] = asyncio.Event()
        async with asyncio.timeout(7):
            view = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert (view.outcome, view.published) == (Outcome.SUCCEEDED, True)
    for agent in agents:
        assert agent.calls.count("PublishManifest") <= 1, "nobody was cancelled and asked again"


@in_loop
async def test_a_slow_agent_is_not_cancelled_when_the_next_one_is_asked(tmp_path: Path) -> None:
    timings = msgspec.structs.replace(QUICK, publish_call_s=20.0, publish_within_s=20.0, publish_stagger_s=1.0)
    async with two_nodes(tmp_path) as agents, coordinating(tmp_path, agents, timings=timings) as client:
        for agent in agents:
            agent.delay["PublishManifest"] = asyncio.Event()
        started = await client.start_capture(SPEC)
        await until(lambda: any("PublishManifest" in agent.calls for agent in agents))
        (first,) = [agent for agent in agents if "PublishManifest" in agent.calls]
        await until(lambda: all("PublishManifest" in agent.calls for agent in agents))
        first.delay["PublishManifest"].set()
        view = await client.wait(started.capture_id)
    assert view.published
    assert [agent.calls.count("PublishManifest") for agent in agents] == [1, 1]


@in_loop
async def test_when_every_agent_is_stuck_the_outcome_is_told_within_the_limit_of_the_whole(tmp_path: Path) -> None:
    timings = msgspec.structs.replace(QUICK, publish_call_s=30.0, publish_within_s=1.0, publish_stagger_s=0.1)
    async with five_nodes(tmp_path) as agents, coordinating(tmp_path, agents, timings=timings) as client:
        for agent in agents:
            agent.delay["PublishManifest"] = asyncio.Event()
        async with asyncio.timeout(15):
            view = await client.wait((await client.start_capture(SPEC)).capture_id)
            assert (view.outcome, view.published) == (Outcome.SUCCEEDED, False)
            assert "5 agents do not answer" in view.note


@in_loop
async def test_a_manifest_that_someone_else_published_is_never_overwritten_and_named(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.script = stay(TargetState.CONSUMED)
        started = await client.start_capture(SPEC, "key")
        running = await until_view(client, started.capture_id, lambda view: view.archived == 1)
        theirs = manifest.encode(
            manifest.build(
                manifest.Capture(
                    capture_id=started.capture_id,
                    caller="someone else",
                    n=1,
                    job=manifest.Job.of(JOB),
                    world_size=1,
                    backend="broker",
                    spec=SPEC,
                    converged_at="2026-01-31T12:00:00Z",
                    outcome=Outcome.SUCCEEDED,
                ),
                [manifest.Target("t", running.targets[0].identity, artifact=running.targets[0].artifact)],
            )
        )
        path = tmp_path / manifest.manifest_key(JOB, started.capture_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(theirs)
        view = await client.cancel(started.capture_id)
        view = await client.wait(started.capture_id)
    assert path.read_bytes() == theirs
    assert (view.state, view.published) == (CaptureState.CANCELLED, False)
    assert "someone else" in view.note
    assert "not overwritten" in view.note


@in_loop
async def test_a_publication_whose_answer_was_lost_is_recognised_as_our_own(tmp_path: Path) -> None:
    class LosesAnswers(FakeAgent):
        lost = 0

        async def PublishManifest(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            await super().PublishManifest(request, context)
            self.lost += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    storage = Storage.open(str(tmp_path))
    async with LosesAnswers("node-0", storage) as first, FakeAgent("node-1", storage) as second:
        first.workers = [worker(rank=0, world_size=1)]
        async with coordinating(tmp_path, [first, second]) as client:
            second.refuse["PublishManifest"] = Unreachable("not now")
            started = await client.start_capture(SPEC)
            await until(lambda: first.lost)
            second.refuse.clear()
            await until(lambda: second.calls.count("PublishManifest"))
            while not (view := await client.get(started.capture_id)).published:
                pass
    assert view.outcome is Outcome.SUCCEEDED


@in_loop
async def test_an_artifact_that_could_not_stand_in_a_manifest_is_not_believed(tmp_path: Path) -> None:
    def lie(agent: FakeAgent, target: TargetFact, looks: int) -> TargetFact:
        artifact = msgspec.structs.replace(agent.artifact(target), uri="../../other/job/trace.json.gz")
        return msgspec.structs.replace(target, state=TargetState.ARCHIVED, artifact=artifact)

    async with two_nodes(tmp_path) as (first, second), coordinating(tmp_path, [first, second]) as client:
        second.script = lie
        started = await client.start_capture(SPEC)
        await until(lambda: second.calls.count("GetFacts") > 3)
        view = await until_view(client, started.capture_id, lambda view: view.archived)
        assert view.archived == 1
        assert not view.targets[1].state.terminal


@in_loop
async def test_captures_that_only_the_archive_knows_are_listed_and_strangers_files_ignored(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, second):
        async with coordinating(tmp_path, [first, second]) as client:
            done = await client.wait((await client.start_capture(SPEC, "key")).capture_id)
        folder = tmp_path / JOB.path
        for name in ("notes.txt", "0" * 32 + "/manifest.json", "x/y/manifest.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        async with coordinating(tmp_path, [first, second]) as client:
            listed = await client.captures()
    assert [view.capture_id for view in listed] == [done.capture_id] == [keyed_capture_id(JOB, "ana", "key", 1)]
    assert (listed[0].archived, listed[0].targets) == (2, ())
