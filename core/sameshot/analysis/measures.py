"""What `map` measures on one rank and `reduce` across ranks: plain values, the parts of `RankSummary` and `Summary`.

Durations are integer ns, and in JSON every such field ends in `_ns`. Shares are 0 to 1. None means unknown or not
applicable, never zero. GB are 10^9 bytes. `event` is an index into the trace's traceEvents: the evidence.
"""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.names import Collective


def ns(*fields: str) -> dict[str, str]:
    """How times are called in JSON: there the unit stands in the name, as in the manifest."""
    return {field: f"{field}_ns" for field in fields}


class Confidence(enum.StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"  # not known at all


class Spread(msgspec.Struct, frozen=True, rename=ns("median", "p10", "p90", "minimum", "maximum")):
    """A distribution in ns; None where there was nothing to measure."""

    count: int
    median: int
    p10: int
    p90: int
    minimum: int
    maximum: int


class NamedTime(msgspec.Struct, frozen=True, rename=ns("total", "self_time")):
    """One name with its count, whole duration and self time (without its children), in ns."""

    name: str
    count: int
    total: int
    self_time: int


# ---- one rank, device


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


# ---- one rank, host


class DataWait(msgspec.Struct, frozen=True, rename=ns("raw", "felt", "hidden", "copies")):
    """Waiting for the next batch on the main thread. `felt` lasts until the GPU works again, so it may exceed `raw`."""

    method: str  # "dataloader", "annotation" or "inferred"
    fetches: int
    raw: int  # time inside the fetch
    felt: int | None  # of it, the GPU really felt; None without a GPU
    hidden: int | None  # raw - felt, never below 0
    copies: int  # host-to-device copies that blocked: synchronous, pageable or on the critical stream
    share: float  # of the window: felt, or raw without a GPU
    felt_per_step: Spread | None
    raw_per_step: Spread | None
    bound: bool | None  # does data wait determine the step time? None: can't be said
    sentence: str


class Pause(msgspec.Struct, frozen=True, rename=ns("total", "longest")):
    """Visible pauses of the main thread: garbage collection, locks."""

    kind: str  # "gc" or "lock"
    count: int
    total: int
    longest: int
    longest_event: int


# ---- communication


class Group(msgspec.Struct, frozen=True):
    """A process group as recorded; `ranks` may be cut short by Kineto. `key` identifies it within a capture."""

    key: str
    name: str | None
    ranks: str | None
    description: str | None
    size: int | None


class CommunicationRow(msgspec.Struct, frozen=True, rename=ns("total", "exposed")):
    """Communication of one rank by group, kind and size. `exposed`: nothing else ran on the device (or, for gloo, on
    the main thread)."""

    source: str  # "nccl" or "gloo"
    group: str  # Group.key
    kind: Collective
    bytes: int | None  # per call, S of the definitions; None: the trace does not say
    dtype: str | None
    count: int
    total: int
    exposed: int
    duration: Spread | None


class BandwidthRow(msgspec.Struct, frozen=True, rename=ns("transfer")):
    """One kind and size of collective across ranks: `transfer` is the last arriver's duration (median over calls)."""

    group: str
    kind: Collective
    bytes: int
    ranks: int
    placement: str  # "one node" or "N nodes"
    calls: int
    transfer: int
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    relative: float | None  # busbw against the median of the same kind, size, n and placement; None: nothing alike


class SlowLink(msgspec.Struct, frozen=True):
    """A group whose bus bandwidth is far below that of comparable ones."""

    group: str
    labels: tuple[str, ...]  # its ranks
    nodes: tuple[str, ...]
    kind: Collective
    bytes: int
    busbw_gb_per_s: float
    usual_gb_per_s: float
    sentence: str


# ---- across ranks


class HostClock(
    msgspec.Struct, frozen=True, rename={**ns("offset", "residual", "expected_error", "at"), "drift": "drift_ns_per_s"}
):
    """The clock of one host against the reference host. What must be added to its times to get the reference's:

    offset + drift × (time - at), with the drift in ns per second; see `clocks.to_reference`."""

    host: str
    component: int  # hosts of one component are comparable; 0 holds the reference
    offset: int | None  # None: unaligned, never 0
    drift: float | None  # None: not significant, or not enough points
    residual: int | None  # median absolute residual of its synchronisation points
    expected_error: int | None
    points: int
    note: str
    at: int | None = None  # CLOCK_REALTIME of this host at which `offset` holds exactly


class Clocks(msgspec.Struct, frozen=True):
    reference: str | None
    hosts: tuple[HostClock, ...]
    note: str


class Straggler(msgspec.Struct, frozen=True, rename=ns("caused", "causes", "relayed")):
    """How often one rank came last, and what waiting for it cost all others.

    A rank that came last because it had waited for another one in another group is no cause: what the others waited for
    it is `relayed`, and counts as caused by the one that it had waited for.
    """

    label: str
    node: str | None
    last: int  # matched symmetric collectives at which it came last by more than noise
    of: int
    caused: int  # summed waiting of all others, in ns of GPU (or main thread) time
    share: float  # of all waiting
    cause: str = "unknown"  # a `Cause`: what most of it is due to
    causes: dict[str, int] = msgspec.field(default_factory=dict)  # `Cause` → ns of `caused`
    relayed: int = 0


class Moment(msgspec.Struct, frozen=True, rename=ns("start", "transfer", "waiting", "victim_start", "victim_wait")):
    """One collective for which much was waited: the events that prove who came last. Times of an event count from the
    start of its own rank's window; `*_event` are indices into that rank's traceEvents, None where not known."""

    group: str
    kind: str
    ranks: int
    last: str  # label of the rank that came last
    cause: str  # a `Cause`
    start: int
    event: int | None
    transfer: int  # the duration on the rank that came last
    waiting: int  # of all others, summed
    victim: str  # the rank that waited longest
    victim_start: int
    victim_event: int | None
    victim_wait: int


class Imbalance(msgspec.Struct, frozen=True, rename=ns("median", "maximum")):
    """One measure across ranks: `excess` = (maximum - median) / median."""

    measure: str
    ranks: int
    median: int
    maximum: int
    excess: float | None
    label: str  # the rank with the maximum
