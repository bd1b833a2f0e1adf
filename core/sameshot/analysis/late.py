"""Which rank is late, and what it did meanwhile.

At every matched synchronisation the last arriver makes the others wait. On a busy machine somebody is always last, by
chance, so one bad moment proves nothing. A rank is named if it is late *step after step*, in any group:

    waited(r, s)   = time that rank r waited for others during step s (union over its collectives); of a device's
                     waiting, what nothing else ran beside for longer than on the last arriver (`Arrivals.lost`)
    lateness(r, s) = the typical rank's waited(·, s) - waited(r, s)       typical: the upper median over ranks

    named  ⇔  at least 5 steps were matched
              and median over s of lateness(r, s) ≥ threshold
              and lateness(r, s) ≥ threshold / 2 in at least 4 of 5 steps
              and one part of its main thread explains it (gloo; see `cause`)
              and it was not itself kept waiting in another group: then whoever it waited for is named, if that can be
                  found (GPUs)

    threshold = max(share of the median step, 3 × noise, floor)
    share     = 20 % for gloo, 5 % for NCCL
    noise     = the other ranks' own ups and downs of lateness from step to step (median absolute deviation)
    floor     = 8 ms for gloo, where the operating system's scheduler delays threads by milliseconds, 0.5 ms for NCCL

The typical rank is the upper median, so up to half of the ranks may be late together and are all named.

Where fewer than 5 steps could be matched (or none are known), a device job's single most expensive moment is named, if
all ranks of the group were compared, the others waited at least 5 % of the window for it (and the floor), it makes up
at least half of all waiting, and the rank was late in each of the few steps that there are (or came late into the
window). The sentence says that it rests on one collective; the confidence is medium at most.

Measured with four gloo ranks on two cores, from idle to a load of 14 (60 captures without, 34 with a planted delay of
30 ms per step): a planted rank reached at least 1.4 thresholds, in at least 0.83 of the steps, and its untraced time
exceeded its peers' by 29 to 35 ms, at least 0.63 of its lateness. An innocent rank that the scheduler starved for the
whole window reached 1.6 thresholds in 0.85 of the steps, but no part of it explained more than 0.31 of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.cause import CAUSES, OTHER_GROUP, explain, explain_lost, step_excess, window_excess
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import Cause, Confidence, Lateness, LateRank, Lost, PartTimes, RankSummary, Verdict
from sameshot.analysis.stragglers import Arrivals
from sameshot.analysis.text import count, ms, percent

_LEAST_STEPS = 5
_SHARE_OF_STEP = {"gloo": 0.2, "nccl": 0.05}
_TIMES_NOISE = 3
_FLOOR = {"gloo": 8_000_000, "nccl": 500_000}
_STEADY = 0.8
_SHARE_OF_WINDOW = 0.05
_SHARE_OF_WAITING = 0.5
_MOST_NAMED = 16
_MOST_WAITS = 64

METHOD = (
    "Late = its collectives are steadily shorter than the typical rank's, because it comes last and the others wait. "
    "Named only with a median of at least the threshold per step, half of it in 4 of 5 steps, 5 steps or more, "
    "and, on CPU jobs, only if one part of its main thread exceeds the other ranks' by enough to explain it. "
    "With fewer steps, a GPU job's most expensive single moment is named if it makes up at least half of all waiting."
)


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


def judge(
    ranks: Sequence[RankSummary], evidence: Sequence[Evidence], *, cross_rank: bool, common: int | None = None
) -> Lateness:
    """Name the late ranks, or say why nobody is named. `common`: the window that all ranks share, in ns."""
    if not evidence or not cross_rank or len(ranks) < 2:
        return _open(_why_nothing(ranks, cross_rank), evidence)
    usable = [one for one in evidence if _is_enough(one)]
    if not usable:
        widest = evidence[0]
        size = widest.arrivals.size or len(ranks)
        return _open(
            f"Only {len(widest.ranks)} of {size} ranks could be aligned: too few to say what is typical.", evidence
        )
    long = [one for one in usable if one.lateness.shape[1] >= _LEAST_STEPS]
    if not long:
        return _moment(ranks, usable, common)
    found = [_judged(ranks, one) for one in long]
    named = _merged(ranks, [late for judged in found for late in judged.named], [one.arrivals for one in usable])
    unexplained = [label for judged in found for label in (*judged.unexplained, *judged.passing)]
    if not named and not unexplained and not any(one.per_step for one in long):
        moment = _moment(ranks, usable, common)
        if moment.ranks:
            return moment
    chosen = next((judged for judged in found if judged.named), None) or next(
        (judged for judged in found if judged.unexplained or judged.passing),
        max(found, key=lambda judged: judged.reach),
    )
    return Lateness(
        verdict=Verdict.LATE if named else Verdict.UNKNOWN if unexplained else Verdict.NONE,
        reason=_reason(chosen, named, groups=len(long)),
        ranks=tuple(named),
        rests_on_ranks=len({index for one in long for index in one.ranks}),
        rests_on_steps=chosen.evidence.lateness.shape[1],
        rests_on_collectives=sum(one.collectives for one in long),
        step_time=chosen.evidence.step_time,
        threshold=chosen.threshold,
        method=METHOD,
    )


def _is_enough(one: Evidence) -> bool:
    """More than half of the group must have been compared, or whoever came last is perhaps none of these."""
    size = one.arrivals.size
    return size is None or size <= 2 <= len(one.ranks) or 2 * len(one.ranks) > size


# ---- late in step after step


class _Candidate(msgspec.Struct, frozen=True):
    late: LateRank
    index: int  # of the rank
    root: int  # of the rank that it waited for: itself where it did not
    root_cause: Cause
    units: int  # steps on which it rests


class _Judged(msgspec.Struct, frozen=True):
    evidence: Evidence
    median: npt.NDArray[np.float64]
    steady: npt.NDArray[np.float64]
    threshold: int
    named: list[_Candidate]
    unexplained: list[str]
    passing: list[str]  # came last because they waited elsewhere, for whom is not known

    @property
    def reach(self) -> float:
        """How near the latest rank came to being named."""
        return float(self.median.max()) / max(self.threshold, 1)


def _judged(ranks: Sequence[RankSummary], evidence: Evidence) -> _Judged:
    median = np.median(evidence.lateness, axis=1)
    threshold = _threshold(evidence, median)
    steady = (evidence.lateness >= threshold / 2).mean(axis=1)
    chosen = [int(i) for i in np.argsort(-median) if median[i] >= threshold and steady[i] >= _STEADY]
    named: list[_Candidate] = []
    unexplained: list[str] = []
    passing: list[str] = []
    for row in chosen:
        late = _late_rank(ranks, evidence, row, chosen, float(median[row]), float(steady[row]), threshold)
        if late is None:
            unexplained.append(ranks[evidence.ranks[row]].label)
        elif late.late.cause is Cause.OTHER_GROUP and late.root == late.index:
            passing.append(late.late.label)
        else:
            named.append(late)
    return _Judged(evidence, median, steady, threshold, named, unexplained, passing)


def _threshold(evidence: Evidence, median: npt.NDArray[np.float64]) -> int:
    spread = np.median(np.abs(evidence.lateness - median[:, None]), axis=1)
    others = np.delete(spread, int(median.argmax()))
    noise = float(np.median(others)) if len(others) > 1 else 0.0  # of two ranks, the other one is typical by definition
    floor = _FLOOR.get(evidence.source, max(_FLOOR.values()))
    share = _SHARE_OF_STEP.get(evidence.source, max(_SHARE_OF_STEP.values()))
    return int(max(share * evidence.step_time, _TIMES_NOISE * noise, floor))


def _late_rank(
    ranks: Sequence[RankSummary],
    evidence: Evidence,
    row: int,
    chosen: Sequence[int],
    lateness: float,
    steady: float,
    threshold: int,
) -> _Candidate | None:
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
    clear = lateness >= 2 * threshold and steady >= 0.9 and steps >= 2 * _LEAST_STEPS
    counted = rank.steps.confidence is Confidence.HIGH
    sure = clear and per_step and counted and not evidence.assumes_clocks
    if evidence.source != "gloo":
        sure = sure and evidence.arrivals.complete and not evidence.arrivals.guessed
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
        sentence=f"{_name(rank)} is late: {_others(len(evidence.ranks) - 1)} {ms(lateness)} of every "
        f"{ms(evidence.step_time)} {every} for it",
        lost=lost,
        victims=len(evidence.ranks) - 1,
        waiting=int(evidence.arrivals.wait[:, mine].sum()),
        collective=_where(evidence.arrivals, mine),
        collectives=len(mine),
    )
    return _Candidate(late, index, root, root_cause, steps)


def _name(rank: RankSummary) -> str:
    return rank.label if rank.identity.node is None else f"{rank.label} ({rank.identity.node})"


def _others(victims: int) -> str:
    return "the other one waits" if victims == 1 else f"the {victims} others wait"


def _where(one: Arrivals, columns: Ints) -> str | None:
    """In which collectives most was waited: kind and group."""
    cost: Counter[str] = Counter()
    for column, ns in zip(columns.tolist(), one.wait[:, columns].sum(axis=0).tolist(), strict=True):
        cost[one.kinds[column]] += ns
    return f"{cost.most_common(1)[0][0]}, {one.where}" if cost else None


def _parts(ranks: Sequence[RankSummary], evidence: Evidence, row: int) -> list[PartTimes | None]:
    parts = ranks[evidence.ranks[row]].steps.parts
    return [parts[step] if step >= 0 else None for step in evidence.own_step[row].tolist()]


def _lost(evidence: Evidence, row: int, late: Sequence[int]) -> Lost | None:
    """What one rank's device did for longer than those of its punctual peers, per step."""
    spent = evidence.arrivals.spent
    units = evidence.lateness.shape[1]
    peers = [i for i in range(len(evidence.ranks)) if i not in late] or [
        i for i in range(len(evidence.ranks)) if i != row
    ]
    columns = np.flatnonzero(evidence.unit >= 0)
    columns = columns[columns > 0]  # nothing is known of what was before the first
    if spent is None or not len(columns):
        return None
    since = spent.since[:4]
    excess = since[:, row, columns] - since[:, peers][:, :, columns].mean(axis=1)
    per_unit = excess.sum(axis=1) / max(units, 1)
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


def _merged(
    ranks: Sequence[RankSummary], candidates: Sequence[_Candidate], streams: Sequence[Arrivals]
) -> list[LateRank]:
    """One entry per rank that is to blame, latest first; ranks that only passed on a delay are not named."""
    own: dict[int, _Candidate] = {}
    for found in candidates:
        if found.root == found.index:
            known = own.get(found.index)
            if known is None or found.late.lateness_per_step > known.late.lateness_per_step:
                own[found.index] = found
    for found in candidates:
        if found.root != found.index and found.root not in own and _is_late_itself(found, streams):
            rank = ranks[found.root]
            late = msgspec.structs.replace(
                found.late,
                label=rank.label,
                rank=rank.identity.rank,
                node=rank.identity.node,
                cause=found.root_cause,
                lost=None,
                confidence=Confidence.MEDIUM,
                sentence=f"{_name(rank)}{found.late.sentence[found.late.sentence.index(' is late: ') :]}, by way of "
                f"{found.late.label}",
            )
            own[found.root] = msgspec.structs.replace(found, late=late, index=found.root)
    ordered = sorted(own.values(), key=lambda c: (-c.late.lateness_per_step, c.index))
    return [_with_victims(ranks, found, streams) for found in ordered[:_MOST_NAMED]]


def _is_late_itself(found: _Candidate, streams: Sequence[Arrivals]) -> bool:
    """Does what the root did for longer itself make up half of the lateness that was passed on?"""
    total = 0
    for one in streams:
        if found.root in one.found.ranks:
            mine = one.significant & (one.last == one.found.ranks.index(found.root)) & (one.cause < OTHER_GROUP)
            total += int(one.lateness[mine].sum())
    return 2 * total >= found.late.lateness_per_step * found.units


def _with_victims(ranks: Sequence[RankSummary], found: _Candidate, streams: Sequence[Arrivals]) -> LateRank:
    """Whom a rank keeps waiting in all groups, directly or through others, and for how long in all."""
    victims: Counter[int] = Counter()
    waiting = 0
    for one in streams:
        at = np.flatnonzero(one.significant & (one.root == found.index))
        if len(at):
            waits = one.wait[:, at]
            waiting += int(waits.sum())
            for row in np.flatnonzero((waits > one.noise).any(axis=1)).tolist():
                victims[one.found.ranks[row]] += int(waits[row].sum())
    late = found.late
    del victims[found.index]
    if not victims:
        return late
    inside = late.victims or 0
    more = f"; {len(victims)} ranks in all wait for it, in several groups" if len(victims) > inside else ""
    return msgspec.structs.replace(
        late,
        victims=max(len(victims), inside),
        waiting=waiting,
        sentence=f"{late.sentence}{more}",
        waits=_waits(ranks, victims),
    )


def _waits(ranks: Sequence[RankSummary], waited: Mapping[int, int]) -> dict[str, int]:
    """Rank → what it waited, the longest first; of many ranks those that waited longest."""
    longest = sorted(waited.items(), key=lambda item: (-item[1], item[0]))[:_MOST_WAITS]
    return {ranks[index].label: ns for index, ns in longest if ns > 0}


def _reason(judged: _Judged, named: list[LateRank], *, groups: int) -> str:
    evidence, median, threshold = judged.evidence, judged.median, judged.threshold
    over = f" in {groups} groups" if groups > 1 else ""
    if named:
        assumed = " This assumes that the hosts' clocks agree to well within a step." if evidence.assumes_clocks else ""
        needed = f"a rank must be later than {ms(threshold)} to be named."
        return f"Steady over {_units(evidence, 'matched ')}{over}; {needed}{assumed}"
    worst = ms(max(float(median.max()), 0.0))
    if judged.passing:
        return (
            f"{count(len(judged.passing), 'rank')} came last steadily ({worst} per step) to {evidence.arrivals.where}, "
            "because of what other groups did, in which nobody was found to blame: a dependency, as in a pipeline, or "
            "a group that could not be matched. So nobody is accused."
        )
    if judged.unexplained:
        return (
            f"{count(len(judged.unexplained), 'rank')} came last steadily ({worst} per step), but nothing on the main "
            "thread explains it: everything is a little slower there, as on an overloaded host. So nobody is accused."
        )
    nobody = f"Nobody is steadily late over {_units(evidence, 'matched ')}{over}"
    if median.max() < threshold:
        return f"{nobody}: the largest delay is {worst} per step, and it takes {ms(threshold)} to be named."
    often = percent(float(judged.steady[int(median.argmax())]))
    return f"{nobody}: the largest delay, {worst} per step, comes and goes; it was there in {often} of them."


# ---- a single moment


def _moment(ranks: Sequence[RankSummary], usable: Sequence[Evidence], common: int | None) -> Lateness:
    """Too few steps to call anything steady: name the most expensive moment, if it stands out and surely is one."""
    longest = max(usable, key=lambda one: one.lateness.shape[1])
    few = f"Only {_units(longest)} could be matched on all ranks; a verdict takes {_LEAST_STEPS}."
    everything = sum(int(one.total_wait.sum()) for one in usable)
    episodes = [
        episode
        for one in usable
        if one.source != "gloo" and one.arrivals.complete
        for episode in _episodes(one.arrivals)
    ]
    best = max(episodes, key=lambda episode: episode.cost, default=None)
    floor = max(_FLOOR["nccl"], _SHARE_OF_WINDOW * (common or 0))
    if best is None or best.cost < _SHARE_OF_WAITING * everything or best.each < floor:
        return _open(few, usable)
    one = next(one for one in usable if one.arrivals is best.arrivals)
    arrivals, first = best.arrivals, int(best.columns[0])
    index = int(arrivals.root[first])
    cause = CAUSES[int(arrivals.root_cause[first])]
    if one.per_step and one.lateness.shape[1] > 1 and cause is not Cause.INHERITED and not _always(one, index):
        return _open(few, usable)
    rank = ranks[index]
    victims = len(one.ranks) - 1
    where = _where(arrivals, best.columns) or arrivals.where
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
        confidence=Confidence.LOW if one.assumes_clocks or cause is Cause.UNKNOWN else Confidence.MEDIUM,
        sentence=f"{_name(rank)} is late: {_others(victims)} {ms(best.cost)} in all for it (up to {ms(best.longest)} "
        f"each) in {'one' if times == 1 else times} {kind}; this rests on {rests}",
        lost=_lost_at(arrivals, first) if index == one.ranks[int(arrivals.last[first])] else None,
        victims=victims,
        waiting=best.cost,
        collective=where,
        collectives=times,
        waits=_waits(ranks, {i: int(ns) for i, ns in zip(one.ranks, best.each_rank.tolist(), strict=True)}),
    )
    return Lateness(
        verdict=Verdict.LATE,
        reason=f"One moment makes up {percent(best.cost / everything)} of all waiting at "
        f"{count(one.collectives, 'matched collective')}; with {_units(longest)} nobody can say whether it is steady.",
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
    least = max(_FLOOR["nccl"], _SHARE_OF_STEP["nccl"] * one.step_time)
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


def _open(reason: str, evidence: Sequence[Evidence]) -> Lateness:
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
