"""What one rank's GPUs did."""

from __future__ import annotations

import msgspec

from sameshot.analysis.results.common import NamedTime, Spread, ns


class DeviceTimes(
    msgspec.Struct, frozen=True, rename=ns("compute", "communication", "memory", "idle", "overlapped", "hidden_memory")
):
    """How one rank's GPUs spent the window. compute + communication + memory + idle is the window."""

    compute: int  # a kernel that is not communication runs
    communication: int  # exposed: only communication kernels run; waiting for late ranks is in here
    memory: int  # exposed: only copies or memsets run
    idle: int
    kernels: int  # how many
    overlapped: int  # communication that ran while compute ran as well (inside `compute`)
    hidden_memory: int = 0  # copies that ran while any kernel ran

    @property
    def total(self) -> int:
        return self.compute + self.communication + self.memory + self.idle

    @property
    def overlap(self) -> float | None:
        """Share of all communication time that ran beside compute."""
        whole = self.communication + self.overlapped
        return self.overlapped / whole if whole else None


class DeviceParts(msgspec.Struct, frozen=True, rename=ns("compute", "communication", "memory", "idle")):
    """How one rank's GPUs spent a step; the meanings of `DeviceTimes`, and the sum is the step."""

    compute: int
    communication: int
    memory: int
    idle: int


class IdleRow(msgspec.Struct, frozen=True, rename=ns("host_wait", "kernel_wait", "other")):
    """Why one stream was idle between its kernels: not yet launched, launched and closely following, or neither."""

    stream: str
    host_wait: int
    kernel_wait: int
    other: int


class KernelRow(
    msgspec.Struct, frozen=True, rename=ns("total", "mean", "deviation", "minimum", "p50", "p90", "p99", "maximum")
):
    """One kernel's name. `kind`: compute, communication or memory; `share` of all kernel time of its kind."""

    name: str
    kind: str
    count: int
    total: int
    share: float
    mean: int
    deviation: int
    minimum: int
    p50: int
    p90: int
    p99: int
    maximum: int


class CopyRow(msgspec.Struct, frozen=True, rename=ns("total")):
    """Copies or memsets of one kind ("HtoD pageable"). `bytes` and `gb_per_s` over those that state a size."""

    kind: str
    count: int
    total: int
    bytes: int | None
    gb_per_s: float | None


class Launches(msgspec.Struct, frozen=True):
    """Launch calls and what became of them."""

    count: int  # launch calls that lead to a recorded kernel, copy or memset
    call: Spread | None  # duration of the call on the host
    delay: Spread | None  # end of the call → start on the device
    kernel: Spread | None  # duration on the device
    longer_than_kernel: int  # launches whose call took longer than what they launched
    without_launch: int  # device work whose launch was not recorded
    graph_launches: int  # CUDA/HIP graph launch calls
    graph_kernels: int  # kernels that a graph launched


class QueueRow(msgspec.Struct, frozen=True):
    """Launched and not yet finished work on one stream, over the window (weighted by time)."""

    stream: str
    mean: float
    maximum: int
    empty_share: float


class HostBound(msgspec.Struct, frozen=True, rename=ns("total")):
    """GPU idle time that ends with a kernel which started at most 20 µs after its launch call returned, without what
    was already counted as felt data wait: the GPU waited for the launching thread."""

    total: int
    share: float  # of the window
    gaps: int
    operators: tuple[NamedTime, ...]  # what the launching thread did meanwhile
    python: tuple[NamedTime, ...]  # innermost Python functions, where stacks were recorded
