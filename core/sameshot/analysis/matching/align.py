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
"""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.intervals import EMPTY, Ints
from sameshot.analysis.matching.fit import (
    DECIDING_SHARE,
    LEAST_BY_CLOCK,
    NEAR,
    NOISE,
    Fit,
    Sequence,
    alike,
    fit,
    median,
    prevailing,
)
from sameshot.analysis.matching.search import Candidates

_SURELY = 100_000  # ns: under a known clock, ends that differ by no more leave no doubt


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
    candidates = Candidates(reference, other)
    best = candidates.unmistakable()
    if known is None:
        return unmatched(candidates.why) if best is None else _pairing(best, "intervals")
    if under is not None and (best is None or alike(under, best)):
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
    candidates = Candidates(reference, other)
    found = candidates.nearest_to_zero()
    if found is None:
        return unmatched(candidates.why)
    return _pairing(
        found, "wall-clock", "the rhythm fits several shifts; the one nearest by the hosts' clocks was taken"
    )


def _pairing(found: Fit, method: str, note: str = "") -> Pairing:
    return Pairing(found.place, method, prevailing(found.place), round(found.residual), round(found.offset), note)


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
    offset = int(median(apart))
    return Pairing(place, "sequence", prevailing(place), int(median(np.abs(apart - offset))), offset)


def _under(reference: Sequence, other: Sequence, offset: int) -> Fit | None:
    """The correspondence under a known offset, if there is one."""
    gap = max(reference.gap, other.gap)
    found = fit(reference, other, offset, max(NEAR * gap, 5 * NOISE))
    if found is None or found.matched < max(LEAST_BY_CLOCK, DECIDING_SHARE * found.overlap):
        return None
    return found if abs(found.offset - offset) <= max(NEAR * gap, 5 * NOISE) else None
