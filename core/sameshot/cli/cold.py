"""A cold start: what is only just starting is waited for, visibly and within a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sameshot.cli.telling import say
from sameshot.errors import TryAgain

T = TypeVar("T")

AGAIN_S = 1.0


def patient(
    act: Callable[[], T],
    limit_s: float,
    *,
    tell: Callable[[str], None] = say,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `act` returns. While it raises TryAgain it is asked again, for `limit_s`, and what it says is told as it
    changes. Raises the last TryAgain, and any other error at once."""
    ends, told = clock() + limit_s, ""
    while True:
        try:
            return act()
        except TryAgain as error:
            left = ends - clock()
            if left <= 0:
                if not told:
                    raise
                raise type(error)(f"{error} Waited {limit_s:g} s for that (--wait-for).") from None
            if str(error) != told:
                told = str(error)
                tell(f"waiting, {left:.0f} s at most: {told}")
            sleep(min(left, AGAIN_S))
