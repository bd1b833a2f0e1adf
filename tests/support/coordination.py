"""A real coordinator over real loopback gRPC, with time that can be moved."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient
from sameshot.coordinator import CoordinatorConfig, CoordinatorServer, Timings
from sameshot.coordinator.directory import AgentDirectory
from sameshot.model import CapturePolicy, CaptureSpec, JobRef
from sameshot.profiler.daemon import BackendName
from sameshot.states import LAST_ANSWER_GRACE_S
from support.fake_agent import JOB, FakeAgent

SPEC = CaptureSpec(duration_ms=1000)
QUICK = Timings(call_s=2.0, poll_s=0.02, watch_s=0.05, publish_within_s=0.5, publish_retry_s=0.05, listing_s=0.2)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test, at most a minute and a half."""

    @functools.wraps(test)
    def run(*args: Any, **more: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(90):
                await test(*args, **more)

        asyncio.run(bounded())

    return run


class JumpClock:
    """Real time that a test can push forward: whoever sleeps sees the jump at once."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._jumped = asyncio.Event()

    def monotonic(self) -> float:
        return time.monotonic() + self._offset

    def wall_ns(self) -> int:
        return time.time_ns() + int(self._offset * 1e9)

    async def sleep(self, seconds: float) -> None:
        ends = self.monotonic() + seconds
        while (left := ends - self.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._jumped.wait(), left)

    def jump(self, seconds: float) -> None:
        self._offset += seconds
        self._jumped.set()
        self._jumped = asyncio.Event()


@contextlib.asynccontextmanager
async def coordinating(
    archive: Path,
    agents: Sequence[FakeAgent | str] = (),
    *,
    clock: JumpClock | None = None,
    policy: CapturePolicy | None = None,
    timings: Timings = QUICK,
    job: JobRef = JOB,
    backend: BackendName = BackendName.BROKER,
    directory: AgentDirectory | None = None,
    caller: str = "ana",
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[AsyncClient]:
    config = CoordinatorConfig(
        job=job,
        series="nightly",
        archive=str(archive),
        agents=tuple(each if isinstance(each, str) else each.address for each in agents),
        backend=backend,
        policy=policy or CapturePolicy(),
        timings=timings,
        listen=listen,
    )
    server = CoordinatorServer(config, clock=clock, directory=directory)
    address = await server.start()
    try:
        async with AsyncClient(address, caller=caller) as client:
            yield client
    finally:
        await server.stop()


async def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait for a condition, look often, and give up loudly."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "the condition never came true"
        await asyncio.sleep(0.01)


async def until_view(
    client: AsyncClient, capture_id: str, condition: Callable[[CaptureView], Any], timeout_s: float = 30.0
) -> CaptureView:
    async with asyncio.timeout(timeout_s):
        async for view in client.watch(capture_id):
            if condition(view):
                return view
    raise AssertionError(f"the capture ended without it: {view}")


async def pass_time(clock: JumpClock, seconds: float, *living: FakeAgent) -> None:
    """Let time pass, give these agents the chance to be asked about it, and end every grace period."""
    clock.jump(seconds)
    before = {id(agent): agent.calls.count("GetFacts") for agent in living}
    await until(lambda: all(agent.calls.count("GetFacts") > before[id(agent)] + 1 for agent in living))
    clock.jump(LAST_ANSWER_GRACE_S + 1)
