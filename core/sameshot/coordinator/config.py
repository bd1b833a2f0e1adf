"""What a coordinator is told at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sameshot.api.transport import ServerTls
from sameshot.model import CapturePolicy, JobRef
from sameshot.profiler.daemon import BackendName

Policy = Callable[[], CapturePolicy]
"""The policy in force; asked whenever a capture is to begin."""


class Timings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All in seconds. The defaults suit real jobs; tests shorten some."""

    freeze_s: float = 2.0  # how long the set stays open for nodes that have not answered
    call_s: float = 4.0  # one call to one agent; a training node may be busy
    lookup_s: float = 1.0  # asking agents whether they have accepted an id before
    poll_s: float = 0.25  # between two looks at one agent's facts
    polls_per_s: float = 400.0  # of all agents together: a large job is looked at less often
    announce_s: float = 30.0  # after the planned end of the window: later than this a file is MISSING
    announce_per_window: float = 2.0  # and this much longer per second of window: larger traces take longer to write
    agent_first_s: float = 1.0  # the agent's own, better informed verdict gets this head start over ours
    start_margin_s: float = 2.0  # the offered start: poll interval + warm-up + this
    default_poll_interval_s: float = 1.0  # of workers, where no agent has stated it yet
    listing_s: float = 5.0  # between two looks at who is registered, while no capture asks anyway
    publish_call_s: float = 10.0
    publish_stagger_s: float = 2.0  # then the next agent is offered the manifest too
    publish_within_s: float = 10.0  # then the capture ends without a published manifest, and we go on trying
    publish_retry_s: float = 5.0
    watch_s: float = 0.5  # at most one update to a watcher in this time


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One coordinator serves one job attempt.

    `agents` are addresses (`unix:/path` or `host:port`); `agents_file` names more, one a line, and may grow. `archive`
    is only read here. `listen` is `unix:/path` or a loopback `host:port` (port 0: any), with `tls` any `host:port`; the
    address in force is written atomically to `address_file` once the coordinator serves.
    """

    job: JobRef
    archive: str
    series: str = ""
    agents: tuple[str, ...] = ()
    agents_file: Path | None = None
    backend: BackendName = BackendName.BROKER
    policy: CapturePolicy = CapturePolicy()
    listen: str = "127.0.0.1:0"
    address_file: Path | None = None
    tls: ServerTls | None = None
    timings: Timings = Timings()
