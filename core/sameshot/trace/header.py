"""What a trace says about itself beside its events, and whether that is the expected worker.

Top-level keys, as libkineto writes them (seen with torch 2.13): `PT_PROFILER_JOB_NAME`, `host_name`,
`baseTimeNanoseconds`, `WARNING`; `distributedInfo` only where a collective ran on a device. They may stand before or
after `traceEvents`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sameshot.errors import TraceError
from sameshot.model import BoundBy, InvalidKind

JOB_NAME = "PT_PROFILER_JOB_NAME"
HOST_NAME = "host_name"
BASE_TIME = "baseTimeNanoseconds"
DISTRIBUTED = "distributedInfo"
WARNING = "WARNING"
WANTED = frozenset({JOB_NAME, HOST_NAME, BASE_TIME, DISTRIBUTED, WARNING})

OURS = "sameshot/"
_MAX_WARNINGS = 20
_MAX_TEXT = 1000


_MAX_SIZE = 1 << 20  # bytes of a value that is decoded; libkineto's are far below


class _Distributed(msgspec.Struct, gc=False):
    # It may hold every process group of a large job, of which nothing is needed.
    rank: msgspec.Raw = msgspec.Raw(b"null")
    world_size: msgspec.Raw = msgspec.Raw(b"null")


class Header:
    """Collects the wanted members. A value of a strange type is as good as absent, except for the job name."""

    def __init__(self) -> None:
        self.job_name: str | None = None
        self.host_name: str | None = None
        self.base_time_ns: int | None = None
        self.rank: int | None = None
        self.world_size: int | None = None
        self.warnings: list[str] = []
        self._job_names: list[
            tuple[str, int]
        ] = []  # every one that is stated, and where: a second must not hide a first
        self._ranks: list[tuple[int, int]] = []

    def take(self, key: str, raw: bytes, offset: int) -> None:
        """One top-level member, already proven to be JSON."""
        if key == DISTRIBUTED:
            self._take_distributed(raw, offset)
            return
        value = _decoded(raw, Any) if len(raw) <= _MAX_SIZE else None
        if key == JOB_NAME:
            self.job_name = (value if isinstance(value, str) else raw.decode(errors="replace"))[:_MAX_TEXT]
            self._job_names.append((self.job_name, offset))
        elif key == HOST_NAME and isinstance(value, str):
            self.host_name = value
        elif key == BASE_TIME and type(value) is int and abs(value) < 1 << 62:
            self.base_time_ns = value
        elif key == WARNING:
            self.warnings += [str(text)[:_MAX_TEXT] for text in (value if isinstance(value, list) else [value])]
            del self.warnings[_MAX_WARNINGS:]

    def _take_distributed(self, raw: bytes, offset: int) -> None:
        info = _decoded(raw, _Distributed)
        if info is None:
            return
        self.world_size = _number(info.world_size)
        self.rank = _number(info.rank)
        if self.rank is not None:
            self._ranks.append((self.rank, offset))

    def check_registration(self, registration: str, bound_by: BoundBy) -> None:
        """Raise `TraceError` (identity) where the bytes lack this registration, or (by path) contradict it."""
        expected = OURS + registration
        for name, offset in self._job_names:
            if name != expected and (bound_by is BoundBy.BYTES or name.startswith(OURS)):
                raise TraceError(
                    InvalidKind.IDENTITY,
                    f"the trace was written by {name!r}, expected was {expected!r}",
                    byte_offset=offset,
                )
        if bound_by is BoundBy.BYTES and not self._job_names:
            raise TraceError(InvalidKind.IDENTITY, f"the trace carries no {JOB_NAME}, expected was {expected!r}")

    def check_rank(self, rank: int) -> None:
        """Raise `TraceError` (identity) where the trace states another rank; most traces state none."""
        for stated, offset in self._ranks:
            if stated != rank:
                raise TraceError(
                    InvalidKind.IDENTITY,
                    f"the trace says it is rank {stated}, expected was rank {rank}",
                    byte_offset=offset,
                )


def _decoded(raw: bytes, wanted: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.ValidationError:
        return None


def _number(raw: msgspec.Raw) -> int | None:
    """A rank or world size, written as a number or as digits."""
    text = bytes(raw).strip(b'"')
    return int(text) if text.isdigit() and len(text) < 10 else None
