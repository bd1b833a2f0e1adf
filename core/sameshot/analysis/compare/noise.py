"""How far two means may lie apart by chance: half the width of the 95 % interval of their difference.

    noise = t · sqrt(v_before + v_after)           v = the variance of one side's mean, t = Student's quantile

Steps follow each other, so their times are not independent draws: with r the correlation of neighbours (corrected for
its bias in short series, and never taken for negative), n samples are worth n · (1 - r) / (1 + r). Where `tests`
measures are looked at together, each gets its share of the 5 % (Bonferroni), so that a table of fifty kernels of the
same program does not show two or three changes.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST = 4  # samples on each side; fewer say nothing of noise
_STRONGEST = 0.9  # correlation of neighbours; more would leave a handful of samples worth less than one


class MeanOf(NamedTuple):
    """One side of a comparison: the variance of its mean, and how many independent samples that rests on."""

    variance: float
    worth: float


def of_samples(values: Floats) -> MeanOf | None:
    """For samples in order of time; None where they are too few."""
    count = len(values)
    if count < LEAST:
        return None
    variance = float(values.var(ddof=1))
    if not variance:
        return MeanOf(0.0, count)
    away = values - values.mean()
    measured = float((away[1:] * away[:-1]).sum() / (away**2).sum())
    neighbours = min(max(measured + (1 + 3 * measured) / count, 0.0), _STRONGEST)
    worth = max(count * (1 - neighbours) / (1 + neighbours), 2.0)
    return MeanOf(variance / worth, worth)


def bound(before: MeanOf | None, after: MeanOf | None, tests: int = 1) -> float | None:
    """The noise of the difference of two means; None where one side is unknown. Degrees of freedom: Welch's."""
    if before is None or after is None:
        return None
    whole = before.variance + after.variance
    if not whole:
        return 0.0
    parts = sum(side.variance**2 / max(side.worth - 1, 1.0) for side in (before, after))
    return student(whole**2 / parts, 0.05 / max(tests, 1)) * float(np.sqrt(whole))


def student(freedom: float, chance: float) -> float:
    """Student's two-sided quantile, by the first terms of its expansion around the normal one (Hill 1970).

    Within 1 % from three degrees of freedom on for a chance of 5 %; below three it is taken at three times its value.
    """
    z = NormalDist().inv_cdf(1 - chance / 2)
    v = max(freedom, 3.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    found = z + sum(term / v ** (power + 1) for power, term in enumerate(terms))
    return found * (3.0 if freedom < 2 else 1.5 if freedom < 3 else 1.0)
