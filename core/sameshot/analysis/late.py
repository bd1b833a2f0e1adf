"""Which rank is late, and what it did meanwhile.

At every matched synchronisation the last arriver makes the others wait. On a busy machine somebody is always last, by
chance, so one bad moment proves nothing. A rank is named only if it is late *step after step*:

    waited(r, s)   = time that rank r waited for others during step s (union over its collectives)
    lateness(r, s) = the typical rank's waited(·, s) - waited(r, s)       typical: the upper median over ranks

    named  ⇔  at least 5 steps were matched
              and median over s of lateness(r, s) ≥ threshold
              and lateness(r, s) ≥ threshold / 2 in at least 4 of 5 steps
              and one part of its main thread explains it (gloo; see `cause`)

    threshold = max(20 % of the median step, 3 × noise, floor)
    noise     = the other ranks' own ups and downs of lateness from step to step (median absolute deviation)
    floor     = 8 ms for gloo, where the operating system's scheduler delays threads by milliseconds, 0.5 ms for NCCL

The typical rank is the upper median, so up to half of the ranks may be late together and are all named.

Measured with four gloo ranks on two cores, from idle to a load of 14 (60 captures without, 34 with a planted delay of
30 ms per step): a planted rank reached at least 1.4 thresholds, in at least 0.83 of the steps, and its untraced time
exceeded its peers' by 29 to 35 ms, at least 0.63 of its lateness. An innocent rank that the scheduler starved for the
whole window reached 1.6 thresholds in 0.85 of the steps, but no part of it explained more than 0.31 of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.cause import explain, step_excess, window_excess
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.match import Matched
from sameshot.analysis.measures import Confidence
from sameshot.analysis.summary import Cause, Lateness, LateRank, PartTimes, RankSummary, Verdict
from sameshot.analysis.text import count, ms, percent

_LEAST_STEPS = 5
_SHARE_OF_STEP = 0.2
_TIMES_NOISE = 3
_FLOOR = {"gloo": 8_000_000, "nccl": 500_000}
_STEADY = 0.8

METHOD = (
    "Late = its collectives are steadily shorter than the typical rank's, because it comes last and the others wait. "
    "Named only with a median of at least the threshold per step, half of it in 4 of 5 steps, 5 steps or more, "
    "and, on CPU jobs, only if one part of its main thread exceeds the other ranks' by enough to explain it."
)


class Evidence(msgspec.Struct, frozen=True):
    """What the matched synchronisations say. Arrays are rank × step; `ranks` index the summaries."""

    source: str
    ranks: tuple[int, ...]
    lateness: Ints
    waited: Ints
    step_time: int
    per_step: bool  # False: no steps are known, each unit is one synchronisation
    parts: dict[int, list[PartTimes | None]]  # summary index → its main thread in each step
    collectives: int
    last: Ints  # how often each rank came last
    total_wait: Ints  # per rank, over all matched symmetric collectives
    assumes_clocks: bool


def gather(ranks: Sequence[RankSummary], matched: Sequence[Matched]) -> Evidence | None:
    """Evidence from the stream with most symmetric collectives; None without any. (Several groups: a later engine.)"""
    useful = [found for found in matched if len(found.symmetric)]
    if not useful:
        return None
    found = max(useful, key=lambda m: (len(m.ranks), len(m.symmetric)))
    at = found.symmetric
    start, dur, wait = found.start[:, at], found.dur[:, at], found.wait[:, at]
    reference = ranks[found.ranks[found.reference]]
    edges = np.asarray(reference.steps.edges, dtype=np.int64)
    ends = start[found.reference] + dur[found.reference]
    if reference.steps.count:
        unit = np.searchsorted(edges, ends, side="right") - 1
        units = [u for u in np.unique(unit).tolist() if 0 <= u < reference.steps.count]
        lengths = np.diff(edges)[units]
    else:
        unit = np.arange(len(ends))
        units = unit[1:].tolist()
        lengths = np.diff(ends)
    waited = np.zeros((len(found.ranks), len(units)), dtype=np.int64)
    parts: dict[int, list[PartTimes | None]] = {index: [] for index in found.ranks}
    for column, number in enumerate(units):
        inside = unit == number
        for row, index in enumerate(found.ranks):
            waited[row, column] = Spans.of(start[row, inside], (start + wait)[row, inside]).total
            parts[index].append(_own_step(ranks[index], start[row, inside]))
    typical = np.sort(waited, axis=0)[len(found.ranks) // 2] if len(units) else np.zeros(0, dtype=np.int64)
    return Evidence(
        source=found.source,
        ranks=found.ranks,
        lateness=typical - waited,
        waited=waited,
        step_time=int(np.median(lengths)) if len(lengths) else 0,
        per_step=reference.steps.count > 0,
        parts=parts,
        collectives=len(at),
        last=np.bincount(dur.argmin(axis=0), minlength=len(found.ranks)),
        total_wait=wait.sum(axis=1),
        assumes_clocks=found.assumes_clocks,
    )


def _own_step(rank: RankSummary, starts: Ints) -> PartTimes | None:
    """The main thread in the rank's own step that holds these collectives, if one step holds them all."""
    if not rank.steps.count:
        return None
    step = set((np.searchsorted(rank.steps.edges, starts, side="right") - 1).tolist())
    number = step.pop()
    return rank.steps.parts[number] if not step and 0 <= number < len(rank.steps.parts) else None


def judge(ranks: Sequence[RankSummary], evidence: Evidence | None, *, cross_rank: bool) -> Lateness:
    """Name the late ranks, or say why nobody is named."""
    if evidence is None or not cross_rank or len(ranks) < 2:
        return _open(_why_nothing(ranks, cross_rank), evidence)
    steps = evidence.lateness.shape[1]
    if steps < _LEAST_STEPS:
        return _open(
            f"Only {_units(evidence)} could be matched on all ranks; a verdict takes {_LEAST_STEPS}.", evidence
        )
    if 2 * len(evidence.ranks) <= len(ranks) and len(ranks) > 2:
        return _open(
            f"Only {len(evidence.ranks)} of {len(ranks)} ranks could be aligned: too few to say what is typical.",
            evidence,
        )
    median = np.median(evidence.lateness, axis=1)
    threshold = _threshold(evidence, median)
    steady = (evidence.lateness >= threshold / 2).mean(axis=1)
    chosen = [i for i in np.argsort(-median) if median[i] >= threshold and steady[i] >= _STEADY]
    named: list[LateRank] = []
    unexplained: list[str] = []
    for i in chosen:
        late = _late_rank(ranks, evidence, int(i), float(median[i]), float(steady[i]), threshold)
        if late is None:
            unexplained.append(ranks[evidence.ranks[i]].label)
        else:
            named.append(late)
    return Lateness(
        verdict=Verdict.LATE if named else Verdict.UNKNOWN if unexplained else Verdict.NONE,
        reason=_reason(evidence, median, steady, threshold, named, unexplained),
        ranks=tuple(named),
        rests_on_ranks=len(evidence.ranks),
        rests_on_steps=steps,
        rests_on_collectives=evidence.collectives,
        step_time=evidence.step_time,
        threshold=threshold,
        method=METHOD,
    )


def _threshold(evidence: Evidence, median: npt.NDArray[np.float64]) -> int:
    spread = np.median(np.abs(evidence.lateness - median[:, None]), axis=1)
    others = np.delete(spread, int(median.argmax()))
    noise = float(np.median(others)) if len(others) > 1 else 0.0  # of two ranks, the other one is typical by definition
    floor = _FLOOR.get(evidence.source, max(_FLOOR.values()))
    return int(max(_SHARE_OF_STEP * evidence.step_time, _TIMES_NOISE * noise, floor))


def _late_rank(
    ranks: Sequence[RankSummary], evidence: Evidence, row: int, lateness: float, steady: float, threshold: int
) -> LateRank | None:
    """Everything about one late rank; None where nothing in its own main thread explains it."""
    rank = ranks[evidence.ranks[row]]
    others = [index for i, index in enumerate(evidence.ranks) if i != row]
    excess = step_excess(evidence.parts[evidence.ranks[row]], [evidence.parts[index] for index in others])
    per_step = excess is not None
    cause = Cause.UNKNOWN
    if evidence.source == "gloo":
        if excess is None:
            excess = window_excess(rank, [ranks[index] for index in others], evidence.step_time)
        if excess is not None:
            cause = explain(excess, lateness, threshold)
        if cause is Cause.UNKNOWN:
            return None
    steps = evidence.lateness.shape[1]
    clear = lateness >= 2 * threshold and steady >= 0.9 and steps >= 2 * _LEAST_STEPS
    sure = clear and per_step and not evidence.assumes_clocks
    python = rank.untraced_python[0].name if cause is Cause.UNTRACED and rank.untraced_python else None
    name = rank.label if rank.identity.node is None else f"{rank.label} ({rank.identity.node})"
    every = "step" if evidence.per_step else "interval between synchronisations"
    sentence = (
        f"{name} is late: the others wait {ms(lateness)} of every {ms(evidence.step_time)} {every} for it"
        if len(evidence.ranks) > 2
        else f"{name} is late: the other one waits {ms(lateness)} of every {ms(evidence.step_time)} {every} for it"
    )
    return LateRank(
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
        sentence=sentence,
    )


def _reason(
    evidence: Evidence,
    median: npt.NDArray[np.float64],
    steady: npt.NDArray[np.float64],
    threshold: int,
    named: list[LateRank],
    unexplained: list[str],
) -> str:
    if named:
        assumed = " This assumes that the hosts' clocks agree to well within a step." if evidence.assumes_clocks else ""
        needed = f"a rank must be later than {ms(threshold)} to be named."
        return f"Steady over {_units(evidence, 'matched ')}; {needed}{assumed}"
    worst = ms(max(float(median.max()), 0.0))
    if unexplained:
        return (
            f"{count(len(unexplained), 'rank')} came last steadily ({worst} per step), but nothing on the main thread "
            "explains it: everything is a little slower there, as on an overloaded host. So nobody is accused."
        )
    nobody = f"Nobody is steadily late over {_units(evidence, 'matched ')}"
    if median.max() < threshold:
        return f"{nobody}: the largest delay is {worst} per step, and it takes {ms(threshold)} to be named."
    often = percent(float(steady[int(median.argmax())]))
    return f"{nobody}: the largest delay, {worst} per step, comes and goes; it was there in {often} of them."


def _units(evidence: Evidence, which: str = "") -> str:
    return count(evidence.lateness.shape[1], which + ("step" if evidence.per_step else "synchronisation"))


def _why_nothing(ranks: Sequence[RankSummary], cross_rank: bool) -> str:
    if len(ranks) < 2:
        return "There are no two ranks to compare."
    if not cross_rank:
        return "The ranks' windows have no time in common, so nothing was compared between ranks."
    if not any(rank.streams for rank in ranks):
        return "No collective was recorded, so there is nothing at which ranks wait for each other."
    return "No symmetric collective could be matched between ranks."


def _open(reason: str, evidence: Evidence | None) -> Lateness:
    return Lateness(
        verdict=Verdict.UNKNOWN,
        reason=reason,
        ranks=(),
        rests_on_ranks=0 if evidence is None else len(evidence.ranks),
        rests_on_steps=0 if evidence is None else int(evidence.lateness.shape[1]),
        rests_on_collectives=0 if evidence is None else evidence.collectives,
        step_time=None if evidence is None else evidence.step_time,
        threshold=None,
        method=METHOD,
    )
