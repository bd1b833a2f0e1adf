"""Who came last to each matched collective, how long the others waited, whose fault that was, and what it cost.

    wait_i = dur_i - min_j dur_j        the rank with the shortest duration came last, the others are its victims

Only where durations tell: all_reduce, all_gather, reduce_scatter and barrier always; an all-to-all (or a SendRecv
kernel of which nothing else is recorded: that is how NCCL runs one) only if every rank of the group takes part and all
leave it together, as with equal parts. Broadcast, reduce, gather, scatter and point-to-point: ranks may leave early, a
wait there is a dependency (a pipeline bubble), and nobody is blamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.cause import CAUSES, OTHER_GROUP, UNKNOWN, Spent, blame, spent_between
from sameshot.analysis.frame import Bools
from sameshot.analysis.intervals import Ints
from sameshot.analysis.match import Matched
from sameshot.analysis.names import Collective
from sameshot.analysis.results import Cause, CollectiveRow, Group, LateRank, RankSummary, Straggler

# ns; ends of one collective differ by 5 to 30 µs between ranks on a device; on CPUs the scheduler decides.
_NOISE = {"nccl": 50_000, "gloo": 1_000_000}
_TOGETHER = 50_000  # ns within which all ranks leave an all-to-all of equal parts
_LEAST_TO_COMPARE = 3  # collectives; fewer cannot tell a clock's offset from a difference of ends
_MOST_FOLLOWED = 20_000
_SHARE_OF_OTHER = 0.5


class Arrivals(msgspec.Struct, frozen=True):
    """The collectives of one matched stream whose durations tell who came last. Arrays are rank × collective, or one
    value per collective."""

    found: Matched
    group: Group | None
    size: int | None  # ranks that the group has; None: not recorded
    at: Ints  # columns of `found`
    kinds: tuple[str, ...]
    start: Ints  # ns after the start of each rank's own window
    dur: Ints
    wait: Ints
    last: Ints  # row
    lateness: Ints  # mean wait of the others
    significant: Bools  # the median wait, and the last one's distance to the next, exceed the noise
    spent: Spent | None
    cause: Ints  # place in CAUSES
    since: Ints  # the column since which the cause was derived; -1: the start of the window
    elsewhere: Ints  # ns that the last arriver spent more in other groups since then
    root: Ints  # index of the rank (summary) that it is due to
    root_cause: Ints
    noise: int

    @property
    def complete(self) -> bool:
        """Were all ranks of the group compared? None of them can have come later, then."""
        return self.size is not None and len(self.found.ranks) >= self.size

    @property
    def guessed(self) -> bool:
        """The trace records no group: who belongs to it was concluded."""
        return (self.group is None or self.group.name is None) and self.found.key != self.found.stream

    @property
    def lost(self) -> Ints:
        """What of the waiting was really lost: nothing else ran beside it, for longer than on the last arriver. (Where
        that is unknown: all of it.)"""
        if self.spent is None:
            return self.wait
        exposed = self.spent.exposed
        lost: Ints = np.clip(exposed - exposed[self.last, np.arange(len(self.last))], 0, self.wait)
        return lost

    @property
    def where(self) -> str:
        """The group in words."""
        if self.group is None or self.group.name is None:
            return self.found.key
        about = f" ({self.group.description})" if self.group.description else ""
        return f"group {self.group.name}{about}"


def arrivals(ranks: Sequence[RankSummary], matched: Sequence[Matched], world: int) -> list[Arrivals]:
    """All streams with collectives whose durations tell anything. `world`: how many ranks the job has."""
    groups: dict[str, Group] = {}
    for rank in ranks:
        for group in rank.groups:
            groups.setdefault(group.key, group)
    told, dependencies = [], []
    divided = _divided(ranks, matched, world)
    for one in matched:
        recorded = groups.get(one.stream or one.key)
        guessed = recorded is None or recorded.name is None
        size = recorded.size if recorded is not None and not guessed else world
        if guessed and (one.source, one.stream) in divided:
            size = len(one.ranks)
        at = _telling(ranks, one, size)
        told.append(_arrivals(ranks, one, recorded, size, at))
        dependencies.append(_arrivals(ranks, one, recorded, size, np.setdiff1d(_dependencies(one), at)))
    streams = [one for one in told if one is not None]
    _follow(streams, [one for one in dependencies if one is not None])
    return streams


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
    return Arrivals(
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
        noise=noise,
    )


def _telling(ranks: Sequence[RankSummary], found: Matched, size: int | None) -> Ints:
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


def _dependencies(found: Matched) -> Ints:
    """Columns of `found` at which one rank waits for another by design. Nobody is blamed there, but where a rank came
    last elsewhere because it had waited here, this says for whom."""
    kinds = [signature.partition(" ")[0] == Collective.SEND_RECV.value for signature in found.signatures]
    return np.flatnonzero(np.asarray(kinds, dtype=np.bool_) & found.complete)


def _follow(telling: Sequence[Arrivals], dependencies: Sequence[Arrivals]) -> None:
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
    known: dict[_Place, tuple[int, int] | None] = {}

    def next_of(place: _Place) -> _Place | None:
        number, column = place
        one = streams[number]
        elsewhere = of_rank[one.found.ranks[int(one.last[column])]]
        if number < len(telling):
            if one.cause[column] != OTHER_GROUP:
                return None
            return _waited_before(streams, elsewhere, place, int(one.elsewhere[column]))
        # What the other side of a pipeline does is no measure: only whether it was itself late, or held up, counts.
        mine = [(other, row) for other, row in elsewhere if other < len(telling)]
        return _late_before(streams, mine, place) or _waited_before(
            streams, elsewhere, place, int(one.lateness[column])
        )

    def resolve(place: _Place) -> tuple[int, int] | None:
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
            answer = (one.found.ranks[int(one.last[column])], int(one.cause[column])) if blamed else None
        known.update(dict.fromkeys(path, answer))
        return answer

    for _, number, column in sorted(todo, reverse=True)[:_MOST_FOLLOWED]:
        answer = resolve((number, column))
        if answer is not None:
            streams[number].root[column], streams[number].root_cause[column] = answer


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


def _waited_before(
    streams: Sequence[Arrivals], elsewhere: Sequence[tuple[int, int]], place: _Place, explain: int
) -> _Place | None:
    """In which collective of another group the last arriver of this one waited longest since its lateness began; None
    where its waits do not make up half of `explain` ns."""
    since, until = _interval(streams[place[0]], place[1])
    best: tuple[int, _Place] | None = None
    total = 0
    for other, row in elsewhere:
        one = streams[other]
        low, high = _within(one, row, since, until)
        if one.found.key == streams[place[0]].found.key or low >= high:
            continue
        # Only what was waited inside the interval: the wait is the first part of a collective.
        begin = one.start[row, low:high]
        inside = np.minimum(begin + one.wait[row, low:high], until) - np.maximum(begin, since)
        total += int(np.maximum(inside, 0).sum())
        longest = int(inside.argmax())
        if best is None or inside[longest] > best[0]:
            best = (int(inside[longest]), (other, low + longest))
    if best is None or best[0] <= 0 or total < _SHARE_OF_OTHER * explain:
        return None
    return best[1]


def with_waits(
    rows: Sequence[CollectiveRow], streams: Sequence[Arrivals], labels: Sequence[str]
) -> list[CollectiveRow]:
    """Rows of all-to-alls with their waits, where all of them turned out to tell."""
    told: dict[tuple[str, str], tuple[Arrivals, Ints]] = {}
    for one in streams:
        texts = np.asarray([one.found.signatures[i] for i in one.at.tolist()])
        for text in np.unique(texts).tolist():
            told[one.found.key, text] = (one, np.flatnonzero(texts == text))
    found = []
    for row in rows:
        known = told.get((row.stream, row.signature))
        if row.wait is None and known is not None and len(known[1]) == row.matched:
            one, at = known
            wait, last = one.wait[:, at], np.bincount(one.last[at], minlength=len(one.found.ranks))
            transfer = one.dur[:, at].min(axis=0)
            found.append(
                msgspec.structs.replace(
                    row,
                    wait=int(wait.sum()),
                    transfer=int(transfer.sum()),
                    mean_wait=int(wait.mean()),
                    mean_transfer=int(transfer.mean()),
                    longest_wait=int(wait.max()),
                    last_arriver=labels[one.found.ranks[int(last.argmax())]],
                    last_arriver_share=round(int(last.max()) / len(at), 3),
                )
            )
        else:
            found.append(row)
    return sorted(found, key=lambda row: -(row.wait or 0))


def waiting(streams: Sequence[Arrivals]) -> int | None:
    """All waiting at matched collectives, summed over ranks, in ns; None where nothing tells."""
    return int(sum(int(one.wait.sum()) for one in streams)) if streams else None


def exposed_waiting(streams: Sequence[Arrivals]) -> int | None:
    """What of it was really lost, as far as that is known (see `Arrivals.lost`)."""
    return int(sum(int(one.lost.sum()) for one in streams)) if streams else None


def stragglers(ranks: Sequence[RankSummary], streams: Sequence[Arrivals], labels: Sequence[str]) -> list[Straggler]:
    """Ranks that came last by more than noise, most expensive first."""
    count = len(ranks)
    last, of, caused, relayed = (np.zeros(count, dtype=np.int64) for _ in range(4))
    causes: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for one in streams:
        members = np.asarray(one.found.ranks, dtype=np.int64)
        of[members] += len(one.last)
        at = np.flatnonzero(one.significant)
        cost = one.wait[:, at].sum(axis=0)
        mine = members[one.last[at]]
        np.add.at(last, mine, 1)
        np.add.at(caused, one.root[at], cost)
        other = one.root[at] != mine
        np.add.at(relayed, mine[other], cost[other])
        for root, cause, ns in zip(one.root[at].tolist(), one.root_cause[at].tolist(), cost.tolist(), strict=True):
            causes[root][CAUSES[cause].value] += ns
    everything = waiting(streams) or 0
    order = sorted(np.flatnonzero(last + caused).tolist(), key=lambda i: (-caused[i], -relayed[i], i))
    return [
        Straggler(
            label=labels[i],
            node=ranks[i].identity.node,
            last=int(last[i]),
            of=int(of[i]),
            caused=int(caused[i]),
            share=round(int(caused[i]) / everything, 4) if everything else 0.0,
            cause=_main_cause(causes[i]),
            causes=dict(causes[i].most_common()),
            relayed=int(relayed[i]),
        )
        for i in order
    ]


def with_causes(found: Sequence[Straggler], late: Sequence[LateRank]) -> list[Straggler]:
    """Where collectives alone do not tell why (gloo), the reason that the main thread gave for a rank that is late."""
    known = {rank.label: rank.cause for rank in late if rank.cause is not Cause.UNKNOWN}
    return [
        msgspec.structs.replace(one, cause=known[one.label].value, causes={known[one.label].value: one.caused})
        if one.label in known and set(one.causes) == {Cause.UNKNOWN.value}
        else one
        for one in found
    ]


def _main_cause(causes: Counter[str]) -> str:
    if not causes:
        return Cause.UNKNOWN.value
    cause, ns = causes.most_common(1)[0]
    return cause if 2 * ns >= causes.total() else Cause.UNKNOWN.value
