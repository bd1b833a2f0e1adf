"""Which collectives tell by their durations who came last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sameshot.analysis.frame import Bools
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.names import Collective
from sameshot.analysis.results import RankSummary

_TOGETHER = 50_000  # ns within which all ranks leave an all-to-all of equal parts
_LEAST_TO_COMPARE = 3  # collectives; fewer cannot tell a clock's offset from a difference of ends


def telling_columns(ranks: Sequence[RankSummary], found: Matched, size: int | None) -> Ints:
    """Columns of `found` whose durations tell who came last."""
    kinds = [signature.partition(" ")[0] for signature in found.signatures]
    certain = found.is_symmetric
    # A message that is recorded as a send or receive is one; a kernel of that name alone may be an all-to-all.
    maybe = np.asarray(
        [
            kind == Collective.ALL_TO_ALL or text == Collective.SEND_RECV
            for kind, text in zip(kinds, found.signatures, strict=True)
        ],
        dtype=np.bool_,
    )
    if maybe.any() and size is not None and len(found.ranks) >= size > 2:
        certain = certain | (maybe & _leave_together(ranks, found))
    return np.flatnonzero(certain & found.complete)


def _leave_together(ranks: Sequence[RankSummary], found: Matched) -> Bools:
    """For each collective, whether all ranks leave it at one moment, whatever their clocks' offsets are."""
    together = np.zeros(found.count, dtype=np.bool_)
    at = np.flatnonzero(found.complete)
    if len(at) >= _LEAST_TO_COMPARE:
        windows = np.asarray([ranks[index].window_start_ns for index in found.ranks], dtype=np.int64)
        ends = found.start[:, at] + found.dur[:, at] + (windows - windows.min())[:, None]
        apart = ends - ends[found.reference]
        apart = apart - np.median(apart, axis=1).astype(np.int64)[:, None]
        together[at] = np.ptp(apart, axis=0) <= _TOGETHER
    return together


def dependency_columns(found: Matched) -> Ints:
    """Columns of `found` at which one rank waits for another by design. Nobody is blamed there, but where a rank came
    last elsewhere because it had waited here, this says for whom."""
    kinds = [signature.partition(" ")[0] == Collective.SEND_RECV.value for signature in found.signatures]
    return np.flatnonzero(np.asarray(kinds, dtype=np.bool_) & found.complete)
