"""Bridging the moment in which a coordinator is restarted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sameshot.client.wire import PATIENCE_S
from sameshot.errors import Unreachable

T = TypeVar("T")


async def patiently(act: Callable[[], Awaitable[T]]) -> T:
    """What `act` returns; while nobody can be reached it is tried again, for as long as a restart takes. It must be
    repeatable. Raises the last Unreachable."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await act()
        except Unreachable:
            if time.monotonic() >= ends:
                raise
        await asyncio.sleep(0.3 * random.uniform(0.75, 1.25))
