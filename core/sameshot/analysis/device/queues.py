"""How much work was launched and not yet finished on each stream."""

from __future__ import annotations

import numpy as np

from sameshot.analysis.device.idle import called
from sameshot.analysis.device.work import Work, busiest
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.results import QueueRow
from sameshot.trace.columns.chunk import MISSING


def queue_rows(work: Work, window: tuple[int, int]) -> tuple[QueueRow, ...]:
    """Work is in the queue from the beginning of its launch call (at the latest from its own start) to its end.

    Where nothing on a stream has a recorded launch there is nothing to say, and no row.
    """
    first, last = window
    if last <= first:
        return ()
    began = called(work.runtime, work.call)
    rows = []
    for stream in busiest(work.streams):
        start, end, launch = (column[stream.at] for column in (work.rows.start, work.rows.end, began))
        known = launch != MISSING
        if not known.any():
            continue
        entered = np.clip(np.where(known, np.minimum(launch, start), start), first, last)
        left = np.clip(end, first, last)
        rows.append(
            QueueRow(
                stream=stream.label,
                mean=int((left - entered).sum()) / (last - first),
                maximum=longest(entered, left),
                empty_share=1 - Spans.of(entered, left).total / (last - first),
            )
        )
    return tuple(rows)


def longest(entered: Ints, left: Ints) -> int:
    """The most that were in the queue at any moment; what leaves at a moment is no longer there."""
    real = left > entered
    moments = np.sort(entered[real])
    if not len(moments):
        return 0
    arrived = np.arange(1, len(moments) + 1)  # of equal moments, the last one counts them all
    return int((arrived - np.searchsorted(np.sort(left[real]), moments, side="right")).max())
