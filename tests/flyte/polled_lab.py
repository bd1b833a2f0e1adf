"""Flyte's part in a capture that is polled: looks until something is so, and a clock that a test moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sameshot.client import AsyncClient
from sameshot.model import CaptureState
from sameshot.steps.request import CaptureRequest
from sameshot_flyte.asked import Asked
from sameshot_flyte.polled import Polled, Status
from support.coordination import SPEC


class Clock:
    """Seconds since the epoch; real ones, pushed forward (or back) by `later`."""

    def __init__(self) -> None:
        self.later = 0.0

    def __call__(self) -> float:
        return time.time() + self.later


def asking(address: str, **more: Any) -> CaptureRequest:
    """Of whatever listens there."""
    return CaptureRequest(
        **{"request_key": "k1", "spec": SPEC, "caller": "ana", "timeout_s": 60.0, **more}, address=address
    )


def process(clock: Clock | None = None) -> Polled:
    """A connector that has just been started and remembers nothing."""
    return Polled(now=clock, clock=clock) if clock else Polled()


async def looks(asked: Asked, polled: Polled | None = None, *, so: Callable[[Status], bool] | None = None) -> Status:
    """Look again and again, each time as a process of its own unless one is given, until the task has ended (or it is
    so)."""
    ends = time.monotonic() + 30
    while True:
        status = await (polled or process()).get(asked)
        if so(status) if so is not None else status.phase.terminal:
            return status
        assert not status.phase.terminal, status
        assert time.monotonic() < ends, status
        await asyncio.sleep(0.02)


async def captures(client: AsyncClient) -> list[tuple[int, CaptureState]]:
    """Of one key: which was the how-maniest, and how each stands."""
    return sorted((view.n, view.state) for view in await client.captures())
