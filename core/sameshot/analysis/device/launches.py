"""Launch calls on the host and what became of them on the device."""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.device.work import Work
from sameshot.analysis.frame import Bools, Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import Launches
from sameshot.analysis.stats import spread


class LaunchTable(msgspec.Struct, frozen=True):
    """One entry per call that led to recorded work, in order of the calls."""

    call: Ints  # row of the runtime table
    first: Ints  # row of the work that started first
    pieces: Ints  # how many kernels, copies or memsets
    duration: Ints  # of the call
    delay: Ints  # end of the call → start of the first piece; 0 if that had started before
    work: Ints  # duration of all pieces together


def launch_table(rows: Rows, runtime: Rows, call: Ints) -> LaunchTable:
    """`call` links `rows` to `runtime` (NO_CALL: not linked). Both are sorted by start."""
    linked = np.flatnonzero(call >= 0)
    mine = call[linked]
    pieces = np.bincount(mine, minlength=len(runtime))
    calls = np.flatnonzero(pieces)
    first = np.zeros(len(runtime), dtype=np.int64)
    first[mine[::-1]] = linked[::-1]  # the last one to be written is the earliest
    # Sums of integers in float64 are exact below 2^53 (of ns: 104 days).
    work = np.bincount(mine, weights=rows.dur[linked], minlength=len(runtime)).astype(np.int64)
    return LaunchTable(
        call=calls,
        first=first[calls],
        pieces=pieces[calls],
        duration=runtime.dur[calls],
        delay=np.maximum(rows.start[first[calls]] - runtime.end[calls], 0),
        work=work[calls],
    )


def launches(work: Work, table: LaunchTable, is_graph_launch: Bools) -> Launches:
    """`is_graph_launch` is a mask over names."""
    linked = work.linked
    graph = is_graph_launch[work.runtime.name]
    from_graph = work.rows.graph_id > 0
    from_graph[linked] |= graph[work.call[linked]]
    return Launches(
        count=len(table.call),
        call=spread(table.duration),
        delay=spread(table.delay),
        kernel=spread(work.rows.dur[linked]),
        longer_than_kernel=int((table.duration > table.work).sum()),
        without_launch=int((~linked).sum()),
        graph_launches=int(graph.sum()),
        graph_kernels=int((from_graph & work.kernel).sum()),
    )


def several_pieces(work: Work, table: LaunchTable, is_graph_launch: Bools) -> int:
    """Calls other than graph launches that seem to have launched more than one thing: their ids are ambiguous."""
    return int(((table.pieces > 1) & ~is_graph_launch[work.runtime.name[table.call]]).sum())
