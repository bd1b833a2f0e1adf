"""The results of analysis as values: what `map` returns for one rank and what `reduce` makes of all.

Everything that is measured, whoever measures it, is a frozen value of this package, so that maps travel, files are
written and pages are drawn from the same thing. `RankSummary` is one rank, `Summary` is what `summary.json` holds. Both
carry a schema name whose number changes only when a field changes its meaning; docs/summary.md lists the fields.

Durations are integer ns, and in JSON every such field ends in `_ns`. Points in time are ns after the start of the
rank's own window; only `window_start_ns`/`window_end_ns` are CLOCK_REALTIME of that rank's host. Shares are 0 to 1.
None means unknown or not applicable, never zero. GB are 10^9 bytes. `event` is an index into the trace's traceEvents:
the evidence.
"""

from __future__ import annotations

from sameshot.analysis.results.clocks import Clocks, HostClock
from sameshot.analysis.results.common import Confidence, NamedTime, Spread
from sameshot.analysis.results.communication import (
    Alignment,
    BandwidthRow,
    CollectiveRow,
    CommunicationRow,
    Group,
    SlowLink,
    Stream,
)
from sameshot.analysis.results.device import (
    CopyRow,
    DeviceParts,
    DeviceTimes,
    HostBound,
    IdleRow,
    KernelRow,
    Launches,
    QueueRow,
)
from sameshot.analysis.results.host import DataWait, Part, PartTimes, Pause, StepMethod, Steps, Timeline
from sameshot.analysis.results.job import (
    NOT_ANALYSED,
    SUMMARY_SCHEMA,
    CaptureInfo,
    Finding,
    FindingKind,
    Imbalance,
    MissingRank,
    RankRow,
    Summary,
)
from sameshot.analysis.results.late import Cause, Lateness, LateRank, Lost, Moment, Straggler, Verdict
from sameshot.analysis.results.rank import RANK_SCHEMA, RankSummary, TraceFacts

__all__ = [
    "NOT_ANALYSED",
    "RANK_SCHEMA",
    "SUMMARY_SCHEMA",
    "Alignment",
    "BandwidthRow",
    "CaptureInfo",
    "Cause",
    "Clocks",
    "CollectiveRow",
    "CommunicationRow",
    "Confidence",
    "CopyRow",
    "DataWait",
    "DeviceParts",
    "DeviceTimes",
    "Finding",
    "FindingKind",
    "Group",
    "HostBound",
    "HostClock",
    "IdleRow",
    "Imbalance",
    "KernelRow",
    "LateRank",
    "Lateness",
    "Launches",
    "Lost",
    "MissingRank",
    "Moment",
    "NamedTime",
    "Part",
    "PartTimes",
    "Pause",
    "QueueRow",
    "RankRow",
    "RankSummary",
    "SlowLink",
    "Spread",
    "StepMethod",
    "Steps",
    "Straggler",
    "Stream",
    "Summary",
    "Timeline",
    "TraceFacts",
    "Verdict",
]
