"""Why a rank came last: what its device did since all were last together, against what those of its peers did.

Between the starts of two collectives of a group every device computes, waits for the host, waits for data,
communicates in another group, or is held up in this one. The first four, summed since the last collective to which
nobody came late, say without any clock what the last arriver did for longer than its peers; compute counts whether a
collective ran beside it or not, so that who ran ahead meanwhile is no less busy for it. The part that exceeds the
peers' average by at least half of the lateness is the cause; where none does, it is unknown. A wait in another group is
followed to whoever came last there, as often as needed. At the first collective of a window nothing is known of before:
a lateness that did not arise inside the window is inherited, until the others have waited as long; whether one that did
is due to what the window shows, nobody can say.

CPU jobs are explained by main threads (`step_excess`), because a gloo span does not tell what its rank did. A real
cause shows in *one* part there: more operators, or a longer wait for data, or time without any event. A rank that the
operating system starved is slower at everything a little, and no single part explains its lateness.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.results import Cause, LateRank, Lost, Part, PartTimes, RankSummary, Stream
from sameshot.analysis.text import ms

_LEAST_STEPS = 5
_SHARE_OF_LATENESS = 0.5
_NEARLY_ALL = 0.8
_SHARE_OF_THRESHOLD = 0.75

_CAUSES: tuple[tuple[Cause, tuple[Part, ...]], ...] = (
    (Cause.OPERATORS, (Part.OPERATORS, Part.BACKWARD_THREAD, Part.RUNTIME)),
    (Cause.DATA_WAIT, (Part.DATA_WAIT,)),
    (Cause.UNTRACED, (Part.UNTRACED,)),
)

DEVICE_CAUSES = (Cause.COMPUTE, Cause.HOST, Cause.DATA_WAIT, Cause.OTHER_GROUP)
"""What the first rows of `Spent.since` are."""

_LONGEST = 32  # collectives; a lateness that lasts for longer is explained by the last of them


# ---- devices


class Spent(msgspec.Struct, frozen=True):
    """How devices spent the time between some of the collectives of one group, in ns.

    `since` is (compute, host, data wait, other groups, exposed in this group) × rank × collective: from the start of
    the previous one to the start of this one (for the first: since the previous one of any kind in the stream, or the
    start of the window). `exposed` is rank × collective: how much of it ran beside nothing else.
    """

    since: Ints
    exposed: Ints


def spent_between(ranks: Sequence[RankSummary], found: Matched, at: Ints) -> Spent | None:
    """For the collectives `at` (columns of `found` that all have). None where the summaries do not tell (gloo)."""
    if not len(at):
        return None
    since = np.empty((len(DEVICE_CAUSES) + 1, len(found.ranks), len(at)), dtype=np.int64)
    exposed = np.empty((len(found.ranks), len(at)), dtype=np.int64)
    for row in range(len(found.ranks)):
        stream = found.stream_of(ranks, row)
        if len(stream.compute) != len(stream.start):
            return None
        since[:, row], exposed[row] = _one_rank(stream, found.start[row, at])
    return Spent(since, exposed)


def _one_rank(stream: Stream, starts: Ints) -> tuple[Ints, Ints]:
    start, exposed, compute, other, data = (
        np.asarray(column, dtype=np.int64)
        for column in (stream.start, stream.exposed, stream.compute, stream.other, stream.data)
    )
    own = np.concatenate(([0], exposed[:-1]))
    host = np.maximum(np.diff(start, prepend=0) - compute - own - other - data, 0)
    here = np.searchsorted(start, starts)
    before = np.concatenate(([here[0] - 1], here[:-1]))
    sums = np.zeros((5, len(start) + 1), dtype=np.int64)
    np.cumsum((compute, host, data, other, own), axis=1, out=sums[:, 1:])
    since = sums[:, here + 1] - sums[:, before + 1]
    # Between two of these collectives the group may have had others (a broadcast, a send): waits for others, too.
    mine = np.where(before >= 0, exposed[before], 0)
    since[3] += since[4] - mine
    since[4] = mine
    return since, exposed[here]


class Blame(msgspec.Struct, frozen=True):
    """Per collective: the cause of its last arriver's lateness (place in CAUSES), the collective (column) since which
    it was derived, -1 for the start of the window, and what the last arriver spent more in other groups since then."""

    cause: Ints
    base: Ints
    elsewhere: Ints


CAUSES = (*DEVICE_CAUSES, Cause.INHERITED, Cause.UNKNOWN)
OTHER_GROUP, INHERITED, UNKNOWN = (CAUSES.index(c) for c in (Cause.OTHER_GROUP, Cause.INHERITED, Cause.UNKNOWN))


def blame(spent: Spent, last: Ints, lateness: npt.NDArray[np.float64], significant: npt.NDArray[np.bool_]) -> Blame:
    """Why each collective's last arriver was late; `lateness` is the mean wait of the others."""
    count, peers = len(last), spent.since.shape[1] - 1
    columns = np.arange(count)
    goes_on = np.zeros(count, dtype=np.bool_)  # the same rank is still late
    goes_on[1:] = significant[1:] & significant[:-1] & (last[1:] == last[:-1])
    base = np.maximum.accumulate(np.where(goes_on, 0, columns)) - 1
    base = np.maximum(base, columns - _LONGEST)
    sums = np.cumsum(spent.since, axis=2)
    whole = sums.sum(axis=1)

    def since(base: Ints) -> npt.NDArray[np.float64]:
        # Before the first collective nothing is known: what happened since then counts from there.
        low = np.maximum(base, 0)
        mine = sums[:, last, columns] - sums[:, last, low]
        excess: npt.NDArray[np.float64] = mine - (whole - whole[:, low] - mine) / peers
        return excess

    excess = since(base)
    amounts = np.concatenate((excess[:4], np.zeros((1, count))))
    early = (base < 0) & (columns > 0)
    amounts[INHERITED, early] = np.maximum(lateness[0] + excess[4], 0)[early]  # what the peers have not yet waited
    largest = amounts.argmax(axis=0)
    half = _SHARE_OF_LATENESS * np.maximum(lateness, 1)
    cause = np.where(amounts[largest, columns] >= half, largest, UNKNOWN)
    # Several may explain it since then, and the others have waited for most of that already: then the one counts that
    # explains nearly all since the previous collective. (That alone proves nothing: who waits may compute ahead.)
    lately = np.where(amounts[:4] >= half, since(columns - 1)[:4], 0)
    latest = lately.argmax(axis=0)
    newer = (
        (lately[latest, columns] >= _NEARLY_ALL * np.maximum(lateness, 1)) & (latest != cause) & (base < columns - 1)
    )
    cause, base = np.where(newer, latest, cause), np.where(newer, columns - 1, base)
    elsewhere = np.where(newer, lately[OTHER_GROUP], amounts[OTHER_GROUP])
    first = spent.since[:4, :, 0]
    grown = first[:, last[0]].sum() - (first.sum() - first[:, last[0]].sum()) / peers
    cause[0] = INHERITED if grown < _SHARE_OF_LATENESS * lateness[0] else UNKNOWN
    if cause[0] == UNKNOWN:
        cause[cause == INHERITED] = UNKNOWN
    return Blame(cause, base, elsewhere.astype(np.int64))


def explain_lost(lost: Lost, lateness: float) -> Cause:
    """The one part that explains a lateness (ns per step), or UNKNOWN."""
    amounts = (lost.compute, lost.host, lost.data_wait, lost.other_group)
    largest = max(range(len(amounts)), key=lambda i: amounts[i])
    return DEVICE_CAUSES[largest] if amounts[largest] >= _SHARE_OF_LATENESS * max(lateness, 1) else Cause.UNKNOWN


# ---- main threads


def explain(excess: PartTimes, lateness: float, threshold: float) -> Cause:
    """The one part that explains a lateness (ns per step), or UNKNOWN.

    It must exceed that of the peers by at least half of the lateness and three quarters of the threshold at which a
    rank is named.
    """
    largest, cause = max((_amount(excess, parts), found) for found, parts in _CAUSES)
    return cause if largest >= max(_SHARE_OF_LATENESS * lateness, _SHARE_OF_THRESHOLD * threshold) else Cause.UNKNOWN


def step_excess(mine: Sequence[PartTimes | None], others: Sequence[Sequence[PartTimes | None]]) -> PartTimes | None:
    """Per step: one rank's time in each part minus the median of the others; the median over steps.

    None where fewer than five steps are known both of this rank and of any other.
    """
    known = [s for s, own in enumerate(mine) if own is not None and any(other[s] is not None for other in others)]
    if len(known) < _LEAST_STEPS:
        return None

    def row(steps: Sequence[PartTimes | None], part: Part) -> npt.NDArray[np.float64]:
        return np.asarray([np.nan if (found := steps[s]) is None else found.get(part) for s in known], dtype=np.float64)

    differences = {
        part.value: int(np.median(row(mine, part) - np.nanmedian([row(other, part) for other in others], axis=0)))
        for part in Part
    }
    return PartTimes(**differences)


def window_excess(mine: RankSummary, others: Sequence[RankSummary], step_time: int) -> PartTimes | None:
    """The same from whole windows, for ranks without known steps: shares of the window, scaled to one step."""
    if not mine.window or not all(other.window for other in others):
        return None
    differences = {}
    for part in Part:
        typical = float(np.median([other.parts.get(part) / other.window for other in others]))
        differences[part.value] = int((mine.parts.get(part) / mine.window - typical) * step_time)
    return PartTimes(**differences)


# ---- words


def because(rank: LateRank) -> str:
    """What the late rank did meanwhile, in words; empty where it is not known."""
    per = "per step " if rank.share_of_step else ""
    if rank.cause is Cause.INHERITED:
        return "it was late already when the window began (inherited)"
    if rank.lost is not None:
        if rank.cause is Cause.COMPUTE:
            return f"its GPU computes {ms(rank.lost.compute)} longer {per}than the others'"
        if rank.cause is Cause.HOST:
            return f"its GPU waits {ms(rank.lost.host)} longer {per}for the launching thread than the others'"
        if rank.cause is Cause.DATA_WAIT:
            return f"its GPU waits {ms(rank.lost.data_wait)} longer {per}for the next batch than the others'"
        if rank.cause is Cause.OTHER_GROUP:
            return (
                f"it spends {ms(rank.lost.other_group)} more {per}than the others in the communication of other groups"
            )
    if rank.excess is None or rank.cause not in dict(_CAUSES):
        return ""
    amount = ms(_amount(rank.excess, dict(_CAUSES)[rank.cause]))
    if rank.cause is Cause.OPERATORS:
        return f"its operators take {amount} more per step than the others'"
    if rank.cause is Cause.DATA_WAIT:
        return f"it waits {amount} longer per step for its DataLoader than the others"
    inside = f", mostly in {rank.python}" if rank.python else " (Python code, sleep or a blocking call)"
    return f"it spends {amount} more per step than the others where no operator runs{inside}"


def _amount(excess: PartTimes, parts: tuple[Part, ...]) -> int:
    return sum(excess.get(part) for part in parts)
