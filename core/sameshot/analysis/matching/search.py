"""The offset under which two ranks' sequences correspond, if rhythm and signatures decide on one.

Offsets are counted: under the right one many ends coincide. The best is taken only if it leaves clearly less than every
other possible offset or shift, and if that can't be chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.fit import (
    DECIDING_SHARE,
    LEAST_BY_CLOCK,
    NEAR,
    NOISE,
    Fit,
    Sequence,
    alike,
    fit,
    median,
    prevailing,
)

_LEAST = 5  # fewer fit by chance
_LEAST_DISTINCT = 3  # of which no two are alike; two have one distance, which fits too easily
_LEAST_SHARE = 0.3  # of the shorter sequence
_CLEARLY = 0.5  # the right offset leaves at most this share of what any other leaves
_CHANCE = 1e-3  # the probability that we accept for a wrong lag to look right
_PLAUSIBLE = 2.0  # offsets whose rhythm is worse than this times the best are not offered to the clock
_FINEST = 50_000  # ns: width of the finest window in which offsets are counted
_COARSER = 4
_MOST_DIFFERENCES = 40_000
_LONGEST = 4_000  # collectives that are searched for an offset; all are matched under it
_PEAKS = 8
_NEIGHBOURS = 16


class Candidates:
    """The offsets under which two sequences may correspond."""

    def __init__(self, reference: Sequence, other: Sequence) -> None:
        self.reference, self.other = _shortened(reference), _shortened(other)
        self._whole = (reference, other)
        self.why = "the sequences of collectives differ, or share too few"
        self.gap = max(self.reference.gap, self.other.gap)
        self.width = float(_FINEST)
        self.lags = list(_feasible_lags(self.reference.kind, self.other.kind))
        self.fits = self._fits() if self.lags else []

    def _fits(self) -> list[Fit]:
        found: list[Fit] = []
        for offset in self._peaks():
            one = fit(self.reference, self.other, offset, self.width)
            if one is not None and one.matched >= self._least(one) and not any(alike(one, seen) for seen in found):
                found.append(one)
        return sorted(found, key=lambda one: one.cost)

    def _least(self, one: Fit) -> float:
        shorter = min(len(self.reference), len(self.other))
        return max(LEAST_BY_CLOCK, _LEAST_SHARE * shorter, DECIDING_SHARE * one.overlap)

    def unmistakable(self) -> Fit | None:
        """The fit that rhythm and signatures alone decide, if they do."""
        if not self.fits:
            return None
        best = self.fits[0]
        shorter = min(len(self.reference), len(self.other))
        if best.matched < DECIDING_SHARE * shorter:
            self.why = "too little of the two windows corresponds to decide by rhythm"
            return None
        lag = prevailing(best.place)
        rivals = [(rival.cost, self._contradictions(best, rival.place, rival.slope)) for rival in self.fits[1:]]
        near = [self._shifted(best, each) for each in self._near(lag)]
        evidence = int(np.median([confirmed for _, confirmed in near])) if near else 0
        rivals += near
        if not rivals:  # a single possible lag has nothing to be compared with: its own fit must be good
            if best.matched < _LEAST and not self._distinct(best):
                self.why = "too few collectives to decide by rhythm"
                return None
            if best.cost <= 0.1 * self.gap:
                return self._full(best)
            self.why = "the only possible shift fits badly"
            return None
        for cost, confirmed in rivals:
            share = max(best.cost, 1.0) / max(cost, 1.0)
            by_chance = len(self.lags) * share ** max(confirmed - 1, evidence - 1, 0)
            if cost < NOISE or share > _CLEARLY or by_chance > _CHANCE or best.matched < _LEAST:
                self.why = "several shifts fit equally well: the job is too regular, or too little was recorded"
                return None
        return self._full(best)

    def _distinct(self, best: Fit) -> bool:
        """Does every collective of both windows occur once, so that signatures alone leave one shift?"""
        counts = (np.unique(one.kind, return_counts=True)[1] for one in (self.reference, self.other))
        return best.matched >= _LEAST_DISTINCT and all(bool((each == 1).all()) for each in counts)

    def nearest_to_zero(self) -> Fit | None:
        """Of the fits that the rhythm allows, the one that needs the least offset, if no other comes near it."""
        fits = list(self.fits)
        for offset in (0.0, *self._small()):
            one = fit(self.reference, self.other, offset, max(NEAR * self.gap, 5 * NOISE))
            if one is not None and one.matched >= self._least(one) and not any(alike(one, seen) for seen in fits):
                fits.append(one)
        if not fits:
            return None
        limit = _PLAUSIBLE * max(min(one.cost for one in fits), NOISE)
        plausible = sorted((one for one in fits if one.cost <= limit), key=lambda one: abs(one.offset))
        nearest = plausible[0]
        apart = min((abs(one.offset - nearest.offset) for one in plausible[1:]), default=self.gap)
        if abs(nearest.offset) > NEAR * apart:
            self.why = "several shifts fit equally well, by rhythm and by clock"
            return None
        return self._full(nearest)

    def _full(self, found: Fit) -> Fit:
        reference, other = self._whole
        if len(reference) <= _LONGEST and len(other) <= _LONGEST:
            return found
        return fit(reference, other, found.offset, self.width) or found

    def _contradictions(self, best: Fit, place: Ints, slope: float) -> int:
        """How many times the best fit is right where this one is not: independent pieces of evidence."""
        at = np.flatnonzero(best.place >= 0)
        apart = np.where(place >= 0, self.other.end[place] - self.reference.end, 0).astype(np.float64)
        apart = (apart - slope * (self.reference.end - self.reference.end[0]))[at]
        known = (place >= 0)[at]
        jumps = np.abs(np.diff(apart)) > 4 * max(best.residual, NOISE / 2)
        differ = known & (self.other.kind[place[at]] != self.reference.kind[at])
        return int((jumps & known[1:] & known[:-1]).sum() + (known[1:] != known[:-1]).sum() + differ.sum())

    def _near(self, lag: int) -> list[int]:
        return sorted((each for each in self.lags if each != lag), key=lambda each: abs(each - lag))[:_NEIGHBOURS]

    def _shifted(self, best: Fit, lag: int) -> tuple[float, int]:
        """Misfit under a shift by order, and how often the best fit is right where this one is not."""
        index = np.arange(len(self.reference))
        place = np.where((index + lag >= 0) & (index + lag < len(self.other)), index + lag, -1)
        at = np.flatnonzero(place >= 0)
        apart = (self.other.end[place[at]] - self.reference.end[at]).astype(np.float64)
        apart -= best.slope * (self.reference.end[at] - self.reference.end[0])
        apart = np.abs(apart - median(apart))
        differ = self.reference.kind[at] != self.other.kind[place[at]]
        apart[differ] = np.maximum(apart[differ], 0.5 * self.gap)
        return float(apart.mean()), self._contradictions(best, place, best.slope)

    def _peaks(self) -> list[float]:
        """Offsets under which many ends coincide, the most frequent first, counted in the finest window that works."""
        differences = self._differences()
        if not len(differences):
            return []
        self.width = float(_FINEST)
        while True:
            counts = np.searchsorted(differences, differences + self.width, side="right") - np.arange(len(differences))
            best = int(counts.argmax())
            if counts[best] >= DECIDING_SHARE * self._anchors_inside(float(differences[best])):
                break
            if self.width * _COARSER > 0.5 * self.gap:
                break
            self.width *= _COARSER
        peaks: list[float] = []
        top = int(counts.max())
        for _ in range(_PEAKS):
            best = int(counts.argmax())
            if counts[best] < max(LEAST_BY_CLOCK, 0.2 * top):
                break
            inside = differences[best : best + counts[best]]
            peaks.append(median(inside))
            low, high = np.searchsorted(differences, (inside[0] - self.width, inside[-1] + self.width))
            counts[low:high] = 0
        return peaks

    def _small(self) -> list[float]:
        """The differences of ends that are nearest to zero."""
        differences = self._differences()
        at = np.searchsorted(differences, 0)
        return [float(value) for value in differences[max(at - 2, 0) : at + 2]]

    def _differences(self) -> Ints:
        """(end there - end here) of pairs of equal signature, sorted; of many collectives only some."""
        stride = -(-len(self.reference) * len(self.other) // _MOST_DIFFERENCES)
        some = slice(None, None, stride)
        equal = self.other.kind[some, None] == self.reference.kind[None, :]
        return np.sort((self.other.end[some, None] - self.reference.end[None, :])[equal])

    def _anchors_inside(self, offset: float) -> int:
        stride = -(-len(self.reference) * len(self.other) // _MOST_DIFFERENCES)
        moved = self.other.end[::stride] - round(offset)
        inside = (moved >= self.reference.end.min() - _FINEST) & (moved <= self.reference.end.max() + _FINEST)
        return int(inside.sum())


def _shortened(whole: Sequence) -> Sequence:
    if len(whole) <= _LONGEST:
        return whole
    return replace(
        whole,
        start=whole.start[:_LONGEST],
        end=whole.end[:_LONGEST],
        kind=whole.kind[:_LONGEST],
        own=whole.own[:_LONGEST],
        by_end=np.argsort(whole.end[:_LONGEST], kind="stable"),
        seq=None if whole.seq is None else whole.seq[:_LONGEST],
    )


def _feasible_lags(here: Ints, there: Ints) -> Iterable[int]:
    """Shifts by order under which (nearly) all signatures agree; a missing record makes some disagree."""
    count, others = len(here), len(there)
    least = max(LEAST_BY_CLOCK, round(_LEAST_SHARE * min(count, others)))
    for lag in range(least - count, others - least + 1):
        low, high = max(0, -lag), min(count, others - lag)
        if np.count_nonzero(here[low:high] == there[low + lag : high + lag]) >= 0.5 * (high - low):
            yield lag
