"""Rows of the table of collectives, with what was waited at them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import CollectiveRow
from sameshot.analysis.waiting.arrivals import Arrivals


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
