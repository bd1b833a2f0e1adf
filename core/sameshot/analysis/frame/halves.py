"""B and E events that belong together."""

from __future__ import annotations

import numpy as np

from sameshot.analysis.frame.tables import Bools
from sameshot.analysis.intervals import Ints
from sameshot.trace.columns.chunk import Codes


def pairs_of(lane: Codes, begins: Bools) -> tuple[Ints, Ints, Ints]:
    """Places of begins, of their ends, and of halves without the other, in events sorted by lane and time."""
    lonely = []
    place = np.arange(len(lane))
    while True:
        # Depth within each lane; an end at depth 0 has no begin: taken out, all others keep their partners.
        depth = np.cumsum(np.where(begins[place], 1, -1))
        first = np.flatnonzero(np.diff(lane[place], prepend=-2))
        before = np.concatenate(([0], depth))[first]
        depth -= np.repeat(before, np.diff(np.append(first, len(place))))
        floor = np.minimum.accumulate(np.minimum(depth, 0) + _falling(first, len(place)))
        floor -= _falling(first, len(place))
        previous = np.concatenate(([0], floor[:-1]))
        previous[first] = 0
        bad = ~begins[place] & (floor < previous)
        if not bad.any():
            break
        lonely.append(place[bad])
        place = place[~bad]
    level = depth + ~begins[place]  # of a begin and its end
    order = np.lexsort((place, level, lane[place]))
    sorted_begin = begins[place][order]
    same = np.zeros(len(order), np.bool_)
    if len(order) > 1:
        same[:-1] = (
            sorted_begin[:-1]
            & ~sorted_begin[1:]
            & (lane[place][order][:-1] == lane[place][order][1:])
            & (level[order][:-1] == level[order][1:])
        )
    at = np.flatnonzero(same)
    paired = np.zeros(len(order), np.bool_)
    paired[at] = paired[at + 1] = True
    lonely.append(place[order[~paired]])
    return place[order[at]], place[order[at + 1]], np.concatenate(lonely)


def _falling(first: Ints, size: int) -> Ints:
    """For each place a number that falls from lane to lane, so that a running minimum starts anew in each."""
    lane = np.zeros(size, np.int64)
    lane[first] = 1
    return -np.cumsum(lane) * (2 * size + 2)
