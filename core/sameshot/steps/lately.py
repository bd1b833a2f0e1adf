"""What a process remembers that may be restarted at any time: bounded, and lost without harm."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

LIMIT = 20_000
UNUSED_S = 300.0
"""Whoever polls asks again long before."""


class Lately(Generic[V]):
    """Values by name. Of more than `limit` those go first that nobody has used for the longest time; while each was
    used within `unused_s`, newcomers are not remembered instead. Where the oldest always went, more than `limit` that
    take turns would all be forgotten, each just before it is asked for. `clock` is monotonic, in seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, limit: int = LIMIT, unused_s: float = UNUSED_S
    ) -> None:
        self._clock, self._limit, self._unused_s = clock, limit, unused_s
        self._values: OrderedDict[str, tuple[V, float]] = OrderedDict()  # and when it was used; the last one is last

    def get(self, key: str) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._remember(key, found[0])
        return found[0]

    def put(self, key: str, value: V) -> None:
        if key in self._values or len(self._values) < self._limit or self._has_room():
            self._remember(key, value)

    def forget(self, key: str) -> None:
        self._values.pop(key, None)

    def _remember(self, key: str, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value, self._clock()

    def _has_room(self) -> bool:
        """The one that was used the longest time ago has gone for it."""
        key, (value, used) = self._values.popitem(last=False)
        if self._clock() - used >= self._unused_s:
            return True
        self._values[key] = value, used
        self._values.move_to_end(key, last=False)
        return False


class Since:
    """For how long something has been so, as far as this process has seen. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], limit: int = LIMIT) -> None:
        self._clock = clock
        self._began: Lately[float] = Lately(clock, limit)

    def seconds(self, key: str) -> float:
        """It is so now; 0.0 where it was not before (or there are too many to remember)."""
        began = self._began.get(key)
        if began is None:
            began = self._clock()
            self._began.put(key, began)
        return self._clock() - began

    def forget(self, key: str) -> None:
        """It is not so (any more)."""
        self._began.forget(key)
