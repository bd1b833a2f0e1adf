"""Why each stream was idle between its kernels. The categories are HTA's (hta/analyzers/breakdown_analysis.py):

host wait    the launch call began after the stream had finished what it had: the host was not fast enough
kernel wait  launched in time, and the gap is short: the device's own delay between kernels
other        launched in time, and yet a longer gap: it waited for something else, such as another stream's event

HTA documents its limit for short gaps as 30 ns, but compares it with times in µs. So what it computes is 30 µs, which
is what a delay between kernels can be, and what stands here.
"""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.device.work import NO_CALL, Work, busiest
from sameshot.analysis.frame import Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import IdleRow
from sameshot.trace.columns.chunk import MISSING

CONSECUTIVE_NS = 30_000


class Idle(msgspec.Struct, frozen=True):
    """Idle time of one stream between its first and its last work, in ns."""

    host_wait: int
    kernel_wait: int
    other: int


def idle_rows(work: Work) -> tuple[IdleRow, ...]:
    began = called(work.runtime, work.call)
    rows = []
    for stream in busiest(work.streams):
        found = idle_of_stream(work.rows.start[stream.at], work.rows.end[stream.at], began[stream.at])
        rows.append(IdleRow(stream.label, found.host_wait, found.kernel_wait, found.other))
    return tuple(rows)


def called(runtime: Rows, call: Ints) -> Ints:
    """When each call began; MISSING where there is none."""
    if not len(runtime):
        return np.full(len(call), MISSING, dtype=np.int64)
    return np.where(call == NO_CALL, MISSING, runtime.start[call])


def idle_of_stream(
    start: Ints, end: Ints, began: Ints, *, consecutive: int = CONSECUTIVE_NS, previous_row: bool = False
) -> Idle:
    """Sort the gaps of one stream, whose work is sorted by start; `began` is when each launch call began, or MISSING.

    Where work of one stream overlaps (which new GPUs allow), a gap begins when all before has ended. `previous_row`
    takes the end of the row before instead and lets overlaps count negative, as HTA does.
    """
    before = end[:-1] if previous_row else np.maximum.accumulate(end)[:-1]
    gap = start[1:] - before
    if not previous_row:
        gap = np.maximum(gap, 0)
    host = began[1:] > before
    kernel = ~host & (gap < consecutive)
    host_wait, kernel_wait = int(gap[host].sum()), int(gap[kernel].sum())
    return Idle(host_wait, kernel_wait, int(gap.sum()) - host_wait - kernel_wait)
