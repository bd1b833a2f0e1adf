"""All ranks together: what `reduce` makes and `summary.json` holds."""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.results.clocks import Clocks
from sameshot.analysis.results.common import Confidence, NamedTime, Spread, ns
from sameshot.analysis.results.communication import (
    Alignment,
    BandwidthRow,
    CollectiveRow,
    CommunicationRow,
    Group,
    SlowLink,
)
from sameshot.analysis.results.device import (
    CopyRow,
    DeviceTimes,
    HostBound,
    IdleRow,
    KernelRow,
    Launches,
    QueueRow,
)
from sameshot.analysis.results.host import DataWait, PartTimes, Pause, StepMethod, Timeline
from sameshot.analysis.results.late import Lateness, Moment, Straggler
from sameshot.analysis.results.rank import TraceFacts


class Imbalance(msgspec.Struct, frozen=True, rename=ns("median", "maximum")):
    """One measure across ranks: `excess` = (maximum - median) / median."""

    measure: str
    ranks: int
    median: int
    maximum: int
    excess: float | None
    label: str  # the rank with the maximum


SUMMARY_SCHEMA = "sameshot.dev/summary/v1"


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


NOT_ANALYSED = "NOT_ANALYSED"
"""The reason of a rank that has a verified trace and no summary."""


class MissingRank(msgspec.Struct, frozen=True):
    """A rank of the job without a verified trace, or (`NOT_ANALYSED`) without an analysis of it, and why."""

    rank: int | None
    target_id: str
    where: str
    reason: str
    detail: str


class FindingKind(enum.StrEnum):
    """What a finding speaks of."""

    MISSING_RANKS = "missing_ranks"
    LATE_RANK = "late_rank"
    LATENESS = "lateness"  # nobody is late, or who is can't be said
    DATA_WAIT = "data_wait"
    HOST_BOUND = "host_bound"
    COMMUNICATION = "communication"
    SLOW_LINK = "slow_link"
    STEP_TIME = "step_time"
    MAIN_THREADS = "main_threads"
    GPUS = "gpus"


class Finding(msgspec.Struct, frozen=True):
    """One thing that a person should know."""

    kind: FindingKind
    sentence: str
    about: str | None = None  # the label of a rank, or the key of a group; None: the whole job


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
    findings: tuple[Finding, ...]  # most important first
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

    @property
    def lacks(self) -> str:
        """What the missing ranks do not have, for `2 ranks have …`."""
        unread = sum(m.reason == NOT_ANALYSED for m in self.missing)
        if not unread:
            return "no verified trace"
        return "not been analysed" if unread == len(self.missing) else "no verified trace, or were not analysed"
