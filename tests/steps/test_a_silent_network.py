"""A coordinator behind a connection that is dead without a sign: what was published meanwhile is found all the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from sameshot.api.transport import CHANNEL_OPTIONS, SERVER_OPTIONS
from sameshot.client import AsyncClient, CaptureView
from sameshot.errors import Unreachable
from sameshot.model import Outcome, TargetState
from sameshot.steps.begin import begin
from sameshot.steps.capture import run
from sameshot.steps.finish import finish
from sameshot.steps.follow import follow
from sameshot.steps.request import Action
from support.coordination import SPEC, in_loop, until
from support.fake_agent import deliver, stay
from support.silent_network import network_to
from support.step_requests import request, training


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("follow", "patience"):
        monkeypatch.setattr(f"sameshot.steps.{module}.PATIENCE_S", 0.3)
    monkeypatch.setattr("sameshot.steps.follow._LONGEST_PAUSE_S", 0.3)
    monkeypatch.setattr("sameshot.steps.follow._QUIET_S", 1.0)
    for module in ("follow", "finish"):
        monkeypatch.setattr(f"sameshot.steps.{module}._ANSWER_S", 0.5)


@in_loop
async def test_a_watch_that_went_dead_is_begun_anew_and_then_the_archive_is_asked(
    tmp_path: Path, little_patience: None
) -> None:
    async with training(tmp_path) as (agent, client), network_to(client.address) as network:
        agent.script = stay(TargetState.CONSUMED)
        asked = request(client, address=network.address)
        started, seen = await begin(asked), []
        waiting = asyncio.create_task(
            finish(asked, started.capture_id, manifest_uri=started.manifest_uri, seen=seen.append)
        )
        await until(lambda: seen and seen[-1].targets)
        network.fall_silent()
        agent.script = deliver
        assert (await client.wait(started.capture_id)).published
        async with asyncio.timeout(20):  # the step's own deadline is a minute
            result = await waiting
        assert (result.exit_code, result.outcome, result.timed_out) == (0, Outcome.SUCCEEDED, False)
        assert result.manifest_sha256 is not None
        assert not (await client.get(started.capture_id)).cancel_requested


@in_loop
async def test_a_capture_that_changes_nothing_for_long_is_still_followed(tmp_path: Path, little_patience: None) -> None:
    """Quiet is no silence: the watch is only begun anew, without a word."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        started, lines, views = await begin(request(client)), [], []
        waiting = asyncio.create_task(
            follow(request(client), started.capture_id, progress=lines.append, seen=views.append)
        )
        await until(lambda: agent.calls.count("GetFacts") > 3)
        so_far = len(views)
        await until(lambda: len(views) > so_far + 2)
        assert not [line for line in lines if line.startswith("waiting")]
        agent.script = deliver
        assert (await waiting).published


@in_loop
async def test_a_published_capture_is_not_lost_at_the_deadline(tmp_path: Path, little_patience: None) -> None:
    """Whoever can't reach the coordinator at its deadline looks into the archive before it says that it failed."""
    async with training(tmp_path) as (agent, client), network_to(client.address) as network:
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        network.fall_silent()
        asked = request(client, address=network.address)
        began = time.monotonic()
        for late in (-3600, 0.1):
            result = await finish(asked, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + late)
            assert (result.exit_code, result.outcome, result.timed_out) == (0, Outcome.SUCCEEDED, False)
        assert time.monotonic() - began < 15
        assert "Withdraw" not in agent.calls


@in_loop
async def test_the_timeout_bounds_the_beginning_too(tmp_path: Path) -> None:
    """With the patience of a real step: nobody ever answers here."""
    async with training(tmp_path) as (agent, client), network_to(client.address) as network:
        network.fall_silent()
        for action in Action:
            began = time.monotonic()
            with pytest.raises(Unreachable, match="did not answer before the deadline"):
                await run(request(client, address=network.address, timeout_s=1, if_unavailable=action))
            assert time.monotonic() - began < 6
        assert "Dispatch" not in agent.calls


@in_loop
async def test_what_is_published_while_the_cancel_fails_is_told_too(tmp_path: Path, little_patience: None) -> None:
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        folder = Path(done.manifest_uri.removeprefix("file://")).parent
        folder.rename(tmp_path / "later")
        gone = request(client, address="127.0.0.1:1")

        def publishes(line: str) -> None:
            if "Cancelling it" in line:
                (tmp_path / "later").rename(folder)

        result = await finish(
            gone, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + 0.5, progress=publishes
        )
    assert (result.exit_code, result.outcome, result.timed_out) == (0, Outcome.SUCCEEDED, False)


def quickened(options: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The same, with a twentieth of the times that keep connections alive."""
    timed = ("keepalive", "ping_interval", "ping_timeout")
    return [(name, value // 20 if any(each in name for each in timed) else value) for name, value in options]


@in_loop
async def test_a_dead_connection_is_noticed_and_a_quiet_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet stream is pinged every second here: the server must not take offence, silence must end the stream."""
    monkeypatch.setattr("sameshot.api.door.SERVER_OPTIONS", quickened(SERVER_OPTIONS))
    monkeypatch.setattr("sameshot.api.transport.CHANNEL_OPTIONS", quickened(CHANNEL_OPTIONS))
    async with training(tmp_path) as (agent, client), network_to(client.address) as network:
        agent.script = stay(TargetState.CONSUMED)
        started = await begin(request(client))
        async with AsyncClient(network.address, caller="ana") as far:
            views: list[CaptureView] = []

            async def watch() -> None:
                async for view in far.watch(started.capture_id):
                    views[:] = [view]

            watching = asyncio.create_task(watch())
            await until(lambda: views and views[-1].targets and views[-1].targets[0].state is TargetState.CONSUMED)
            done, _ = await asyncio.wait([watching], timeout=5)
            assert not done
            network.fall_silent()
            async with asyncio.timeout(15):
                with pytest.raises(Unreachable):
                    await watching
        agent.script = deliver
        assert (await run(request(client))).exit_code == 0


@in_loop
async def test_the_wait_for_a_first_answer_counts_as_silence(
    tmp_path: Path, little_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a coordinator that takes calls and answers none costs its patience once."""
    monkeypatch.setattr("sameshot.steps.follow._ANSWER_S", 3.0)
    async with training(tmp_path) as (_, client), network_to(client.address) as network:
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        network.fall_silent()
        began = time.monotonic()
        assert (
            await follow(request(client, address=network.address), done.capture_id, manifest_uri=done.manifest_uri)
        ).published
        assert time.monotonic() - began < 5.5
