"""What is to be looked at: each key at most once at a time, failures after growing pauses of their own.

What is put in again while it is worked on is worked on once more. After a failure a key rests: whatever touches it
meanwhile is seen when its pause is over, so that no failing job can be made to try in a loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Queue(Generic[K]):
    """`work` does what is to be done for a key and says when to call it again (epoch seconds; inf: never by itself)."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float]],
        *,
        at_once: int,
        first_s: float,
        longest_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._work = work
        self._at_once = at_once
        self._first_s, self._longest_s = first_s, longest_s
        self._clock = clock
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()  # in `_ready`
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failed: dict[K, int] = {}  # in a row
        self._resting: set[K] = set()
        self.done = 0
        self.failures = 0

    def __len__(self) -> int:
        """Keys that wait for a turn."""
        return len(self._waiting)

    @property
    def resting(self) -> int:
        """Keys whose last turn failed."""
        return len(self._resting)

    @property
    def quiet(self) -> bool:
        """Nothing is worked on, and nothing waits for a turn."""
        return not self._waiting and not self._working

    def add(self, key: K) -> None:
        if key in self._resting or key in self._waiting:
            return
        if key in self._working:
            self._again.add(key)
            return
        self._cancel(key)
        self._waiting.add(key)
        self._ready.put_nowait(key)

    async def run(self) -> None:
        """Work until cancelled."""
        workers = [asyncio.create_task(self._serve()) for _ in range(self._at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for each in workers:
                each.cancel()
            for key in list(self._timers):
                self._cancel(key)

    async def _serve(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                at = await self._work(key)
            except Exception as error:
                self._fail(key, error)
            else:
                self._failed.pop(key, None)
                if at < math.inf:
                    self._later(key, max(at - self._clock(), 0.0))
            finally:
                self._working.discard(key)
                self.done += 1
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    def _fail(self, key: K, error: Exception) -> None:
        self.failures += 1
        times = self._failed[key] = self._failed.get(key, 0) + 1
        pause = min(self._first_s * 2 ** min(times - 1, 30), self._longest_s) * random.uniform(0.8, 1.2)
        self._resting.add(key)
        log.warning("failed key=%s times=%d why=%r; again in %.1f s", key, times, f"{error}"[:300], pause)
        log.debug("failed key=%s", key, exc_info=error)
        self._later(key, pause)

    def _later(self, key: K, delay_s: float) -> None:
        self._cancel(key)
        self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self._wake, key)

    def _wake(self, key: K) -> None:
        self._timers.pop(key, None)
        self._resting.discard(key)
        self.add(key)

    def _cancel(self, key: K) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
