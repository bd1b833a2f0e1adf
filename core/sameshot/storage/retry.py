"""Trying again, bounded: exponential backoff with jitter inside one deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sameshot.errors import StorageError

_T = TypeVar("_T")
_Again = Callable[[Exception], bool]

# A new attempt begins in the first three quarters only and is itself limited to the last one (`attempt_limit_s`), so
# that the caller learns what the store said and not only that time is up.
_START_UNTIL = 0.75


def attempt_limit_s(deadline_s: float) -> float:
    """How long one request may take, so that a stuck one leaves time for another."""
    return min(30.0, deadline_s * (1 - _START_UNTIL))


async def retrying(
    what: str, deadline_s: float, call: Callable[[], Awaitable[_T]], again: _Again, explain: Callable[[Exception], str]
) -> _T:
    """Await `call` until it works or an error comes that is not worth another attempt; StorageError at the deadline."""
    import asyncio  # 0.05 s of CPU: whoever only reads a local folder, as analysis does, never gets here

    pauses = _Pauses(deadline_s)
    problem = ""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    return await call()
                except Exception as error:
                    if not again(error):
                        raise
                    problem = explain(error)
                    pause_s = pauses.next_s()
                    if pause_s is None:
                        raise StorageError(
                            f"{what} failed {pauses.tries} times in {deadline_s:g} s: {problem}"
                        ) from None
                await asyncio.sleep(pause_s)
    except TimeoutError:
        last = f" The last attempt before said: {problem}" if problem else ""
        raise StorageError(f"{what} did not end within its deadline of {deadline_s:g} s.{last}") from None


def retrying_sync(
    what: str, deadline_s: float, call: Callable[[], _T], again: _Again, explain: Callable[[Exception], str]
) -> _T:
    """The same for a blocking `call`, which must limit its own attempts."""
    pauses = _Pauses(deadline_s)
    while True:
        try:
            return call()
        except Exception as error:
            if not again(error):
                raise
            pause_s = pauses.next_s()
            if pause_s is None:
                raise StorageError(
                    f"{what} failed {pauses.tries} times in {deadline_s:g} s: {explain(error)}"
                ) from None
        time.sleep(pause_s)


class _Pauses:
    def __init__(self, deadline_s: float) -> None:
        self.tries = 0
        self._longest_s = min(5.0, deadline_s / 10)
        self._until = time.monotonic() + deadline_s * _START_UNTIL

    def next_s(self) -> float | None:
        """How long to wait before the next attempt; None: there is no time for another."""
        self.tries += 1
        pause_s = min(self._longest_s, 0.1 * 2 ** min(self.tries - 1, 16)) * random.uniform(0.5, 1)
        return None if time.monotonic() + pause_s > self._until else pause_s
