"""How the devices of a rank spent the window: compute, exposed communication, exposed memory operations, idle.

All devices and streams together. The sets contain each other, so that every part is a difference of two lengths and
the parts add up to the window exactly.
"""

from __future__ import annotations

import msgspec
import numpy as np

from sameshot.analysis.device.work import Work
from sameshot.analysis.frame import Rows
from sameshot.analysis.intervals import Spans
from sameshot.analysis.measures import DeviceTimes


class Occupancy(msgspec.Struct, frozen=True):
    """When something ran within the window; each set contains the one before it."""

    compute: Spans
    kernels: Spans  # compute or communication
    busy: Spans  # any kernel, copy or memset
    communication: int  # ns in which communication ran
    memory: int  # ns in which copies or memsets ran


def occupancy(work: Work, window: tuple[int, int]) -> Occupancy:
    """What lies outside the window is cut off."""
    communication = _within(work.rows[work.communication], window)
    memory = _within(work.rows[work.memory], window)
    compute = _within(work.rows[~(work.communication | work.memory)], window)
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


def _within(rows: Rows, window: tuple[int, int]) -> Spans:
    return Spans.of(np.clip(rows.start, *window), np.clip(rows.end, *window))
