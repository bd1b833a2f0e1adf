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
from sameshot.coordinator.book import Book
from sameshot.errors import Denied, NoSuchJob, StorageError, UnknownCapture, Unreachable
from sameshot.model import CaptureState, FailureReason, Outcome, TargetState
from sameshot.steps import preflight
from sameshot.steps.finish import CANCEL_ALLOWANCE_S
from sameshot.steps.request import Action
from sameshot_flyte import polled
from sameshot_flyte.asked import Asked
from sameshot_flyte.polled import create
from support.canned_coordinator import SILENCE, canned
from support.coordination import JumpClock, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, failing, stay, worker
from support.s3 import s3_environment
from support.silent_network import network_to
from support.step_requests import request, training

LOST = "0" * 32


def arm(agent: FakeAgent) -> None:
    agent.workers = [worker(rank=rank, world_size=2) for rank in range(2)]


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


@pytest.mark.parametrize(
    "answer", [Unreachable("away"), NoSuchJob("it has gone"), SILENCE], ids=("away", "gone", "silent")
)
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
        first = await process().delete(asked)
        assert "2 of 2 configs were withdrawn" in first
        again = await process().delete(Asked.decode(asked.encode()))
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
        assert "was over already: FAILED" in await process().delete(first)
        assert not (await client.get(newer.capture_id)).cancel_requested
        assert withdrawals(agent) == 0


@in_loop
async def test_delete_finds_what_a_look_of_another_process_has_begun_and_ends_only_that(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        other = await create(request(client, "another task"))
        agent.script = stay(TargetState.QUEUED)
        await process().get(asked)
        await process().delete(asked)
        ended = {view.request_key: view.cancel_requested for view in await client.captures()}
        assert ended == {"k1": True, other.request.request_key: False}
        assert "was over already" in await process().delete(asked)


@in_loop
async def test_after_a_delete_nothing_is_begun_any_more_but_by_another_attempt(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        polls = process()
        asked = await create(request(client, if_unavailable=Action.WAIT))
        assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        assert "Nothing was begun yet" in await polls.delete(asked)
        assert (await polls.get(asked)).phase == "FAILED"  # and nothing is waited for
        arm(agent)
        status = await polls.get(asked)
        assert (status.phase, "cancelled before a capture had begun" in status.message) == ("FAILED", True)
        assert await captures(client) == []
        assert "Nothing was begun yet" in await polls.delete(asked)
        retry = Asked(request=asked.request, since=asked.since + 60, deadline=asked.deadline + 60)
        assert (await looks(retry, polls)).phase == "SUCCEEDED"


@in_loop
async def test_a_look_that_has_not_started_a_capture_yet_starts_none_after_a_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, on = asyncio.Event(), asyncio.Event()
    clear = preflight.check

    async def slowly(*args: Any) -> None:
        await clear(*args)
        looking.set()
        await on.wait()

    async with training(tmp_path, armed=False) as (agent, client):
        polls = process()
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        monkeypatch.setattr("sameshot.steps.begin.check", slowly)
        look = asyncio.create_task(polls.get(asked))
        await looking.wait()
        assert "Nothing was begun yet" in await polls.delete(asked)
        on.set()
        assert (await look).phase == "FAILED"
        assert await captures(client) == []


@in_loop
async def test_delete_waits_for_what_a_look_is_just_starting_and_cancels_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, arrived, on = Book.start, asyncio.Event(), asyncio.Event()

    async def start(*args: Any, **more: Any) -> Any:
        arrived.set()
        await on.wait()
        return await begins(*args, **more)

    async with training(tmp_path, armed=False) as (agent, client):
        polls = process()
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        agent.script = stay(TargetState.QUEUED)
        monkeypatch.setattr(Book, "start", start)
        look = asyncio.create_task(polls.get(asked))
        await arrived.wait()
        deleting = asyncio.create_task(polls.delete(asked))
        asyncio.get_running_loop().call_later(0.5, on.set)
        assert "CANCELLED" in await deleting
        await look
        assert await captures(client) == [(1, CaptureState.CANCELLED)]
        assert (await looks(asked, polls)).phase == "FAILED"


@in_loop
async def test_what_began_after_delete_gave_up_is_cancelled_by_the_look_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And Flyte calls `delete` again."""
    monkeypatch.setattr(polled, "_CANCEL_S", 0.5)
    begins, arrived, on = Book.start, asyncio.Event(), asyncio.Event()

    async def start(*args: Any, **more: Any) -> Any:
        arrived.set()
        await on.wait()
        return await begins(*args, **more)

    async with training(tmp_path, armed=False) as (agent, client):
        polls = process()
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        agent.script = stay(TargetState.QUEUED)
        monkeypatch.setattr(Book, "start", start)
        look = asyncio.create_task(polls.get(asked))
        await arrived.wait()
        with pytest.raises(Unreachable):
            await polls.delete(asked)
        on.set()
        await look
        assert await captures(client) == [(1, CaptureState.CANCELLED)]
        assert "was over already: CANCELLED" in await polls.delete(asked)


@pytest.mark.parametrize("by", ["create", "a look"])
@in_loop
async def test_a_start_that_nobody_answered_makes_delete_an_error_until_somebody_answers(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network falls silent when the start has arrived: the capture goes on, and its id is not known here."""
    for name, seconds in (("_BEGIN_S", 1.5), ("_GET_S", 2.5), ("_CANCEL_S", 0.5), ("LAST_WORD_S", 0.5)):
        monkeypatch.setattr(polled, name, seconds)
    monkeypatch.setattr("sameshot.steps.begin.LAST_WORD_S", 0.1)
    begins = Book.start
    async with training(tmp_path, armed=by == "create") as (agent, client), network_to(client.address) as network:

        async def start(*args: Any, **more: Any) -> Any:
            network.fall_silent()
            return await begins(*args, **more)

        agent.script = stay(TargetState.QUEUED)
        clock = Clock()
        polls = process(clock)
        asked = await create(asking(network.address, if_unavailable=Action.WAIT), now=clock) if by != "create" else None
        arm(agent)
        monkeypatch.setattr(Book, "start", start)
        if asked is None:
            asked = Asked.decode((await create(asking(network.address), now=clock)).encode())
        else:
            assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        assert asked.capture_id == ""
        assert [state for _, state in await captures(client)] == [CaptureState.COLLECTING]
        with pytest.raises(Unreachable):
            await polls.delete(asked)
        clock.later = 40 + CANCEL_ALLOWANCE_S
        with pytest.raises(Unreachable):
            await polls.delete(asked)
        clock.later = 61 + CANCEL_ALLOWANCE_S
        assert "What may have begun is not cancelled, and ends by itself" in await polls.delete(asked)
        clock.later = 0
        network.silent.clear()
        assert "2 of 2 configs were withdrawn" in await polls.delete(asked)
        assert await captures(client) == [(1, CaptureState.CANCELLED)]


@in_loop
async def test_where_no_start_was_sent_no_cancel_is_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polled, "_CANCEL_S", 0.5)
    monkeypatch.setattr(polled, "_BEGIN_S", 0.5)
    async with canned(GetCapture=SILENCE) as coordinator:
        asked = await create(asking(coordinator.address))
        assert (asked.unanswered, asked.settled) == (False, None)
        assert "as far as is known none has begun" in await process().delete(asked)


@in_loop
async def test_delete_of_a_success_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled, "_CANCEL_S", 0.5)
    async with training(tmp_path) as (_, client):
        asked = await create(request(client))
        assert (await looks(asked)).phase == "SUCCEEDED"
        assert "was over already: SUCCEEDED; 2 of 2 traces are kept" in await process().delete(asked)
    assert "was over already: SUCCEEDED" in await process().delete(asked)  # the archive says so


@in_loop
async def test_what_was_settled_needs_no_cancel() -> None:
    asked = await create(asking("local:nobody-of-that-name"))
    assert asked.settled is not None
    assert (await process().delete(asked)).startswith("Nothing is cancelled. No")


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
                await process().delete(asked)
            clock = Clock()
            clock.later = 61 + CANCEL_ALLOWANCE_S
            assert "is not cancelled, and ends by itself" in await process(clock).delete(asked)
            unknown = Asked(request=wanted, since=time.time(), deadline=time.time() + 60)
            assert "Nothing is cancelled: as far as is known none has begun" in await process().delete(unknown)


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
        assert await process().delete(asked) == says


@in_loop
async def test_a_job_of_this_machine_that_has_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "runs"))
    asked = Asked(request=asking("local:train", uid=JOB.uid), since=0, deadline=4e9, capture_id=LOST)
    assert "There is nothing to cancel any more. No job" in await process().delete(asked)


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
            times = await asyncio.gather(*map(took, [*calls, process().delete(began)]))
    made, running, over, begins, deleted = (answer for _, answer in times)
    assert max(seconds for seconds, _ in times) < 9.5, times
    assert isinstance(made, Asked)
    assert (made.capture_id, made.settled) == ("", None)
    assert (running.phase, over.phase, begins.phase) == ("RUNNING", "RETRYABLE_FAILED", "WAITING_FOR_RESOURCES")
    assert isinstance(deleted, Unreachable)
