"""The collectives for which most was waited, event by event: what proves the sentences about who came last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sameshot.analysis.results import Moment, RankSummary
from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import CAUSES

_MOST = 24


def costliest(ranks: Sequence[RankSummary], streams: Sequence[Arrivals], labels: Sequence[str]) -> list[Moment]:
    """The most expensive collectives at which a rank came last by more than noise, most expensive first."""
    costs = []
    for number, one in enumerate(streams):
        waiting = np.where(one.significant, one.wait.sum(axis=0), 0)
        columns = np.argsort(-waiting, kind="stable")[:_MOST]
        costs += [(int(waiting[column]), number, int(column)) for column in columns if waiting[column] > 0]
    costs.sort(key=lambda cost: (-cost[0], cost[1], cost[2]))
    return [_moment(ranks, streams[number], column, labels) for _, number, column in costs[:_MOST]]


def _moment(ranks: Sequence[RankSummary], one: Arrivals, column: int, labels: Sequence[str]) -> Moment:
    last, victim = int(one.last[column]), int(one.wait[:, column].argmax())
    return Moment(
        group=one.where,
        kind=one.kinds[column],
        ranks=len(one.found.ranks),
        last=labels[one.found.ranks[last]],
        cause=CAUSES[int(one.cause[column])].value,
        start=int(one.start[last, column]),
        event=_event(ranks, one, last, column),
        transfer=int(one.dur[last, column]) if one.complete else None,
        waiting=int(one.wait[:, column].sum()),
        victim=labels[one.found.ranks[victim]],
        victim_start=int(one.start[victim, column]),
        victim_event=_event(ranks, one, victim, column),
        victim_wait=int(one.wait[victim, column]),
    )


def _event(ranks: Sequence[RankSummary], one: Arrivals, row: int, column: int) -> int | None:
    """Which event of the rank's trace this collective is. Starts are in order; two at once are told by their length."""
    stream = one.found.stream_of(ranks, row)
    if not stream.event:
        return None
    start, dur = int(one.start[row, column]), int(one.dur[row, column])
    starts = np.asarray(stream.start, dtype=np.int64)
    low, high = (int(np.searchsorted(starts, start, side=side)) for side in ("left", "right"))
    return next((stream.event[i] for i in range(low, high) if stream.dur[i] == dur), None)
