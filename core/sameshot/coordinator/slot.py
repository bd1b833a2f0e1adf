"""The job's one profiler slot: captures of one job are dispatched one after the other, first come first served.

Kineto holds one request per process, and overlapping windows would answer BUSY. A capture owns the slot until nothing
more is expected of its workers; then the next one is dispatched, while traces are still being verified and archived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class Slot(Generic[Owner]):
    def __init__(self) -> None:
        self._queue: list[tuple[Owner, Callable[[], None]]] = []

    def join(self, owner: Owner, wake: Callable[[], None]) -> None:
        """Queue up; `wake` is called whenever the head of the queue changes."""
        self._queue.append((owner, wake))

    @property
    def head(self) -> Owner | None:
        """Who has the slot now."""
        return self._queue[0][0] if self._queue else None

    def leave(self, owner: Owner) -> None:
        """Give the slot, or the place in the queue, away. Safe to call again."""
        self._queue = [each for each in self._queue if each[0] is not owner]
        for _, wake in self._queue:
            wake()
