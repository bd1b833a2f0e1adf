"""What one rank's GPUs did: the device half of `map`, on a `Frame`.

    found = device.measure(frame, window=(first, last), felt=spans)

Every measure is its own module of pure functions; this one only calls them.
"""

from __future__ import annotations

import msgspec

from sameshot.analysis import names
from sameshot.analysis.device.copies import copy_rows
from sameshot.analysis.device.host_bound import host_bound
from sameshot.analysis.device.idle import idle_rows
from sameshot.analysis.device.kernels import kernel_rows
from sameshot.analysis.device.launches import launch_table, launches, several_pieces
from sameshot.analysis.device.queues import queue_rows
from sameshot.analysis.device.temporal import Occupancy, device_times, occupancy
from sameshot.analysis.device.timeline import device_timeline
from sameshot.analysis.device.work import MOST_STREAMS, Work, gather
from sameshot.analysis.frame import Frame
from sameshot.analysis.intervals import Spans
from sameshot.analysis.results import CopyRow, DeviceTimes, HostBound, IdleRow, KernelRow, Launches, QueueRow, Timeline


class DeviceMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The device fields of `RankSummary`, under the same names. None or empty: nothing was recorded on a device.

    `oddities` counts what was ambiguous; it belongs into `TraceFacts.oddities`.
    """

    device: DeviceTimes | None = None
    idle: tuple[IdleRow, ...] = ()
    kernel_rows: tuple[KernelRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    launches: Launches | None = None
    queues: tuple[QueueRow, ...] = ()
    host_bound: HostBound | None = None
    device_timeline: Timeline | None = None
    oddities: dict[str, int] = {}


def measure(
    frame: Frame,
    *,
    window: tuple[int, int],
    felt: Spans,
    work: Work | None = None,
    found: Occupancy | None = None,
) -> DeviceMeasures:
    """Measure all devices and streams of a rank within `window` (ns after the trace's base time).

    `felt` is the data wait that the GPU felt: what is in it is not host-bound as well. `work` and `found` are
    what `gather` and `occupancy` gave, where the caller has them already.
    """
    if not frame.device:
        return DeviceMeasures()
    work = gather(frame) if work is None else work
    found = occupancy(work, window) if found is None else found
    is_graph_launch = frame.named(names.is_graph_launch)
    table = launch_table(work.rows, work.runtime, work.call)
    oddities = {
        "host calls that share a correlation id": work.shared,
        "streams beyond the 256 busiest, without rows of their own": max(len(work.streams) - MOST_STREAMS, 0),
        "launches with several kernels, no graph": several_pieces(work, table, is_graph_launch),
    }
    return DeviceMeasures(
        device=device_times(work, found, window),
        idle=idle_rows(work),
        kernel_rows=kernel_rows(work, frame.names),
        copies=copy_rows(work, frame.names),
        launches=launches(work, table, is_graph_launch),
        queues=queue_rows(work, window),
        host_bound=host_bound(frame, work, found.busy, window, felt),
        device_timeline=device_timeline(found, window),
        oddities={what: times for what, times in oddities.items() if times},
    )
