"""What one rank's GPUs did: the device half of `map`, on a `Frame`.

    found = device.measure(frame, window=(first, last), felt=spans, main=lane)

Every measure is its own module of pure functions on `Rows`; this one only calls them.
"""

from __future__ import annotations

import msgspec

from sameshot.analysis.device.temporal import device_times
from sameshot.analysis.frame import Frame
from sameshot.analysis.intervals import Spans
from sameshot.analysis.measures import CopyRow, DeviceTimes, HostBound, IdleRow, KernelRow, Launches, QueueRow
from sameshot.analysis.summary import Timeline


class DeviceMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The device fields of `RankSummary`, under the same names. None or empty: nothing was recorded on a device.

    `oddities` counts what was left out or ambiguous; it belongs into `TraceFacts.oddities`.
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


def measure(frame: Frame, *, window: tuple[int, int], felt: Spans, main: int | None) -> DeviceMeasures:
    """Measure all devices and streams of a rank within `window` (ns after the trace's base time).

    `felt` is the data wait that the GPU felt (not host-bound a second time), `main` the lane of the main thread.
    """
    if not frame.device:
        return DeviceMeasures()
    return DeviceMeasures(device=device_times(frame, window))
