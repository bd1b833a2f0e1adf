"""Who came last to each collective of one matched stream, as columns."""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.frame import Bools
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.results import Group
from sameshot.analysis.waiting.cause import Spent


class Arrivals(msgspec.Struct, frozen=True):
    """The collectives of one matched stream whose durations tell who came last. Arrays are rank × collective, or one
    value per collective."""

    found: Matched
    group: Group | None
    size: int | None  # ranks that the group has, or has at most where no trace says; None: not known
    at: Ints  # columns of `found`
    kinds: tuple[str, ...]
    start: Ints  # ns after the start of each rank's own window
    dur: Ints
    wait: Ints
    last: Ints  # row
    lateness: Ints  # mean wait of the others
    significant: Bools  # the median wait, and the last one's distance to the next, exceed the noise
    spent: Spent | None
    cause: Ints  # place in CAUSES
    since: Ints  # the column since which the cause was derived; -1: the start of the window
    elsewhere: Ints  # ns that the last arriver spent more in other groups since then
    root: Ints  # index of the rank (summary) that it is due to
    root_cause: Ints
    root_sure: Bools  # False: a rank that was not compared may have come later still, here or where the root did
    noise: int

    @property
    def complete(self) -> bool:
        """Is the group whole: were all its ranks compared? Else a missing one may have come later than all: then
        `wait` is what was waited at least, and the shortest duration is more than the transfer."""
        return self.size is not None and len(self.found.ranks) >= self.size

    @property
    def guessed(self) -> bool:
        """The trace records no group: who belongs to it was concluded."""
        return (self.group is None or self.group.name is None) and self.found.key != self.found.stream

    @property
    def lost(self) -> Ints:
        """What of the waiting was really lost: nothing else ran beside it, for longer than on the last arriver. (Where
        that is unknown: all of it.)"""
        if self.spent is None:
            return self.wait
        exposed = self.spent.exposed
        lost: Ints = np.clip(exposed - exposed[self.last, np.arange(len(self.last))], 0, self.wait)
        return lost

    @property
    def where(self) -> str:
        """The group in words."""
        if self.group is None or self.group.name is None:
            return self.found.key
        about = f" ({self.group.description})" if self.group.description else ""
        return f"group {self.group.name}{about}"
