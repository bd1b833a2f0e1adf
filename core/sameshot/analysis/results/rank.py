"""One rank: what `map` returns, small enough to travel through a workflow engine."""

from __future__ import annotations

import msgspec

from sameshot.analysis.results.common import NamedTime, ns
from sameshot.analysis.results.communication import CommunicationRow, Group, Stream
from sameshot.analysis.results.device import (
    CopyRow,
    DeviceTimes,
    HostBound,
    IdleRow,
    KernelRow,
    Launches,
    QueueRow,
)
from sameshot.analysis.results.host import DataWait, PartTimes, Pause, Steps, Timeline
from sameshot.model import Identity

RANK_SCHEMA = "sameshot.dev/rank-summary/v1"


class TraceFacts(msgspec.Struct, frozen=True, rename=ns("base_time")):
    """What was in the file, so that nothing is dropped in silence.

    `base_time` is what its times count from, CLOCK_REALTIME of its host in ns; 0: they count from the epoch.
    """

    events: int
    by_category: dict[str, int]
    unknown_categories: dict[str, int]
    oddities: dict[str, int]
    raw_size: int
    raw_sha256: str
    base_time: int = 0


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
