"""Late once: the single most expensive moment, where too few steps are known to call anything steady."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.late.evidence import Evidence, undecided
from sameshot.analysis.late.groups import waits_of
from sameshot.analysis.late.limits import (
    FLOOR,
    LEAST_STEPS,
    METHOD,
    SHARE_OF_STEP,
    SHARE_OF_WAITING,
    SHARE_OF_WINDOW,
    TIMES_OTHERS,
)
from sameshot.analysis.late.starts import contradicted
from sameshot.analysis.late.words import counted, mostly_in, others_wait, who
from sameshot.analysis.results import Cause, Clocks, Confidence, Lateness, LateRank, Lost, RankSummary, Verdict
from sameshot.analysis.text import count, ms, percent
from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import CAUSES


def single_moment(
    ranks: Sequence[RankSummary], usable: Sequence[Evidence], common: int | None, clocks: Clocks | None = None
) -> Lateness:
    """Too few steps to call anything steady: name the most expensive moment, if it stands out and surely is one."""
    longest = max(usable, key=lambda one: one.lateness.shape[1])
    few = f"Only {counted(longest)} could be matched on all ranks; a verdict takes {LEAST_STEPS}."
    everything = sum(int(one.total_wait.sum()) for one in usable)
    episodes = [
        episode
        for one in usable
        if one.source != "gloo" and one.arrivals.complete
        for episode in _episodes(one.arrivals)
    ]
    best = max(episodes, key=lambda episode: episode.cost, default=None)
    floor = max(FLOOR["nccl"], SHARE_OF_WINDOW * (common or 0))
    if best is None or best.cost < SHARE_OF_WAITING * everything or best.each < floor:
        return undecided(few, usable)
    one = next(one for one in usable if one.arrivals is best.arrivals)
    arrivals, first = best.arrivals, int(best.columns[0])
    index = int(arrivals.root[first])
    cause = CAUSES[int(arrivals.root_cause[first])]
    if one.per_step and one.lateness.shape[1] > 1 and cause is not Cause.INHERITED and not _always(one, index):
        return undecided(few, usable)
    others = max((e.cost for e in episodes if int(e.arrivals.root[e.columns[0]]) != index), default=0)
    if not one.per_step and cause is not Cause.INHERITED and TIMES_OTHERS * others > best.cost:
        return undecided(few, usable)
    if cause is Cause.OTHER_GROUP:
        return undecided(
            f"{few} The most expensive moment came about because of what other groups did, in which nobody was found "
            "to blame.",
            usable,
        )
    if any(
        contradicted(ranks, arrivals, row, best.columns[arrivals.last[best.columns] == row], clocks)
        for row in np.unique(arrivals.last[best.columns]).tolist()
    ):
        return undecided(
            f"{few} At the most expensive moment the rank with the shortest record started with the others: it left "
            "early.",
            usable,
        )
    # Where no steps are known, what looks like one moment may be chance in several.
    doubtful = one.assumes_clocks or cause is Cause.UNKNOWN or (not one.per_step and cause is not Cause.INHERITED)
    rank = ranks[index]
    victims = len(one.ranks) - 1
    where = mostly_in(arrivals, best.columns) or arrivals.where
    times = len(best.columns)
    kind = where.partition(",")[0]
    rests = "that one collective" if times == 1 else f"those {times} collectives in a row"
    late = LateRank(
        label=rank.label,
        rank=rank.identity.rank,
        node=rank.identity.node,
        lateness_per_step=int(arrivals.lateness[best.columns].sum()),
        share_of_step=0.0,
        late_in_share=round(float((arrivals.significant & (arrivals.root == index)).mean()), 3),
        cause=cause,
        excess=None,
        python=None,
        confidence=Confidence.LOW if doubtful else Confidence.MEDIUM,
        sentence=f"{who(rank)} is late: {others_wait(victims)} {ms(best.cost)} in all for it (up to {ms(best.longest)} "
        f"each) in {'one' if times == 1 else times} {kind}; this rests on {rests}",
        lost=_lost_at(arrivals, first) if index == one.ranks[int(arrivals.last[first])] else None,
        victims=victims,
        waiting=best.cost,
        collective=where,
        collectives=times,
        waits=waits_of(ranks, {i: int(ns) for i, ns in zip(one.ranks, best.each_rank.tolist(), strict=True)}),
    )
    return Lateness(
        verdict=Verdict.LATE,
        reason=f"One moment makes up {percent(best.cost / everything)} of all waiting at "
        f"{count(one.collectives, 'matched collective')}; with {counted(longest)} nobody can say whether it is steady.",
        ranks=(late,),
        rests_on_ranks=len(one.ranks),
        rests_on_steps=longest.lateness.shape[1],
        rests_on_collectives=times,
        step_time=longest.step_time,
        threshold=int(floor),
        method=METHOD,
    )


def _always(one: Evidence, index: int) -> bool:
    """Was this rank late in each of a few steps?"""
    if index not in one.ranks:
        return False
    least = max(FLOOR["nccl"], SHARE_OF_STEP["nccl"] * one.step_time)
    return bool((one.lateness[one.ranks.index(index)] >= least).all())


class _Episode(msgspec.Struct, frozen=True):
    """Collectives after each other to which the same rank came last for the same reason."""

    arrivals: Arrivals
    columns: Ints
    cost: int  # waiting of all others
    each: float  # of it really lost, on a typical rank
    each_rank: Ints  # waiting, per row

    @property
    def longest(self) -> int:
        return int(self.each_rank.max())


def _episodes(one: Arrivals) -> list[_Episode]:
    at = np.flatnonzero(one.significant)
    if not len(at):
        return []
    same = (np.diff(at) == 1) & (np.diff(one.root[at]) == 0) & (np.diff(one.root_cause[at]) == 0)
    lost = one.lost
    return [
        _Episode(
            one,
            columns,
            int(one.wait[:, columns].sum()),
            float(np.median(lost[:, columns].sum(axis=1))),
            one.wait[:, columns].sum(axis=1),
        )
        for columns in np.split(at, np.flatnonzero(~same) + 1)
    ]


def _lost_at(arrivals: Arrivals, column: int) -> Lost | None:
    """What the last arriver's device did for longer than those of its peers before one collective."""
    if arrivals.spent is None:
        return None
    row = int(arrivals.last[column])
    since = arrivals.spent.since[:4, :, column]
    excess = since[:, row] - (since.sum(axis=1) - since[:, row]) / (since.shape[1] - 1)
    return Lost(*(int(value) for value in excess))
