"""Levels in a series of numbers: where did it change from one to another, and by more than chance? Pure.

Numbers are cut into pieces, each around its own median, at the least cost: the sum of distances to these medians (L1:
an outlier counts by its distance, not by the square of it) plus a price for every cut. Then each cut has to prove
itself, the weakest first, or it is taken back:

- the levels differ by `relevant` or more;
- by `_SURE` standard errors or more. The error of a piece's median is 1.25 · noise / sqrt(n), and the noise is
  estimated from how far the numbers lie from the medians of their pieces, less what the fit has used up;
- of the numbers on either side at least `_HELD` lie on the side of their own median.

A level is `LEAST_BEFORE` numbers long, the last one `LEAST_NOW`: shorter runs are outliers within another level. With
these constants a series without any change shows one in less than 1 % of all cases, also with heavy tails or with a
tenth of the numbers doubled, as long as numbers don't depend on their neighbours (tests/history measures it).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

LEAST_BEFORE = 5
LEAST_NOW = 3
_SURE = 3.5
_HELD = 0.8
_PRICE = 2.0  # of a cut, in noise · log(n)
_DEVIATION = 1.2533  # sqrt(π/2): standard deviation over mean distance, and error of a median over that of a mean


class Levels(msgspec.Struct, frozen=True):
    """`cuts`: where each level but the first begins. `noise`: standard deviation around the levels, as estimated."""

    cuts: tuple[int, ...]
    medians: tuple[float, ...]
    noise: float

    @property
    def current(self) -> float:
        return self.medians[-1]

    def off(self, value: float) -> float:
        """How far a number lies above the current level."""
        return value - self.current

    def surely(self, value: float) -> bool:
        """Does one number differ from the current level by more than noise?"""
        return abs(self.off(value)) >= _SURE * self.noise


def levels(values: Sequence[float], relevant: float) -> Levels | None:
    """The levels of `values`, in order; `relevant` is the least difference that matters. None: too few to say."""
    count = len(values)
    if count < LEAST_BEFORE + LEAST_NOW:
        return None
    steps = [abs(after - before) for before, after in pairwise(values)]
    typical = 1.4826 * median(steps) / math.sqrt(2)  # steps between neighbours don't know of levels
    cuts = _cut(values, price=_PRICE * typical / _DEVIATION * math.log(count))
    while True:
        edges = [0, *cuts, count]
        pieces = [values[begin:end] for begin, end in pairwise(edges)]
        medians = [median(piece) for piece in pieces]
        away = sum(abs(value - middle) for piece, middle in zip(pieces, medians, strict=True) for value in piece)
        noise = _DEVIATION * away / max(count - 1.5 * len(pieces), 1.0)
        proofs = [_proof(before, after, noise, relevant) for before, after in pairwise(pieces)]
        weakest = min(range(len(proofs)), key=proofs.__getitem__, default=None)
        if weakest is None or proofs[weakest] >= 1:
            return Levels(tuple(cuts), tuple(medians), noise)
        del cuts[weakest]


def _proof(before: Sequence[float], after: Sequence[float], noise: float, relevant: float) -> float:
    """How well a cut proves itself; 1 is enough."""
    low, high = median(before), median(after)
    shift, middle, up = abs(high - low), (low + high) / 2, high > low
    error = noise * _DEVIATION * math.sqrt(1 / len(before) + 1 / len(after))
    held = min(
        sum((value > middle) == side for value in piece) / len(piece) for piece, side in ((before, not up), (after, up))
    )
    return min(shift / relevant, shift / error / _SURE if error else math.inf, held / _HELD)


def _cut(values: Sequence[float], price: float) -> list[int]:
    """The cheapest cuts, found exactly."""
    count = len(values)
    costs = [_costs(values[begin:]) for begin in range(count)]
    best, came = [0.0] + [math.inf] * count, [0] * (count + 1)
    for end in range(1, count + 1):
        least = LEAST_NOW if end == count else LEAST_BEFORE
        for begin in range(end - least + 1):
            cost = best[begin] + costs[begin][end - begin] + (price if begin else 0.0)
            if cost < best[end] - 1e-12:
                best[end], came[end] = cost, begin
    cuts = []
    at = came[count]
    while at:
        cuts.append(at)
        at = came[at]
    return cuts[::-1]


def _costs(values: Sequence[float]) -> list[float]:
    """For each n the sum of the distances of the first n values to their median: it grows by the distance of the new
    value to the nearest median of those before."""
    found, ordered, cost = [0.0], list[float](), 0.0
    for value in values:
        if ordered:
            low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
            cost += abs(value - min(max(value, low), high))
        insort(ordered, value)
        found.append(cost)
    return found
