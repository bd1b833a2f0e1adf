"""The sequences that are matched across ranks, and what the device did between their collectives."""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.communication.calls import KINDS, Calls
from sameshot.analysis.communication.issuers import NOWHERE
from sameshot.analysis.intervals import Ints, Spans, union
from sameshot.analysis.results import Stream
from sameshot.trace.columns.chunk import MISSING

_LONGEST_STREAM = 20_000  # collectives kept per stream: the summary has to stay small


def stream_of(calls: Calls, group: int, at: Ints, first: int, last: int) -> tuple[Stream, Ints]:
    # A host span that ends last of all was cut off by the end of the recording; the GPU reports whole kernels only.
    kept = at[calls.end[at] < last] if calls.source == "gloo" else at
    left_out = len(at) - len(kept) + max(len(kept) - _LONGEST_STREAM, 0)
    kept = kept[:_LONGEST_STREAM]
    keys = np.stack((calls.kind[kept], calls.uneven[kept], calls.stated[kept], calls.dtype[kept]))
    unique, begin, where = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(begin)  # signatures in order of appearance
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    seq = calls.seq[kept]
    numbered = len(kept) > 0 and bool((seq != MISSING).all()) and len(np.unique(seq)) == len(seq)
    stream = Stream(
        key=calls.groups[group].key,
        source=calls.source,
        signatures=tuple(_signature(calls, *unique[:, index].tolist()) for index in order.tolist()),
        signature=tuple(place[where.reshape(-1)].tolist()),
        start=tuple((calls.start[kept] - first).tolist()),
        dur=tuple((calls.end[kept] - calls.start[kept]).tolist()),
        seq=tuple(seq.tolist()) if numbered else None,
        left_out=left_out,
        event=tuple(calls.event[kept].tolist()) if len(calls.event) else (),
    )
    return stream, kept


def _signature(calls: Calls, kind: int, uneven: int, stated: int, dtype: int) -> str:
    parts = [KINDS[kind].value + (names.UNEVEN if uneven else "")]
    if stated != MISSING:
        parts.append(str(stated))
    if dtype != NOWHERE:
        parts.append(calls.dtypes[dtype])
    return " ".join(parts)


def with_gaps(
    stream: Stream, calls: Calls, kept: Ints, first: int, work: Spans, communicating: Spans, waiting: Spans | None
) -> Stream:
    """Add what the device did from the start of the previous collective of the stream (or of the window) to each."""
    if not len(kept):
        return stream
    until = calls.start[kept]
    since = np.concatenate(([min(first, until[0])], until[:-1]))
    busy = union((work, communicating))
    end = np.minimum(calls.end[kept], np.append(until[1:], calls.end[kept][-1]))

    def inside(spans: Spans) -> Ints:
        return spans.before(until) - spans.before(since)

    exposed = end - until - (work.before(end) - work.before(until))
    compute = inside(work)
    own = np.concatenate(([0], exposed[:-1]))
    data = inside(waiting - busy) if waiting is not None and len(waiting) else np.zeros(len(until), dtype=np.int64)
    return msgspec.structs.replace(
        stream,
        exposed=tuple(exposed.tolist()),
        compute=tuple(compute.tolist()),
        other=tuple(np.maximum(inside(busy) - compute - own, 0).tolist()),
        data=tuple(data.tolist()),
    )
