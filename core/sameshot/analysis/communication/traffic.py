"""All communication of one rank, measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.communication.calls import device_calls, gloo_calls
from sameshot.analysis.communication.sizes import rows_of
from sameshot.analysis.communication.streams import stream_of, with_gaps
from sameshot.analysis.frame import Frame
from sameshot.analysis.intervals import Spans, union
from sameshot.analysis.names import Cat
from sameshot.analysis.results import CommunicationRow, Group, Stream


class Traffic(NamedTuple):
    """What `measure` found; the fields of the same names in `RankSummary`."""

    groups: tuple[Group, ...]
    communication: tuple[CommunicationRow, ...]
    streams: tuple[Stream, ...]


def measure(
    frame: Frame,
    *,
    window: tuple[int, int],
    fetching: Spans | None = None,
    working: Spans | None = None,
) -> Traffic:
    """Communication within `window` (ns of the frame).

    `fetching`: when the main thread waited for data. `working`: when operators ran on it (gloo's exposed time is what
    is left of its spans).
    """
    first, last = window
    nccl, gloo = device_calls(frame), gloo_calls(frame)
    kernels = frame.rows(Cat.KERNEL)
    compute = kernels[~frame.named(names.is_communication_kernel)[kernels.name]] if len(kernels) else kernels
    work = union((compute.spans, frame.rows(Cat.MEMORY).spans))
    groups: list[Group] = []
    rows: list[CommunicationRow] = []
    streams: list[Stream] = []
    for calls, other in ((gloo, working if working is not None else Spans()), (nccl, work)):
        if not len(calls.start):
            continue
        groups += [calls.groups[code] for code in np.unique(calls.group).tolist()]
        rows += rows_of(calls, other)
        communicating = Spans.of(calls.start, calls.end)
        for code in np.unique(calls.group).tolist():
            at = np.flatnonzero(calls.group == code)
            stream, kept = stream_of(calls, code, at, first, last)
            if calls.source != "gloo":
                stream = with_gaps(stream, calls, kept, first, work, communicating, fetching)
            streams.append(stream)
    rows.sort(key=lambda row: (-row.total, row.group, row.kind.value, row.bytes or 0))
    streams.sort(key=lambda stream: (stream.source, stream.key))
    return Traffic(tuple(sorted(groups, key=lambda g: g.key)), tuple(rows), tuple(streams))
