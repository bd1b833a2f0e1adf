"""The capture step: one request key gives one capture, told in a small result, and judged."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from sameshot.client import AsyncClient, CaptureView
from sameshot.client.wire import os_user
from sameshot.coordinator.capture import CaptureRun
from sameshot.errors import (
    CaptureCancelled,
    CaptureFailed,
    Denied,
    JobBusy,
    JobEnded,
    NoSuchJob,
    OtherAttempt,
    PartialCapture,
    PolicyRefused,
    RequestKeyConflict,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
    UsageError,
)
from sameshot.model import CapturePolicy, CaptureSpec, CaptureState, FailureReason, Nobody, Outcome, TargetState
from sameshot.steps.begin import begin, pinned
from sameshot.steps.capture import accept, capture, run
from sameshot.steps.finish import finish, result_of
from sameshot.steps.finish import skipped as skipped_result
from sameshot.steps.preflight import check
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import SIZE_LIMIT, CaptureResult, from_builtins, to_builtins, to_json
from support.coordination import QUICK, SPEC, in_loop, until, until_view
from support.fake_agent import JOB, deliver, failing, stay
from support.step_requests import by_rank, request, training


def stated_digest(manifest_uri: str) -> str:
    """By the rule in docs/manifest.md, without any code of ours."""
    told = json.loads(Path(urlsplit(manifest_uri).path).read_bytes())
    told.pop("sha256")
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@in_loop
async def test_a_capture_of_all_ranks_is_told_in_a_small_result(tmp_path: Path) -> None:
    async with training(tmp_path, ranks=4) as (_, client):
        lines: list[str] = []
        result = await run(request(client), lines.append)
        view = await client.get(result.capture_id)
    assert result == CaptureResult(
        capture_id=view.capture_id,
        request_key="k1",
        n=1,
        job=JOB,
        series="nightly",
        outcome=Outcome.SUCCEEDED,
        published=True,
        manifest_uri=(tmp_path / "archive" / JOB.path / view.capture_id / "manifest.json").as_uri(),
        manifest_sha256=stated_digest(view.manifest_uri),
        expected=4,
        archived=4,
        window_ms=SPEC.duration_ms,
        common_window_ms=2000,  # what the scripted node's traces cover
        shards=("0/4", "1/4", "2/4", "3/4"),
        message="All 4 ranks of train have a verified trace.",
    )
    assert accept(result) is result
    assert from_builtins(to_builtins(result), CaptureResult) == result
    assert len(to_json(result)) < 2048
    assert any("SUCCEEDED, 4 of 4 archived" in line for line in lines)


@in_loop
async def test_the_same_key_finds_its_capture_again_even_when_the_job_has_ended_since(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        first = await run(request(client))
        agent.workers = []
        again = await run(request(client, if_unavailable=Action.FAIL))
        assert again == first
        assert agent.calls.count("Dispatch") == 1
        with pytest.raises(NoSuchJob):  # another key means another capture, and nobody is there
            await run(request(client, "k2"))


@in_loop
async def test_a_retry_joins_the_capture_that_is_still_running(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        first = asyncio.create_task(run(request(client, if_busy=Action.FAIL)))
        await until(lambda: agent.accepted)
        first.cancel()  # the worker of the first attempt is killed
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        running = await client.get(request_key="k1")
        assert running.state is CaptureState.COLLECTING
        assert not running.cancel_requested

        said: list[str] = []
        second = asyncio.create_task(run(request(client, if_busy=Action.FAIL), said.append))  # its own is no obstacle
        agent.script = deliver
        result = await second
        assert (result.capture_id, result.n, result.exit_code) == (running.capture_id, 1, 0)
        asked = datetime.datetime.fromtimestamp(running.accepted_at_ns // 10**9, datetime.UTC)
        assert said[0] == (
            f"Found the capture of {asked:%Y-%m-%d %H:%M:%S} UTC again (same request key): {running.capture_id}."
        )
        assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_a_request_is_pinned_to_the_job_attempt_and_the_caller_that_began_it(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        asked = request(client, caller=None)
        view = await begin(asked)
        again = pinned(asked, view)
        assert (again.job, again.uid, again.attempt) == (JOB.name, JOB.uid, JOB.attempt)
        assert again.caller == os_user()  # keys are each caller's own, and another process may be another user
        account = msgspec.structs.replace(view, caller="system:serviceaccount:ml:runner")
        assert pinned(request(client, caller="eva"), account).caller == account.caller  # in a cluster a token says who
        assert pinned(request(client, caller="eva"), msgspec.structs.replace(view, caller="")).caller == "eva"


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The coordinator has begun the capture; its answer comes a second after the event."""
    answered, began = AsyncClient.start_capture, asyncio.Event()

    async def start(self: AsyncClient, *given: Any, **more: Any) -> CaptureView:
        view = await answered(self, *given, **more)
        began.set()
        await asyncio.sleep(1)
        return view

    monkeypatch.setattr(AsyncClient, "start_capture", start)
    return began


@in_loop
async def test_whoever_is_stopped_while_the_capture_begins_knows_which_one_goes_on(
    tmp_path: Path, slow_start: asyncio.Event
) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        seen: list[CaptureView] = []
        task = asyncio.create_task(run(request(client), None, seen.append))
        await slow_start.wait()
        assert seen == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        running = await client.get(request_key="k1")
        assert [view.capture_id for view in seen] == [running.capture_id]
        assert not running.cancel_requested


@in_loop
async def test_a_capture_that_begins_when_the_time_is_over_is_cancelled(
    tmp_path: Path, slow_start: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sameshot.steps.begin._LAST_LOOK_S", 0.0)
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        task = asyncio.create_task(run(request(client, timeout_s=0.5)))
        result = await task
        assert (result.exit_code, result.outcome, result.timed_out) == (7, Outcome.CANCELLED, True)
        assert slow_start.is_set()
        assert (await client.get(request_key="k1")).cancel_requested


@in_loop
async def test_after_a_failed_capture_the_same_key_starts_the_next_one(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.MISSING, "no file by the deadline")
        failed = await run(request(client))
        assert (failed.exit_code, failed.n, failed.outcome, failed.missing) == (4, 1, Outcome.FAILED, "0-1")
        assert failed.shards == ()
        assert "rank 0: MISSING, no file by the deadline" in failed.message
        agent.script = deliver
        result = await run(request(client))
    assert (result.exit_code, result.n) == (0, 2)
    assert result.capture_id != failed.capture_id


@in_loop
async def test_the_same_key_with_another_spec_is_refused_and_so_is_what_the_policy_forbids(tmp_path: Path) -> None:
    async with training(tmp_path, policy=CapturePolicy(max_duration_ms=3000)) as (_, client):
        await run(request(client))
        with pytest.raises(RequestKeyConflict, match="k1"):
            await run(request(client, spec=CaptureSpec(duration_ms=2000)))
        with pytest.raises(PolicyRefused, match="3000 ms"):
            await run(request(client, "k2", spec=CaptureSpec(duration_ms=4000)))


@in_loop
async def test_whoever_waits_waits_for_the_pause_that_the_policy_asks_for_and_others_are_told_to_come_again(
    tmp_path: Path,
) -> None:
    async with training(tmp_path, policy=CapturePolicy(min_interval_ms=2500)) as (_, client):
        first = await run(request(client))
        began = await client.get(first.capture_id)
        with pytest.raises(JobBusy, match="2500 ms between captures"):
            await run(request(client, "k2", if_busy=Action.FAIL))
        skipped = await run(request(client, "k2", if_busy=Action.SKIP))
        assert (skipped.exit_code, skipped.skipped) == (0, True)
        with pytest.raises(JobBusy, match="2500 ms between captures"):  # and not longer than it has time
            await run(request(client, "k2", timeout_s=0.5))
        lines: list[str] = []
        second = await run(request(client, "k2"), lines.append)
        later = await client.get(second.capture_id)
    assert second.exit_code == 0
    assert later.accepted_at_ns - began.accepted_at_ns >= 2500 * 10**6
    assert any("2500 ms between captures" in line for line in lines)


@in_loop
async def test_whoever_waits_is_not_refused_when_the_job_fills_up_between_the_look_and_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look(client: AsyncClient, asked: CaptureRequest) -> None:
        nonlocal looks
        looks += 1
        await check(client, asked)
        if looks == 1:
            await client.start_capture(SPEC, "other")

    monkeypatch.setattr("sameshot.steps.begin.check", look)
    async with training(tmp_path, policy=CapturePolicy(max_captures_at_once=1)) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        asked = asyncio.create_task(run(request(client)))
        await until(lambda: looks == 1 and agent.accepted)
        agent.script = deliver
        result = await asked
    assert (result.exit_code, result.outcome) == (0, Outcome.SUCCEEDED)


@in_loop
async def test_a_request_that_names_another_run_does_not_get_this_ones_capture(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        first = await begin(request(client))
        assert pinned(request(client), first) == request(client, job=JOB.name, uid=JOB.uid, attempt=JOB.attempt)
        with pytest.raises(OtherAttempt):
            await begin(request(client, uid="0" * 32))


@in_loop
async def test_a_partial_capture_fails_and_names_the_missing_rank_unless_fewer_are_enough(tmp_path: Path) -> None:
    async with training(tmp_path, ranks=3) as (agent, client):
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.WORKER_EXITED, "it ended"), r2=deliver)
        result = await run(request(client))
        assert (result.exit_code, result.outcome, result.missing) == (3, Outcome.PARTIAL, "1")
        assert (result.expected, result.archived, result.shards) == (3, 2, ("0/2", "1/2"))
        with pytest.raises(PartialCapture, match=r"rank 1: WORKER_EXITED, it ended"):
            accept(result)

        enough = await run(request(client, min_ranks=2))  # of the same capture: PARTIAL is not repeated
        assert (enough.capture_id, enough.exit_code) == (result.capture_id, 0)
        assert "rank 1: WORKER_EXITED" in enough.warning
        assert accept(enough) is enough
        too_few = await run(request(client, min_ranks=3))
        assert too_few.exit_code == 3


@in_loop
async def test_a_job_that_ends_before_it_could_be_asked_is_told_as_such(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (_, client):
        started = await client.start_capture(SPEC, "k1")
        result = await finish(request(client), started.capture_id)
        skipped = await finish(request(client, if_unavailable=Action.SKIP), started.capture_id)
    assert skipped.skipped
    assert "Nothing was captured of train" in skipped.message
    assert (result.exit_code, result.outcome, result.published) == (6, Outcome.FAILED, False)
    with pytest.raises(NoSuchJob, match="Nothing was captured of train"):
        accept(result)


@in_loop
async def test_a_coordinator_that_breaks_before_it_asks_anybody_is_an_error_and_is_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: CaptureRun) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(CaptureRun, "_open", broken)
    async with training(tmp_path) as (_, client):
        result = await run(request(client, if_unavailable=Action.SKIP))
        view = await client.get(result.capture_id)
    assert (view.state, view.nobody, view.expected) == (CaptureState.FAILED, Nobody.BROKEN, 0)
    assert (result.exit_code, result.outcome, result.skipped) == (1, Outcome.FAILED, False)
    assert "RuntimeError" in result.message
    with pytest.raises(SameshotError, match="RuntimeError") as raised:
        accept(result)
    assert not isinstance(raised.value, NoSuchJob)


@in_loop
async def test_nodes_that_fall_silent_before_they_are_asked_are_no_reason_to_skip(tmp_path: Path) -> None:
    timings = msgspec.structs.replace(QUICK, freeze_s=0.3, listing_s=3600.0)
    async with training(tmp_path, armed=False, timings=timings) as (agent, client):
        agent.refuse["ListWorkers"] = Unreachable("the node is overloaded")
        started = await client.start_capture(SPEC, "k1")
        result = await finish(request(client, if_unavailable=Action.SKIP), started.capture_id)
        assert (await client.get(started.capture_id)).nobody is Nobody.SILENT
    assert (result.exit_code, result.outcome, result.skipped) == (75, Outcome.FAILED, False)
    assert "None of 1 agents answers" in result.message


@in_loop
async def test_where_an_older_coordinator_does_not_say_why_there_was_nobody_nothing_is_skipped(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (_, client):
        view = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        assert view.nobody is Nobody.NOT_ARMED
        older = msgspec.structs.replace(view, nobody=None)
        result = await result_of(request(client, if_unavailable=Action.SKIP), older)
    assert (result.exit_code, result.skipped) == (6, False)


@in_loop
async def test_a_manifest_that_was_edited_is_no_success(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        file = Path(urlsplit(done.manifest_uri).path)
        file.write_bytes(file.read_bytes().replace(b'"rank": 1', b'"rank": 7', 1))
        result = await result_of(request(client), done)
    assert result.exit_code == 4
    assert result.manifest_sha256 is None
    assert result.shards == ()


@in_loop
async def test_a_coordinator_that_is_away_is_unreachable_after_a_while(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sameshot.steps.patience.PATIENCE_S", 0.3)
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await run(CaptureRequest(address=f"unix:{tmp_path}/nobody.sock", request_key="k", timeout_s=30))
        assert time.monotonic() - began < 20


@in_loop
async def test_the_blocking_call_gives_the_same_and_shows_each_view(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        asked = request(client)
        seen = []
        result = await asyncio.to_thread(capture, asked, None, seen.append)
        assert result.exit_code == 0
        assert seen[0].capture_id == result.capture_id
        await until_view(client, result.capture_id, lambda view: view.published)


def test_a_request_survives_its_way_through_any_engine() -> None:
    asked = CaptureRequest(
        address="local:bert",
        request_key="k",
        spec=CaptureSpec(duration_ms=500, with_stack=True),
        min_ranks=7,
        if_busy=Action.SKIP,
        attempt=0,
    )
    plain = json.loads(json.dumps(msgspec.to_builtins(asked)))
    assert CaptureRequest.of(plain) == asked
    assert CaptureRequest.of(plain | {"a_newer_field": 1}) == asked
    with pytest.raises(UsageError):
        CaptureRequest.of(plain | {"if_busy": "perhaps"})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, SameshotError),
        (2, UsageError),
        (3, PartialCapture),
        (4, CaptureFailed),
        (5, UnknownCapture),
        (6, NoSuchJob),
        (7, CaptureCancelled),
        (75, TryAgain),
        (77, Denied),
    ],
)
def test_what_is_not_accepted_is_raised_with_its_own_class_and_words(code: int, kind: type[SameshotError]) -> None:
    with pytest.raises(SameshotError, match="so it is") as raised:
        accept(CaptureResult(exit_code=code, message="so it is"))
    assert type(raised.value) is kind
    assert raised.value.exit_code == code


def test_what_was_skipped_as_asked_for_is_accepted() -> None:
    skipped = CaptureResult(message="Skipped: …")
    assert accept(skipped).skipped


def test_what_was_skipped_is_small_whatever_the_key() -> None:
    key = "k" + "é" * 255  # as long as a coordinator takes it; six bytes each where an engine escapes
    told = skipped_result(CaptureRequest(request_key=key, spec=SPEC), JobEnded("ü" * 1000))
    assert told.skipped
    assert len(json.dumps(to_builtins(told))) <= SIZE_LIMIT
    assert told.request_key == key


@pytest.mark.parametrize("caller", ["jürgen", "ana\nx", " ana ", "ana\t"])
def test_a_caller_that_can_not_be_sent_is_refused_before_anything_is_asked(caller: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        CaptureRequest(request_key="k", caller=caller)
    with pytest.raises(UsageError, match="printable ASCII"):
        AsyncClient("127.0.0.1:1", caller=caller)
    assert CaptureRequest(request_key="k", caller="ana of ops").caller == "ana of ops"
