"""Which of several groups without names a rank's collectives lie near to."""

from __future__ import annotations

import numpy as np

from sameshot.analysis.matching.fit import Sequence, misfit
from sameshot.analysis.matching.hosts import Offsets

APART = 30_000  # ns: median difference of the ends of one NCCL collective; more means that it was another group's
_NEAR = 150_000  # ns; ends and offsets of clocks, chained over hosts, differ by less
_SHARE_NEAR = 0.5


class Near:
    """Which groups a rank's collectives may be of, by the clocks that are known."""

    def __init__(self, leads: dict[int, tuple[Sequence, str]], offsets: Offsets) -> None:
        self.leads = leads
        self.offsets = offsets
        self.base = next(iter(leads.values()))[1]
        moved = {
            number: one.end - ahead
            for number, (one, host) in leads.items()
            if (ahead := offsets.between(self.base, host)) is not None
        }
        ends = np.concatenate([*moved.values()])
        order = np.argsort(ends, kind="stable")
        self.ends = ends[order]
        self.of = np.repeat(np.asarray(list(moved), dtype=np.int64), [len(each) for each in moved.values()])[order]

    def fits(self, one: Sequence, host: str) -> list[tuple[float, int]]:
        """How far its ends scatter around those of each group that they lie near to, the best first."""
        ahead = self.offsets.between(self.base, host)
        if ahead is None:
            return []
        ends = one.end - ahead
        low, high = (np.searchsorted(self.ends, ends + by) for by in (-_NEAR, _NEAR))
        hits = np.repeat(low - np.concatenate(([0], np.cumsum(high - low)[:-1])), high - low)
        counts = np.bincount(self.of[hits + np.arange(len(hits))])
        found = []
        for number in np.flatnonzero(counts >= _SHARE_NEAR * len(ends)).tolist():
            lead, there = self.leads[number]
            between = self.offsets.between(there, host)
            scatter = float("inf") if between is None else misfit(lead, one, between)
            if scatter <= APART:
                found.append((scatter, number))
        return sorted(found)
