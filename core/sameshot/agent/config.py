"""What an agent is told at its start. Every value can be chosen; none of them is read from anywhere else."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sameshot.agent.callers import Callers, ThisMachine
from sameshot.agent.discovery import WorkerDirs
from sameshot.agent.spoolttl import TTL_S
from sameshot.api.transport import ServerTls
from sameshot.model import Encoding
from sameshot.profiler.daemon import BackendName


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`spool` must be on the same mount as the worker directories: finished traces are renamed into it.

    `listen` is `unix:/path` or a loopback `host:port` (port 0: any), with `tls` any `host:port`; the address in force
    is written atomically to `address_file` once the agent serves. Times are seconds.
    """

    node: str
    worker_dirs: WorkerDirs
    spool: Path
    archive: str  # URL of the archive's root, as `sameshot.storage` understands it
    listen: str = "127.0.0.1:0"
    address_file: Path | None = None
    tls: ServerTls | None = None  # waited for until it is there
    callers: Callers = msgspec.field(default_factory=ThisMachine)
    metrics: str | None = None  # host:port for Prometheus and for probes; None: neither
    backend: BackendName = BackendName.BROKER
    dynolog: str = "127.0.0.1:1778"  # where the stock daemon listens; used by that back end only
    encoding: Encoding = Encoding.GZIP
    columns: bool = True  # the events of each trace as Parquet, too, so that analysis need not parse it again
    announce_period_s: float = 0.2
    poll_interval_s: float = 1.0  # how often workers ask their daemon, as the hook configured Kineto
    retry_s: float = 0.5  # how often a target that is NOT_MATCHED or BUSY is asked for again
    verify_workers: int = 1  # processes that read traces; this is a training node
    uploads: int = 2  # files on their way to the archive at once
    niceness: int = 10  # of the verifying processes
    keep_free_bytes: int = 512 << 20  # room that a capture must leave on the node
    spool_ttl_s: float = TTL_S  # then what could not be archived leaves the spool
    # The agent gives a delivery up after this share of the coordinator's allowance, so that its own, better
    # informed answer (what failed, where the bytes are) comes first.
    allowance_share: float = 0.9
    # How long after the announce deadline the agent still looks, for coordinators whose clock is behind.
    late_look_s: float = 30.0
