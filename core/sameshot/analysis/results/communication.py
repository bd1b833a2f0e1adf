"""Communication: of one rank by group and size, and matched across ranks."""

from __future__ import annotations

import msgspec

from sameshot.analysis.names import Collective
from sameshot.analysis.results.common import Spread, ns


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
    transfer: int | None  # sum over the matched ones of the shortest duration; None also where a rank was not compared
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
