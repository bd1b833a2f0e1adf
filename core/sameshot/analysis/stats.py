"""Distributions of durations, in whole ns."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.intervals import EMPTY, Ints
from sameshot.analysis.results import Spread
from sameshot.trace.columns.chunk import Codes


def spread(values: Ints) -> Spread | None:
    """Percentiles are interpolated (numpy's "linear") and cut to whole ns."""
    if not len(values):
        return None
    ordered, offset, count = np.sort(values), np.zeros(1, dtype=np.int64), np.array([len(values)], dtype=np.int64)
    p10, median, p90 = (int(_quantile(ordered, offset, count, percent)[0]) for percent in (10, 50, 90))
    return Spread(len(values), median=median, p10=p10, p90=p90, minimum=int(ordered[0]), maximum=int(ordered[-1]))


class Groups(msgspec.Struct, frozen=True):
    """Durations by group, one entry per group, ascending by code. `sorted` are all durations, group after group."""

    code: Ints
    count: Ints
    total: Ints
    minimum: Ints
    maximum: Ints
    deviation: npt.NDArray[np.float64]  # of the sample (n - 1); 0 for a single one
    sorted: Ints
    offset: Ints

    def quantile(self, percent: int) -> Ints:
        return _quantile(self.sorted, self.offset, self.count, percent)


def grouped(code: Codes | Ints, duration: Ints) -> Groups:
    """Group durations (never negative) by a small code."""
    if not len(code):
        return Groups(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, np.empty(0), EMPTY, EMPTY)
    counts = np.bincount(code)
    present = np.flatnonzero(counts)
    count = counts[present]
    offset = np.concatenate(([0], np.cumsum(count)[:-1]))
    bits = int(duration.max()).bit_length()
    if len(present).bit_length() + bits <= 63:  # one number holds both: sorting numbers is several times faster
        rank = np.empty(len(counts), dtype=np.int64)
        rank[present] = np.arange(len(present))
        durations = np.sort((rank[code] << bits) | duration) & ((1 << bits) - 1)
    else:
        durations = duration[np.lexsort((duration, code))]
    total = np.add.reduceat(durations, offset)
    away = durations - np.repeat(total / count, count)
    deviation = np.sqrt(np.add.reduceat(away * away, offset) / np.maximum(count - 1, 1))
    return Groups(present, count, total, durations[offset], durations[offset + count - 1], deviation, durations, offset)


def _quantile(durations: Ints, offset: Ints, count: Ints, percent: int) -> Ints:
    below, fraction = np.divmod((count - 1) * percent, 100)
    low = durations[offset + below]
    step = durations[offset + np.minimum(below + 1, count - 1)] - low
    found: Ints = low + step // 100 * fraction + step % 100 * fraction // 100  # never larger than the durations
    return found
