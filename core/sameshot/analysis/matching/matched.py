"""The collectives of one group as its aligned ranks recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import RankSummary, Stream

ABSENT = -1
"""Duration of a collective that a rank did not record."""


class Matched(msgspec.Struct, frozen=True):
    """The collectives of one group as its aligned ranks recorded them. Arrays are rank × collective.

    Columns are the collectives of the reference rank that at least one other rank recorded as well. Where a rank did
    not record one, `dur` is ABSENT (-1) and `start` is 0: use `present`, or stay with the `complete` columns. Who came
    last is certain in complete columns only: the rank whose record is missing may have been the one.

    `ranks` are indices into the list of summaries; `start` counts from the start of each rank's own window. `key` is
    unique among all matched. `stream` is the key of the ranks' streams (and `Group.key`); it differs from `key` where
    several unnamed groups use streams of the same order. `streams` are the keys in each rank's own summary, which
    differ where Kineto cut the list of ranks short on some of them.
    """

    key: str
    source: str
    ranks: tuple[int, ...]
    reference: int  # index into `ranks`
    signatures: tuple[str, ...]  # per collective
    start: Ints
    dur: Ints
    unmatched: Counter[str]  # signature → recorded, but not on all ranks
    assumes_clocks: bool  # two hosts were matched by their clocks: an assumption
    stream: str = ""
    streams: tuple[str, ...] = ()  # per row
    assumed: tuple[int, ...] = ()  # which rows (indices into `ranks`) were matched by the clocks of two hosts

    @property
    def count(self) -> int:
        return int(self.dur.shape[1])

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Rank × collective: was it recorded?"""
        return np.asarray(self.dur >= 0, dtype=np.bool_)

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Per collective: did all aligned ranks record it?"""
        return np.asarray(self.present.all(axis=0), dtype=np.bool_)

    @property
    def is_symmetric(self) -> npt.NDArray[np.bool_]:
        """Per collective: do durations tell who came last?"""
        return np.asarray(
            [signature.partition(" ")[0] in names.SYMMETRIC for signature in self.signatures], dtype=np.bool_
        )

    @property
    def symmetric(self) -> Ints:
        """Indices of the complete collectives whose durations tell who came last."""
        return np.flatnonzero(self.is_symmetric & self.complete)

    def stream_of(self, ranks: Sequence[RankSummary], row: int) -> Stream:
        """The stream of the rank in this row that was matched."""
        key = self.streams[row] if self.streams else self.key
        return next(s for s in ranks[self.ranks[row]].streams if (s.source, s.key) == (self.source, key))

    @property
    def wait(self) -> Ints:
        """dur - shortest dur, 0 where a rank has no record (so that sums hold; see `present`)."""
        present = self.present
        shortest = np.where(present, self.dur, np.iinfo(np.int64).max).min(axis=0)
        waits: Ints = np.where(present, self.dur - shortest, 0)
        return waits
