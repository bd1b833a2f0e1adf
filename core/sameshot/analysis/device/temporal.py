"""How the devices of a rank spent the window: compute, exposed communication, exposed memory operations, idle."""

from __future__ import annotations

from sameshot.analysis import names
from sameshot.analysis.frame import Frame
from sameshot.analysis.intervals import Spans
from sameshot.analysis.measures import DeviceTimes
from sameshot.analysis.names import Cat


def device_times(frame: Frame, window: tuple[int, int]) -> DeviceTimes:
    """Over all devices and streams together; what lies outside the window is cut off."""
    whole = Spans.single(*window)
    kernels, memory = frame.rows(Cat.KERNEL), frame.rows(Cat.MEMORY)
    communicates = frame.named(names.is_nccl_kernel)[kernels.name]
    compute = kernels[~communicates].spans & whole
    communication = kernels[communicates].spans & whole
    copies = memory.spans & whole
    exposed = communication - compute
    running = compute | communication
    alone = copies - running
    return DeviceTimes(
        compute=compute.total,
        communication=exposed.total,
        memory=alone.total,
        idle=window[1] - window[0] - compute.total - exposed.total - alone.total,
        kernels=len(kernels),
        overlapped=communication.total - exposed.total,
        hidden_memory=copies.total - alone.total,
    )
