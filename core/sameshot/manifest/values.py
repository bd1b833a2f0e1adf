"""What a manifest says. Pure values; `rules` and `wire` give them their meaning and their form."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from sameshot.errors import ManifestError
from sameshot.model import Artifact, CaptureSpec, Failure, Identity, JobRef, Outcome

SCHEMA = "sameshot.dev/manifest/v1"


class Provenance(enum.StrEnum):
    CAPTURED = "captured"  # by sameshot, from a running job
    IMPORTED = "imported"  # a manifest made over files that came from elsewhere


class Job(msgspec.Struct, frozen=True):
    """The captured job attempt, and the series in which its captures are comparable."""

    namespace: str
    name: str
    uid: str
    attempt: int
    series: str | None = None

    @classmethod
    def of(cls, ref: JobRef, series: str | None = None) -> Job:
        return cls(ref.namespace, ref.name, ref.uid, ref.attempt, series)

    @property
    def ref(self) -> JobRef:
        return JobRef(self.namespace, self.name, self.uid, self.attempt)


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for and how it ended. `start_at_ns` is CLOCK_REALTIME; `common_window_ns` is the time that all
    archived traces cover, negative where they don't overlap; `*_at` are RFC 3339 in UTC (see `timestamp`)."""

    capture_id: str
    request_key: str | None = None
    caller: str
    n: int
    provenance: Provenance = Provenance.CAPTURED
    job: Job
    world_size: int | None
    backend: str
    generation: str | None = None
    spec: CaptureSpec | None  # None: imported, nobody knows what was asked for
    start_at_ns: int | None = None
    common_window_ns: int | None = None
    frozen_at: str | None = None
    converged_at: str
    outcome: Outcome


class Target(msgspec.Struct, frozen=True):
    """One frozen target: exactly one of `artifact` and `failure` is there."""

    target_id: str
    identity: Identity
    artifact: Artifact | None = None
    failure: Failure | None = None


class Totals(msgspec.Struct, frozen=True):
    """`missing_ranks` are the ranks of the world (where its size is unknown: of the targets) without an artifact."""

    expected: int
    archived: int
    failed: int
    missing_ranks: tuple[int, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    """A whole, consistent manifest; made by `build` or `decode` only.

    `extra` mirrors the wire object and holds only fields unknown to this version; its `targets` are keyed by target_id.
    """

    capture: Capture
    targets: tuple[Target, ...]
    totals: Totals
    sha256: str
    schema: str = SCHEMA
    extra: Mapping[str, Any] = {}


def timestamp(ns: int) -> str:
    """CLOCK_REALTIME nanoseconds as RFC 3339 in UTC, to the microsecond, as `frozen_at` and `converged_at` want it."""
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=ns // 1000)
    return moment.isoformat(timespec="microseconds") + "Z"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def refuse(problem: str) -> NoReturn:
    raise ManifestError(f"The manifest is refused: {problem}.")
