"""What a process remembers that may be restarted at any time: bounded, and lost without harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

_LIMIT = 1000


class Lately(Generic[V]):
    """The values that were put in last; the oldest of more than `limit` are forgotten."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._values: dict[str, V] = {}

    def get(self, key: str) -> V | None:
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def forget(self, key: str) -> None:
        self._values.pop(key, None)


class Since:
    """For how long something has been so, as far as this process has seen. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], limit: int = _LIMIT) -> None:
        self._clock = clock
        self._began: Lately[float] = Lately(limit)

    def seconds(self, key: str) -> float:
        """It is so now; 0.0 where it was not before."""
        began = self._began.get(key)
        if began is None:
            began = self._clock()
            self._began.put(key, began)
        return self._clock() - began

    def forget(self, key: str) -> None:
        """It is not so (any more)."""
        self._began.forget(key)
