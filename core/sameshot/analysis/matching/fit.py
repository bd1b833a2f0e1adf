"""Two ranks' sequences of collectives, and their correspondence under one offset between the clocks.

Matching is by time first and by order second. Under an offset, ends that are each other's nearest and agree in kind are
anchors; what lies between two anchors of equal lag is matched by order. So a missing record costs one collective and
shifts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.intervals import EMPTY, Ints
from sameshot.analysis.results import Stream

Bools = npt.NDArray[np.bool_]

LEAST_BY_CLOCK = 2  # where the clock is known, or signatures allow only one lag
DECIDING_SHARE = 0.5
NOISE = 20_000  # ns by which the ends of one collective differ on any machine; smaller differences tell nothing
NEAR = 0.25  # of the distance to the next plausible offset: how far two hosts' clocks are believed
_LOST = 0.05  # share of records that may be missing before that speaks against a match


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One stream with its starts and ends in CLOCK_REALTIME of its host."""

    stream: Stream
    start: Ints
    end: Ints
    kind: Ints  # equal numbers: the same collective as far as signatures say
    own: Ints  # index into the stream's own signatures
    by_end: Ints  # indices in order of the ends (gloo works on two threads: not always the order of starts)
    seq: Ints | None  # recorded numbers, where they increase
    gap: float  # the median distance of two ends

    def __len__(self) -> int:
        return len(self.end)


def sequence(stream: Stream, window_start_ns: int, signatures: dict[str, int]) -> Sequence:
    """Prepare a stream; `signatures` numbers the signatures of all ranks alike and grows as needed.

    Only symmetric collectives have the same size on all ranks by necessity; of others the kind alone is compared.
    """
    texts = []
    for text in stream.signatures:
        kind = text.partition(" ")[0]
        texts.append(text if kind in names.SYMMETRIC else kind)
    known = np.asarray([signatures.setdefault(text, len(signatures)) for text in texts], dtype=np.int64)
    own = np.asarray(stream.signature, dtype=np.int64)
    start = np.asarray(stream.start, dtype=np.int64) + window_start_ns
    end = start + np.asarray(stream.dur, dtype=np.int64)
    steps = np.diff(end)
    by_end = np.argsort(end, kind="stable") if len(steps) and steps.min() < 0 else np.arange(len(end))
    seq = None if stream.seq is None else np.asarray(stream.seq, dtype=np.int64)
    return Sequence(
        stream=stream,
        start=start,
        end=end,
        kind=known[own] if len(known) else EMPTY,
        own=own,
        by_end=by_end,
        seq=seq if seq is not None and len(seq) > 0 and bool((np.diff(seq) > 0).all()) else None,
        gap=median(steps) if len(steps) else 0.0,
    )


class Fit(NamedTuple):
    """A correspondence under one offset."""

    place: Ints
    offset: float
    slope: float  # drift of the difference per ns
    cost: float  # mean deviation in ns over the common time, and a penalty for what has no counterpart
    overlap: int  # collectives of the reference in the common time
    matched: int
    residual: float


def fit(reference: Sequence, other: Sequence, offset: float, tolerance: float) -> Fit | None:
    """Match under a rough offset: anchors by time, which also refine the offset, then the rest by order."""
    theirs, ours = other.end[other.by_end], reference.end[reference.by_end]
    same = (other.kind[other.by_end], reference.kind[reference.by_end])
    moved = theirs - round(offset)
    at, good = _anchors(ours, moved, same, tolerance)
    if good.sum() < LEAST_BY_CLOCK:
        return None
    shift, slope = _line(ours[at[good]] - ours[0], moved[good] - ours[at[good]])
    reach = abs(slope) * float(ours[-1] - ours[0])
    if abs(shift) + reach > tolerance / 4:
        moved = moved - np.rint(shift + slope * (moved - shift - ours[0])).astype(np.int64)
        at, good = _anchors(ours, moved, same, tolerance)
        if good.sum() < LEAST_BY_CLOCK:
            return None
    else:
        shift = slope = 0.0
    here, there = reference.by_end[at[good]], other.by_end[good]
    place, contradicted, differing = _fill(reference, other, here, there, int(offset + shift), slope)
    moved_by_index = np.empty_like(moved)
    moved_by_index[other.by_end] = moved
    matched = np.flatnonzero(place >= 0)
    apart = (moved_by_index[place[matched]] - reference.end[matched]).astype(np.float64)
    centre = median(apart)
    apart = np.abs(apart - centre)
    low, high = max(ours[0], moved[0]) - tolerance, min(ours[-1], moved[-1]) + tolerance
    overlap = int(((ours >= low) & (ours <= high)).sum())
    overlap_there = int(((moved >= low) & (moved <= high)).sum())
    missing = max(overlap, overlap_there) - len(matched) - contradicted - differing
    gap = max(reference.gap, other.gap)
    missing = max(missing - 1 - round(_LOST * overlap), 0)
    contradicted = differing + max(contradicted - 1 - round(_LOST * overlap / 2), 0)
    penalty = 0.5 * gap * missing + 2 * gap * contradicted
    middle = float(ours[0] + ours[-1]) / 2 - float(ours[0])
    return Fit(
        place=place,
        offset=offset + shift + slope * middle + centre,
        slope=slope,
        cost=float(apart.sum() + penalty) / (len(apart) + missing + contradicted),
        overlap=max(overlap, len(matched)),
        matched=len(matched),
        residual=median(apart),
    )


def misfit(reference: Sequence, other: Sequence, offset: int) -> float:
    """How far the other's ends scatter around the nearest of the reference's, median in ns; infinite without a common
    time. No correspondence: it says in a moment what `fit` says better."""
    theirs, ours = other.end[other.by_end] - offset, reference.end[reference.by_end]
    inside = theirs[(theirs >= ours[0] - 5 * NOISE) & (theirs <= ours[-1] + 5 * NOISE)]
    if len(inside) < LEAST_BY_CLOCK:
        return float("inf")
    apart = inside - ours[_nearest(ours, inside)]
    return median(np.abs(apart - median(apart)))


def _anchors(ours: Ints, theirs: Ints, kinds: tuple[Ints, Ints], tolerance: float) -> tuple[Ints, Bools]:
    """For each of `theirs` its nearest of `ours`, and whether the two are each other's nearest and agree."""
    there = _nearest(ours, theirs)
    back = _nearest(theirs, ours)
    good = back[there] == np.arange(len(theirs))
    good &= np.abs(theirs - ours[there]) <= tolerance
    good &= kinds[0] == kinds[1][there]
    return there, good


def _nearest(sorted_: Ints, wanted: Ints) -> Ints:
    right = np.searchsorted(sorted_, wanted).clip(1, max(len(sorted_) - 1, 1))
    if len(sorted_) < 2:
        return np.zeros(len(wanted), dtype=np.int64)
    left_is_nearer = wanted - sorted_[right - 1] <= sorted_[right] - wanted
    return np.asarray(right - left_is_nearer, dtype=np.int64)


def _line(at: Ints, apart: Ints) -> tuple[float, float]:
    """A robust straight line through the differences: value at 0 and slope. The slope is the one between the medians
    of the first and the last third, which outliers hardly move; with few points it is none."""
    if len(at) < 12:
        return median(apart), 0.0
    third = len(at) // 3
    span = median(at[-third:]) - median(at[:third])
    rise = median(apart[-third:]) - median(apart[:third])
    slope = rise / span if span > 0 else 0.0
    return median(apart - slope * at), slope


def _fill(
    reference: Sequence, other: Sequence, here: Ints, there: Ints, offset: int, slope: float
) -> tuple[Ints, int, int]:
    """Anchors (reference index, other index) → place of every collective of the reference; and how many between two
    anchors stand against something else, although neither side has a record more than the other: at another time (a
    record may be missing on either side), and of another kind."""
    order = np.argsort(there, kind="stable")
    here, there = here[order], there[order]
    reached = np.concatenate(([-1], np.maximum.accumulate(here)[:-1]))
    rising = here > reached
    here, there = here[rising], there[rising]
    lags = there - here
    index = np.arange(len(reference))
    before = np.searchsorted(here, index, side="right") - 1
    left, right = lags[before.clip(0)], lags[(before + 1).clip(max=len(lags) - 1)]
    guess = index + left
    ok = (left == right) & (guess >= 0) & (guess < len(other))
    guess = np.where(ok, guess, 0)
    inside = ok & (index > here[0]) & (index < here[-1])
    differs = inside & (reference.kind != other.kind[guess])
    ok &= reference.kind == other.kind[guess]
    # Order alone proves nothing outside the anchors, nor between two where one record is missing on either side.
    moved = offset + np.rint(slope * (reference.end - reference.end[0])).astype(np.int64)
    start, end = other.start[guess] - moved, other.end[guess] - moved
    common = np.minimum(end, reference.end) - np.maximum(start, reference.start)
    in_progress = common + 2 * NOISE >= 0.5 * np.minimum(end - start, reference.end - reference.start)
    ok &= in_progress | (np.abs(end - reference.end) <= NEAR * max(reference.gap, other.gap))
    place = np.where(ok, guess, -1)
    place[here] = there
    open_ = inside & (place < 0)
    return np.asarray(place, dtype=np.int64), int((open_ & ~differs).sum()), int((open_ & differs).sum())


def alike(one: Fit, other: Fit) -> bool:
    shorter = min(len(one.place), len(other.place))
    here, there = one.place[:shorter], other.place[:shorter]
    both = (here >= 0) & (there >= 0)
    return bool(both.any() and (here[both] == there[both]).mean() > 0.5)


def median(values: npt.NDArray[Any]) -> float:
    """np.median of a few values, without its overhead."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (float(ordered[middle - 1]) + float(ordered[middle])) / 2


def prevailing(place: Ints) -> int:
    at = np.flatnonzero(place >= 0)
    lags, counts = np.unique(place[at] - at, return_counts=True)
    return int(lags[counts.argmax()])
