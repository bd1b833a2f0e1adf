"""Rows of the table of collectives: how many could be matched, and what was waited at them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.results import CollectiveRow, RankSummary
from sameshot.analysis.waiting.arrivals import Arrivals


def collective_rows(ranks: Sequence[RankSummary], matched: Sequence[Matched]) -> list[CollectiveRow]:
    """One row per stream and signature, and one for those that could not be matched at all."""
    rows, seen = [], set()
    for found in matched:
        seen |= {(found.source, key) for key in found.streams or (found.key,)}
        wait, complete = found.wait, found.complete
        columns: defaultdict[str, list[int]] = defaultdict(list)
        for column in np.flatnonzero(complete).tolist():
            columns[found.signatures[column]].append(column)
        rows += [
            _row(ranks, found, signature, np.asarray(columns[signature], dtype=np.int64), wait)
            for signature in dict.fromkeys((*columns, *found.unmatched))
        ]
    alone: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for stream in rank.streams:
            if (stream.source, stream.key) not in seen:
                for index, signature in enumerate(stream.signatures):
                    alone[stream.key, signature].append(stream.signature.count(index))
    rows += [_unmatched(key, signature, len(counts), max(counts)) for (key, signature), counts in alone.items()]
    return sorted(rows, key=lambda row: -(row.wait or 0))


def _row(ranks: Sequence[RankSummary], found: Matched, signature: str, at: Ints, waits: Ints) -> CollectiveRow:
    if not len(at):
        return _unmatched(found.key, signature, len(found.ranks), found.unmatched[signature])
    wait, transfer = waits[:, at], found.dur[:, at].min(axis=0)
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


def with_waits(
    rows: Sequence[CollectiveRow], streams: Sequence[Arrivals], labels: Sequence[str]
) -> list[CollectiveRow]:
    """Rows of all-to-alls with their waits, where all of them turned out to tell. Of groups of which a rank was not
    compared the transfer is not known: that rank may have come later than all."""
    partial = {one.found.key for one in streams if not one.complete}
    told: dict[tuple[str, str], tuple[Arrivals, Ints]] = {}
    for one in streams:
        texts = np.asarray([one.found.signatures[i] for i in one.at.tolist()])
        for text in np.unique(texts).tolist():
            told[one.found.key, text] = (one, np.flatnonzero(texts == text))
    found = []
    for row in rows:
        known = told.get((row.stream, row.signature))
        if row.stream in partial:
            row = msgspec.structs.replace(row, transfer=None, mean_transfer=None)
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
