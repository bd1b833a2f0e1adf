"""What was waited in all, and for whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.results import Cause, LateRank, RankSummary, Straggler
from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import CAUSES


def waiting(streams: Sequence[Arrivals]) -> int | None:
    """All waiting at matched collectives, summed over ranks, in ns; None where nothing tells. At least so much: a rank
    that was not compared may have come later."""
    return int(sum(int(one.wait.sum()) for one in streams)) if streams else None


def exposed_waiting(streams: Sequence[Arrivals]) -> int | None:
    """What of it was really lost, as far as that is known (see `Arrivals.lost`)."""
    return int(sum(int(one.lost.sum()) for one in streams)) if streams else None


def stragglers(ranks: Sequence[RankSummary], streams: Sequence[Arrivals], labels: Sequence[str]) -> list[Straggler]:
    """Ranks that came last by more than noise, most expensive first. Nobody is charged with what a rank may have caused
    that was not compared."""
    count = len(ranks)
    last, of, caused, relayed, perhaps = (np.zeros(count, dtype=np.int64) for _ in range(5))
    causes: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for one in streams:
        members = np.asarray(one.found.ranks, dtype=np.int64)
        of[members] += len(one.last)
        at = np.flatnonzero(one.significant)
        cost = one.wait[:, at].sum(axis=0)
        mine = members[one.last[at]]
        np.add.at(last, mine, 1)
        sure = one.root_sure[at]
        np.add.at(caused, one.root[at[sure]], cost[sure])
        np.add.at(perhaps, one.root[at[~sure]], cost[~sure])
        other = one.root[at] != mine
        np.add.at(relayed, mine[other], cost[other])
        of_sure = (one.root[at[sure]].tolist(), one.root_cause[at[sure]].tolist(), cost[sure].tolist())
        for root, cause, ns in zip(*of_sure, strict=True):
            causes[root][CAUSES[cause].value] += ns
    everything = waiting(streams) or 0
    found = np.flatnonzero(last + caused + perhaps).tolist()
    order = sorted(found, key=lambda i: (-caused[i], -perhaps[i], -relayed[i], i))
    return [
        Straggler(
            label=labels[i],
            node=ranks[i].identity.node,
            last=int(last[i]),
            of=int(of[i]),
            caused=int(caused[i]),
            share=round(int(caused[i]) / everything, 4) if everything else 0.0,
            cause=_main_cause(causes[i]),
            causes=dict(causes[i].most_common()),
            relayed=int(relayed[i]),
            perhaps=int(perhaps[i]),
        )
        for i in order
    ]


def with_causes(found: Sequence[Straggler], late: Sequence[LateRank]) -> list[Straggler]:
    """Where collectives alone do not tell why (gloo), the reason that the main thread gave for a rank that is late."""
    known = {rank.label: rank.cause for rank in late if rank.cause is not Cause.UNKNOWN}
    return [
        msgspec.structs.replace(one, cause=known[one.label].value, causes={known[one.label].value: one.caused})
        if one.label in known and set(one.causes) == {Cause.UNKNOWN.value}
        else one
        for one in found
    ]


def _main_cause(causes: Counter[str]) -> str:
    if not causes:
        return Cause.UNKNOWN.value
    cause, ns = causes.most_common(1)[0]
    return cause if 2 * ns >= causes.total() else Cause.UNKNOWN.value
