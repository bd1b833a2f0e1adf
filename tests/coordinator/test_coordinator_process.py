"""The coordinator as a process: its address, its end, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sameshot.client import AsyncClient
from sameshot.errors import UnknownCapture
from sameshot.model import Outcome, TargetState
from sameshot.storage import Storage
from support.coordination import SPEC, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, stay, worker


@contextlib.asynccontextmanager
async def process(folder: Path, agent: FakeAgent) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    ready = folder / "address"
    ready.unlink(missing_ok=True)
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sameshot.cli.main", "coordinator", "--name", JOB.name, "--uid", JOB.uid),
        *("--archive", str(folder / "archive"), "--agent", agent.address),
        *("--listen", f"unix:{folder}/c.sock", "--address-file", str(ready)),
    )
    try:
        await until(ready.exists)
        yield running, ready.read_text().strip()
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@in_loop
async def test_sigterm_ends_it_at_once_and_cleanly_even_during_a_capture(tmp_path: Path) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path / "archive"))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = stay(TargetState.CONSUMED)
        async with process(tmp_path, agent) as (running, address), AsyncClient(address) as client:
            assert address == f"unix:{tmp_path}/c.sock"
            started = await client.start_capture(SPEC)
            await until(lambda: started.capture_id in agent.accepted)
            running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await running.wait() == 0
    assert "PublishManifest" not in agent.calls
    assert not (tmp_path / "archive").exists()


@in_loop
async def test_after_a_kill_unfinished_captures_are_unknown_finished_ones_found_and_the_next_one_works(
    tmp_path: Path,
) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path / "archive"))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        async with process(tmp_path, agent) as (running, address), AsyncClient(address) as client:
            done = await client.wait((await client.start_capture(SPEC, "done")).capture_id)
            agent.script = stay(TargetState.CONSUMED)
            unfinished = await client.start_capture(SPEC, "unfinished")
            await until_view(client, unfinished.capture_id, lambda view: view.targets and view.targets[0].state >= 3)
            running.kill()
            await running.wait()
        agent.script = deliver
        async with process(tmp_path, agent) as (_, address), AsyncClient(address) as client:
            with pytest.raises(UnknownCapture):
                await client.get(unfinished.capture_id)
            assert (await client.start_capture(SPEC, "done")).capture_id == done.capture_id
            assert [view.capture_id for view in await client.captures()] == [done.capture_id]
            again = await client.start_capture(SPEC, "unfinished")
            assert again.n == 2
            assert (await client.wait(again.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_waiting_bridges_a_restart_and_ends_with_what_can_still_be_known(
    tmp_path: Path,
) -> None:
    """A wait that spans a restart ends with what the archive knows, or with UnknownCapture; it never hangs."""
    async with FakeAgent("node-0", Storage.open(str(tmp_path / "archive"))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = stay(TargetState.CONSUMED)
        async with process(tmp_path, agent) as (running, address), AsyncClient(address) as client:
            started = await client.start_capture(SPEC)
            waiting = asyncio.create_task(client.wait(started.capture_id))
            await until(lambda: started.capture_id in agent.accepted)
            running.kill()
            await running.wait()
            async with process(tmp_path, agent):
                with pytest.raises(UnknownCapture, match="UNKNOWN"):
                    await waiting
