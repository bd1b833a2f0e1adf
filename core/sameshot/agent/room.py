"""Room first: a capture that might fill the node's disk is refused before anything is sent (NO_ROOM).

A pod that fills its ephemeral storage is evicted, and with it the training. So before a dispatch the agent compares
what the window may write with what is free, counting the windows of other captures that have not been written yet.

A trace is on the node's disk up to three times until it is archived: as its worker wrote it, as the archive stores it,
and as columns. All three are counted; for the latter two, which nobody knows before, shares of the window's own bytes
that lie well above what real traces took. The spool is no pod's: a pod's own limit counts what its worker writes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from sameshot.agent import safefs
from sameshot.agent.capturebook import CaptureRecord
from sameshot.model import CaptureSpec, Encoding, JobRef

log = logging.getLogger(__name__)

# Largest seen: 14–300 MB of JSON per second of window and GPU (measured on real jobs).
DEFAULT_BYTES_PER_MS = 300_000.0
# Of 10 to 35 MB of JSON from real GPUs, gzip left 3 to 8 % and columns 0.6 to 2.4 % (measured). What is packed already,
# which Kineto does not do, is stored as it is and so counted too low.
_STORED_SHARE = {Encoding.GZIP: 1 / 8, Encoding.IDENTITY: 1.0}
_COLUMNS_SHARE = 1 / 16
# A file that is larger than this many times what its window could be expected to write is not taken from a pod: in the
# spool it would no longer count for the pod that wrote it.
BEYOND_REASON = 4
REASONABLE_BYTES = 1 << 30  # is never too much
MAX_RATES = 1_000  # kinds of captures of all jobs that this node remembers


class Rate(msgspec.Struct, frozen=True):
    capture_id: str
    bytes_per_ms: float


class Rates:
    """How much one rank of a job really wrote per millisecond of window, the last time it was asked the same way."""

    def __init__(self, spool: Path) -> None:
        self._path = spool / "rates.json"
        self._rates: dict[str, Rate] = {}
        self._lock = threading.Lock()

    def load(self) -> None:
        try:
            self._rates = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Rate])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("rates unreadable path=%s why=%r; defaults are used", self._path, str(error))

    def bytes_per_ms(self, job: JobRef, spec: CaptureSpec) -> float:
        known = self._rates.get(_key(job, spec))
        return DEFAULT_BYTES_PER_MS if known is None else known.bytes_per_ms

    def most_bytes(self, job: JobRef, spec: CaptureSpec) -> int:
        """More than any trace of such a window may have."""
        rate = max(DEFAULT_BYTES_PER_MS, self.bytes_per_ms(job, spec))
        return max(REASONABLE_BYTES, int(BEYOND_REASON * rate * spec.duration_ms))

    def learn(self, record: CaptureRecord, size: int) -> None:
        """Remember the largest rank of the last capture. Losing this file costs nothing but precision."""
        key = _key(record.job, record.spec)
        seen = Rate(record.capture_id, size / record.spec.duration_ms)
        with self._lock:
            known = self._rates.get(key)
            if known and known.capture_id == record.capture_id and known.bytes_per_ms >= seen.bytes_per_ms:
                return
            self._rates.pop(key, None)
            self._rates[key] = seen
            while len(self._rates) > MAX_RATES:
                del self._rates[next(iter(self._rates))]  # the one that was learnt the longest time ago
            try:
                safefs.write_atomically(self._path, msgspec.json.encode(self._rates), durable=False)
            except OSError as error:
                log.warning("rates not written path=%s why=%r", self._path, str(error))


class Demand(msgspec.Struct, frozen=True):
    """What one window of one target may write below `path`, and what its owner may still store there.

    `prepared` is what the agent adds on the same file system: the stored form and the columns, in bytes.
    """

    target_id: str
    path: Path
    size: int
    prepared: int = 0
    limit_bytes: int | None = None


def prepared_share(encoding: Encoding, *, columns: bool) -> float:
    """Bytes that the spool holds beside each byte of a trace until it is archived: an estimate on the safe side."""
    return _STORED_SHARE[encoding] + (_COLUMNS_SHARE if columns else 0.0)


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def refused(
    demands: Iterable[Demand],
    outstanding: Iterable[Demand],
    *,
    keep_free: int,
    free: Callable[[Path], int] = free_bytes,
) -> dict[str, str]:
    """target_id → why its window might not fit. All targets of one file system are judged together."""
    demands, waiting = list(demands), list(outstanding)
    problems: dict[str, str] = {}
    for path in {demand.path for demand in demands}:
        mine = [demand for demand in demands if demand.path == path]
        limit = min((each.limit_bytes for each in mine if each.limit_bytes is not None), default=None)
        needed = sum(each.size for each in mine)
        promised = sum(each.size for each in waiting if each.path == path)
        if limit is not None and needed + promised > limit:
            why = (
                f"{len(mine)} windows may write {_mb(needed)}, other captures {_mb(promised)}, and their pod may still "
                f"store {_mb(limit)}"
            )
            problems.update({each.target_id: why for each in mine})
    for device in {_device(demand.path) for demand in demands}:
        mine = [demand for demand in demands if _device(demand.path) == device]
        needed = sum(each.size for each in mine)
        prepared = sum(each.prepared for each in mine)
        promised = sum(each.size + each.prepared for each in waiting if _device(each.path) == device)
        available = free(mine[0].path)
        if needed + prepared + promised + keep_free > available:
            why = (
                f"{len(mine)} windows may write {_mb(needed)}, what the archive gets of them (stored form, columns) "
                f"may take {_mb(prepared)}, other captures {_mb(promised)}, and {_mb(keep_free)} must stay free, but "
                f"the file system of {mine[0].path} has {_mb(available)}"
            )
            problems.update({each.target_id: why for each in mine})
    return problems


def _device(path: Path) -> int:
    try:
        return path.stat().st_dev
    except OSError:
        return -1


def _key(job: JobRef, spec: CaptureSpec) -> str:
    kind = msgspec.structs.replace(spec, duration_ms=1, start_delay_ms=None, warmup_ms=0)
    return f"{job.namespace}/{job.name} {kind.digest}"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
