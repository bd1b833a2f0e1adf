"""Which collective on one rank is the same as which on another.

Windows begin at different collectives on different ranks, a record may be missing in the middle, and neither gloo
spans nor NCCL kernels are numbered in real traces. What two ranks share is the *rhythm*: a symmetric collective ends
everywhere at nearly the same moment, so under the right offset between their clocks the ends coincide one by one, and
under a wrong one they wander with the ups and downs of the steps.

    sequence        numbers were recorded and match
    intervals       signatures agree, and the rhythm fits one offset clearly better than any other
    measured-clock  the offset of the two hosts' clocks is known from other groups; the ends coincide under it
    wall-clock      both ranks ran on one host: there is one clock. Between hosts: the rhythm fits several offsets (a
                    very regular job, or a noisy machine), and the one next to zero was taken, since no other comes
                    near. That assumes clocks which agree to well within the distance of two synchronisations (as NTP's)

Where none of these holds the rank stays unaligned: a wrong match would accuse the wrong rank.

Matching is by time first and by order second. Under an offset, ends that are each other's nearest and agree in kind are
anchors; what lies between two anchors of equal lag is matched by order. So a missing record costs one collective and
shifts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.analysis import names
from sameshot.analysis.intervals import EMPTY, Ints
from sameshot.analysis.summary import Stream

Bools = npt.NDArray[np.bool_]

_LEAST = 5  # fewer fit by chance
_LEAST_BY_CLOCK = 2  # where the clock is known, or signatures allow only one lag
_LEAST_SHARE = 0.3  # of the shorter sequence
_DECIDING_SHARE = 0.5
_NOISE = 20_000  # ns by which the ends of one collective differ on any machine; smaller differences tell nothing
_SURELY = 100_000  # ns: under a known clock, ends that differ by no more leave no doubt
_CLEARLY = 0.5  # the right offset leaves at most this share of what any other leaves
_LOST = 0.05  # share of records that may be missing before that speaks against a match
_CHANCE = 1e-3  # the probability that we accept for a wrong lag to look right
_PLAUSIBLE = 2.0  # offsets whose rhythm is worse than this times the best are not offered to the clock
_NEAR = 0.25  # of the distance to the next plausible offset: how far two hosts' clocks are believed
_FINEST = 50_000  # ns: width of the finest window in which offsets are counted
_COARSER = 4
_MOST_DIFFERENCES = 40_000
_LONGEST = 4_000  # collectives that are searched for an offset; all are matched under it
_PEAKS = 8
_NEIGHBOURS = 16


class Sequence(NamedTuple):
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


class Pairing(msgspec.Struct, frozen=True):
    """How one rank's sequence corresponds to the reference's.

    `place[k]`: where the reference's k-th collective is in this rank's stream; -1: not recorded, or not found. An empty
    `place` means that nothing was matched, see `note`. Times are ns; `offset` is (end here - end there) by the clocks.
    """

    place: Ints
    method: str
    lag: int | None = None  # the prevailing place[k] - k
    residual: int | None = None  # median deviation of the differences of ends
    offset: int | None = None
    note: str = ""

    @property
    def found(self) -> bool:
        return bool(len(self.place))


def unmatched(note: str) -> Pairing:
    """Refused, and why."""
    return Pairing(EMPTY, "none", note=note)


class Fit(NamedTuple):
    """A correspondence under one offset."""

    place: Ints
    offset: float
    slope: float  # drift of the difference per ns
    cost: float  # mean deviation in ns over the common time, and a penalty for what has no counterpart
    overlap: int  # collectives of the reference in the common time
    matched: int
    residual: float


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
        gap=_median(steps) if len(steps) else 0.0,
    )


def pair(
    reference: Sequence,
    other: Sequence,
    *,
    same_host: bool,
    known_offset: int | None = None,
    search: bool = True,
) -> Pairing:
    """Match two ranks' sequences, or say why that is impossible. Never by the clocks of two hosts: see `by_clocks`.

    `known_offset` is how far the other host's clock is ahead of the reference's (ns), if it was measured elsewhere.
    Without `search` only numbers and known clocks are tried, which costs little.
    """
    if reference.seq is not None and other.seq is not None:
        return _by_number(reference, other)
    known = 0 if same_host else known_offset
    under = None if known is None else _under(reference, other, known)
    if under is not None and under.residual <= _SURELY:
        return _by_known_clock(under, same_host)
    if not search:
        return unmatched("not the same collectives by the clocks that are known" if known is not None else "not tried")
    candidates = _Candidates(reference, other)
    best = candidates.unmistakable()
    if known is None:
        return unmatched(candidates.why) if best is None else _pairing(best, "intervals")
    if under is not None and (best is None or _alike(under, best)):
        return _by_known_clock(under, same_host)
    if best is None:
        return unmatched(candidates.why)
    if same_host:
        return unmatched("the rhythm and the clock of their common host contradict each other")
    return unmatched("the rhythm contradicts the offset of the hosts' clocks that other groups show")


def _by_known_clock(under: Fit, same_host: bool) -> Pairing:
    if same_host:
        return _pairing(under, "wall-clock", "both ran on one host: there is one clock")
    return _pairing(under, "measured-clock")


def by_clocks(reference: Sequence, other: Sequence) -> Pairing:
    """Match by the clocks of two hosts where nothing else decides: an assumption, which the result names."""
    candidates = _Candidates(reference, other)
    found = candidates.nearest_to_zero()
    if found is None:
        return unmatched(candidates.why)
    return _pairing(
        found, "wall-clock", "the rhythm fits several shifts; the one nearest by the hosts' clocks was taken"
    )


def _pairing(found: Fit, method: str, note: str = "") -> Pairing:
    return Pairing(found.place, method, _prevailing(found.place), round(found.residual), round(found.offset), note)


def _median(values: npt.NDArray[Any]) -> float:
    """np.median of a few values, without its overhead."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (float(ordered[middle - 1]) + float(ordered[middle])) / 2


def _prevailing(place: Ints) -> int:
    at = np.flatnonzero(place >= 0)
    lags, counts = np.unique(place[at] - at, return_counts=True)
    return int(lags[counts.argmax()])


def _by_number(reference: Sequence, other: Sequence) -> Pairing:
    assert reference.seq is not None
    assert other.seq is not None
    at = np.searchsorted(other.seq, reference.seq)
    at[at == len(other.seq)] = 0
    place = np.where(other.seq[at] == reference.seq, at, -1)
    here = np.flatnonzero(place >= 0)
    if not len(here):
        return unmatched("the recorded sequence numbers have nothing in common")
    if (reference.kind[here] != other.kind[place[here]]).mean() > 0.1:
        return unmatched("collectives of equal recorded numbers are of different kinds or sizes")
    place[here[reference.kind[here] != other.kind[place[here]]]] = -1
    here = np.flatnonzero(place >= 0)
    apart = other.end[place[here]] - reference.end[here]
    offset = int(_median(apart))
    return Pairing(place, "sequence", _prevailing(place), int(_median(np.abs(apart - offset))), offset)


def _under(reference: Sequence, other: Sequence, offset: int) -> Fit | None:
    """The correspondence under a known offset, if there is one."""
    gap = max(reference.gap, other.gap)
    found = fit(reference, other, offset, max(_NEAR * gap, 5 * _NOISE))
    if found is None or found.matched < max(_LEAST_BY_CLOCK, _DECIDING_SHARE * found.overlap):
        return None
    return found if abs(found.offset - offset) <= max(_NEAR * gap, 5 * _NOISE) else None


def fit(reference: Sequence, other: Sequence, offset: float, tolerance: float) -> Fit | None:
    """Match under a rough offset: anchors by time, which also refine the offset, then the rest by order."""
    theirs, ours = other.end[other.by_end], reference.end[reference.by_end]
    same = (other.kind[other.by_end], reference.kind[reference.by_end])
    moved = theirs - round(offset)
    at, good = _anchors(ours, moved, same, tolerance)
    if good.sum() < _LEAST_BY_CLOCK:
        return None
    shift, slope = _line(ours[at[good]] - ours[0], moved[good] - ours[at[good]])
    reach = abs(slope) * float(ours[-1] - ours[0])
    if abs(shift) + reach > tolerance / 4:
        moved = moved - np.rint(shift + slope * (moved - shift - ours[0])).astype(np.int64)
        at, good = _anchors(ours, moved, same, tolerance)
        if good.sum() < _LEAST_BY_CLOCK:
            return None
    else:
        shift = slope = 0.0
    here, there = reference.by_end[at[good]], other.by_end[good]
    place, contradicted, differing = _fill(reference, other, here, there, int(offset + shift), slope)
    moved_by_index = np.empty_like(moved)
    moved_by_index[other.by_end] = moved
    matched = np.flatnonzero(place >= 0)
    apart = (moved_by_index[place[matched]] - reference.end[matched]).astype(np.float64)
    centre = _median(apart)
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
        residual=_median(apart),
    )


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
        return _median(apart), 0.0
    third = len(at) // 3
    span = _median(at[-third:]) - _median(at[:third])
    rise = _median(apart[-third:]) - _median(apart[:third])
    slope = rise / span if span > 0 else 0.0
    return _median(apart - slope * at), slope


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
    in_progress = common + 2 * _NOISE >= 0.5 * np.minimum(end - start, reference.end - reference.start)
    ok &= in_progress | (np.abs(end - reference.end) <= _NEAR * max(reference.gap, other.gap))
    place = np.where(ok, guess, -1)
    place[here] = there
    open_ = inside & (place < 0)
    return np.asarray(place, dtype=np.int64), int((open_ & ~differs).sum()), int((open_ & differs).sum())


class _Candidates:
    """The offsets under which two sequences may correspond."""

    def __init__(self, reference: Sequence, other: Sequence) -> None:
        self.reference, self.other = _shortened(reference), _shortened(other)
        self._whole = (reference, other)
        self.why = "the sequences of collectives differ, or share too few"
        self.gap = max(self.reference.gap, self.other.gap)
        self.width = float(_FINEST)
        self.lags = list(_feasible_lags(self.reference.kind, self.other.kind))
        self.fits = self._fits() if self.lags else []

    def _fits(self) -> list[Fit]:
        found: list[Fit] = []
        for offset in self._peaks():
            one = fit(self.reference, self.other, offset, self.width)
            if one is not None and one.matched >= self._least(one) and not any(_alike(one, seen) for seen in found):
                found.append(one)
        return sorted(found, key=lambda one: one.cost)

    def _least(self, one: Fit) -> float:
        shorter = min(len(self.reference), len(self.other))
        return max(_LEAST_BY_CLOCK, _LEAST_SHARE * shorter, _DECIDING_SHARE * one.overlap)

    def unmistakable(self) -> Fit | None:
        """The fit that rhythm and signatures alone decide, if they do."""
        if not self.fits:
            return None
        best = self.fits[0]
        shorter = min(len(self.reference), len(self.other))
        if best.matched < _DECIDING_SHARE * shorter:
            self.why = "too little of the two windows corresponds to decide by rhythm"
            return None
        lag = _prevailing(best.place)
        rivals = [(rival.cost, self._contradictions(best, rival.place, rival.slope)) for rival in self.fits[1:]]
        near = [self._shifted(best, each) for each in self._near(lag)]
        evidence = int(np.median([confirmed for _, confirmed in near])) if near else 0
        rivals += near
        if not rivals:  # a single possible lag has nothing to be compared with: its own fit must be good
            if best.cost <= 0.1 * self.gap:
                return self._full(best)
            self.why = "the only possible shift fits badly"
            return None
        for cost, confirmed in rivals:
            share = max(best.cost, 1.0) / max(cost, 1.0)
            by_chance = len(self.lags) * share ** max(confirmed - 1, evidence - 1, 0)
            if cost < _NOISE or share > _CLEARLY or by_chance > _CHANCE or best.matched < _LEAST:
                self.why = "several shifts fit equally well: the job is too regular, or too little was recorded"
                return None
        return self._full(best)

    def nearest_to_zero(self) -> Fit | None:
        """Of the fits that the rhythm allows, the one that needs the least offset, if no other comes near it."""
        fits = list(self.fits)
        for offset in (0.0, *self._small()):
            one = fit(self.reference, self.other, offset, max(_NEAR * self.gap, 5 * _NOISE))
            if one is not None and one.matched >= self._least(one) and not any(_alike(one, seen) for seen in fits):
                fits.append(one)
        if not fits:
            return None
        limit = _PLAUSIBLE * max(min(one.cost for one in fits), _NOISE)
        plausible = sorted((one for one in fits if one.cost <= limit), key=lambda one: abs(one.offset))
        nearest = plausible[0]
        apart = min((abs(one.offset - nearest.offset) for one in plausible[1:]), default=self.gap)
        if abs(nearest.offset) > _NEAR * apart:
            self.why = "several shifts fit equally well, by rhythm and by clock"
            return None
        return self._full(nearest)

    def _full(self, found: Fit) -> Fit:
        reference, other = self._whole
        if len(reference) <= _LONGEST and len(other) <= _LONGEST:
            return found
        return fit(reference, other, found.offset, self.width) or found

    def _contradictions(self, best: Fit, place: Ints, slope: float) -> int:
        """How many times the best fit is right where this one is not: independent pieces of evidence."""
        at = np.flatnonzero(best.place >= 0)
        apart = np.where(place >= 0, self.other.end[place] - self.reference.end, 0).astype(np.float64)
        apart = (apart - slope * (self.reference.end - self.reference.end[0]))[at]
        known = (place >= 0)[at]
        jumps = np.abs(np.diff(apart)) > 4 * max(best.residual, _NOISE / 2)
        differ = known & (self.other.kind[place[at]] != self.reference.kind[at])
        return int((jumps & known[1:] & known[:-1]).sum() + (known[1:] != known[:-1]).sum() + differ.sum())

    def _near(self, lag: int) -> list[int]:
        return sorted((each for each in self.lags if each != lag), key=lambda each: abs(each - lag))[:_NEIGHBOURS]

    def _shifted(self, best: Fit, lag: int) -> tuple[float, int]:
        """Misfit under a shift by order, and how often the best fit is right where this one is not."""
        index = np.arange(len(self.reference))
        place = np.where((index + lag >= 0) & (index + lag < len(self.other)), index + lag, -1)
        at = np.flatnonzero(place >= 0)
        apart = (self.other.end[place[at]] - self.reference.end[at]).astype(np.float64)
        apart -= best.slope * (self.reference.end[at] - self.reference.end[0])
        apart = np.abs(apart - _median(apart))
        differ = self.reference.kind[at] != self.other.kind[place[at]]
        apart[differ] = np.maximum(apart[differ], 0.5 * self.gap)
        return float(apart.mean()), self._contradictions(best, place, best.slope)

    def _peaks(self) -> list[float]:
        """Offsets under which many ends coincide, the most frequent first, counted in the finest window that works."""
        differences = self._differences()
        if not len(differences):
            return []
        self.width = float(_FINEST)
        while True:
            counts = np.searchsorted(differences, differences + self.width, side="right") - np.arange(len(differences))
            best = int(counts.argmax())
            if counts[best] >= _DECIDING_SHARE * self._anchors_inside(float(differences[best])):
                break
            if self.width * _COARSER > 0.5 * self.gap:
                break
            self.width *= _COARSER
        peaks: list[float] = []
        top = int(counts.max())
        for _ in range(_PEAKS):
            best = int(counts.argmax())
            if counts[best] < max(_LEAST_BY_CLOCK, 0.2 * top):
                break
            inside = differences[best : best + counts[best]]
            peaks.append(_median(inside))
            low, high = np.searchsorted(differences, (inside[0] - self.width, inside[-1] + self.width))
            counts[low:high] = 0
        return peaks

    def _small(self) -> list[float]:
        """The differences of ends that are nearest to zero."""
        differences = self._differences()
        at = np.searchsorted(differences, 0)
        return [float(value) for value in differences[max(at - 2, 0) : at + 2]]

    def _differences(self) -> Ints:
        """(end there - end here) of pairs of equal signature, sorted; of many collectives only some."""
        stride = -(-len(self.reference) * len(self.other) // _MOST_DIFFERENCES)
        some = slice(None, None, stride)
        equal = self.other.kind[some, None] == self.reference.kind[None, :]
        return np.sort((self.other.end[some, None] - self.reference.end[None, :])[equal])

    def _anchors_inside(self, offset: float) -> int:
        stride = -(-len(self.reference) * len(self.other) // _MOST_DIFFERENCES)
        moved = self.other.end[::stride] - round(offset)
        inside = (moved >= self.reference.end.min() - _FINEST) & (moved <= self.reference.end.max() + _FINEST)
        return int(inside.sum())


def _shortened(whole: Sequence) -> Sequence:
    if len(whole) <= _LONGEST:
        return whole
    by_end = np.argsort(whole.end[:_LONGEST], kind="stable")
    return whole._replace(
        start=whole.start[:_LONGEST], end=whole.end[:_LONGEST], kind=whole.kind[:_LONGEST], by_end=by_end
    )


def _alike(one: Fit, other: Fit) -> bool:
    shorter = min(len(one.place), len(other.place))
    here, there = one.place[:shorter], other.place[:shorter]
    both = (here >= 0) & (there >= 0)
    return bool(both.any() and (here[both] == there[both]).mean() > 0.5)


def _feasible_lags(here: Ints, there: Ints) -> Iterable[int]:
    """Shifts by order under which (nearly) all signatures agree; a missing record makes some disagree."""
    count, others = len(here), len(there)
    least = max(_LEAST_BY_CLOCK, round(_LEAST_SHARE * min(count, others)))
    for lag in range(least - count, others - least + 1):
        low, high = max(0, -lag), min(count, others - lag)
        if np.count_nonzero(here[low:high] == there[low + lag : high + lag]) >= 0.5 * (high - low):
            yield lag
