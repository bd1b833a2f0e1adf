"""Cancelling by capture id: it may come late, and twice, and from a signal handler; it hits that capture or none."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from sameshot.client import AsyncClient, CaptureView
from sameshot.errors import NoSuchJob, StorageError, Unreachable, UsageError
from sameshot.model import CaptureState, FailureReason, TargetState
from sameshot.steps.begin import begin
from sameshot.steps.cancel import cancel_async
from sameshot.steps.capture import run
from sameshot.steps.results import to_json
from support.coordination import in_loop, until, until_view
from support.fake_agent import JOB, failing, stay
from support.step_requests import by_rank, request, training


@in_loop
async def test_a_cancel_says_what_kind_it_was_and_may_be_repeated(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = by_rank(r0=stay(TargetState.QUEUED), r1=stay(TargetState.CONSUMED))
        started = await begin(request(client))
        await until_view(client, started.capture_id, lambda view: len(view.targets) == 2 and view.targets[1].state >= 3)
        first = await cancel_async(client.address, started.capture_id, caller="ana")
        assert (first.state, first.was_over, first.exit_code) == ("CANCELLED", False, 0)
        assert "1 of 2 configs were withdrawn" in first.withdrawn
        assert "1 were already fetched" in first.withdrawn
        second = await cancel_async(client.address, started.capture_id, caller="ana")
        assert (second.state, second.was_over, second.exit_code) == ("CANCELLED", True, 0)
        assert "was over already" in second.message
        assert agent.calls.count("Withdraw") == 1
        assert len(to_json(first)) < 2048


@in_loop
async def test_what_has_succeeded_stays_so(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        done = await run(request(client))
        told = await cancel_async(client.address, done.capture_id)
        assert (told.state, told.was_over, told.archived, told.exit_code) == ("SUCCEEDED", True, 2, 0)
        assert "2 of 2 traces are kept" in told.message
        assert "Withdraw" not in agent.calls


@in_loop
async def test_a_late_cancel_of_one_attempt_never_hits_the_next(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.MISSING)
        first = await run(request(client))
        agent.script = stay(TargetState.CONSUMED)
        second = await begin(request(client))
        assert (first.n, second.n) == (1, 2)
        await until(lambda: second.capture_id in agent.accepted)
        assert (await cancel_async(client.address, first.capture_id, caller="ana")).was_over
        now = await client.get(second.capture_id)
        assert not now.state.terminal
        assert not now.cancel_requested

        by_key = await cancel_async(
            client.address, request_key="k1", caller="ana", uid=JOB.uid
        )  # all that an exit handler knows
        assert (by_key.capture_id, by_key.state) == (second.capture_id, "CANCELLED")


@in_loop
async def test_a_capture_that_nobody_knows_is_told_and_not_raised(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        told = await cancel_async(client.address, "0" * 32)
        assert (told.exit_code, told.state, told.capture_id) == (5, "UNKNOWN", "0" * 32)
        assert told.message


@in_loop
async def test_a_key_under_which_nothing_was_begun_is_nothing_to_cancel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit handler asks it whatever happened; of an id somebody knew that there is such a capture."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        started = await begin(request(client))
        told = await cancel_async(client.address, request_key="never", caller="ana")
        assert (told.exit_code, told.state, told.capture_id, told.was_over) == (0, "UNKNOWN", "", False)
        assert told.message.startswith("There is nothing to cancel: ")
        assert not (await client.get(started.capture_id)).cancel_requested
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "nobody"))
    told = await cancel_async("local:nobody", request_key="never", caller="ana")
    assert (told.exit_code, told.capture_id) == (0, "")
    with pytest.raises(NoSuchJob):
        await cancel_async("local:nobody", "0" * 32)


@in_loop
async def test_a_cancel_whose_answer_is_lost_is_still_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again, finds the capture over, and that was its own doing."""
    answered = AsyncClient.cancel
    lost: list[str] = []

    async def cancel(self: AsyncClient, capture_id: str) -> CaptureView:
        view = await answered(self, capture_id)
        if not lost:
            lost.append(capture_id)
            raise Unreachable("the answer is lost")
        return view

    monkeypatch.setattr(AsyncClient, "cancel", cancel)
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        started = await begin(request(client))
        await until(lambda: started.capture_id in agent.accepted)
        told = await cancel_async(client.address, request_key="k1", caller="ana")
        assert lost == [started.capture_id]
        assert (told.capture_id, told.state, told.was_over) == (started.capture_id, "CANCELLED", False)
        assert "was over already" not in told.message
        assert told.withdrawn

        lost.clear()
        late = await run(request(client, timeout_s=2.5))
        assert (len(lost), late.exit_code, late.timed_out) == (1, 7, True)
        assert late.message.startswith("Not done within 2.5 s.")


@in_loop
async def test_a_cancel_that_comes_after_convergence_cancelled_nothing(tmp_path: Path) -> None:
    """Only the manifest is still on its way then, and the coordinator keeps what the capture is."""
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        started = await begin(request(client))
        await until_view(client, started.capture_id, lambda view: view.state is CaptureState.PUBLISHING)
        told = await cancel_async(client.address, started.capture_id, caller="ana", wait_s=0.3)
        assert (told.state, told.was_over, told.withdrawn) == ("SUCCEEDED", True, "")
        assert "was over already" in told.message


@in_loop
async def test_a_waiting_capture_ends_at_once_and_has_no_manifest_to_wait_for(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        await begin(request(client, "first"))
        second = await begin(request(client, "second"))
        async with asyncio.timeout(5):
            told = await cancel_async(client.address, second.capture_id, wait_s=60)
        assert (told.state, told.withdrawn) == ("CANCELLED", "It was cancelled before anything was dispatched.")


@in_loop
async def test_the_wait_for_the_manifest_is_bounded(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        started = await begin(request(client))
        await until(lambda: started.capture_id in agent.accepted)
        async with asyncio.timeout(20):
            told = await cancel_async(client.address, started.capture_id, wait_s=0.3)
        assert told.state == "CANCELLED"
        agent.refuse.clear()
        view = await until_view(client, started.capture_id, lambda view: view.state.terminal)
        assert view.state is CaptureState.CANCELLED


@in_loop
async def test_it_takes_an_id_or_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with training(tmp_path) as (_, client):
        with pytest.raises(UsageError):
            await cancel_async(client.address)
        with pytest.raises(UsageError):
            await cancel_async(client.address, "0" * 32, request_key="k")
    monkeypatch.setattr("sameshot.steps.patience.PATIENCE_S", 0.2)
    with pytest.raises(Unreachable):
        await cancel_async("127.0.0.1:1", "0" * 32)


WAITS = """
import signal, sys
from sameshot.model import CaptureSpec
from sameshot.steps.cancel import cancel
from sameshot.steps.capture import capture
from sameshot.steps.request import CaptureRequest

request = CaptureRequest(address=sys.argv[1], request_key="k1", caller="ana", spec=CaptureSpec(duration_ms=1000))
ids = []

def seen(view):
    ids.append(view.capture_id)
    print("seen", flush=True)

signal.signal(signal.SIGUSR1, lambda *_: print(cancel(request.address, ids[0], caller="ana").state, flush=True))
print(capture(request, None, seen).exit_code)
"""


@in_loop
async def test_a_signal_handler_may_cancel_what_it_interrupts(tmp_path: Path) -> None:
    """An engine's `on_kill` runs inside the very process, and event loop, that waits for the capture."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WAITS, client.address), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"seen\n"
        await until(lambda: agent.calls.count("GetFacts") > 2)
        process.send_signal(signal.SIGUSR1)
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert [line for line in out.decode().split() if line != "seen"] == ["CANCELLED", "7"]
