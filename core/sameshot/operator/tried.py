"""How often the same was done in a row: whatever undoes it each time, it is done ever more seldom. Pure."""

from __future__ import annotations

import math

import msgspec

from sameshot.operator.config import Timings


class Tried(msgspec.Struct, frozen=True):
    """`times`: since it was last good for long; `at`: when last; `good_since`: None: it is not. Epoch seconds."""

    times: int = 0
    at: float = -math.inf
    good_since: float | None = None

    def did(self, now: float) -> Tried:
        return Tried(self.times + 1, now)

    def seen(self, now: float, timings: Timings, *, good: bool) -> Tried:
        """What was good for long counts from its end on, so that what breaks then is mended at once."""
        if good:
            return self if self.good_since is not None else msgspec.structs.replace(self, good_since=now)
        if self.good_since is None:
            return self
        return Tried() if now >= self.good_since + timings.calm_s else Tried(self.times, self.at)

    def next(self, timings: Timings, longest_s: float) -> float:
        """Before then it is not done again."""
        return self.at + growing(timings.remake_s, self.times, longest_s) if self.times else -math.inf


NEVER = Tried()


def growing(first: float, times: int, longest: float) -> float:
    """The pause after so many: first, twice that, four times, …"""
    return min(first * 2.0 ** min(max(times - 1, 0), 40), longest)
