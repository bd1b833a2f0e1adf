"""A capture that is to begin only where no other runs: the coordinator decides that and begins in one step."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sameshot.client import AsyncClient, CaptureView
from sameshot.coordinator.book import Book
from sameshot.errors import JobBusy, UsageError
from sameshot.model import CapturePolicy, CaptureSpec, CaptureState, Outcome, TargetState
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating, in_loop, until
from support.fake_agent import FakeAgent, deliver, stay, worker


@contextlib.asynccontextmanager
async def recording(archive: Path, **more: object) -> AsyncIterator[tuple[FakeAgent, AsyncClient]]:
    """A job whose captures stay in their window until the script is changed."""
    async with FakeAgent("node-0", Storage.open(str(archive))) as agent:
        agent.workers = [worker(rank=rank, world_size=2) for rank in range(2)]
        agent.script = stay(TargetState.CONSUMED)
        async with coordinating(archive, [agent], **more) as client:  # type: ignore[arg-type]
            yield agent, client


async def started(client: AsyncClient, *keys: str) -> list[CaptureView | BaseException]:
    return await asyncio.gather(
        *(client.start_capture(SPEC, key, only_if_free=True) for key in keys), return_exceptions=True
    )


@in_loop
async def test_of_many_that_are_held_up_at_the_same_question_exactly_one_gets_through(tmp_path: Path) -> None:
    async with recording(tmp_path) as (agent, client):
        agent.delay["KnownCaptures"] = asyncio.Event()  # each key is looked up before anything is begun
        many = asyncio.create_task(started(client, *(f"k{each}" for each in range(20))))
        await until(lambda: agent.calls.count("KnownCaptures") == 20)
        agent.delay.pop("KnownCaptures").set()
        answers = await many
        (through,) = [each for each in answers if isinstance(each, CaptureView)]
        refused = [each for each in answers if isinstance(each, JobBusy)]
        assert len(refused) == 19
        assert all(through.capture_id in str(each) and "Nothing was started" in str(each) for each in refused)
        assert [each.capture_id for each in await client.captures()] == [through.capture_id]
        agent.script = deliver
        assert (await client.wait(through.capture_id)).outcome is Outcome.SUCCEEDED
        assert "Withdraw" not in agent.calls


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(keys=st.lists(st.sampled_from(["a/1", "a/2", "b/1", "c/1", ""]), min_size=2, max_size=12))
def test_in_whatever_order_they_come_one_capture_is_made_and_given_to_all_of_its_key(keys: list[str]) -> None:
    @in_loop
    async def test(folder: Path) -> None:
        async with recording(folder) as (_, client):
            answers = await started(client, *keys)
            captures = await client.captures()
            assert [each.state.terminal or each.cancel_requested for each in captures] == [False]
            (made,) = captures
            through = Counter(key for key, each in zip(keys, answers, strict=True) if isinstance(each, CaptureView))
            assert {each.capture_id for each in answers if isinstance(each, CaptureView)} == {made.capture_id}
            # those of its key that came before it are all given it; without a key nobody is
            assert set(through) == {made.request_key}
            assert through[made.request_key] == (keys.count(made.request_key) if made.request_key else 1)
            assert all(isinstance(each, CaptureView | JobBusy) for each in answers)

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        test(Path(folder))


@in_loop
async def test_whoever_is_content_to_queue_still_does(tmp_path: Path) -> None:
    async with recording(tmp_path) as (agent, client):
        first = await client.start_capture(SPEC, "k1", only_if_free=True)
        second = await client.start_capture(SPEC, "k2")
        assert second.state is CaptureState.WAITING
        with pytest.raises(JobBusy, match=f"{first.capture_id}.* and 1 more"):
            await client.start_capture(SPEC, "k3", only_if_free=True)
        agent.script = deliver
        assert [(await client.wait(each.capture_id)).outcome for each in (first, second)] == [Outcome.SUCCEEDED] * 2
        third = await client.start_capture(SPEC, "k3", only_if_free=True)
        assert (await client.wait(third.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_the_keys_own_capture_is_given_and_one_of_its_family_does_not_count(tmp_path: Path) -> None:
    async with recording(tmp_path) as (_, client), AsyncClient(client.address, caller="ben") as ben:
        running = await client.start_capture(SPEC, "run/task/0", only_if_free=True)
        again = await client.start_capture(SPEC, "run/task/0", only_if_free=True)
        assert again.capture_id == running.capture_id
        for other in ("run/task/1", "run/task/10"):
            with pytest.raises(JobBusy):  # nothing says that they have anything in common
                await client.start_capture(SPEC, other, only_if_free=True)
        with pytest.raises(JobBusy):
            await client.start_capture(SPEC, "run/other/0", only_if_free=True, family="run/other/")
        with pytest.raises(JobBusy):  # keys, and so families, are each caller's own
            await ben.start_capture(SPEC, "run/task/1", only_if_free=True, family="run/task/")
        with pytest.raises(JobBusy):
            await ben.start_capture(SPEC, "run/task/0", only_if_free=True)
        with pytest.raises(UsageError, match="does not begin with its family"):
            await client.start_capture(SPEC, "run/task/1", only_if_free=True, family="run/other/")
        with pytest.raises(JobBusy):
            await client.start_capture(SPEC, only_if_free=True)
        next_one = await client.start_capture(SPEC, "run/task/1", only_if_free=True, family="run/task/")
        assert (next_one.state, next_one.n) == (CaptureState.WAITING, 1)


@in_loop
async def test_the_running_capture_is_named_before_a_limit_is_and_what_is_never_allowed_before_both(
    tmp_path: Path,
) -> None:
    policy = CapturePolicy(max_captures_at_once=1, max_duration_ms=2000)
    async with recording(tmp_path, policy=policy) as (_, client):
        running = await client.start_capture(SPEC, "k1")
        with pytest.raises(JobBusy, match=running.capture_id):
            await client.start_capture(SPEC, "k2", only_if_free=True)
        with pytest.raises(UsageError, match="2000 ms"):
            await client.start_capture(CaptureSpec(duration_ms=2001), "k3", only_if_free=True)


@in_loop
async def test_a_coordinator_that_does_not_know_the_wish_queues_and_cancels_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older one does, to which the fields are unknown."""
    start = Book.start

    async def older(self, caller, spec, key, *, return_failed, **_):  # type: ignore[no-untyped-def]
        return await start(self, caller, spec, key, return_failed=return_failed)

    monkeypatch.setattr(Book, "start", older)
    async with recording(tmp_path) as (agent, client):
        views = [each for each in await started(client, "k1", "k2") if isinstance(each, CaptureView)]
        assert len(views) == 2
        agent.script = deliver
        assert [(await client.wait(each.capture_id)).outcome for each in views] == [Outcome.SUCCEEDED] * 2
