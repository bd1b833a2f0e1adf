"""What the synchronisations of one group say: rank × step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.late.limits import METHOD
from sameshot.analysis.results import Lateness, RankSummary, Verdict
from sameshot.analysis.waiting.arrivals import Arrivals


class Evidence(msgspec.Struct, frozen=True):
    """What the synchronisations of one group say. Arrays are rank × step; `ranks` index the summaries."""

    arrivals: Arrivals
    ranks: tuple[int, ...]
    lateness: Ints
    waited: Ints
    step_time: int
    per_step: bool  # False: no steps are known, each unit is one synchronisation
    unit: Ints  # per synchronisation: its step, -1 for none
    own_step: Ints  # rank × step: which of the rank's own steps that is, -1 where it is not one
    last: Ints  # how often each rank came last
    total_wait: Ints  # per rank, over all matched symmetric collectives

    @property
    def source(self) -> str:
        return self.arrivals.found.source

    @property
    def assumes_clocks(self) -> bool:
        return self.arrivals.found.assumes_clocks

    @property
    def collectives(self) -> int:
        return len(self.arrivals.last)


def gather(ranks: Sequence[RankSummary], streams: Sequence[Arrivals]) -> list[Evidence]:
    """Evidence of every group, the widest and longest first."""
    ordered = sorted(streams, key=lambda one: (-len(one.found.ranks), -len(one.last)))
    return [_evidence(ranks, one) for one in ordered]


def _evidence(ranks: Sequence[RankSummary], one: Arrivals) -> Evidence:
    found, start, wait = one.found, one.start, one.lost
    reference = ranks[found.ranks[found.reference]]
    edges = np.asarray(reference.steps.edges, dtype=np.int64)
    ends = start[found.reference] + one.dur[found.reference]
    if reference.steps.count:
        step = np.searchsorted(edges, ends, side="right") - 1
        units = np.unique(step[(step >= 0) & (step < reference.steps.count)])
        lengths = np.diff(edges)[units]
    else:
        step = np.arange(len(ends))
        units = step[1:]
        lengths = np.diff(ends)
    unit = np.full(len(ends), -1, dtype=np.int64)
    place = np.searchsorted(units, step)
    inside = (place < len(units)) & np.isin(step, units)
    unit[inside] = place[inside]
    # What several collectives in flight together wait is counted once.
    until = start + wait
    reach = np.maximum.accumulate(until, axis=1)
    alone = until - np.maximum(start, np.concatenate((start[:, :1], reach[:, :-1]), axis=1))
    waited = np.zeros((len(found.ranks), len(units)), dtype=np.int64)
    np.add.at(waited.T, unit[inside], np.maximum(alone, 0).T[inside])
    typical = np.sort(waited, axis=0)[len(found.ranks) // 2] if len(units) else np.zeros(0, dtype=np.int64)
    return Evidence(
        arrivals=one,
        ranks=found.ranks,
        lateness=typical - waited,
        waited=waited,
        step_time=int(np.median(lengths)) if len(lengths) else 0,
        per_step=reference.steps.count > 0,
        unit=unit,
        own_step=np.stack([_own_steps(ranks[i], start[row], unit, len(units)) for row, i in enumerate(found.ranks)]),
        last=np.bincount(one.last, minlength=len(found.ranks)),
        total_wait=one.wait.sum(axis=1),
    )


def _own_steps(rank: RankSummary, starts: Ints, unit: Ints, units: int) -> Ints:
    """For each unit the rank's own step that holds its collectives, if one step holds them all; else -1."""
    own = np.full(units, -1, dtype=np.int64)
    if rank.steps.count and units:
        number = np.searchsorted(np.asarray(rank.steps.edges, dtype=np.int64), starts, side="right") - 1
        low, high = np.full(units, 1 << 62), np.full(units, -1)
        inside = unit >= 0
        np.minimum.at(low, unit[inside], number[inside])
        np.maximum.at(high, unit[inside], number[inside])
        same = (low == high) & (low >= 0) & (low < len(rank.steps.parts))
        own[same] = low[same]
    return own


def undecided(reason: str, evidence: Sequence[Evidence]) -> Lateness:
    first = evidence[0] if evidence else None
    return Lateness(
        verdict=Verdict.UNKNOWN,
        reason=reason,
        ranks=(),
        rests_on_ranks=0 if first is None else len(first.ranks),
        rests_on_steps=0 if first is None else int(first.lateness.shape[1]),
        rests_on_collectives=0 if first is None else first.collectives,
        step_time=None if first is None else first.step_time,
        threshold=None,
        method=METHOD,
    )
