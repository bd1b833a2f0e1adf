"""Whose fault it was: a rank that came last because it had waited in another group passes the blame on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import OTHER_GROUP

_MOST_FOLLOWED = 20_000
_SHARE_OF_OTHER = 0.5


def follow(telling: Sequence[Arrivals], dependencies: Sequence[Arrivals]) -> None:
    """Where a rank came last because it had waited in another group, put the blame (`root`) on whoever came last
    there."""
    streams = [*telling, *dependencies]
    of_rank: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, one in enumerate(streams):
        for row, index in enumerate(one.found.ranks):
            of_rank[index].append((number, row))
    todo = [
        (int(one.lateness[column]), number, column)
        for number, one in enumerate(telling)
        for column in np.flatnonzero(one.significant & (one.cause == OTHER_GROUP)).tolist()
    ]
    members = [frozenset(one.found.ranks) for one in streams]
    known: dict[_Place, tuple[int, int, bool] | None] = {}

    def next_of(place: _Place) -> _Place | None:
        number, column = place
        one = streams[number]
        everywhere = of_rank[one.found.ranks[int(one.last[column])]]
        # Where all of these were, all left together: whoever waited there was not held up for longer than they.
        elsewhere = [(other, row) for other, row in everywhere if not members[other] >= members[number]]
        if number < len(telling):
            if one.cause[column] != OTHER_GROUP:
                return None
            return _waited_lately(streams, elsewhere, place)
        # What the other side of a pipeline does is no measure: only whether it was itself late, or held up, counts.
        mine = [(other, row) for other, row in everywhere if other < len(telling)]
        return _late_before(streams, mine, place) or _waited_before(
            streams, elsewhere, _interval(one, column), int(one.lateness[column])
        )

    def resolve(place: _Place) -> tuple[int, int, bool] | None:
        path: list[_Place] = []
        step: _Place | None = place
        while step is not None and step not in known and step not in path:
            path.append(step)
            step = next_of(step)
        if step in known:
            answer = known[step]
        else:
            number, column = path[-1]
            one = streams[number]
            blamed = number < len(telling)  # a dependency is nobody's fault
            row, cause = int(one.last[column]), int(one.cause[column])
            answer = (one.found.ranks[row], cause, one.complete) if blamed else None
        for number, column in reversed(path):
            if answer is not None:
                answer = (*answer[:2], answer[2] and streams[number].complete)
            known[number, column] = answer
        return answer

    for _, number, column in sorted(todo, reverse=True)[:_MOST_FOLLOWED]:
        answer = resolve((number, column))
        if answer is not None:
            one = streams[number]
            one.root[column], one.root_cause[column], one.root_sure[column] = answer


_Place = tuple[int, int]
"""A stream and a collective (column) of it."""


def _interval(one: Arrivals, column: int) -> tuple[int, int]:
    """From where the lateness of the last arriver began to its arrival, ns after the start of its window."""
    row, base = int(one.last[column]), int(one.since[column])
    return int(one.start[row, base]) if base >= 0 else 0, int(one.start[row, column])


def _within(one: Arrivals, row: int, since: int, until: int) -> tuple[int, int]:
    """Columns of the collectives that this row had in an interval, the one that began before it included."""
    start = one.start[row]
    low = max(int(np.searchsorted(start, since, side="left")) - 1, 0)
    return low, max(int(np.searchsorted(start, until, side="left")), low)


def _late_before(streams: Sequence[Arrivals], elsewhere: Sequence[tuple[int, int]], place: _Place) -> _Place | None:
    """The collective to which the last arriver of this one came last as well, in a group where that is its fault; None
    where it was not late there for half as long in all."""
    since, until = _interval(streams[place[0]], place[1])
    best: tuple[int, _Place] | None = None
    total = 0
    for other, row in elsewhere:
        one = streams[other]
        low, high = _within(one, row, since, until)
        here = slice(low, high)
        mine = one.significant[here] & (one.last[here] == row) & (one.cause[here] < OTHER_GROUP)
        for column in (np.flatnonzero(mine) + low).tolist():
            total += int(one.lateness[column])
            if best is None or one.lateness[column] > best[0]:
                best = (int(one.lateness[column]), (other, column))
    enough = total >= _SHARE_OF_OTHER * int(streams[place[0]].lateness[place[1]])
    return best[1] if best is not None and enough else None


def _waited_lately(streams: Sequence[Arrivals], elsewhere: Sequence[tuple[int, int]], place: _Place) -> _Place | None:
    """In which collective of another group the last arriver of this one waited longest, looking back no farther than it
    takes to explain its lateness: what held it up before, the others may have waited for already."""
    number, column = place
    one = streams[number]
    row, base = int(one.last[column]), int(one.since[column])
    until = int(one.start[row, column])
    back = 1
    while column - back > base:
        since = int(one.start[row, column - back])
        found = _waited_before(streams, elsewhere, (since, until), int(one.lateness[column]))
        if found is not None:
            return found
        back *= 2
    return _waited_before(streams, elsewhere, _interval(one, column), int(one.elsewhere[column]))


def _waited_before(
    streams: Sequence[Arrivals],
    elsewhere: Sequence[tuple[int, int]],
    interval: tuple[int, int],
    explain: int,
) -> _Place | None:
    """In which collective of other groups a rank waited longest in an interval, the latest of those that differ by no
    more than noise; None where its waits do not make up half of `explain` ns."""
    since, until = interval
    best: tuple[int, _Place] | None = None
    total = 0
    for other, row in elsewhere:
        one = streams[other]
        low, high = _within(one, row, since, until)
        if low >= high:
            continue
        # Only what was waited inside the interval: the wait is the first part of a collective.
        begin = one.start[row, low:high]
        inside = np.minimum(begin + one.wait[row, low:high], until) - np.maximum(begin, since)
        total += int(np.maximum(inside, 0).sum())
        longest = int(np.flatnonzero(inside >= inside.max() - one.noise)[-1])
        if best is None or inside[longest] > best[0]:
            best = (int(inside[longest]), (other, low + longest))
    if best is None or best[0] <= 0 or total < _SHARE_OF_OTHER * explain:
        return None
    return best[1]
