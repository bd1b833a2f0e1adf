"""The verdict: who is named, or why nobody is."""

from __future__ import annotations

from collections.abc import Sequence

from sameshot.analysis.late.chance import bounds
from sameshot.analysis.late.evidence import Evidence, undecided
from sameshot.analysis.late.gaps import gap
from sameshot.analysis.late.groups import merged
from sameshot.analysis.late.limits import LEAST_STEPS, METHOD
from sameshot.analysis.late.moment import single_moment
from sameshot.analysis.late.steady import Judged, judged_steps
from sameshot.analysis.late.words import counted
from sameshot.analysis.results import Clocks, Lateness, LateRank, RankSummary, Verdict
from sameshot.analysis.text import count, ms, percent


def judge(
    ranks: Sequence[RankSummary],
    evidence: Sequence[Evidence],
    *,
    cross_rank: bool,
    common: int | None = None,
    world: int | None = None,
    clocks: Clocks | None = None,
) -> Lateness:
    """Name the late ranks, or say why nobody is named. `common`: the window that all ranks share, in ns. `world`: how
    many ranks the job has. `clocks`: as measured; without them only starts on one host are compared."""
    world = max(world or 0, len(ranks))
    if not evidence or not cross_rank or len(ranks) < 2:
        return undecided(_why_nothing(ranks, cross_rank), evidence)
    usable = [one for one in evidence if _is_enough(one)]
    if not usable:
        widest = evidence[0]
        size = widest.arrivals.size or len(ranks)
        return undecided(
            f"Only {len(widest.ranks)} of {size} ranks could be aligned: too few to say what is typical.", evidence
        )
    long = [one for one in usable if one.lateness.shape[1] >= LEAST_STEPS]
    if not long:
        return single_moment(ranks, usable, common, clocks)
    found = [judged_steps(ranks, one, by_chance, clocks) for one, by_chance in zip(long, bounds(long), strict=True)]
    named = merged(ranks, [late for judged in found for late in judged.named], [one.arrivals for one in usable])
    unexplained = any(judged.open for judged in found)
    if not named and not unexplained and not any(one.per_step for one in long):
        moment = single_moment(ranks, usable, common, clocks)
        if moment.ranks:
            return moment
    chosen = next((judged for judged in found if judged.named), None) or next(
        (judged for judged in found if judged.open),
        max(found, key=lambda judged: judged.reach),
    )
    compared = len({index for one in long for index in one.ranks})
    rests = f"{compared} of {count(world, 'rank')} compared"
    missing = None if named or unexplained else gap(ranks, evidence, world)
    reason = _reason(chosen, named, groups=len(long), rests=rests)
    return Lateness(
        verdict=Verdict.LATE if named else Verdict.UNKNOWN if unexplained or missing else Verdict.NONE,
        reason=f"{missing} {reason}" if missing else reason,
        ranks=tuple(named),
        rests_on_ranks=compared,
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


def _reason(judged: Judged, named: list[LateRank], *, groups: int, rests: str) -> str:
    evidence, median, threshold = judged.evidence, judged.median, judged.threshold
    over = f" in {groups} groups" if groups > 1 else ""
    if named:
        assumed = " This assumes that the hosts' clocks agree to well within a step." if evidence.assumes_clocks else ""
        needed = f"a rank must be later than {ms(threshold)} to be named."
        return f"Steady over {counted(evidence, 'matched ')}{over}, {rests}; {needed}{assumed}"
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
    if judged.early:
        return (
            f"The records of {count(len(judged.early), 'rank')} are shorter than the others' ({worst} per step), but "
            "by one clock they don't start later by as much: who leaves a collective early is not late, and what "
            "durations tell here is in doubt. So nobody is accused."
        )
    if judged.chance:
        row = max(judged.chance, key=lambda row: float(judged.bounds.margin[row] / judged.bounds.named[row]))
        return (
            f"{count(len(judged.chance), 'rank')} came last by {ms(float(median[row]))} in most of "
            f"{counted(evidence, 'matched ')}{over} ({rests}), but that differs so much from step to step that it may "
            f"be chance: it takes {ms(float(judged.bounds.named[row]))} here, or more steps. So nobody is accused."
        )
    nobody = f"Nobody is steadily late over {counted(evidence, 'matched ')}{over} ({rests})"
    if median.max() < threshold:
        return f"{nobody}: the largest delay is {worst} per step, and it takes {ms(threshold)} to be named."
    often = percent(float(judged.steady[int(median.argmax())]))
    return f"{nobody}: the largest delay, {worst} per step, comes and goes; it was there in {often} of them."


def _why_nothing(ranks: Sequence[RankSummary], cross_rank: bool) -> str:
    if len(ranks) < 2:
        return "There are no two ranks to compare."
    if not cross_rank:
        return "The ranks' windows have no time in common, so nothing was compared between ranks."
    if not any(rank.streams for rank in ranks):
        return "No collective was recorded, so there is nothing at which ranks wait for each other."
    return "No symmetric collective could be matched between ranks."
