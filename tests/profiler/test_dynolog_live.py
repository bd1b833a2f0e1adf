"""A real torch process captured through the stock daemon, or its stand-in."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from profiler_lab import NS, Dynolog, Worker, until_status

from sameshot.model import CaptureSpec
from sameshot.profiler.daemon import TriggerStatus
from sameshot.profiler.dynolog import DynologClient

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


async def capture_through(daemon: Dynolog, home: Path) -> None:
    client = DynologClient("localhost", daemon.port, timeout_s=30, poll_interval_s=1.0)
    with Worker(daemon.ipc_dir, home) as worker:
        await worker.training()
        start = time.time_ns() + 8 * NS
        request = worker.request("c1", spec=CaptureSpec(duration_ms=500, warmup_ms=1000), start_at_ns=start)
        fact = await until_status(client, request, TriggerStatus.QUEUED)
        trace = await worker.trace(request)
        assert trace.categories["cpu_op"] > 20
        assert "python_function" not in trace.categories
        if fact.late_start is None:
            assert abs(trace.window_ns()[0] - start) < NS // 2
        assert (await client.facts("c1"))[0].status is TriggerStatus.QUEUED


@pytest.mark.full
def test_a_worker_is_captured_through_a_socket_directory(dynolog: Dynolog, tmp_path: Path) -> None:
    asyncio.run(capture_through(dynolog, tmp_path))


@pytest.mark.full
def test_a_worker_is_captured_through_the_abstract_socket(dynolog_command: list[str | Path], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(b"\0dynolog\0")
        except OSError:
            pytest.skip("another daemon of this machine has the abstract name `dynolog`")
    with Dynolog(dynolog_command, "") as daemon:
        asyncio.run(capture_through(daemon, tmp_path))
