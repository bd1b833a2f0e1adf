"""Matched collectives: the same synchronisation seen by every rank, and what each of them waited at it.

    wait_i   = dur_i - min_j dur_j      a rank that came early waits for the last one
    transfer = min_j dur_j              what the collective itself takes

The rank with the shortest duration came last. Both need no clocks, and both hold for symmetric collectives only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence as Listing

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.align import Lag, Sequence, find_lag, sequence
from sameshot.analysis.intervals import Ints
from sameshot.analysis.summary import Alignment, CollectiveRow, RankSummary

_REFERENCES = 4  # how many ranks are tried as the one that all others are compared with


class Matched(msgspec.Struct, frozen=True):
    """The collectives of one stream that every aligned rank recorded. Arrays are rank × collective.

    `ranks` are indices into the list of summaries; `start` counts from the start of each rank's own window.
    """

    key: str
    source: str
    ranks: tuple[int, ...]
    reference: int  # index into `ranks`
    signatures: tuple[str, ...]  # per collective
    start: Ints
    dur: Ints
    unmatched: Counter[str]  # signature → recorded, but not on all ranks
    assumes_clocks: bool  # two hosts were matched by their clocks: an assumption

    @property
    def count(self) -> int:
        return int(self.dur.shape[1])

    @property
    def symmetric(self) -> Ints:
        """Indices of the collectives whose durations tell who came last."""
        kinds = [signature.partition(" ")[0] in names.SYMMETRIC for signature in self.signatures]
        return np.flatnonzero(kinds)

    @property
    def wait(self) -> Ints:
        waits: Ints = self.dur - self.dur.min(axis=0)
        return waits


def match_streams(ranks: Listing[RankSummary]) -> tuple[list[Matched], list[Alignment]]:
    """Align every stream that at least two ranks have. Ranks that can't be aligned are left out, with a reason."""
    members: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for stream in rank.streams:
            members[stream.source, stream.key].append(index)
    matched, alignments = [], []
    for (source, key), indices in sorted(members.items()):
        if len(indices) < 2:
            continue
        found, how = _match(ranks, source, key, indices)
        alignments += how
        if found is not None:
            matched.append(found)
    return matched, alignments


def _match(
    ranks: Listing[RankSummary], source: str, key: str, indices: list[int]
) -> tuple[Matched | None, list[Alignment]]:
    numbers: dict[str, int] = {}
    sequences = {
        index: sequence(
            next(s for s in ranks[index].streams if (s.source, s.key) == (source, key)),
            ranks[index].window_start_ns,
            numbers,
        )
        for index in indices
    }
    tries = sorted(indices, key=lambda i: -len(sequences[i].end))[:_REFERENCES]
    best: tuple[int, dict[int, Lag]] | None = None
    for reference in tries:
        lags = {
            index: find_lag(sequences[reference], other, same_host=_same_host(ranks[reference], ranks[index]))
            for index, other in sequences.items()
            if index != reference
        }
        if best is None or _aligned(lags) > _aligned(best[1]):
            best = (reference, lags)
        if _aligned(lags) == len(lags):
            break
    assert best is not None
    reference, lags = best
    places = {reference: 0} | {index: lag.lag for index, lag in lags.items() if lag.lag is not None}
    assumes_clocks = any(
        lag.method == "wall-clock" and not _same_host(ranks[reference], ranks[index]) for index, lag in lags.items()
    )
    places = dict(sorted(places.items()))
    found = _cut(source, key, sequences, reference, places, list(numbers), assumes_clocks=assumes_clocks)
    alignments = [
        Alignment(
            stream=key,
            label=ranks[index].label,
            reference=ranks[reference].label,
            method=lag.method,
            lag=lag.lag,
            residual=lag.residual,
            clock_offset=lag.clock_offset,
            matched=found.count if lag.lag is not None else 0,
            note=lag.note,
        )
        for index, lag in sorted(lags.items())
    ]
    return (found if len(found.ranks) > 1 and found.count else None), alignments


def _aligned(lags: dict[int, Lag]) -> int:
    return sum(lag.lag is not None for lag in lags.values())


def _same_host(one: RankSummary, other: RankSummary) -> bool:
    return one.identity.host is not None and one.identity.host == other.identity.host


def _cut(
    source: str,
    key: str,
    sequences: dict[int, Sequence],
    reference: int,
    places: dict[int, int],
    numbered: list[str],
    *,
    assumes_clocks: bool,
) -> Matched:
    """The part of each sequence that all aligned ranks have."""
    low = max(-lag for lag in places.values())
    high = max(min(len(sequences[index].end) - lag for index, lag in places.items()), low)
    unmatched: Counter[str] = Counter()
    for index, one in sequences.items():
        inside = slice(low + places[index], high + places[index]) if index in places else slice(0, 0)
        outside = Counter(one.kind.tolist())
        outside.subtract(one.kind[inside].tolist())
        for kind, count in outside.items():
            unmatched[numbered[kind]] = max(unmatched[numbered[kind]], count)
    return Matched(
        key=key,
        source=source,
        ranks=tuple(places),
        reference=list(places).index(reference),
        signatures=tuple(numbered[kind] for kind in sequences[reference].kind[low:high].tolist()),
        start=np.stack([np.asarray(sequences[i].stream.start)[low + lag : high + lag] for i, lag in places.items()]),
        dur=np.stack([np.asarray(sequences[i].stream.dur)[low + lag : high + lag] for i, lag in places.items()]),
        unmatched=unmatched,
        assumes_clocks=assumes_clocks,
    )


def collective_rows(ranks: Listing[RankSummary], matched: Listing[Matched]) -> list[CollectiveRow]:
    """One row per stream and signature, and one for those that could not be matched at all."""
    rows, seen = [], set()
    for found in matched:
        seen.add(found.key)
        for signature in dict.fromkeys((*found.signatures, *found.unmatched)):
            at = np.asarray([i for i, s in enumerate(found.signatures) if s == signature], dtype=np.int64)
            rows.append(_row(ranks, found, signature, at))
    alone: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for stream in rank.streams:
            if stream.key not in seen:
                for index, signature in enumerate(stream.signatures):
                    alone[stream.key, signature].append(stream.signature.count(index))
    rows += [_unmatched(key, signature, len(counts), max(counts)) for (key, signature), counts in alone.items()]
    return sorted(rows, key=lambda row: -(row.wait or 0))


def _row(ranks: Listing[RankSummary], found: Matched, signature: str, at: Ints) -> CollectiveRow:
    if not len(at):
        return _unmatched(found.key, signature, len(found.ranks), found.unmatched[signature])
    wait, transfer = found.wait[:, at], found.dur[:, at].min(axis=0)
    kind = signature.partition(" ")[0]
    if kind not in names.SYMMETRIC:
        row = _unmatched(found.key, signature, len(found.ranks), found.unmatched[signature])
        return msgspec.structs.replace(row, matched=len(at))
    last, times = Counter(found.dur[:, at].argmin(axis=0).tolist()).most_common(1)[0]
    return CollectiveRow(
        stream=found.key,
        kind=kind,
        signature=signature,
        ranks=len(found.ranks),
        matched=len(at),
        unmatched=found.unmatched[signature],
        wait=int(wait.sum()),
        transfer=int(transfer.sum()),
        mean_wait=int(wait.mean()),
        mean_transfer=int(transfer.mean()),
        longest_wait=int(wait.max()),
        last_arriver=ranks[found.ranks[last]].label,
        last_arriver_share=round(times / len(at), 3),
    )


def _unmatched(key: str, signature: str, ranks: int, count: int) -> CollectiveRow:
    return CollectiveRow(
        stream=key,
        kind=signature.partition(" ")[0],
        signature=signature,
        ranks=ranks,
        matched=0,
        unmatched=count,
        wait=None,
        transfer=None,
        mean_wait=None,
        mean_transfer=None,
        longest_wait=None,
        last_arriver=None,
        last_arriver_share=None,
    )
