"""How it is said."""

from __future__ import annotations

from collections import Counter

from sameshot.analysis.intervals import Ints
from sameshot.analysis.late.evidence import Evidence
from sameshot.analysis.results import RankSummary
from sameshot.analysis.text import count
from sameshot.analysis.waiting.arrivals import Arrivals


def who(rank: RankSummary) -> str:
    return rank.label if rank.identity.node is None else f"{rank.label} ({rank.identity.node})"


def others_wait(victims: int) -> str:
    return "the other one waits" if victims == 1 else f"the {victims} others wait"


def mostly_in(one: Arrivals, columns: Ints) -> str | None:
    """In which collectives most was waited: kind and group."""
    cost: Counter[str] = Counter()
    for column, ns in zip(columns.tolist(), one.wait[:, columns].sum(axis=0).tolist(), strict=True):
        cost[one.kinds[column]] += ns
    return f"{cost.most_common(1)[0][0]}, {one.where}" if cost else None


def counted(evidence: Evidence, which: str = "") -> str:
    return count(evidence.lateness.shape[1], which + ("step" if evidence.per_step else "synchronisation"))
