"""The results of analysis as values: what `map` returns for one rank and what `reduce` makes of all.

`RankSummary` is small enough to travel through a workflow engine; `Summary` is what `summary.json` holds. Both carry a
schema name whose number changes only when a field changes its meaning; docs/summary.md lists the fields. Durations are
integer nanoseconds. Points in time are nanoseconds after the start of the rank's own window; only
`window_start_ns`/`window_end_ns` are CLOCK_REALTIME of that rank's host. In JSON every such number ends in `_ns`.
"""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.measures import (
    BandwidthRow,
    Clocks,
    CommunicationRow,
    Confidence,
    CopyRow,
    DataWait,
    DeviceParts,
    DeviceTimes,
    Group,
    HostBound,
    IdleRow,
    Imbalance,
    KernelRow,
    Launches,
    Moment,
    NamedTime,
    Pause,
    QueueRow,
    SlowLink,
    Spread,
    Straggler,
    ns,
)
from sameshot.model import Identity

RANK_SCHEMA = "sameshot.dev/rank-summary/v1"
SUMMARY_SCHEMA = "sameshot.dev/summary/v1"


class Part(enum.StrEnum):
    """Where the main thread's time went. Each moment of the window belongs to exactly one part."""

    OPERATORS = "operators"
    COMMUNICATION = "communication"  # issuing collectives, or a gloo collective runs and the thread records nothing
    DATA_WAIT = "data_wait"  # inside the DataLoader's __next__
    RUNTIME = "runtime"  # CUDA calls outside any operator, such as a device synchronisation
    BACKWARD_THREAD = "backward_thread"  # waiting while autograd's own thread runs operators
    UNTRACED = "untraced"  # no event: Python, sleep, or blocked


class PartTimes(
    msgspec.Struct,
    frozen=True,
    rename=ns("operators", "communication", "data_wait", "runtime", "backward_thread", "untraced"),
):
    """Time per part, in ns. The sum is the length of the window (or of the step)."""

    operators: int = 0
    communication: int = 0
    data_wait: int = 0
    runtime: int = 0
    backward_thread: int = 0
    untraced: int = 0

    @property
    def total(self) -> int:
        return sum(self.get(part) for part in Part)

    def get(self, part: Part) -> int:
        value: int = getattr(self, part.value)
        return value


class StepMethod(enum.StrEnum):
    PROFILER_STEP = "profiler_step"
    OPTIMIZER = "optimizer"
    REPEATING = "repeating"  # nothing marks steps: the main thread's calls repeat
    UNKNOWN = "unknown"


class Steps(msgspec.Struct, frozen=True, rename=ns("edges")):
    """Training steps inside the window. `edges` has one moment more than there are whole steps."""

    method: StepMethod
    confidence: Confidence
    note: str
    edges: tuple[int, ...] = ()
    parts: tuple[PartTimes, ...] = ()  # the main thread in each step
    device: tuple[DeviceParts, ...] = ()  # the devices in each step; empty without any

    @property
    def count(self) -> int:
        return max(len(self.edges) - 1, 0)


class Stream(msgspec.Struct, frozen=True, rename=ns("start", "dur", "exposed", "compute", "other", "data")):
    """The collectives of one rank on one process group (or GPU stream, or all gloo threads), in order of start.

    Parallel columns: `signature` indexes `signatures` (kind, size and type as far as the trace says). `left_out` counts
    those in flight when recording stopped: their durations are not real.

    On a device, `exposed` is how much of the collective no kernel or copy ran beside; `compute`, `other` and `data` say
    how the time from the start of the previous collective of this stream (the first: of the window) to the start of
    this one was spent: kernels or copies ran; only communication of other groups ran; the device was idle and the main
    thread waited for data. What is left of that time, without what was exposed of the previous one, the device waited
    for the host.
    """

    key: str
    source: str  # "gloo" or "nccl"
    signatures: tuple[str, ...]
    signature: tuple[int, ...]
    start: tuple[int, ...]
    dur: tuple[int, ...]
    seq: tuple[int, ...] | None = None
    left_out: int = 0
    exposed: tuple[int, ...] = ()
    compute: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    event: tuple[int, ...] = ()  # index in traceEvents


class Timeline(msgspec.Struct, frozen=True):
    """A thread or the device at the resolution of a screen: runs of (what filled most of it, number of buckets)."""

    buckets: int  # how many the window was cut into
    runs: tuple[tuple[str, int], ...]


class TraceFacts(msgspec.Struct, frozen=True):
    """What was in the file, so that nothing is dropped in silence."""

    events: int
    by_category: dict[str, int]
    unknown_categories: dict[str, int]
    oddities: dict[str, int]
    raw_size: int
    raw_sha256: str


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the job-wide analysis needs to know about one verified trace."""

    schema: str = RANK_SCHEMA
    target_id: str
    identity: Identity
    window_start_ns: int
    window_end_ns: int
    trace: TraceFacts
    main_thread: str | None
    parts: PartTimes
    device: DeviceTimes | None
    operators: tuple[NamedTime, ...]
    kernels: tuple[NamedTime, ...]
    untraced_python: tuple[NamedTime, ...]  # what Python was doing where no operator ran; needs recorded stacks
    steps: Steps
    streams: tuple[Stream, ...]
    timeline: Timeline | None
    idle: tuple[IdleRow, ...] = ()
    kernel_rows: tuple[KernelRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    launches: Launches | None = None
    queues: tuple[QueueRow, ...] = ()
    host_bound: HostBound | None = None
    data_wait: DataWait | None = None
    pauses: tuple[Pause, ...] = ()
    groups: tuple[Group, ...] = ()
    communication: tuple[CommunicationRow, ...] = ()
    device_timeline: Timeline | None = None

    @property
    def label(self) -> str:
        return self.target_id if self.identity.rank is None else f"rank {self.identity.rank}"

    @property
    def window(self) -> int:
        return self.window_end_ns - self.window_start_ns


class CaptureInfo(msgspec.Struct, frozen=True, rename=ns("asked_window")):
    """Where the traces came from; copied from the manifest."""

    capture_id: str
    manifest: str
    manifest_sha256: str
    provenance: str
    namespace: str
    job: str
    job_uid: str
    attempt: int
    series: str | None
    outcome: str
    world_size: int | None
    asked_window: int | None  # ns
    frozen_at: str | None


class MissingRank(msgspec.Struct, frozen=True):
    """A rank of the job without a verified trace, and why."""

    rank: int | None
    target_id: str
    where: str
    reason: str
    detail: str


class RankRow(msgspec.Struct, frozen=True, rename=ns("window", "starts_after", "waited", "lateness_per_step")):
    """One rank in the report."""

    label: str
    rank: int | None
    target_id: str
    node: str | None
    pod: str | None
    window: int
    window_start_at: str  # RFC 3339, by the clock of its host
    starts_after: int  # ns after the first window of the job began, by the hosts' clocks
    late_start: bool
    main_thread: str | None
    parts: PartTimes
    device: DeviceTimes | None
    step_count: int
    step_method: StepMethod
    step_confidence: Confidence
    step_note: str
    step_time: Spread | None
    step_parts: PartTimes | None  # median of each part per step: these need not add up
    collectives: int
    waited: int | None  # total wait for later ranks at matched collectives; None: nothing could be matched
    last_arrivals: int | None
    lateness_per_step: int | None  # median; how much later than the typical rank it came to the collectives of a step
    operators: tuple[NamedTime, ...]
    kernels: tuple[NamedTime, ...]
    untraced_python: tuple[NamedTime, ...]
    timeline: Timeline | None
    trace: TraceFacts
    idle: tuple[IdleRow, ...] = ()
    kernel_rows: tuple[KernelRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    launches: Launches | None = None
    queues: tuple[QueueRow, ...] = ()
    host_bound: HostBound | None = None
    data_wait: DataWait | None = None
    pauses: tuple[Pause, ...] = ()
    communication: tuple[CommunicationRow, ...] = ()
    device_timeline: Timeline | None = None
    step_edges: tuple[int, ...] = msgspec.field(name="step_edges_ns", default=())


class CollectiveRow(
    msgspec.Struct, frozen=True, rename=ns("wait", "transfer", "mean_wait", "mean_transfer", "longest_wait")
):
    """One kind of collective of one group over all ranks that could be matched. Waits are summed over ranks."""

    stream: str
    kind: str
    signature: str
    ranks: int
    matched: int
    unmatched: int  # recorded on some ranks but not on all
    wait: int | None  # sum of (duration - shortest duration); None where durations alone prove no wait
    transfer: int | None  # sum over the matched ones of the shortest duration
    mean_wait: int | None  # per collective and rank
    mean_transfer: int | None
    longest_wait: int | None
    last_arriver: str | None  # the rank that came last most often
    last_arriver_share: float | None


class Alignment(msgspec.Struct, frozen=True, rename=ns("residual", "clock_offset")):
    """How the collectives of two ranks were matched."""

    stream: str
    label: str
    reference: str
    method: str  # "sequence", "intervals", "measured-clock", "wall-clock" or "none"
    lag: int | None  # k-th collective of the reference is mostly the (k + lag)-th here
    residual: int | None  # median difference of the times between collective ends
    clock_offset: int | None  # median (end here - end there) by the hosts' clocks; information only
    matched: int
    note: str


class Verdict(enum.StrEnum):
    LATE = "late"  # one rank, or a few, make the others wait in step after step
    NONE = "none"  # enough evidence, and nobody stands out
    UNKNOWN = "unknown"  # not enough evidence to say


class Cause(enum.StrEnum):
    """What a late rank did in the time that its peers had left over."""

    # CPU jobs, by the main thread:
    OPERATORS = "operators"
    UNTRACED = "untraced"
    # GPU jobs, by what the device did since the previous synchronisation:
    COMPUTE = "compute"  # kernels or copies ran for longer
    HOST = "host"  # the device was idle: the launching thread was late
    OTHER_GROUP = "other_group"  # it waited in the communication of another group
    INHERITED = "inherited"  # it was late already when the window began
    # both:
    DATA_WAIT = "data_wait"
    UNKNOWN = "unknown"


class Lost(msgspec.Struct, frozen=True, rename=ns("compute", "host", "data_wait", "other_group")):
    """What a late rank's device did for longer than those of its punctual peers, in ns per step. Beside these its peers
    waited: that makes up the difference."""

    compute: int
    host: int
    data_wait: int
    other_group: int


class LateRank(msgspec.Struct, frozen=True, rename=ns("lateness_per_step", "waiting", "waits")):
    """A rank that holds the others up."""

    label: str
    rank: int | None
    node: str | None
    lateness_per_step: int  # median over steps
    share_of_step: float
    late_in_share: float  # of the steps it was the latest, or among the late ones
    cause: Cause
    excess: PartTimes | None  # its main thread per step against the median of the other ranks
    python: str | None  # the Python function where it was, if stacks were recorded
    confidence: Confidence
    sentence: str
    lost: Lost | None = None  # GPU jobs
    victims: int | None = None  # ranks that waited for it, in any group
    waiting: int | None = None  # what they waited at the matched collectives, summed
    collective: str | None = None  # where most of that was: kind and group
    collectives: int | None = None  # on how many this rests; 1: a single moment
    waits: dict[str, int] = msgspec.field(default_factory=dict)  # label → how long that rank waited for it in all


class Lateness(msgspec.Struct, frozen=True, rename=ns("step_time", "threshold")):
    """Which rank is late. `reason` says why the verdict is what it is; the thresholds used stand beside it."""

    verdict: Verdict
    reason: str
    ranks: tuple[LateRank, ...]
    rests_on_ranks: int
    rests_on_steps: int
    rests_on_collectives: int
    step_time: int | None
    threshold: int | None  # ns of lateness per step that a rank must surely exceed to be named
    method: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename=ns("common_window")):
    """The whole answer: what `summary.json` holds and `report.html` shows."""

    schema: str = SUMMARY_SCHEMA
    generator: str
    generated_at: str
    capture: CaptureInfo
    expected_ranks: int
    analysed_ranks: int
    missing: tuple[MissingRank, ...]
    warnings: tuple[str, ...]
    findings: tuple[str, ...]
    common_window: int | None
    cross_rank: bool  # False: the windows share no time, so nothing was compared between ranks
    late: Lateness
    step_time: Spread | None  # over all steps of all ranks
    step_ranks: int
    parts: PartTimes  # sum over ranks
    device: DeviceTimes | None
    device_ranks: int
    ranks: tuple[RankRow, ...]
    operators: tuple[NamedTime, ...]  # summed over ranks
    kernels: tuple[NamedTime, ...]
    collectives: tuple[CollectiveRow, ...]
    alignments: tuple[Alignment, ...]
    notes: tuple[str, ...]
    clocks: Clocks | None = None
    stragglers: tuple[Straggler, ...] = ()
    waiting: int | None = msgspec.field(
        name="waiting_ns", default=None
    )  # all waiting at matched collectives, summed over ranks
    # Of that, nothing else ran beside it.
    waiting_exposed: int | None = msgspec.field(name="waiting_exposed_ns", default=None)
    bandwidth: tuple[BandwidthRow, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()
    imbalance: tuple[Imbalance, ...] = ()
    groups: tuple[Group, ...] = ()
    moments: tuple[Moment, ...] = ()

    @property
    def missing_ranks(self) -> tuple[str, ...]:
        """Names of the ranks without a trace; not empty means that the answer is partial."""
        return tuple(m.target_id if m.rank is None else f"rank {m.rank}" for m in self.missing)
