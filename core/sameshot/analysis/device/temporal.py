"""How the devices of a rank spent the window: compute, exposed communication, exposed memory operations, idle.

All devices and streams together. The sets contain each other, so that every part is a difference of two lengths and
the parts add up to the window exactly.
"""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.device.work import Work
from sameshot.analysis.intervals import Ints, Spans
from sameshot.analysis.results import DeviceParts, DeviceTimes


class Occupancy(msgspec.Struct, frozen=True):
    """When something ran within the window; each set contains the one before it."""

    compute: Spans
    kernels: Spans  # compute or communication
    busy: Spans  # any kernel, copy or memset
    communication: int  # ns in which communication ran
    memory: int  # ns in which copies or memsets ran


def occupancy(work: Work, window: tuple[int, int]) -> Occupancy:
    """What lies outside the window is cut off."""
    start, end = np.clip(work.rows.start, *window), np.clip(work.rows.end, *window)
    communication, memory, compute = (
        Spans.of(start[kind], end[kind])
        for kind in (work.communication, work.memory, ~(work.communication | work.memory))
    )
    kernels = compute | communication if len(communication) else compute
    return Occupancy(
        compute=compute,
        kernels=kernels,
        busy=kernels | memory if len(memory) else kernels,
        communication=communication.total,
        memory=memory.total,
    )


def device_times(work: Work, found: Occupancy, window: tuple[int, int]) -> DeviceTimes:
    """Time in communication kernels includes waiting for late ranks: one rank alone can't tell them apart."""
    compute, kernels, busy = found.compute.total, found.kernels.total, found.busy.total
    return DeviceTimes(
        compute=compute,
        communication=kernels - compute,
        memory=busy - kernels,
        idle=window[1] - window[0] - busy,
        kernels=int(work.kernel.sum()),
        overlapped=found.communication - (kernels - compute),
        hidden_memory=found.memory - (busy - kernels),
    )


def device_parts(found: Occupancy, edges: Ints) -> tuple[DeviceParts, ...]:
    """The same between neighbouring edges (training steps)."""
    compute, kernels, busy = (spans.within(edges) for spans in (found.compute, found.kernels, found.busy))
    idle = np.diff(edges) - busy
    columns = zip(compute.tolist(), (kernels - compute).tolist(), (busy - kernels).tolist(), idle.tolist(), strict=True)
    return tuple(DeviceParts(*values) for values in columns)
