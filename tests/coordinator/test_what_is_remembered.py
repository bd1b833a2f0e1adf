"""A coordinator lives as long as its job: what it remembers is bounded, and nothing is lost by that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sameshot.coordinator import book
from sameshot.coordinator.directory import FixedAgents
from sameshot.coordinator.roster import Roster
from sameshot.errors import TryAgain, Unreachable
from sameshot.model import CaptureState, Outcome
from sameshot.profiler.daemon import BackendName
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, JumpClock, coordinating, in_loop
from support.fake_agent import JOB, FakeAgent, worker


@in_loop
async def test_captures_that_ended_without_targets_are_forgotten_like_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "_REMEMBERED", 3)
    timings = msgspec.structs.replace(QUICK, freeze_s=0.2)
    storage = Storage.open(str(tmp_path))
    async with FakeAgent("node-0", storage) as agent, coordinating(tmp_path, [agent], timings=timings) as client:
        ids = [(await client.wait((await client.start_capture(SPEC)).capture_id)).capture_id for _ in range(8)]
        kept = [view.capture_id for view in await client.captures()]
    assert len(kept) <= 5
    assert kept[0] == ids[-1], "the newest are those that stay"


@in_loop
async def test_while_many_captures_wait_for_their_manifest_no_further_one_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "_UNPUBLISHED", 2)
    monkeypatch.setattr(book, "_REMEMBERED", 1)
    timings = msgspec.structs.replace(QUICK, publish_within_s=0.1)
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        async with coordinating(tmp_path, [agent], timings=timings) as client:
            agent.refuse["PublishManifest"] = Unreachable("storage is away")
            waiting = [await client.wait((await client.start_capture(SPEC)).capture_id) for _ in range(2)]
            with pytest.raises(TryAgain, match="2 captures"):
                await client.start_capture(SPEC)
            for view in waiting:
                assert not (await client.get(view.capture_id)).published, "what is not published is never forgotten"
            agent.refuse.clear()
            for view in waiting:
                while not (await client.get(view.capture_id)).published:
                    pass
            assert (await client.wait((await client.start_capture(SPEC)).capture_id)).outcome is Outcome.SUCCEEDED
            states = [(await client.get(view.capture_id)).state for view in waiting]
    assert states == [CaptureState.SUCCEEDED] * 2


@in_loop
async def test_agents_that_left_the_directory_are_forgotten_after_a_while_and_not_at_once(tmp_path: Path) -> None:
    class Directory(FixedAgents):
        named = ("127.0.0.1:1", "127.0.0.1:2")

        def addresses(self) -> tuple[str, ...]:
            return self.named

    clock, directory = JumpClock(), Directory(())
    roster = Roster(directory, JOB, clock, BackendName.BROKER)
    stays, leaves = roster.links()
    directory.named = ("127.0.0.1:1",)
    assert roster.links() == [stays]
    directory.named = ("127.0.0.1:1", "127.0.0.1:2")
    assert roster.links() == [stays, leaves], "a moment without it costs nothing"
    directory.named = ("127.0.0.1:1",)
    clock.jump(601)
    assert roster.links() == [stays]
    directory.named = ("127.0.0.1:1", "127.0.0.1:2")
    again = roster.links()
    assert again[0] is stays
    assert again[1] is not leaves
    await roster.close()
    await leaves.close()
