"""GPU time lost because the host had not launched the next kernel yet, and what the launching thread did meanwhile.

A gap in which no device of the rank did anything is host-bound if a kernel ends it that started at most 20 µs after its
launch call returned (so it had not been queued), less what counts as felt data wait. Gaps that a copy or a memset ends
are not counted, nor are those whose kernel has no recorded launch: the figure is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.device.work import NO_CALL, Work
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.analysis.nesting import nest, without_children
from sameshot.analysis.results import HostBound, NamedTime
from sameshot.trace.columns.chunk import Codes

AT_ONCE_NS = 20_000
_TOP = 10


def host_bound(frame: Frame, work: Work, busy: Spans, window: tuple[int, int], felt: Spans) -> HostBound | None:
    """None: no launch of any kernel was recorded, so nothing can be said."""
    if not work.linked.any() or window[1] <= window[0]:
        return None
    gaps, lane = host_gaps(work, busy, window[0])
    by_thread = [
        (thread, Spans(gaps.start[lane == thread], gaps.end[lane == thread]) - felt) for thread in _unique(lane)
    ]
    total = sum(spans.total for _, spans in by_thread)
    return HostBound(
        total=total,
        share=total / (window[1] - window[0]),
        gaps=int((gaps.end - gaps.start > felt.before(gaps.end) - felt.before(gaps.start)).sum()),
        operators=_inside(frame, Cat.OPERATOR, by_thread),
        python=_inside(frame, Cat.PYTHON, by_thread),
    )


def host_gaps(work: Work, busy: Spans, first: int) -> tuple[Spans, Ints]:
    """(the host-bound gaps since `first`, the lane of the launching thread of each)."""
    if not len(busy) or not len(work.runtime):
        return Spans(), np.empty(0, dtype=np.int64)
    start, end = np.concatenate(([first], busy.end[:-1])), busy.start
    # The first row that starts there is the longest of them, so it has a duration and did end the gap.
    at = np.minimum(np.searchsorted(work.rows.start, end), len(work.rows) - 1)
    call = work.call[at]
    late = work.rows.start[at] - work.runtime.end[call] <= AT_ONCE_NS
    chosen = (end > start) & (call != NO_CALL) & late & work.kernel[at]
    return Spans(start[chosen], end[chosen]), work.runtime.lane[call[chosen]].astype(np.int64)


def _unique(lane: Ints) -> list[int]:
    found: list[int] = np.unique(lane).tolist()
    return found


def _inside(frame: Frame, cat: Cat, by_thread: list[tuple[int, Spans]]) -> tuple[NamedTime, ...]:
    """The calls of the launching threads by the time within the gaps in which they were the innermost one."""
    found = list(_parts(frame.rows(cat), frame.named(names.is_wrapper), by_thread))
    if not found:
        return ()
    name, whole, mine = (np.concatenate(columns) for columns in zip(*found, strict=True))
    codes, where = np.unique(name, return_inverse=True)
    # By the name that is shown: Python's builtins are recorded with the address of an object.
    labels, merged = np.unique([names.short(frame.names[code]) for code in codes.tolist()], return_inverse=True)
    group = merged[where]
    count = np.bincount(group)
    total, self_time = (np.bincount(group, weights=column).astype(np.int64) for column in (whole, mine))
    best = np.lexsort((-total, -self_time))[:_TOP].tolist()
    return tuple(
        NamedTime(str(labels[i]), int(count[i]), int(total[i]), int(self_time[i])) for i in best if self_time[i]
    )


def _parts(rows: Rows, wrapper: Bools, by_thread: list[tuple[int, Spans]]) -> Iterator[tuple[Codes, Ints, Ints]]:
    """Per thread: (name, time within the gaps, of it as the innermost) of the calls that have any."""
    if not len(rows):
        return
    for thread, gaps in by_thread:
        if not len(gaps):
            continue
        # Calls of other times are left out first. What is around a call that counts has the same time, so it stays.
        at = np.flatnonzero(rows.lane == thread)
        start, end = rows.start[at], rows.end[at]
        after = np.searchsorted(gaps.end, start, side="right")
        touches = gaps.start[np.minimum(after, len(gaps) - 1)] < end
        touches &= (after < len(gaps)) & ~wrapper[rows.name[at]]
        at, start, end = at[touches], start[touches], end[touches]
        if not len(at):
            continue
        parent, end = nest(start, end)
        whole = gaps.before(end) - gaps.before(start)
        yield rows.name[at], whole, without_children(whole, parent)
