"""Who makes the others wait, and why."""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.results.common import Confidence, ns
from sameshot.analysis.results.host import PartTimes


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


class Straggler(msgspec.Struct, frozen=True, rename=ns("caused", "causes", "relayed", "perhaps")):
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
    perhaps: int = 0  # as `caused`, where a rank of the group was not compared, which may have come later still


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
    transfer: int | None  # the duration on the rank that came last; None: not all ranks of the group were compared
    waiting: int  # of all others, summed
    victim: str  # the rank that waited longest
    victim_start: int
    victim_event: int | None
    victim_wait: int
