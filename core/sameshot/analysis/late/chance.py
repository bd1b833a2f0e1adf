"""What chance alone makes of equal ranks: how late one of them looks in a few steps that vary.

    margin(r, s) = lateness(r, s) - the median of the others' lateness in that step
    spread(r)    = within which of its own median a rank's margin stays in 4 of 5 steps, as a standard deviation
    error(r)     = 1.2533 · spread(r) / √steps                the standard error of the median margin of equal ranks

Equal ranks have margins around zero, whatever the noise is that they share, and of two ranks one margin is the other's
opposite. The spread of a handful of steps is itself uncertain: median / error stays below Student's distribution with
0.6 degrees of freedom per step beyond the first (simulated: normal and Laplace noise, 5 to 30 steps, down to one in
100,000). Two bounds have to be passed, each with the chance that *anyone* in the job passes it by accident:

    peers   median margin ≥ Student(chance / ranks tested)  · the larger of its own error and the typical one
    own     median margin ≥ Student(chance / restless ranks) · its own error

The typical error is that of all ranks in groups of this size, known from many steps. Ranks tested: of all groups, so
the bound grows with the root of their logarithm. The second bound is for ranks that vary more than their peers, whose
own spread a few steps may happen to hide: it counts those with more than twice the typical spread, beyond as many as
chance makes (the logarithm of a spread has a standard deviation of 1 / √(2 · freedom)).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.intervals import Ints
from sameshot.analysis.late.evidence import Evidence
from sameshot.analysis.late.limits import BY_CHANCE, SURELY_BY_CHANCE, TIMES_ERROR, TIMES_ERROR_SURE

Floats = npt.NDArray[np.float64]

_OF_STEPS = 0.8
_NORMAL = NormalDist().inv_cdf((1 + _OF_STEPS) / 2)  # within which 4 of 5 values of a normal distribution lie
_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median against that of a mean
_FREEDOM = 0.6  # degrees of freedom per step beyond the first
_RESTLESS = 2  # times the typical spread


class Bounds(msgspec.Struct, frozen=True):
    """Per rank of one group, in ns per step."""

    margin: Floats  # median over steps
    named: Floats  # what the margin must reach to be no accident
    sure: Floats  # the same beyond doubt


def bounds(evidence: Sequence[Evidence]) -> list[Bounds]:
    """What chance can do in each of these groups, all of them tested at once."""
    margins = [margin(one.lateness) for one in evidence]
    medians = [np.median(values, axis=1) for values in margins]
    spreads = [_spread(values, middle) for values, middle in zip(margins, medians, strict=True)]
    alike: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, one in enumerate(evidence):
        alike[one.source, len(one.ranks)].append(number)
    typical, freedom = [0.0] * len(evidence), [0.0] * len(evidence)
    for numbers in alike.values():
        usual = float(np.median(np.concatenate([spreads[i] for i in numbers])))
        known = sum((len(evidence[i].ranks) - 1) * (margins[i].shape[1] - 1) for i in numbers)
        for number in numbers:
            typical[number], freedom[number] = usual, _FREEDOM * known
    tested = sum(len(one.ranks) for one in evidence)
    restless = sum(
        _restless(own, usual, one.shape[1]) for own, usual, one in zip(spreads, typical, margins, strict=True)
    )
    found = []
    for number in range(len(evidence)):
        steps = margins[number].shape[1]
        error = _MEDIAN * spreads[number] / math.sqrt(steps)
        wide = np.maximum(error, _MEDIAN * typical[number] / math.sqrt(steps))

        def bound(
            chance: float, least: float, error: Floats = error, wide: Floats = wide, number: int = number
        ) -> Floats:
            peers = max(least, student(freedom[number], chance / tested))
            own = student(_FREEDOM * (margins[number].shape[1] - 1), chance / max(restless, 1))
            return np.maximum(peers * wide, own * error)

        found.append(Bounds(medians[number], bound(BY_CHANCE, TIMES_ERROR), bound(SURELY_BY_CHANCE, TIMES_ERROR_SURE)))
    return found


def margin(lateness: Ints) -> Floats:
    """Rank × step: how much later than the median of the others."""
    count = len(lateness)
    ordered = np.sort(lateness, axis=0)
    place = np.argsort(np.argsort(lateness, axis=0, kind="stable"), axis=0, kind="stable")

    def others(index: int) -> Ints:
        """The value at this place among the others, for every rank."""
        value: Ints = np.where(place > index, ordered[index], ordered[index + 1])
        return value

    middle = (others((count - 2) // 2) + others((count - 1) // 2)) / 2
    return np.asarray(lateness - middle, dtype=np.float64)


def _spread(margins: Floats, medians: Floats) -> Floats:
    away = np.sort(np.abs(margins - medians[:, None]), axis=1)
    return np.asarray(away[:, math.ceil(_OF_STEPS * away.shape[1]) - 1] / _NORMAL, dtype=np.float64)


def _restless(spreads: Floats, typical: float, steps: int) -> float:
    """How many of these ranks vary more than their peers, beyond as many as seem to by chance."""
    rare = 1 - NormalDist().cdf(math.log(_RESTLESS) * math.sqrt(2 * _FREEDOM * (steps - 1)))
    return float((spreads > _RESTLESS * typical).sum()) - rare * len(spreads)


def student(freedom: float, chance: float) -> float:
    """What Student's t exceeds with this chance, by Wallace's approximation (Annals of Mathematical Statistics 30,
    1959): within a few percent for the freedoms and chances of this rule. Infinite where it exceeds every number."""
    normal = -NormalDist().inv_cdf(chance) * (8 * freedom + 3) / (8 * freedom + 1)
    power = normal * normal / freedom
    return math.sqrt(freedom * math.expm1(power)) if power < 700 else math.inf
