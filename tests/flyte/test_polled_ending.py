"""A polled capture is ended by its deadline, or by Flyte's `delete`; what it was by then it stays."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from polled_lab import Clock, asking, captures, looks, process

from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient
from sameshot.errors import Denied, NoSuchJob, StorageError, UnknownCapture, Unreachable
from sameshot.model import CaptureState, FailureReason, Outcome, TargetState
from sameshot.steps.finish import CANCEL_ALLOWANCE_S
from sameshot.steps.request import Action
from sameshot_flyte import polled
from sameshot_flyte.asked import Asked
from sameshot_flyte.polled import create, delete
from support.canned_coordinator import SILENCE, canned
from support.coordination import JumpClock, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, failing, stay, worker
from support.s3 import s3_environment
from support.silent_network import network_to
from support.step_requests import request, training

LOST = "0" * 32


def late() -> Clock:
    clock = Clock()
    clock.later = 61
    return clock


async def collecting(client: AsyncClient, agent: FakeAgent, **more: Any) -> Asked:
    """A capture whose workers have not fetched their config yet."""
    agent.script = stay(TargetState.QUEUED)
    asked = await create(request(client, **more))
    await until_view(client, asked.capture_id, lambda view: view.state is CaptureState.COLLECTING)
    return asked


def withdrawals(agent: FakeAgent) -> int:
    return agent.calls.count("Withdraw")


# ---- the deadline


@in_loop
async def test_at_the_deadline_a_look_cancels_and_another_attempt_may_have_the_time(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        asked, clock = await collecting(client, agent), Clock()
        clock.later = 58
        assert (await process(clock).get(asked)).phase == "RUNNING"
        assert withdrawals(agent) == 0
        status = await looks(asked, process(late()))
        assert status.phase == "RETRYABLE_FAILED"
        assert status.message.startswith("Not done within 60 s. Capture")
        assert "2 of 2 configs were withdrawn" in status.message
        assert status.result is not None
        assert (status.result.timed_out, status.result.outcome) == (True, Outcome.CANCELLED)
        agent.script = deliver
        assert (await looks(await create(request(client)))).phase == "SUCCEEDED"
        assert await captures(client) == [(1, CaptureState.CANCELLED), (2, CaptureState.SUCCEEDED)]


@in_loop
async def test_a_look_that_is_cut_off_while_it_cancels_goes_on_in_the_next_of_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    class OnTheWall(JumpClock):
        """The coordinator's clock on the wall goes as the connectors' does."""

        def wall_ns(self) -> int:
            return int(clock() * 1e9)

    async with training(tmp_path, clock=OnTheWall()) as (agent, client):
        asked = await collecting(client, agent)
        clock.later = 61
        agent.delay["PublishManifest"] = asyncio.Event()
        looking = asyncio.create_task(process(clock).get(asked))
        await until(lambda: withdrawals(agent))
        looking.cancel()  # Flyte's ten seconds are over
        await asyncio.gather(looking, return_exceptions=True)
        assert looking.cancelled()
        monkeypatch.setattr(polled, "_GET_S", 4.0)
        status = await process(clock).get(asked)
        assert (status.phase, "CANCELLED, and not published" in status.message) == ("RUNNING", True)
        agent.delay["PublishManifest"].set()
        status = await looks(asked, process(clock))
        assert status.phase == "RETRYABLE_FAILED"
        assert status.result is not None
        assert status.result.timed_out
        assert withdrawals(agent) == 1


@in_loop
async def test_what_is_published_is_never_called_late(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        asked = await create(request(client))
        await client.wait(asked.capture_id)
        status = await looks(asked, process(late()))
        assert status.phase == "SUCCEEDED"
        assert status.result is not None
        assert not status.result.timed_out
        assert withdrawals(agent) == 0
    assert (await looks(asked, process(late()))).phase == "SUCCEEDED"  # from the archive


@in_loop
async def test_what_converges_while_it_is_to_be_cancelled_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that saw it run and the cancel."""
    async with training(tmp_path) as (agent, client):
        asked, cancel = await collecting(client, agent), polled.end

        async def end(*args: Any, **more: Any) -> Any:
            agent.script = deliver
            await client.wait(asked.capture_id)
            return await cancel(*args, **more)

        monkeypatch.setattr(polled, "end", end)
        assert (await looks(asked, process(late()))).phase == "SUCCEEDED"
        assert not (await client.get(asked.capture_id)).cancel_requested


@in_loop
async def test_a_cancel_before_the_deadline_was_somebodys_wish(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        asked = await collecting(client, agent)
        await client.cancel(asked.capture_id)
        await until_view(client, asked.capture_id, lambda view: view.published)
        status = await looks(asked, process(late()))
        assert status.phase == "FAILED"
        assert "Not done" not in status.message


@in_loop
async def test_the_process_that_cancelled_knows_it_though_the_clocks_differ(tmp_path: Path) -> None:
    """Another one goes by the coordinator's clock, which says here that it ended before the deadline."""
    async with training(tmp_path) as (agent, client):
        asked, clock = await collecting(client, agent), late()
        polls = process(clock)
        status = await looks(asked, polls)
        assert status.phase == "RETRYABLE_FAILED"
        assert (await polls.get(asked)).phase == "RETRYABLE_FAILED"
        assert (await process(clock).get(asked)).phase == "FAILED"


@in_loop
async def test_what_ended_unpublished_has_a_while_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polled, "_GET_S", 2.0)
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        asked, clock = await create(request(client)), late()
        await until_view(client, asked.capture_id, lambda view: view.state.terminal)
        status = await process(clock).get(asked)
        assert status.phase == "RUNNING"
        assert status.message.startswith(
            f"Not done within 60 s: capture {asked.capture_id} is SUCCEEDED, and not published"
        )
        clock.later = 61 + CANCEL_ALLOWANCE_S
        status = await process(clock).get(asked)
        assert status.phase == "RETRYABLE_FAILED"
        assert "its manifest is not published" in status.message
        agent.refuse.clear()
        assert (await looks(asked, process(clock), so=lambda status: status.phase == "SUCCEEDED")).result is not None


@pytest.mark.parametrize("answer", [Unreachable("away"), NoSuchJob("it has gone"), SILENCE], ids=str)
@in_loop
async def test_a_cancel_that_nobody_confirms_is_tried_for_a_while_and_at_least_once(
    answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polled, "_GET_S", 2.0)
    view = CaptureView(capture_id=LOST, job=JOB, state=CaptureState.COLLECTING, expected=2, manifest_uri="")
    async with canned(GetCapture=view, CancelCapture=answer) as coordinator:
        clock = late()
        asked = Asked(request=asking(coordinator.address), since=clock() - 61, deadline=clock() - 1, capture_id=LOST)
        status = await process(clock).get(asked)
        assert status.phase == "RUNNING"
        assert f"Not done within 60 s, so capture {LOST} is being cancelled." in status.message
        assert "did not confirm it in time" in status.message or str(answer) in status.message
        clock.later += CANCEL_ALLOWANCE_S + 3600
        before = coordinator.calls.count("CancelCapture")
        status = await process(clock).get(asked)
        assert status.phase == "RETRYABLE_FAILED"
        assert "nobody confirms the end" in status.message
        assert coordinator.calls.count("CancelCapture") > before


@in_loop
async def test_who_may_not_cancel_is_told_so() -> None:
    view = CaptureView(capture_id=LOST, job=JOB, state=CaptureState.COLLECTING, expected=2)
    async with canned(GetCapture=view, CancelCapture=Denied("not yours")) as coordinator:
        asked = Asked(request=asking(coordinator.address), since=0, deadline=1, capture_id=LOST)
        status = await process().get(asked)
        assert (status.phase, status.message) == ("FAILED", "not yours")


# ---- delete


@in_loop
async def test_delete_cancels_by_the_id_once_however_often_it_is_called(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        asked = await collecting(client, agent)
        other = await create(request(client, "another task"))
        first = await delete(asked)
        assert "2 of 2 configs were withdrawn" in first
        again = await delete(Asked.decode(asked.encode()))
        assert "was over already: CANCELLED" in again
        assert withdrawals(agent) == 1
        assert not (await client.get(other.capture_id)).cancel_requested


@in_loop
async def test_a_late_delete_does_not_reach_the_capture_of_a_newer_attempt(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.WORKER_EXITED)
        first = await create(request(client))
        await looks(first)
        newer = await collecting(client, agent)
        assert newer.capture_id != first.capture_id
        assert "was over already: FAILED" in await delete(first)
        assert not (await client.get(newer.capture_id)).cancel_requested
        assert withdrawals(agent) == 0


@in_loop
async def test_delete_finds_what_a_look_has_begun_and_ends_only_that(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        asked = await create(request(client, if_unavailable=Action.WAIT))
        assert "Nothing was begun yet" in await delete(asked)
        agent.workers = [worker(rank=rank, world_size=2) for rank in range(2)]
        other = await create(request(client, "another task"))
        agent.script = stay(TargetState.QUEUED)
        await process().get(asked)
        await delete(asked)
        ended = {view.request_key: view.cancel_requested for view in await client.captures()}
        assert ended == {"k1": True, other.request.request_key: False}
        assert "was over already" in await delete(asked)


@in_loop
async def test_delete_of_a_success_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled, "_CANCEL_S", 0.5)
    async with training(tmp_path) as (_, client):
        asked = await create(request(client))
        assert (await looks(asked)).phase == "SUCCEEDED"
        assert "was over already: SUCCEEDED; 2 of 2 traces are kept" in await delete(asked)
    assert "was over already: SUCCEEDED" in await delete(asked)  # the archive says so


@in_loop
async def test_what_was_settled_needs_no_cancel() -> None:
    asked = await create(asking("local:nobody-of-that-name"))
    assert asked.settled is not None
    assert (await delete(asked)).startswith("Nothing is cancelled. No")


@in_loop
async def test_a_cancel_that_is_owed_and_not_confirmed_is_an_error_until_the_capture_has_ended_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(polled, "_CANCEL_S", 0.5)
    for answer in (Unreachable("away"), SILENCE):
        async with canned(GetCapture=answer) as coordinator:
            wanted = asking(coordinator.address)
            asked = Asked(request=wanted, since=time.time(), deadline=time.time() + 60, capture_id=LOST)
            with pytest.raises(Unreachable):
                await delete(asked)
            clock = Clock()
            clock.later = 61 + CANCEL_ALLOWANCE_S
            assert "is not cancelled, and ends by itself" in await delete(asked, now=clock)
            unknown = Asked(request=wanted, since=time.time(), deadline=time.time() + 60)
            assert "Nothing is cancelled: as far as is known none has begun" in await delete(unknown)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Denied("not yours"), f"Capture {LOST} is not cancelled, and ends by itself. not yours"),
        (NoSuchJob("it has gone"), "There is nothing to cancel any more. it has gone"),
        (UnknownCapture("nobody knows it"), "nobody knows it"),
    ],
)
@in_loop
async def test_what_calling_again_can_not_mend_is_said_and_not_raised(answer: Exception, says: str) -> None:
    """An error would hold up what Flyte does next, and for what?"""
    async with canned(GetCapture=answer) as coordinator:
        asked = Asked(request=asking(coordinator.address), since=0, deadline=4e9, capture_id=LOST)
        assert await delete(asked) == says


@in_loop
async def test_a_job_of_this_machine_that_has_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "runs"))
    asked = Asked(request=asking("local:train", uid=JOB.uid), since=0, deadline=4e9, capture_id=LOST)
    assert "There is nothing to cancel any more. No job" in await delete(asked)


# ---- bounded in time


@in_loop
async def test_every_call_ends_within_flytes_ten_seconds_though_nobody_ever_answers(tmp_path: Path) -> None:
    """With the bounds of a real connector: a coordinator and a store that take connections and say nothing."""
    async with training(tmp_path) as (_, client), network_to(client.address) as network:
        network.fall_silent()
        began = Asked(
            request=asking(network.address),
            since=time.time(),
            deadline=time.time() + 600,
            capture_id=LOST,
            manifest_uri="s3://bucket/ml/bert/0/manifest.json",
        )
        overdue = msgspec.structs.replace(began, deadline=time.time() - 3600)
        waiting = msgspec.structs.replace(began, capture_id="", manifest_uri="")

        async def took(call: Any) -> tuple[float, Any]:
            start = time.monotonic()
            (answer,) = await asyncio.gather(call, return_exceptions=True)
            return time.monotonic() - start, answer

        with s3_environment(f"http://{network.address}"):
            calls = [create(asking(network.address)), *(process().get(each) for each in (began, overdue, waiting))]
            times = await asyncio.gather(*map(took, [*calls, delete(began)]))
    made, running, over, begins, deleted = (answer for _, answer in times)
    assert max(seconds for seconds, _ in times) < 9.5, times
    assert isinstance(made, Asked)
    assert (made.capture_id, made.settled) == ("", None)
    assert (running.phase, over.phase, begins.phase) == ("RUNNING", "RETRYABLE_FAILED", "WAITING_FOR_RESOURCES")
    assert isinstance(deleted, Unreachable)
