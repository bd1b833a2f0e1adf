"""Which collective on one rank is the same as which on another.

Windows begin at different collectives on different ranks, and neither gloo spans nor NCCL kernels are numbered in real
traces. What two ranks share is the *rhythm*: a symmetric collective ends everywhere at nearly the same moment, so under
the right shift (lag) the differences between the ends on two ranks are all alike, whatever their clocks say; under a
wrong one they wander with the ups and downs of the steps.

    sequence    numbers were recorded and match
    intervals   signatures agree and the rhythm fits one lag clearly better than any other
    wall-clock  the rhythm fits several lags (a very regular job, or a noisy machine); the one under which the spans
                coincide by the hosts' clocks is taken if no other comes near. This assumes clocks that agree to well
                within half the distance of two synchronisations (NTP does), and is named in the summary.

Where none of these holds the rank stays unaligned: a wrong match would accuse the wrong rank.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.summary import Stream

_LEAST = 5  # fewer fit by chance
_LEAST_SHARE = 0.3  # of the shorter sequence
_DECIDING_SHARE = 0.5
_NOISE = 20_000  # ns by which the ends of one collective differ on any machine; smaller differences tell nothing
_CLEARLY = 0.5  # the best lag leaves at most this share of what the next best leaves
_PLAUSIBLE = 2.0  # lags whose rhythm is worse than this times the best are not offered to the clock
_LONGEST = 4_000


class Lag(msgspec.Struct, frozen=True):
    """The k-th collective of the reference is the (k + lag)-th of the other; lag None: not matched, see `note`."""

    lag: int | None
    method: str
    residual: int | None = None
    clock_offset: int | None = None
    note: str = ""


class Sequence(NamedTuple):
    """One stream with its starts and ends in CLOCK_REALTIME of its host."""

    stream: Stream
    start: Ints
    end: Ints
    kind: Ints


class _Candidate(NamedTuple):
    lag: int
    overlap: int
    rhythm: float  # mean deviation of the differences of ends from their median: free of any clock offset
    clock: float  # mean time by which the two spans miss each other, plus half the median difference of ends
    offset: float  # median difference of the ends by the clocks


def sequence(stream: Stream, window_start_ns: int, signatures: dict[str, int]) -> Sequence:
    """Prepare a stream; `signatures` numbers the signatures of all ranks alike and grows as needed."""
    known = np.asarray([signatures.setdefault(name, len(signatures)) for name in stream.signatures], dtype=np.int64)
    kind = known[np.asarray(stream.signature[:_LONGEST], dtype=np.int64)] if len(known) else known
    start = np.asarray(stream.start[:_LONGEST], dtype=np.int64) + window_start_ns
    return Sequence(stream, start, start + np.asarray(stream.dur[:_LONGEST], dtype=np.int64), kind)


def find_lag(reference: Sequence, other: Sequence, *, same_host: bool) -> Lag:
    """Match two ranks' sequences, or say why that is impossible."""
    if reference.stream.seq and other.stream.seq:
        return _by_number(reference, other)
    candidates = _candidates(reference, other)
    if not candidates:
        return Lag(None, "none", note="the sequences of collectives differ, or share too few")
    gap = _typical_gap(reference, other)
    clearest = _clearest(candidates, gap, same_host)
    fitting = [c for c in candidates if c.overlap >= _LEAST]
    best = min(fitting, key=lambda c: c.rhythm, default=None)
    if best is not None:
        rest = min((c.rhythm for c in fitting if c.lag != best.lag), default=float("inf"))
        if _is_unmistakable(best, rest, gap, min(len(reference.end), len(other.end))):
            if same_host and (clearest is None or clearest.lag != best.lag):
                return Lag(None, "none", note="the rhythm and the clock of their common host contradict each other")
            return Lag(best.lag, "intervals", round(best.rhythm), round(best.offset))
        nearest = _clearest([c for c in fitting if c.rhythm <= _PLAUSIBLE * max(best.rhythm, _NOISE)], gap, same_host)
    else:
        nearest = clearest
    if nearest is None:
        return Lag(None, "none", note="several shifts fit equally well, by rhythm and by clock")
    return Lag(
        nearest.lag,
        "wall-clock",
        round(nearest.rhythm),
        round(nearest.offset),
        "the rhythm fits several shifts; the one nearest by the hosts' clocks was taken",
    )


def _is_unmistakable(best: _Candidate, rest: float, gap: float, shorter: int) -> bool:
    """Does the rhythm alone decide? `rest` is the misfit of the next best lag, `shorter` the length of a sequence."""
    if best.overlap < _DECIDING_SHARE * shorter:
        return False  # a few collectives fit by chance
    if not np.isfinite(rest):  # a single possible lag has nothing to be compared with: its own fit must be good
        return best.rhythm <= 0.1 * gap
    return rest >= _NOISE and best.rhythm <= _CLEARLY * rest


def _by_number(reference: Sequence, other: Sequence) -> Lag:
    place = {number: index for index, number in enumerate(other.stream.seq or ())}
    lags = [place[number] - index for index, number in enumerate(reference.stream.seq or ()) if number in place]
    if not lags or len(set(lags)) > 1:
        return Lag(None, "none", note="the recorded sequence numbers have nothing in common, or have gaps")
    return Lag(lags[0], "sequence")


def _candidates(reference: Sequence, other: Sequence) -> list[_Candidate]:
    """All shifts under which every signature agrees."""
    count, others = len(reference.end), len(other.end)
    least = max(2, round(_LEAST_SHARE * min(count, others)))
    found = []
    for lag in range(least - count, others - least + 1):
        here = slice(max(0, -lag), min(count, others - lag))
        there = slice(here.start + lag, here.stop + lag)
        if here.stop - here.start < least or not np.array_equal(reference.kind[here], other.kind[there]):
            continue
        apart = other.end[there] - reference.end[here]
        offset = float(np.median(apart))
        missed = np.maximum(reference.start[here] - other.end[there], other.start[there] - reference.end[here])
        found.append(
            _Candidate(
                lag=lag,
                overlap=here.stop - here.start,
                rhythm=float(np.abs(apart - offset).mean()),
                clock=float(np.maximum(missed, 0).mean()) + 0.5 * abs(offset),
                offset=offset,
            )
        )
    return found


def _typical_gap(reference: Sequence, other: Sequence) -> float:
    gaps = np.concatenate((np.diff(reference.end), np.diff(other.end)))
    return float(np.median(gaps)) if len(gaps) else 0.0


def _clearest(candidates: list[_Candidate], gap: float, same_host: bool) -> _Candidate | None:
    """The shift under which the spans coincide by the clocks, if no other one comes near.

    Two hosts' clocks are believed up to a quarter of the distance of two collectives. On one host there is only one
    clock, and ends differ by scheduling alone.
    """
    ordered = sorted(candidates, key=lambda c: c.clock)
    if not ordered or ordered[0].clock > 0.25 * gap:
        return None
    if not same_host and abs(ordered[0].offset) > 0.25 * gap:
        return None
    if len(ordered) > 1 and ordered[0].clock > _CLEARLY * ordered[1].clock:
        return None
    return ordered[0]
