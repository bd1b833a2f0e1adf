"""Builders of manifests and of whole captures on disk, for tests about what is done with them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from sameshot.manifest import Capture, Job, Manifest, Target, build, encode
from sameshot.model import (
    Artifact,
    CaptureSpec,
    Columns,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    Outcome,
    RawBytes,
    TargetState,
)

SHA = "ab" * 32
START_NS = 1_790_000_000_000_000_123


def make_identity(rank: int | None, **fields: Any) -> Identity:
    values: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank,
        "node": "node-a",
        "container": "main",
        "host": "node-a",
        "pid": 100 + (rank or 0),
        "registration": f"00000000-0000-4000-8000-{rank or 0:012d}",
    }
    return Identity(**(values | fields))


def make_artifact(rank: int, **fields: Any) -> Artifact:
    values: dict[str, Any] = {
        "uri": f"node-a/main/{rank}/trace.json.gz",
        "size": 10,
        "sha256": SHA,
        "encoding": Encoding.GZIP,
        "raw_size": 20,
        "raw_sha256": SHA,
        "window_start_ns": START_NS + rank * 1_000_000,
        "window_end_ns": START_NS + 1_000_000_000 + rank * 1_000_000,
    }
    return Artifact(**(values | fields))


def archived(rank: int, **fields: Any) -> Target:
    return Target(f"node-a/main/{rank}", make_identity(rank), artifact=make_artifact(rank, **fields))


def failed(rank: int, reason: FailureReason = FailureReason.MISSING, **fields: Any) -> Target:
    values: dict[str, Any] = {"detail": f"rank {rank}: {reason}", "last_state": TargetState.QUEUED}
    return Target(f"node-a/main/{rank}", make_identity(rank), failure=Failure(reason, **(values | fields)))


def make_capture(**fields: Any) -> Capture:
    values: dict[str, Any] = {
        "capture_id": "0192f0c1",
        "request_key": "nightly/7",
        "caller": "somebody",
        "n": 0,
        "job": Job("local", "demo", "3c0f", 0, "demo"),
        "world_size": 2,
        "backend": "broker",
        "generation": "00ff00ff00ff",
        "spec": CaptureSpec(duration_ms=1000),
        "start_at_ns": START_NS - 5,
        "frozen_at": "2026-09-21T14:13:18Z",
        "converged_at": "2026-09-21T14:13:28.5Z",
        "outcome": Outcome.SUCCEEDED,
    }
    return Capture(**(values | fields))


def whole() -> Manifest:
    """Two ranks, both archived."""
    return build(make_capture(), [archived(0), archived(1)])


def partial() -> Manifest:
    """One archived, one invalid with its raw bytes, one never registered."""
    return build(
        make_capture(world_size=3, outcome=Outcome.PARTIAL),
        [
            archived(0, columns=Columns("node-a/main/0/trace.parquet", 5, SHA, "v1")),
            failed(1, FailureReason.INVALID, last_state=TargetState.ANNOUNCED, raw=RawBytes("raw/1.json", 7, SHA)),
            Target("rank/2", Identity(rank=2), failure=Failure(FailureReason.NEVER_REGISTERED, "rank 2 never came")),
        ],
    )


def write_capture(folder: Path, *, ranks: int = 2, trace: bytes = b'{"traceEvents": [{"ph": "X"}]}') -> Path:
    """A whole capture on disk whose files really are what its manifest states; returns the manifest's path."""
    targets = []
    for rank in range(ranks):
        raw = trace + b" " * rank
        stored = gzip.compress(raw, mtime=0)
        path = folder / f"node-a/main/{rank}/trace.json.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(stored)
        targets.append(
            archived(
                rank,
                size=len(stored),
                sha256=hashlib.sha256(stored).hexdigest(),
                raw_size=len(raw),
                raw_sha256=hashlib.sha256(raw).hexdigest(),
            )
        )
    broken = b'{"traceEvents": ['
    (folder / "raw").mkdir()
    (folder / "raw/last.json").write_bytes(broken)
    raw_bytes = RawBytes("raw/last.json", len(broken), hashlib.sha256(broken).hexdigest())
    targets.append(failed(ranks, FailureReason.INVALID, last_state=TargetState.ANNOUNCED, raw=raw_bytes))
    manifest = build(make_capture(world_size=ranks + 1, outcome=Outcome.PARTIAL), targets)
    (folder / "manifest.json").write_bytes(encode(manifest))
    return folder / "manifest.json"


def replace(manifest: Manifest, **fields: Any) -> Manifest:
    return msgspec.structs.replace(manifest, **fields)
