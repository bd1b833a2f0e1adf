"""The hosts' clocks against each other."""

from __future__ import annotations

import msgspec

from sameshot.analysis.results.common import ns


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
