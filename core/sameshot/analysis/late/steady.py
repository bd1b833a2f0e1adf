"""Late in step after step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.late.chance import Bounds
from sameshot.analysis.late.evidence import Evidence
from sameshot.analysis.late.limits import FLOOR, LEAST_STEPS, SHARE_OF_STEP, STEADY, TIMES_NOISE
from sameshot.analysis.late.starts import contradicted
from sameshot.analysis.late.words import mostly_in, others_wait, who
from sameshot.analysis.results import Cause, Clocks, Confidence, LateRank, Lost, PartTimes, RankSummary
from sameshot.analysis.text import ms
from sameshot.analysis.waiting.cause import CAUSES, explain, explain_lost, step_excess, window_excess


class Candidate(msgspec.Struct, frozen=True):
    late: LateRank
    index: int  # of the rank
    root: int  # of the rank that it waited for: itself where it did not
    root_cause: Cause
    units: int  # steps on which it rests


class Judged(msgspec.Struct, frozen=True):
    evidence: Evidence
    median: npt.NDArray[np.float64]
    steady: npt.NDArray[np.float64]
    threshold: int
    named: list[Candidate]
    unexplained: list[str]
    passing: list[str]  # came last because they waited elsewhere, for whom is not known
    chance: list[int]  # rows: by so much as chance makes possible
    early: list[str]  # their records are short, but by one clock they started with the others
    bounds: Bounds

    @property
    def open(self) -> bool:
        """Did somebody come last steadily who is not named?"""
        return bool(self.unexplained or self.passing or self.chance or self.early)

    @property
    def reach(self) -> float:
        """How near the latest rank came to being named."""
        return float(self.median.max()) / max(self.threshold, 1)


def judged_steps(
    ranks: Sequence[RankSummary], evidence: Evidence, bounds: Bounds, clocks: Clocks | None = None
) -> Judged:
    median = np.median(evidence.lateness, axis=1)
    threshold = _threshold(evidence, median)
    steady = (evidence.lateness >= threshold / 2).mean(axis=1)
    chosen = [int(i) for i in np.argsort(-median) if median[i] >= threshold and steady[i] >= STEADY]
    named: list[Candidate] = []
    unexplained: list[str] = []
    passing: list[str] = []
    chance: list[int] = []
    early: list[str] = []
    for row in chosen:
        if bounds.margin[row] < bounds.named[row]:
            chance.append(row)
            continue
        one = evidence.arrivals
        if contradicted(ranks, one, row, np.flatnonzero(one.significant & (one.last == row)), clocks):
            early.append(ranks[evidence.ranks[row]].label)
            continue
        sure = bool(bounds.margin[row] >= bounds.sure[row])
        late = _late_rank(ranks, evidence, row, chosen, float(median[row]), float(steady[row]), threshold, sure=sure)
        if late is None:
            unexplained.append(ranks[evidence.ranks[row]].label)
        elif late.root_cause is Cause.OTHER_GROUP:
            passing.append(late.late.label)
        else:
            named.append(late)
    return Judged(evidence, median, steady, threshold, named, unexplained, passing, chance, early, bounds)


def _threshold(evidence: Evidence, median: npt.NDArray[np.float64]) -> int:
    spread = np.median(np.abs(evidence.lateness - median[:, None]), axis=1)
    others = np.delete(spread, int(median.argmax()))
    noise = float(np.median(others)) if len(others) > 1 else 0.0  # of two ranks, `chance` tells
    floor = FLOOR.get(evidence.source, max(FLOOR.values()))
    share = SHARE_OF_STEP.get(evidence.source, max(SHARE_OF_STEP.values()))
    return int(max(share * evidence.step_time, TIMES_NOISE * noise, floor))


def _late_rank(
    ranks: Sequence[RankSummary],
    evidence: Evidence,
    row: int,
    chosen: Sequence[int],
    lateness: float,
    steady: float,
    threshold: int,
    *,
    sure: bool,
) -> Candidate | None:
    """Everything about one late rank; None where nothing in its own main thread explains it (gloo)."""
    index = evidence.ranks[row]
    rank = ranks[index]
    excess, lost, cause, per_step = None, None, Cause.UNKNOWN, evidence.per_step
    root, root_cause = index, Cause.UNKNOWN
    if evidence.source == "gloo":
        others = [i for i in range(len(evidence.ranks)) if i != row]
        excess = step_excess(_parts(ranks, evidence, row), [_parts(ranks, evidence, i) for i in others])
        per_step = excess is not None
        if excess is None:
            excess = window_excess(rank, [ranks[evidence.ranks[i]] for i in others], evidence.step_time)
        if excess is not None:
            cause = explain(excess, lateness, threshold)
        if cause is Cause.UNKNOWN:
            return None
    else:
        lost = _lost(evidence, row, chosen)
        if lost is not None:
            cause = explain_lost(lost, lateness)
        if cause is Cause.OTHER_GROUP:
            root, root_cause = _root(evidence, row)
    steps = evidence.lateness.shape[1]
    clear = lateness >= 2 * threshold and steady >= 0.9 and steps >= 2 * LEAST_STEPS
    counted = rank.steps.confidence is Confidence.HIGH
    sure = sure and clear and per_step and counted and not evidence.assumes_clocks
    sure = sure and evidence.arrivals.complete
    if evidence.source != "gloo":  # of which no trace records a group: whole are all ranks of the job
        sure = sure and not evidence.arrivals.guessed
    python = rank.untraced_python[0].name if cause is Cause.UNTRACED and rank.untraced_python else None
    every = "step" if evidence.per_step else "interval between synchronisations"
    mine = np.flatnonzero(evidence.arrivals.last == row)
    late = LateRank(
        label=rank.label,
        rank=rank.identity.rank,
        node=rank.identity.node,
        lateness_per_step=int(lateness),
        share_of_step=round(lateness / evidence.step_time, 3) if evidence.step_time else 0.0,
        late_in_share=round(steady, 3),
        cause=cause,
        excess=excess,
        python=python,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"{who(rank)} is late: {others_wait(len(evidence.ranks) - 1)} {ms(lateness)} of every "
        f"{ms(evidence.step_time)} {every} for it",
        lost=lost,
        victims=len(evidence.ranks) - 1,
        waiting=int(evidence.arrivals.wait[:, mine].sum()),
        collective=mostly_in(evidence.arrivals, mine),
        collectives=len(mine),
    )
    return Candidate(late, index, root, root_cause, steps)


def _parts(ranks: Sequence[RankSummary], evidence: Evidence, row: int) -> list[PartTimes | None]:
    parts = ranks[evidence.ranks[row]].steps.parts
    return [parts[step] if step >= 0 else None for step in evidence.own_step[row].tolist()]


def _lost(evidence: Evidence, row: int, late: Sequence[int]) -> Lost | None:
    """What one rank's device did for longer than those of its punctual peers, per step."""
    spent = evidence.arrivals.spent
    peers = [i for i in range(len(evidence.ranks)) if i not in late] or [
        i for i in range(len(evidence.ranks)) if i != row
    ]
    # Nothing is known of what was before the first collective, so its step is left out: only whole ones are counted.
    counted = np.unique(evidence.unit[evidence.unit > evidence.unit[0]])
    columns = np.flatnonzero(np.isin(evidence.unit, counted))
    if spent is None or not len(columns):
        return None
    since = spent.since[:4]
    excess = since[:, row, columns] - since[:, peers][:, :, columns].mean(axis=1)
    per_unit = excess.sum(axis=1) / len(counted)
    return Lost(*(int(value) for value in per_unit))


def _root(evidence: Evidence, row: int) -> tuple[int, Cause]:
    """Whom this rank mostly waited for in other groups; itself where that is not known."""
    one = evidence.arrivals
    at = np.flatnonzero(one.significant & (one.last == row))
    cost: Counter[tuple[int, int]] = Counter()
    for column, ns in zip(at.tolist(), one.wait[:, at].sum(axis=0).tolist(), strict=True):
        cost[int(one.root[column]), int(one.root_cause[column])] += ns
    by_root: Counter[int] = Counter()
    for (root, _), ns in cost.items():
        by_root[root] += ns
    if not by_root:
        return evidence.ranks[row], Cause.OTHER_GROUP
    root, ns = by_root.most_common(1)[0]
    if 2 * ns < by_root.total():
        return evidence.ranks[row], Cause.OTHER_GROUP
    cause = max((c for c in cost.items() if c[0][0] == root), key=lambda item: item[1])[0][1]
    return root, CAUSES[cause]
