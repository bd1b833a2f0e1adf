"""Sets of time spans as sorted, disjoint int64 nanosecond arrays, and the few operations that breakdowns need.

Every share of time in a report is the length of such a set, so nothing is ever counted twice and the categories of a
breakdown add up to the window exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

EMPTY: Ints = np.empty(0, dtype=np.int64)
_FAR = (1 << 63) - 1  # beyond all time


class Spans:
    """A set of half-open spans [start, end): sorted, disjoint, none of them empty."""

    __slots__ = ("_before", "end", "start")

    def __init__(self, start: Ints = EMPTY, end: Ints = EMPTY) -> None:
        """Take arrays that are sorted and disjoint already; `Spans.of` makes them so."""
        self.start = start
        self.end = end
        self._before: Ints | None = None

    @classmethod
    def of(cls, start: npt.ArrayLike, end: npt.ArrayLike) -> Self:
        """The union of arbitrary spans; empty and reversed ones are left out."""
        starts = np.asarray(start, dtype=np.int64)
        ends = np.asarray(end, dtype=np.int64)
        keep = ends > starts
        if not keep.all():
            starts, ends = starts[keep], ends[keep]
        if not len(starts):
            return cls()
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
        reach = np.maximum.accumulate(ends)
        opens = np.concatenate(([True], starts[1:] > reach[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return cls(starts[opens], reach[closes])

    @classmethod
    def single(cls, start: int, end: int) -> Self:
        return cls.of([start], [end])

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Covered time in ns."""
        return int((self.end - self.start).sum())

    def contains(self, at: Ints) -> npt.NDArray[np.bool_]:
        """Whether each moment lies inside the set."""
        if not len(self):
            return np.zeros(len(at), dtype=np.bool_)
        index = np.searchsorted(self.start, at, side="right") - 1
        inside: npt.NDArray[np.bool_] = (index >= 0) & (at < self.end[index])
        return inside

    def before(self, at: npt.ArrayLike) -> Ints:
        """How much covered time lies before each moment, so that `before(b) - before(a)` is the time within [a, b)."""
        moments = np.asarray(at, dtype=np.int64)
        if not len(self):
            return np.zeros(len(moments), dtype=np.int64)
        if self._before is None:
            self._before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, moments, side="right")
        last = np.maximum(index - 1, 0)
        overhang = np.where(index > 0, np.maximum(self.end[last] - moments, 0), 0)
        covered: Ints = self._before[index] - overhang
        return covered

    def within(self, edges: npt.ArrayLike) -> Ints:
        """Covered time between neighbouring edges: one number less than there are edges."""
        return np.diff(self.before(edges))

    def __and__(self, other: Spans) -> Spans:
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        if not len(few):
            return Spans()
        # Of many, those from `first` to before `last` overlap each of few; all such pairs, in order of time.
        first = np.searchsorted(many.end, few.start, side="right")
        last = np.searchsorted(many.start, few.end, side="left")
        overlaps = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(few)), overlaps)
        theirs = np.arange(len(mine)) + np.repeat(first - (np.cumsum(overlaps) - overlaps), overlaps)
        return Spans(np.maximum(few.start[mine], many.start[theirs]), np.minimum(few.end[mine], many.end[theirs]))

    def __sub__(self, other: Spans) -> Spans:
        if not len(self) or not len(other):
            return self
        return self & Spans(np.concatenate(([-_FAR], other.end)), np.concatenate((other.start, [_FAR])))

    def __or__(self, other: Spans) -> Spans:
        return union((self, other))


def union(parts: Iterable[Spans]) -> Spans:
    """All time that is covered by any of the parts."""
    sets = list(parts)
    if not sets:
        return Spans()
    return Spans.of(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))
