"""Builders of manifests and of whole captures on disk, for tests about what is done with them."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

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


def trace_bytes(rank: int, **top: Any) -> bytes:
    """A small Kineto trace as the worker of `make_identity(rank)` would write it; its window is `trace_window()`."""
    body = {
        "schemaVersion": 1,
        "PT_PROFILER_JOB_NAME": f"sameshot/{make_identity(rank).registration}",
        "baseTimeNanoseconds": START_NS,
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::mm_{rank}", "pid": 1, "tid": 1, "ts": 1000, "dur": 10},
            {"ph": "X", "cat": "cpu_op", "name": "aten::add_", "pid": 1, "tid": 1, "ts": 2000, "dur": 500},
        ],
    }
    return json.dumps(body | top).encode()


def trace_window() -> dict[str, int]:
    return {"window_start_ns": START_NS + 1_000_000, "window_end_ns": START_NS + 2_500_000}


def archived_bytes(rank: int, raw: bytes, stored: bytes, **fields: Any) -> Target:
    """An artifact that states exactly these bytes."""
    digests = {"sha256": hashlib.sha256(stored).hexdigest(), "raw_sha256": hashlib.sha256(raw).hexdigest()}
    return archived(rank, **(digests | {"size": len(stored), "raw_size": len(raw)} | trace_window() | fields))


def write_capture(folder: Path, *, ranks: int = 2, traces: dict[int, bytes] | None = None) -> Path:
    """A whole capture on disk whose files really are what its manifest states; returns the manifest's path.

    The rank after the last failed with its raw bytes kept. `traces` replaces the decoded bytes of some ranks.
    """
    targets = []
    for rank in range(ranks):
        raw = (traces or {}).get(rank, trace_bytes(rank))
        stored = gzip.compress(raw, mtime=0)
        target = archived_bytes(rank, raw, stored)
        if rank == 0:
            columns = b"columns of rank 0"
            named = Columns("node-a/main/0/trace.parquet", len(columns), hashlib.sha256(columns).hexdigest(), "v1")
            target = archived_bytes(rank, raw, stored, columns=named)
            put(folder / named.uri, columns)
        put(folder / f"node-a/main/{rank}/trace.json.gz", stored)
        targets.append(target)
    broken = b'{"traceEvents": ['
    put(folder / "raw/last.json", broken)
    raw_bytes = RawBytes("raw/last.json", len(broken), hashlib.sha256(broken).hexdigest())
    targets.append(failed(ranks, FailureReason.INVALID, last_state=TargetState.ANNOUNCED, raw=raw_bytes))
    return write_manifest(folder, targets)


def write_manifest(folder: Path, targets: list[Target]) -> Path:
    done = sum(target.artifact is not None for target in targets)
    outcome = Outcome.SUCCEEDED if done == len(targets) else Outcome.PARTIAL if done else Outcome.FAILED
    manifest = build(make_capture(world_size=len(targets), outcome=outcome), targets)
    put(folder / "manifest.json", encode(manifest))
    return folder / "manifest.json"


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
