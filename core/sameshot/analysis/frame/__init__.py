"""One rank's events as analysis wants them: one table per kind of event, sorted by start, in integer nanoseconds.

    builder = FrameBuilder()                    # a ChunkSink: fed while the trace is verified, or from stored columns
    frame = builder.frame()
    kernels = frame.rows(Cat.KERNEL)
    compute = kernels[~frame.named(names.is_nccl_kernel)[kernels.name]]

Only spans with a usable start and duration are rows. Everything else is counted under a name, never dropped in silence
and never fatal: the verifier has already decided that the file is a trace.
"""

from __future__ import annotations

from sameshot.analysis.frame.build import FrameBuilder
from sameshot.analysis.frame.tables import Bools, Frame, Messages, Rows

__all__ = ["Bools", "Frame", "FrameBuilder", "Messages", "Rows"]
