"""Time by group, kind, size and type."""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.communication.calls import KINDS, Calls
from sameshot.analysis.communication.issuers import NOWHERE
from sameshot.analysis.intervals import Spans
from sameshot.analysis.results import CommunicationRow
from sameshot.analysis.stats import spread
from sameshot.trace.columns.chunk import MISSING


def rows_of(calls: Calls, other: Spans) -> list[CommunicationRow]:
    keys = np.stack((calls.group, calls.kind, calls.nelems, calls.dtype))
    unique, where = np.unique(keys, axis=1, return_inverse=True)
    where = where.reshape(-1)
    order = np.argsort(where, kind="stable")
    edges = np.concatenate(([0], np.cumsum(np.bincount(where, minlength=unique.shape[1]))))
    found = []
    for index, (group, kind, nelems, dtype) in enumerate(unique.T.tolist()):
        at = order[edges[index] : edges[index + 1]]
        spans = Spans.of(calls.start[at], calls.end[at])
        covered = int((other.before(spans.end) - other.before(spans.start)).sum())
        duration = calls.end[at] - calls.start[at]
        named = calls.dtypes[dtype] if dtype != NOWHERE else None
        found.append(
            CommunicationRow(
                source=calls.source,
                group=calls.groups[group].key,
                kind=KINDS[kind],
                bytes=message_bytes(None if nelems == MISSING else nelems, named),
                dtype=named,
                count=len(at),
                total=int(duration.sum()),
                exposed=spans.total - covered,
                duration=spread(duration),
            )
        )
    return found


def message_bytes(nelems: int | None, dtype: str | None) -> int | None:
    """Elements of a torch type in bytes; None where either is unknown. No size is null, not 0."""
    if nelems is None or nelems <= 0 or dtype is None:
        return None
    width = names.DTYPE_BYTES.get(dtype)
    return None if width is None else nelems * width
