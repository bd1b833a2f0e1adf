"""From matched collectives to arrivals: which of them tell who came last, and why it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from sameshot.analysis.communication.groups import most_ranks
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.results import Group, RankSummary
from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import OTHER_GROUP, UNKNOWN, blame, spent_between
from sameshot.analysis.waiting.follow import follow
from sameshot.analysis.waiting.telling import dependency_columns, telling_columns

# ns; ends of one collective differ by 5 to 30 µs between ranks on a device; on CPUs the scheduler decides.
_NOISE = {"nccl": 50_000, "gloo": 1_000_000}


def arrivals(ranks: Sequence[RankSummary], matched: Sequence[Matched], world: int) -> list[Arrivals]:
    """All streams with collectives whose durations tell anything. `world`: how many ranks the job has."""
    groups: dict[str, Group] = {}
    for rank in ranks:
        for group in rank.groups:
            groups.setdefault(group.key, group)
    told, dependencies = [], []
    whole: set[tuple[int, str]] = set()  # rank, and the key of a stream of which all ranks of the group were compared
    divided = _divided(ranks, matched, world)
    for one in matched:
        recorded = groups.get(one.stream or one.key)
        guessed = recorded is None or recorded.name is None
        if not guessed:
            size = _size(one, groups, world)
        else:
            size = len(one.ranks) if (one.source, one.stream) in divided else world
        if len(one.ranks) >= size:
            whole.update(zip(one.ranks, one.streams or (one.key,) * len(one.ranks), strict=True))
        at = telling_columns(ranks, one, size)
        told.append(_arrivals(ranks, one, recorded, size, at))
        dependencies.append(_arrivals(ranks, one, recorded, size, np.setdiff1d(dependency_columns(one), at)))
    streams = [one for one in told if one is not None]
    follow(streams, [one for one in dependencies if one is not None])
    held_up = [not all((index, stream.key) in whole for stream in rank.streams) for index, rank in enumerate(ranks)]
    for each in streams:
        # Held up in another group, for whom is not known: perhaps for a rank that was not compared.
        each.root_sure[(each.root_cause == OTHER_GROUP) & np.asarray(held_up, dtype=np.bool_)[each.root]] = False
    return streams


def _size(one: Matched, groups: Mapping[str, Group], world: int) -> int:
    """How many ranks a recorded group has, or how many at most where no trace says: nobody counts as compared who is
    not."""
    known = [groups[key] for key in {one.key, one.stream, *one.streams} if key in groups]
    sizes = [group.size for group in known if group.size is not None]
    if sizes:
        return max(sizes)
    return max(min([world, *(most for group in known if (most := most_ranks(group.ranks)) is not None)]), 2)


def _divided(ranks: Sequence[RankSummary], matched: Sequence[Matched], world: int) -> set[tuple[str, str]]:
    """Streams without a recorded group that fall into several groups, of which no rank is left over: then each of them
    is whole."""
    if len(ranks) < world:
        return set()
    having = Counter((stream.source, stream.key) for rank in ranks for stream in rank.streams)
    placed: Counter[tuple[str, str]] = Counter()
    for one in matched:
        placed[one.source, one.stream] += len(one.ranks)
    return {stream for stream, count in placed.items() if count == having[stream]}


def _arrivals(
    ranks: Sequence[RankSummary], found: Matched, group: Group | None, size: int | None, at: Ints
) -> Arrivals | None:
    if not len(at) or len(found.ranks) < 2:
        return None
    dur = found.dur[:, at]
    ordered = np.sort(dur, axis=0)
    wait = dur - ordered[0]
    last = dur.argmin(axis=0)
    lateness = wait.sum(axis=0) / (len(dur) - 1)
    noise = _NOISE.get(found.source, max(_NOISE.values()))
    significant = (ordered[1] - ordered[0] > noise) & (np.median(wait, axis=0) > noise)
    spent = spent_between(ranks, found, at)
    cause, since, elsewhere = (np.full(len(at), value, dtype=np.int64) for value in (UNKNOWN, -1, 0))
    if spent is not None:
        told = blame(spent, last, lateness, significant)
        cause, since, elsewhere = told.cause, told.base, told.elsewhere
    arrivals = Arrivals(
        found=found,
        group=group,
        size=size,
        at=at,
        kinds=tuple(found.signatures[i].partition(" ")[0] for i in at.tolist()),
        start=found.start[:, at],
        dur=dur,
        wait=wait,
        last=last,
        lateness=lateness.astype(np.int64),
        significant=significant,
        spent=spent,
        cause=cause,
        since=since,
        elsewhere=elsewhere,
        root=np.asarray(found.ranks, dtype=np.int64)[last],
        root_cause=cause.copy(),
        root_sure=np.ones(len(at), dtype=np.bool_),
        noise=noise,
    )
    arrivals.root_sure[:] = arrivals.complete
    return arrivals
