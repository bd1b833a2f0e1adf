"""Does a rank whose collectives are short really start them later? Only one clock can tell.

A short record means that the rank came last, or that it left early. Where clocks are comparable (one host, or hosts
whose clocks were measured) the starts decide: who came last started later than each peer by as much as that one waited
longer, and so they ended together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sameshot.analysis.clocks import to_reference
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.hosts import host_of
from sameshot.analysis.results import Clocks, RankSummary
from sameshot.analysis.waiting.arrivals import Arrivals

_SHARE = 0.5  # of the lateness, that starts may miss
_TIMES_ERROR = 2  # a lateness that clocks resolve


def contradicted(
    ranks: Sequence[RankSummary], one: Arrivals, row: int, columns: Ints, clocks: Clocks | None = None
) -> bool:
    """Did the rank in this row, last by its durations in these collectives, start them too early for that?

    Compared are the peers of its own host, else those on hosts whose clocks were measured well enough for such a
    lateness; False where there are none, and where at least half of the lateness is seen in the starts.
    """
    if not len(columns):
        return False
    late = one.lateness[columns]
    peers, begins = _comparable(ranks, one.found.ranks, row, float(np.median(late)), clocks)
    if not peers:
        return False
    starts = one.start[:, columns] + np.asarray(begins, dtype=np.int64)[:, None]
    later = starts[row] - starts[peers]
    longer = one.dur[peers][:, columns] - one.dur[row, columns]
    missed = np.median(longer - later, axis=0)  # 0 where it ended with them
    return float(np.median(missed - _SHARE * late)) > 0


def _comparable(
    ranks: Sequence[RankSummary], members: Sequence[int], row: int, late: float, clocks: Clocks | None
) -> tuple[list[int], list[int]]:
    """Rows whose starts can be compared with this one's, and when each row's window began."""
    own = [ranks[index].window_start_ns for index in members]
    hosts = [host_of(ranks[index]) for index in members]
    near = [other for other in range(len(members)) if other != row and hosts[other] == hosts[row]]
    if near:
        return near, own
    measured = {clock.host: clock for clock in clocks.hosts} if clocks is not None else {}
    begins: list[int | None] = []
    for index, host in zip(members, hosts, strict=True):
        clock = measured.get(host)
        resolves = clock is not None and clock.expected_error is not None and _TIMES_ERROR * clock.expected_error < late
        begins.append(to_reference(clock, ranks[index].window_start_ns) if clock is not None and resolves else None)
    if begins[row] is None:
        return [], own
    component = measured[hosts[row]].component
    known = [
        other
        for other, begin in enumerate(begins)
        if other != row and begin is not None and measured[hosts[other]].component == component
    ]
    return known, [begin or 0 for begin in begins]
