"""Can this job be captured now? Whoever can't gets the reason, by the name of the job, before anything is started."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import msgspec
import pytest

from sameshot.api.transport import Endpoint
from sameshot.api.views import AgentStatus, CaptureView, JobDescription, WorkersView
from sameshot.client.local import JobInfo, write_job_file
from sameshot.errors import JobBusy, JobEnded, NoSuchJob, NotArmed, OtherAttempt, SameshotError, Unreachable, UsageError
from sameshot.model import CapturePolicy, CaptureState, JobRef, Outcome, Phase, TargetState
from sameshot.steps.begin import begin
from sameshot.steps.capture import run
from sameshot.steps.preflight import action_for, check, obstacle, resolved, wait_until_clear
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult
from support.coordination import SPEC, coordinating, in_loop, until
from support.fake_agent import JOB, deliver, stay, worker
from support.step_requests import request, training

ASKED = CaptureRequest(request_key="k1", caller="ana", if_busy=Action.FAIL)
SERVED = JobDescription(job=JOB)
LIVE = worker(rank=0, world_size=1)
GONE = worker(rank=0, world_size=1, alive=False, current=False)
ENDING = worker(rank=0, world_size=1, phase=Phase.EXITING)
REPLACED = worker(rank=0, world_size=1, current=False)
ANSWERS, SILENT = AgentStatus("a:1", "node-0", True), AgentStatus("b:1", "node-1", False, "timed out")


def there(*workers: object, agents: tuple[AgentStatus, ...] = (ANSWERS,)) -> WorkersView:
    return WorkersView(job=JOB, workers=workers, agents=agents)  # type: ignore[arg-type]


def running(state: CaptureState, caller: str = "ben", key: str = "nightly") -> CaptureView:
    return CaptureView(capture_id="f" * 32, job=JOB, caller=caller, request_key=key, state=state)


@pytest.mark.parametrize(
    ("asked", "workers", "captures", "kind"),
    [
        ({}, there(LIVE), [], None),
        ({"job": "train", "uid": JOB.uid, "attempt": 0}, there(LIVE), [], None),
        ({"job": "bert"}, there(LIVE), [], OtherAttempt),
        ({"uid": "0" * 32}, there(LIVE), [], OtherAttempt),
        ({"attempt": 1}, there(LIVE), [], OtherAttempt),
        ({}, there(), [], NotArmed),
        ({}, there(GONE), [], JobEnded),
        ({}, there(ENDING), [], JobEnded),
        ({}, there(GONE, ENDING, REPLACED), [], JobEnded),
        ({}, there(GONE, LIVE), [], None),
        # who does not answer may have workers: nothing is claimed
        ({}, there(agents=(SILENT,)), [], Unreachable),
        ({}, there(agents=()), [], Unreachable),
        ({}, there(GONE, agents=(ANSWERS, SILENT)), [], Unreachable),
        ({}, there(LIVE, agents=(ANSWERS, SILENT)), [], None),
        # another capture
        ({}, there(LIVE), [running(CaptureState.WAITING)], JobBusy),
        ({}, there(LIVE), [running(CaptureState.DISPATCHING)], JobBusy),
        ({}, there(LIVE), [running(CaptureState.COLLECTING)], JobBusy),
        ({"if_busy": Action.SKIP}, there(LIVE), [running(CaptureState.COLLECTING)], JobBusy),
        ({"if_busy": Action.WAIT}, there(LIVE), [running(CaptureState.COLLECTING)], None),  # the queue
        ({"if_busy": Action.WAIT}, there(LIVE), [running(CaptureState.COLLECTING)] * 4, JobBusy),  # the policy's limit
        ({}, there(LIVE), [running(CaptureState.PUBLISHING)], None),  # its workers are free
        ({}, there(LIVE), [running(CaptureState.SUCCEEDED)], None),
        ({}, there(LIVE), [running(CaptureState.COLLECTING, "ana", "k1")], None),  # our own
        ({}, there(LIVE), [running(CaptureState.COLLECTING, "ana", "k2")], JobBusy),  # another task of ours
        ({}, there(LIVE), [running(CaptureState.COLLECTING, "ben", "k1")], JobBusy),  # keys are each caller's own
        # what the same task asked for before it was cleared
        ({"family": "k"}, there(LIVE), [running(CaptureState.COLLECTING, "ana", "k2")], None),
        ({"family": "k"}, there(LIVE), [running(CaptureState.COLLECTING, "ben", "k2")], JobBusy),
        ({"family": "k"}, there(LIVE), [running(CaptureState.COLLECTING, "ana", "j2")], JobBusy),
        (
            {"family": "k"},
            there(LIVE),
            [running(CaptureState.COLLECTING, "ana", "k2")] * 4,
            JobBusy,
        ),  # the queue is full
        # the most lasting reason is told
        ({"attempt": 1}, there(), [running(CaptureState.COLLECTING)], OtherAttempt),
        ({}, there(), [running(CaptureState.COLLECTING)], NotArmed),
    ],
)
def test_what_stands_in_the_way(
    asked: dict[str, object], workers: WorkersView, captures: list[CaptureView], kind: type[SameshotError] | None
) -> None:
    found = obstacle(msgspec.structs.replace(ASKED, **asked), SERVED, workers, captures)
    assert type(found) is (kind or type(None))
    if found is not None:
        assert "train" in str(found)


@pytest.mark.parametrize("if_busy", list(Action))
def test_a_queue_that_is_full_of_our_own_earlier_captures_is_waited_for(if_busy: Action) -> None:
    asked = msgspec.structs.replace(ASKED, family="k", if_busy=if_busy)
    ours, theirs = running(CaptureState.COLLECTING, "ana", "k2"), running(CaptureState.WAITING, "ben", "b")
    found = obstacle(asked, SERVED, there(LIVE), [ours] * 4)
    assert isinstance(found, JobBusy)
    assert action_for(asked, found) is Action.WAIT
    mixed = obstacle(asked, SERVED, there(LIVE), [ours, theirs, ours, ours])
    assert isinstance(mixed, JobBusy)
    assert action_for(asked, mixed) is if_busy


def test_another_attempt_is_named_beside_the_one_that_was_asked_for() -> None:
    served = JobDescription(job=msgspec.structs.replace(JOB, attempt=3))
    found = obstacle(msgspec.structs.replace(ASKED, attempt=1), served, there(LIVE), [])
    assert "attempt 3" in str(found)
    assert "attempt 1" in str(found)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (JobBusy("x"), Action.SKIP),
        (JobEnded("x"), Action.WAIT),
        (NotArmed("x"), Action.WAIT),
        (OtherAttempt("x"), Action.WAIT),
        (NoSuchJob("x"), Action.WAIT),
        (Unreachable("x"), Action.WAIT),  # who waits for a job waits for its coordinator
        (UsageError("x"), Action.FAIL),
    ],
)
def test_what_is_done_about_it_is_what_the_request_says(error: SameshotError, action: Action) -> None:
    asked = msgspec.structs.replace(ASKED, if_busy=Action.SKIP, if_unavailable=Action.WAIT)
    assert action_for(asked, error) is action


@pytest.mark.parametrize("action", [Action.SKIP, Action.FAIL])
def test_a_coordinator_that_is_silent_is_no_reason_to_skip(action: Action) -> None:
    asked = msgspec.structs.replace(ASKED, if_busy=Action.WAIT, if_unavailable=action)
    assert action_for(asked, Unreachable("x")) is Action.FAIL


# ---- against a real coordinator


@in_loop
async def test_a_job_that_was_never_armed_is_not_captured_and_may_be_skipped(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        with pytest.raises(NotArmed, match="train"):
            await run(request(client))
        result = await run(request(client, if_unavailable=Action.SKIP))
        assert (result.skipped, result.exit_code, result.capture_id) == (True, 0, "")
        assert "No worker of job train is registered" in result.message
        assert await client.captures() == []
        assert "Dispatch" not in agent.calls


@in_loop
async def test_a_job_whose_workers_have_gone_has_ended(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.workers = [
            worker(rank=0, world_size=2, alive=False, current=False),
            worker(rank=1, world_size=2, phase=Phase.EXITING),
        ]
        with pytest.raises(JobEnded, match="train has ended: all of its 2"):
            await begin(request(client))
        assert await client.captures() == []


@in_loop
async def test_another_attempt_at_the_address_is_refused(tmp_path: Path) -> None:
    async with training(tmp_path, job=JobRef("local", "train", "abc", 2)) as (_, client):
        with pytest.raises(OtherAttempt, match=r"attempt 2.*attempt 1"):
            await begin(request(client, attempt=1))
        assert (await run(request(client, attempt=2, uid="abc", job="train"))).exit_code == 0


@in_loop
async def test_silence_is_not_taken_for_an_unarmed_job(tmp_path: Path) -> None:
    async with coordinating(tmp_path, ["127.0.0.1:1"]) as client:
        with pytest.raises(Unreachable, match="train"):
            await check(client, request(client))


@in_loop
async def test_somebody_elses_capture_is_skipped_failed_or_waited_for_as_the_request_says(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        other = await begin(request(client, "other", caller="ben"))
        await until(lambda: other.capture_id in agent.accepted)

        with pytest.raises(JobBusy, match=rf"train.*ben.*{other.capture_id}"):
            await run(request(client, if_busy=Action.FAIL))
        skipped = await run(request(client, if_busy=Action.SKIP))
        assert (skipped.skipped, skipped.exit_code) == (True, 0)
        assert other.capture_id in skipped.message
        assert [view.capture_id for view in await client.captures()] == [other.capture_id]

        waiting = asyncio.create_task(run(request(client, if_busy=Action.WAIT)))
        async with asyncio.timeout(20):
            while len(await client.captures(unsettled=True)) < 2:
                await asyncio.sleep(0.01)
        agent.script = deliver
        mine = await waiting
    assert mine.outcome is Outcome.SUCCEEDED
    assert mine.capture_id != other.capture_id


@in_loop
async def test_of_many_that_find_the_job_free_at_the_same_moment_one_is_captured_and_none_is_cancelled(
    tmp_path: Path,
) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        before = agent.calls.count("ListWorkers")
        agent.delay["ListWorkers"] = asyncio.Event()  # all are held in their preflight, and see nobody there
        wanted = {key: Action.SKIP if at % 2 else Action.FAIL for at, key in enumerate("abcdefgh")}
        tasks = [
            asyncio.create_task(run(request(client, key, if_busy=action, caller=key))) for key, action in wanted.items()
        ]
        again = asyncio.create_task(run(request(client, "a", if_busy=Action.FAIL, caller="a")))  # of the first key
        await until(lambda: agent.calls.count("ListWorkers") >= before + len(tasks) + 1)
        agent.delay.pop("ListWorkers").set()
        await until(lambda: sum(task.done() for task in tasks) == len(tasks) - 1)
        captures = await client.captures()
        assert [each.state.terminal or each.cancel_requested for each in captures] == [False]
        agent.script = deliver
        results = dict(zip(wanted, await asyncio.gather(*tasks, return_exceptions=True), strict=True))
        (made,) = [key for key, each in results.items() if isinstance(each, CaptureResult) and not each.skipped]
        assert results[made].outcome is Outcome.SUCCEEDED
        for key, result in results.items():
            if key == made:
                continue
            said = str(result) if wanted[key] is Action.FAIL else result.message
            assert isinstance(result, JobBusy if wanted[key] is Action.FAIL else CaptureResult)
            assert captures[0].capture_id in said
            assert f"captured by {made}" in said
        (joined,) = await asyncio.gather(again, return_exceptions=True)
        if made == "a":  # two processes of one key are one wish
            assert joined.capture_id == captures[0].capture_id
        else:
            assert isinstance(joined, JobBusy)
        assert len(await client.captures()) == 1
        assert "Withdraw" not in agent.calls


@in_loop
async def test_the_same_tasks_earlier_capture_is_queued_behind_and_another_tasks_is_not(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        earlier = await begin(request(client, "run/task/0", if_busy=Action.FAIL))
        with pytest.raises(JobBusy, match=earlier.capture_id):
            await begin(request(client, "run/task/1", if_busy=Action.FAIL))
        mine = await begin(request(client, "run/task/1", if_busy=Action.FAIL, family="run/task/"))
        assert mine.capture_id != earlier.capture_id
        assert [each.cancel_requested for each in await client.captures()] == [False, False]


@in_loop
async def test_more_waiters_than_the_policy_lets_queue_wait_for_their_turn(tmp_path: Path) -> None:
    async with training(tmp_path, policy=CapturePolicy(max_captures_at_once=1)) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        first = await begin(request(client, "first"))
        await until(lambda: first.capture_id in agent.accepted)
        said: list[str] = []
        second = asyncio.create_task(run(request(client, "second"), said.append))
        await until(lambda: said)
        assert first.capture_id in said[0]
        agent.script = deliver
        assert (await second).outcome is Outcome.SUCCEEDED


@in_loop
async def test_many_that_start_at_the_same_moment_all_get_their_turn_though_the_policy_lets_one(tmp_path: Path) -> None:
    async with training(tmp_path, policy=CapturePolicy(max_captures_at_once=1)) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        all_of_them = [asyncio.create_task(run(request(client, f"k{each}"))) for each in range(3)]
        await until(lambda: agent.accepted)
        agent.script = deliver
        results = await asyncio.gather(*all_of_them)
    assert [result.outcome for result in results] == [Outcome.SUCCEEDED] * 3
    assert len({result.capture_id for result in results}) == 3


@in_loop
async def test_an_unavailable_job_is_waited_for_until_it_is_there(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        said: list[str] = []
        waiting = asyncio.create_task(run(request(client, if_unavailable=Action.WAIT), said.append))
        await until(lambda: said)
        assert "No worker of job train" in said[0]
        agent.workers = [worker(rank=0, world_size=1)]
        result = await waiting
    assert (result.exit_code, result.expected) == (0, 1)


@in_loop
async def test_waiting_ends_at_the_deadline_with_the_reason(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (agent, client):
        began, looks = time.time(), agent.calls.count("ListWorkers")
        with pytest.raises(NotArmed):
            await wait_until_clear(request(client, if_unavailable=Action.WAIT), began + 1.5)
        assert 1.4 < time.time() - began < 10
        assert agent.calls.count("ListWorkers") - looks < 20  # no busy loop, beside the coordinator's own looks
        began = time.time()
        with pytest.raises(NotArmed):  # what is not to be waited for is told at once
            await wait_until_clear(request(client, if_unavailable=Action.FAIL), began + 60)
        assert time.time() - began < 10


@in_loop
async def test_a_coordinator_that_is_away_is_waited_for_by_whoever_waits_for_the_job(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sameshot.steps.patience.PATIENCE_S", 0.2)  # as if it were away for longer than a restart takes
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = CaptureRequest(address=address, request_key="k", spec=SPEC, caller="ana", timeout_s=60)
        for action in (Action.FAIL, Action.SKIP):
            with pytest.raises(Unreachable):
                await run(msgspec.structs.replace(asked, if_unavailable=action))
        said: list[str] = []
        waiting = asyncio.create_task(run(msgspec.structs.replace(asked, if_unavailable=Action.WAIT), said.append))
        await until(lambda: said or waiting.done())
        async with training(tmp_path, listen=address):
            result = await waiting
    assert (result.exit_code, result.archived) == (0, 2)


# ---- jobs of this machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    return root


def announce(root: Path, folder: str, name: str, *, uid: str, alive: bool) -> None:
    (root / folder).mkdir()
    write_job_file(
        root / folder,
        JobInfo(
            job=JobRef("local", name, uid),
            series=name,
            coordinator=f"unix:/tmp/{folder}.sock",
            archive="/archive",
            pid=os.getpid() if alive else 2**22 + 1,
        ),
    )


def test_a_local_job_that_is_known_to_have_ended_is_told_from_one_that_never_was(root: Path) -> None:
    announce(root, "r1", "bert", uid="u1", alive=False)
    for address in ("local:bert", "local:r1"):
        with pytest.raises(JobEnded, match="bert has ended"):
            resolved(address)
    with pytest.raises(NoSuchJob) as never:
        resolved("local:gpt")
    assert not isinstance(never.value, JobEnded)


def test_a_new_run_of_the_same_name_is_not_mistaken_for_the_one_that_is_meant(root: Path) -> None:
    announce(root, "r1", "bert", uid="u1", alive=True)
    announce(root, "r2", "bert", uid="u2", alive=True)
    assert resolved("local:bert", "u1") == Endpoint("unix:/tmp/r1.sock")
    assert resolved("local", "u2") == Endpoint("unix:/tmp/r2.sock")
    for address in ("local:bert", "local", "local:r1"):
        with pytest.raises(NoSuchJob, match="uid u9"):
            resolved(address, "u9")
    announce(root, "r3", "bert", uid="u3", alive=False)
    with pytest.raises(JobEnded, match="bert has ended"):
        resolved("local:bert", "u3")
    with pytest.raises(UsageError, match="Several"):
        resolved("local:bert")


@in_loop
async def test_a_local_job_that_has_ended_can_be_skipped(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path / "runs"
        root.mkdir(mode=0o700)
        patch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
        announce(root, "r1", "bert", uid="u1", alive=False)
        asked = CaptureRequest(
            address="local:bert", request_key="k", spec=SPEC, if_unavailable=Action.SKIP, timeout_s=5
        )
        result = await run(asked)
    assert result.skipped
    assert "bert has ended" in result.message
