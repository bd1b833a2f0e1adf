"""Whether an agent lives and serves, for the kubelet's probes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT_S = 1.0
DEAD_AFTER_S = 60.0
"""An event loop that has stood still for so long never goes on: whatever blocks has threads of its own."""


class Health:
    """`beat` must run in the agent's loop for `dead` to mean anything."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_at: float | None = None
        self._waits_for = "it is starting"

    async def beat(self) -> None:
        while True:
            self._beaten_at = self._clock()
            await asyncio.sleep(BEAT_S)

    def wait_for(self, what: str) -> None:
        """What is missing before anybody is served; empty: nothing."""
        self._waits_for = what

    def dead(self) -> str:
        if self._beaten_at is None or (still_s := self._clock() - self._beaten_at) < DEAD_AFTER_S:
            return ""
        return f"its event loop has stood still for {still_s:.0f} s"

    def waits_for(self) -> str:
        return self._waits_for
