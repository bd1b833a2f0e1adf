"""Which span lies inside which: call nesting of threads, without a loop over spans.

A profiler records calls as spans, so on one thread they nest like brackets, and the time that belongs to one call alone
is its own less that of the calls directly inside it. Clock granularity breaks the rule by a little (older traces are
cut to whole µs): a child that outlives its parent is cut at the parent's end, so that no moment has two owners.

The depth of a span is the number of spans that began before it on its thread less those that ended by then: counting
in a sorted array, not walking a stack. Cutting changes ends, and ends change depths, so it is repeated until nothing
changes: by then each span is right if all before it are. Each round settles at least the first that is not, and on real
traces two or three rounds settle all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.trace.columns.chunk import Codes

NO_PARENT = -1
_MOST_LEVELS = 256  # that are cut one by one; calls are not nested deeper, unless they are no calls
_FEW_LANES = 64  # nested one by one
_ROOM = 1 << 62
_ROUNDS = 8  # a thread that is still not settled then is walked with a stack


def nest(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(parent, end after cutting) of the spans of one thread, which must be sorted by (start, longer first).

    `parent` is the index of the innermost span around each, NO_PARENT for those at the bottom and for spans of no
    length, which are nobody's parent either.
    """
    parent: Ints = np.full(len(start), NO_PARENT, dtype=np.int64)
    cut = end.copy()
    real = np.flatnonzero(end > start)
    if not len(real):
        return parent, cut
    begin, whole = (start, end) if len(real) == len(start) else (start[real], end[real])
    above, finish = _settle(begin, whole)
    parent[real] = np.where(above >= 0, real[above], NO_PARENT)
    cut[real] = finish
    return parent, cut


def _settle(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    finish = end
    for _ in range(_ROUNDS):
        parent, depth = _parents(start, finish)
        until = finish[parent]
        allowed = np.where((parent >= 0) & (until > start), np.minimum(end, until), end)
        wrong = allowed != finish
        if not wrong.any():
            return parent, finish
        finish = allowed
        if int(depth.max()) - int(depth[wrong].min()) > _MOST_LEVELS:
            break
        # Whoever is inside of what was just cut: at once, instead of one round for each level.
        for level in range(int(depth[wrong].min()) + 1, int(depth.max()) + 1):
            at = np.flatnonzero(depth == level)
            until = finish[parent[at]]
            finish[at] = np.where(until > start[at], np.minimum(end[at], until), end[at])
    return _walk(start, end)


def _parents(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Parent and depth of spans of some length, right for each before whose start all ends are right."""
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    levels = depth.astype(np.int16) if int(depth.max()) < 1 << 15 else depth  # 16 bits are sorted in linear time
    order = np.argsort(levels, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(depth)))).tolist()
    parent: Ints = np.full(len(start), NO_PARENT, dtype=np.int64)
    for level in range(1, len(bounds) - 1):
        mine, outer = order[bounds[level] : bounds[level + 1]], order[bounds[level - 1] : bounds[level]]
        # Depth grows by one at most from span to span, so there is an outer one before each.
        parent[mine] = outer[np.searchsorted(outer, mine) - 1]
    return parent, depth


def _walk(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The same with a stack: for spans that overlap so much that they are no calls."""
    parent, ends = [NO_PARENT] * len(start), end.tolist()
    stack: list[int] = []
    for index, begin in enumerate(start.tolist()):
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            parent[index] = stack[-1]
            ends[index] = min(ends[index], ends[stack[-1]])
        stack.append(index)
    return np.asarray(parent, dtype=np.int64), np.asarray(ends, dtype=np.int64)


def threads(lane: Codes) -> Iterator[tuple[int, Ints]]:
    """Each lane with the indices of its rows, in order."""
    if not len(lane):
        return
    narrow = lane.astype(np.int16) if int(lane.max()) < 1 << 15 else lane  # 16 bit numbers are sorted in linear time
    order = np.argsort(narrow, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(lane)))).tolist()
    for number in range(len(bounds) - 1):
        if bounds[number] < bounds[number + 1]:
            yield number, order[bounds[number] : bounds[number + 1]]


def self_times(start: Ints, end: Ints, lane: Codes) -> Ints:
    """Time of each span without the spans directly inside it, on its own thread; sorted by (start, longer first)."""
    mine: Ints = np.zeros(len(start), dtype=np.int64)
    lanes = int(lane.max()) + 1 if len(lane) else 0
    first, length = (int(start.min()), int(end.max()) - int(start.min()) + 1) if lanes else (0, 0)
    if _FEW_LANES < lanes < _ROOM // length:
        # One after the other in time, all lanes are one.
        at = np.argsort(lane, kind="stable")
        shift = lane[at].astype(np.int64) * length - first
        begin, finish = start[at] + shift, end[at] + shift
        parent, finish = nest(begin, finish)
        mine[at] = without_children(finish - begin, parent)
        return mine
    for _, at in threads(lane):
        begin, finish = start[at], end[at]
        parent, finish = nest(begin, finish)
        mine[at] = without_children(finish - begin, parent)
    return mine


def without_children(measure: Ints, parent: Ints) -> Ints:
    """What each span has of an additive measure beyond what its children have."""
    inner = parent >= 0
    # Sums of integers in float64 are exact below 2^53 (of ns: 104 days).
    children = np.bincount(parent[inner], weights=measure[inner], minlength=len(measure))
    return measure - children.astype(np.int64)
