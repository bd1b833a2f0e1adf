"""What a late rank did in the time that its peers had left over: its own main thread against theirs.

The first cut looks at main threads of CPU jobs only. Before NCCL kernels the host runs ahead of its GPU, so the main
thread does not tell why a kernel started late; the cause is `unknown` there.

A real cause shows in *one* part: more operators, or a longer wait for data, or time without any event. A rank that the
operating system starved is slower at everything a little, and no single part explains its lateness.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sameshot.analysis.summary import Cause, LateRank, Part, PartTimes, RankSummary
from sameshot.analysis.text import ms

_LEAST_STEPS = 5
_SHARE_OF_LATENESS = 0.5
_SHARE_OF_THRESHOLD = 0.75

_CAUSES: tuple[tuple[Cause, tuple[Part, ...]], ...] = (
    (Cause.OPERATORS, (Part.OPERATORS, Part.BACKWARD_THREAD, Part.RUNTIME)),
    (Cause.DATA_WAIT, (Part.DATA_WAIT,)),
    (Cause.UNTRACED, (Part.UNTRACED,)),
)


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


def because(rank: LateRank) -> str:
    """What the late rank did meanwhile, in words; empty where it is not known."""
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
