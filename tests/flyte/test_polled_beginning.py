"""A capture is begun once for each wish, by whoever comes first: `create`, or a look of any process after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from polled_lab import Clock, asking, captures, looks, process

from sameshot.client.local import JobInfo, write_job_file
from sameshot.coordinator.book import Book
from sameshot.errors import (
    Denied,
    JobBusy,
    NoSuchJob,
    RequestKeyConflict,
    SameshotError,
    StorageError,
    UnknownCapture,
)
from sameshot.model import CaptureSpec, CaptureState, FailureReason, TargetState
from sameshot.steps.request import Action
from sameshot_flyte import keyed, polled
from sameshot_flyte.asked import Asked, Place
from sameshot_flyte.keyed import CLOCKS_DIFFER_S
from sameshot_flyte.polled import PATIENCE_S, create, create_from
from support.canned_coordinator import SILENCE, canned
from support.coordination import coordinating, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, failing, stay, worker
from support.step_requests import request, training

OTHERS = CaptureSpec(duration_ms=1000, start_delay_ms=600_000)


def arm(agent: FakeAgent) -> None:
    agent.workers = [worker(rank=rank, world_size=2) for rank in range(2)]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bounds, a tenth of the time."""
    for name in ("_BEGIN_S", "LAST_WORD_S", "_GET_S", "_CANCEL_S", "ANSWER_S"):
        monkeypatch.setattr(polled, name, getattr(polled, name) / 10)
    monkeypatch.setattr(keyed, "ANSWER_S", 0.3)
    monkeypatch.setattr("sameshot.steps.glance.ANSWER_S", 0.3)


@pytest.fixture
def answers_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """The coordinator begins captures and does not say so before the event."""
    begins, say = Book.start, asyncio.Event()

    async def start(*args: Any, **more: Any) -> Any:
        begun = await begins(*args, **more)
        await say.wait()
        return begun

    with monkeypatch.context() as patch:
        patch.setattr(Book, "start", start)
        yield say


# ---- create


@in_loop
async def test_create_is_idempotent_also_when_it_is_called_twice_at_once(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        one, other = await asyncio.gather(create(request(client)), create(request(client)))
        again = await create(request(client))
        assert one.capture_id == other.capture_id == again.capture_id != ""
        assert len(await captures(client)) == 1
        assert (one.request.uid, one.request.attempt) == (JOB.uid, JOB.attempt)  # pinned
        assert one.deadline - one.since == 60


@in_loop
async def test_a_retry_attaches_to_what_runs_and_to_what_is_usable_and_to_nothing_that_failed(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        first = await create(request(client))
        assert (await create(request(client))).capture_id == first.capture_id
        agent.script = deliver
        await looks(first)
        assert (await create(request(client))).capture_id == first.capture_id

        agent.script = failing(FailureReason.WORKER_EXITED)
        failed = await create(request(client, "k2"))
        assert (await looks(failed)).phase == "RETRYABLE_FAILED"
        agent.script = deliver
        retry = await create(request(client, "k2"))
        assert retry.capture_id != failed.capture_id
        assert (await looks(retry)).phase == "SUCCEEDED"
        assert (await looks(failed)).phase == "RETRYABLE_FAILED"  # each remembers its own


@in_loop
async def test_what_create_has_begun_is_found_where_its_caller_gave_up(
    tmp_path: Path, answers_late: asyncio.Event
) -> None:
    async with training(tmp_path) as (_, client):
        calling = asyncio.create_task(create(request(client)))
        while not await captures(client):
            await asyncio.sleep(0.01)
        calling.cancel()  # ten seconds are over, and its gRPC call with them
        answers_late.set()
        await asyncio.gather(calling, return_exceptions=True)
        assert calling.cancelled()
        again = await create(request(client))
        assert again.capture_id == (await client.captures())[0].capture_id
        assert len(await captures(client)) == 1


@in_loop
async def test_what_create_got_no_answer_to_is_found_by_the_first_look(
    tmp_path: Path, hurried: None, answers_late: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sameshot.steps.begin.LAST_WORD_S", 0.1)
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.WORKER_EXITED)
        asked = await create(request(client))
        assert (asked.capture_id, asked.settled) == ("", None)
        answers_late.set()
        status = await looks(asked)  # also where it has failed by then: never a second one
        assert status.phase == "RETRYABLE_FAILED"
        assert await captures(client) == [(1, CaptureState.FAILED)]


@in_loop
async def test_an_answer_just_after_the_time_still_counts(
    tmp_path: Path, hurried: None, answers_late: asyncio.Event
) -> None:
    async with training(tmp_path) as (_, client):
        asyncio.get_running_loop().call_later(1.0, answers_late.set)  # create waits 0.65 s, and up to 2 s for this
        assert (await create(request(client))).capture_id != ""


# ---- waiting for the job


@in_loop
async def test_a_look_begins_what_could_not_begin_and_the_next_one_finds_it(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        asked = await create(request(client, if_unavailable=Action.WAIT))
        assert (asked.capture_id, asked.settled) == ("", None)
        first = process()
        status = await first.get(asked)
        assert status.phase == "WAITING_FOR_RESOURCES"
        assert "No worker of job train is registered" in status.message
        assert await captures(client) == []

        arm(agent)
        assert not (await first.get(asked)).phase.terminal
        (begun,) = await client.captures()
        for polls in (first, process(), process()):
            status = await polls.get(asked)
            assert status.phase in ("INITIALIZING", "RUNNING")
            assert status.manifest_uri == begun.manifest_uri
        agent.script = deliver
        status = await looks(asked)
        assert status.phase == "SUCCEEDED"
        assert status.result is not None
        assert status.result.capture_id == begun.capture_id
        assert len(await captures(client)) == 1


@in_loop
async def test_what_a_look_has_begun_is_not_begun_again_though_it_failed(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        agent.script = failing(FailureReason.WORKER_EXITED)
        await process().get(asked)
        await client.wait((await client.captures())[0].capture_id)
        for _ in range(2):
            assert (await looks(asked)).phase == "RETRYABLE_FAILED"
        assert await captures(client) == [(1, CaptureState.FAILED)]


async def waiting_after_a_failure(agent: FakeAgent, client: Any, clock: Clock) -> Asked:
    """Attempt 1 has failed, its job's workers have gone, attempt 2 waits for them; now they are back."""
    agent.script = failing(FailureReason.WORKER_EXITED)
    assert (await looks(await create(request(client)))).phase == "RETRYABLE_FAILED"
    agent.workers = []
    asked = await create(request(client, if_unavailable=Action.WAIT), now=clock)
    assert asked.capture_id == ""
    arm(agent)
    agent.script = deliver
    return asked


@in_loop
async def test_an_earlier_attempts_failure_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        clock = Clock()
        clock.later = CLOCKS_DIFFER_S + 5  # so much time has passed since the first attempt began
        asked = await waiting_after_a_failure(agent, client, clock)
        assert (await looks(asked, process(clock))).phase == "SUCCEEDED"
        assert await captures(client) == [(1, CaptureState.FAILED), (2, CaptureState.SUCCEEDED)]


@in_loop
async def test_a_coordinator_whose_clock_is_ahead_makes_the_earlier_failure_be_told_again(tmp_path: Path) -> None:
    """What the comparison of two clocks costs: an attempt that had to wait, and failed without a try."""
    async with training(tmp_path) as (agent, client):
        clock = Clock()
        clock.later = -60
        asked = await waiting_after_a_failure(agent, client, clock)
        status = await looks(asked, process(clock))
        assert status.phase == "RETRYABLE_FAILED"
        assert await captures(client) == [(1, CaptureState.FAILED)]


@pytest.mark.parametrize(("behind_s", "tries"), [(0.0, 1), (CLOCKS_DIFFER_S - 1, 1), (CLOCKS_DIFFER_S + 30, 2)])
@in_loop
async def test_a_coordinator_whose_clock_is_behind_makes_a_failed_capture_be_tried_once_more(
    behind_s: float, tries: int, tmp_path: Path
) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        clock = Clock()
        clock.later = behind_s
        asked = await create(request(client, if_unavailable=Action.WAIT), now=clock)
        arm(agent)
        agent.script = failing(FailureReason.WORKER_EXITED)
        await process(clock).get(asked)
        (begun,) = await client.captures()
        await client.wait(begun.capture_id)
        agent.script = deliver
        await looks(asked, process(clock))
        assert len(await captures(client)) == tries


@in_loop
async def test_whatever_the_clocks_say_one_that_runs_is_found(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        clock = Clock()
        clock.later = 3000
        agent.script = stay(TargetState.CONSUMED)
        asked = await create(request(client, if_unavailable=Action.WAIT), now=clock)
        arm(agent)
        for _ in range(3):
            assert not (await process(clock).get(asked)).phase.terminal
        assert len(await captures(client)) == 1


@in_loop
async def test_what_an_earlier_attempt_has_begun_serves_also_after_the_deadline(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(request(client).spec, "k1")).capture_id)
        clock = Clock()
        clock.later = 3600
        asked = Asked(request=request(client), since=clock() - 60, deadline=clock() - 30)
        status = await process(clock).get(asked)
        assert status.phase == "SUCCEEDED"
        assert status.result is not None
        assert status.result.capture_id == done.capture_id


@in_loop
async def test_an_earlier_attempts_capture_that_is_being_cancelled_is_waited_for_and_not_taken(tmp_path: Path) -> None:
    """Flyte's own timeout: `delete`, and at once `create` of the next attempt."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        first = await create(request(client))
        await until_view(client, first.capture_id, lambda view: view.state is CaptureState.COLLECTING)
        agent.delay["Withdraw"] = asyncio.Event()
        cancelling = asyncio.create_task(client.cancel(first.capture_id))
        await until(lambda: "Withdraw" in agent.calls)
        clock = Clock()
        clock.later = CLOCKS_DIFFER_S + 5
        retry = await create(request(client), now=clock)
        assert (retry.capture_id, retry.settled) == ("", None)
        status = await process(clock).get(retry)
        assert status.phase == "WAITING_FOR_RESOURCES"
        assert "of an earlier attempt is being cancelled" in status.message
        agent.delay["Withdraw"].set()
        await cancelling
        agent.script = deliver
        assert (await looks(retry, process(clock))).phase == "SUCCEEDED"
        assert await captures(client) == [(1, CaptureState.CANCELLED), (2, CaptureState.SUCCEEDED)]


# ---- what stands in the way


@pytest.mark.parametrize(
    ("obstacle", "action", "phase"),
    [
        ("not armed", Action.FAIL, "RETRYABLE_FAILED"),
        ("not armed", Action.SKIP, "SUCCEEDED"),
        ("not armed", Action.WAIT, "WAITING_FOR_RESOURCES"),
        ("busy", Action.FAIL, "RETRYABLE_FAILED"),
        ("busy", Action.SKIP, "SUCCEEDED"),
        ("busy", Action.WAIT, "QUEUED"),  # at the coordinator
    ],
)
@in_loop
async def test_an_obstacle_is_treated_as_was_asked_for_by_create_and_by_every_look(
    obstacle: str, action: Action, phase: str, tmp_path: Path
) -> None:
    async with training(tmp_path, armed=obstacle == "busy") as (_, client):
        if obstacle == "busy":
            await client.start_capture(OTHERS, "another task")
        wanted = request(client, if_unavailable=action, if_busy=action)
        before = len(await captures(client))
        asked = await create(wanted)
        later = Asked(request=wanted, since=asked.since, deadline=asked.deadline)  # as if nobody had answered
        for each in (asked, later):
            status = await process().get(each)
            assert status.phase == phase, status
            assert (status.result is not None and status.result.skipped) == (action is Action.SKIP)
        begun = len(await captures(client)) - before
        assert begun == (phase == "QUEUED")
        assert (asked.settled is None) == (action is Action.WAIT)


@in_loop
async def test_at_the_deadline_what_was_waited_for_in_vain_is_named_and_nothing_is_begun(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        clock = Clock()
        asked = await create(request(client, if_unavailable=Action.WAIT), now=clock)
        clock.later = 61
        status = await process(clock).get(asked)
        assert status.phase == "RETRYABLE_FAILED"
        assert status.message.startswith("Waited in vain for 60 s. No worker of job train is registered")
        arm(agent)  # too late
        status = await process(clock).get(asked)
        assert status.phase == "RETRYABLE_FAILED"
        assert status.message == "Waited in vain for 60 s. No capture had begun by then."
        assert await captures(client) == []


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (RequestKeyConflict("the same key, another spec"), "FAILED"),
        (Denied("not yours"), "FAILED"),
        (NoSuchJob("no such workers"), "RETRYABLE_FAILED"),
    ],
)
@in_loop
async def test_what_can_not_be_waited_for_is_settled_by_create_and_told_by_looks(
    error: SameshotError, phase: str
) -> None:
    async with canned(GetCapture=error) as coordinator:
        asked = await create(asking(coordinator.address))
        assert asked.settled is not None
        status = await process().get(asked)
        assert (status.phase, status.message) == (phase, str(error))
        later = Asked(request=asked.request, since=asked.since, deadline=asked.deadline)
        assert (await process().get(later)).phase == phase


@in_loop
async def test_inputs_that_can_not_be_read_are_settled_for_good() -> None:
    asked = await create_from({"address": ""}, Place("p", "d", "e", "n"), caller="flyte", base_url="https://x")
    assert (asked.capture_id, asked.base_url) == ("", "https://x")
    status = await process().get(Asked.decode(asked.encode()))
    assert status.phase == "FAILED"
    assert "`address` is empty" in status.message


# ---- silence


@pytest.mark.parametrize(
    "trouble",
    [StorageError("503 of the archive"), grpc.StatusCode.INTERNAL, SILENCE],
    ids=["archive", "proxy", "silence"],
)
@in_loop
async def test_silence_is_asked_again_for_a_while_and_worth_a_retry_then(trouble: object, hurried: None) -> None:
    async with canned(GetCapture=trouble) as coordinator:
        clock = Clock()
        asked = await create(asking(coordinator.address), now=clock)
        assert (asked.capture_id, asked.settled) == ("", None)
        polls = process(clock)
        assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        clock.later += PATIENCE_S - 5
        assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        clock.later += 6
        assert (await polls.get(asked)).phase == "RETRYABLE_FAILED"
        assert "StartCapture" not in coordinator.calls


@in_loop
async def test_whoever_answers_ends_the_silence_before(hurried: None) -> None:
    async with canned(GetCapture=SILENCE) as coordinator:
        clock = Clock()
        asked = await create(asking(coordinator.address), now=clock)
        polls = process(clock)
        await polls.get(asked)
        clock.later += PATIENCE_S - 5
        coordinator.answers |= {"GetCapture": UnknownCapture("no"), "Describe": JobBusy("at work")}
        assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        coordinator.answers["GetCapture"] = SILENCE
        clock.later += 10
        assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"


@in_loop
async def test_who_waits_for_the_job_waits_for_its_coordinator_until_the_deadline(hurried: None) -> None:
    async with canned(GetCapture=SILENCE) as coordinator:
        clock = Clock()
        asked = await create(asking(coordinator.address, if_unavailable=Action.WAIT), now=clock)
        polls = process(clock)
        for later in (0, 40, 55):
            clock.later = later
            assert (await polls.get(asked)).phase == "WAITING_FOR_RESOURCES"
        clock.later = 61
        status = await polls.get(asked)
        assert status.phase == "RETRYABLE_FAILED"
        assert status.message.startswith("Waited in vain for 60 s.")


@in_loop
async def test_a_store_that_hangs_while_a_job_is_looked_for_holds_no_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(polled, "_GET_S", 0.5)
    monkeypatch.setattr(polled, "kept", hangs)
    asked = Asked(request=asking("local:nobody-of-that-name"), since=0.0, deadline=4e9)
    status = await process().get(asked)
    assert (status.phase, status.message) == ("WAITING_FOR_RESOURCES", "waiting: No answer within 0.5 s.")


# ---- the job goes away


@in_loop
async def test_what_a_look_has_begun_is_followed_though_its_job_has_gone(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        asked = await create(request(client, if_unavailable=Action.WAIT))
        arm(agent)
        polls = process()
        await polls.get(asked)
        await until(lambda: agent.calls.count("PublishManifest"))
        await client.wait((await client.captures())[0].capture_id)
    assert (await looks(asked, polls)).phase == "SUCCEEDED"  # the archive tells


@in_loop
async def test_what_a_local_jobs_run_has_left_is_found_by_another_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    (root / "r1").mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(request(client).spec, "k1")).capture_id)
    info = JobInfo(job=JOB, series="s", coordinator="unix:/none", archive=str(tmp_path / "archive"), pid=2**22 + 1)
    write_job_file(root / "r1", info)
    wanted = msgspec.structs.replace(request(client), address="local:train")
    asked = Asked(request=wanted, since=0.0, deadline=4e9)
    status = await process().get(asked)
    assert status.phase == "SUCCEEDED"
    assert status.result is not None
    assert status.result.capture_id == done.capture_id


@in_loop
async def test_the_next_job_at_the_same_address_does_not_get_the_capture_of_the_one_before(tmp_path: Path) -> None:
    """The process that began it knows the capture by its id."""
    where = f"unix:{tmp_path}/c.sock"
    async with FakeAgent("node-0") as agent:
        agent.script = stay(TargetState.CONSUMED)
        async with coordinating(tmp_path / "archive", [agent], listen=where) as client:
            asked = await create(request(client, if_unavailable=Action.WAIT))
            arm(agent)
            polls = process()
            await polls.get(asked)
        other = msgspec.structs.replace(JOB, uid="2" * 32)
        agent.forget()
        async with coordinating(tmp_path / "archive", [agent], listen=where, job=other) as client:
            assert (await looks(asked, polls)).phase == "RETRYABLE_FAILED"  # lost
            assert await captures(client) == []
