"""Captures of one series on disk, as an agent and a coordinator leave them: run after run, faster or slower.

first = capture(tmp_path, "c-1")
second = capture(tmp_path, "c-2", day=2, compute=12.0)      # the forward and backward pass takes twice as long
capture(tmp_path, "c-3", day=3, without=(1,))               # PARTIAL: rank 1 was lost
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from gloo_job import GlooJob, archive, failed

from sameshot.manifest import Manifest, build, decode, encode
from sameshot.steps.places import shards
from sameshot.steps.results import CaptureResult, to_builtins

SERIES = "nightly"


def capture(
    folder: Path, capture_id: str, *, day: int = 1, without: Sequence[int] = (), series: str = SERIES, **job: Any
) -> Path:
    """The path of the manifest of a capture made on that day of November; `job` are fields of a `GlooJob`."""
    traces = GlooJob(**{"ranks": 2, "seed": day, **job}).traces()
    lost = tuple(failed(rank) for rank in without)
    kept = {rank: trace for rank, trace in traces.items() if rank not in without}
    path = archive(folder / "archive" / "local" / f"run-{day}" / "0" / capture_id, kept, failures=lost)
    manifest = decode(path.read_bytes())
    made = msgspec.structs.replace(
        manifest.capture,
        capture_id=capture_id,
        job=msgspec.structs.replace(manifest.capture.job, name=f"run-{day}", uid=f"uid-{day}", series=series),
        frozen_at=f"2026-11-{day:02}T00:00:00.000000Z",
        converged_at=f"2026-11-{day:02}T00:00:09.000000Z",
    )
    path.write_bytes(encode(build(made, manifest.targets)))
    return path


def manifest_at(path: Path) -> Manifest:
    return decode(path.read_bytes())


def result_of(path: Path) -> dict[str, object]:
    """What the capture's task would have left as XCom."""
    manifest = decode(path.read_bytes())
    archived = sum(target.artifact is not None for target in manifest.targets)
    return to_builtins(
        CaptureResult(
            capture_id=manifest.capture.capture_id,
            request_key="somebody",
            n=1,
            job=manifest.capture.job.ref,
            series=manifest.capture.job.series or "",
            outcome=manifest.capture.outcome,
            published=True,
            manifest_uri=str(path),
            manifest_sha256=manifest.sha256,
            expected=len(manifest.targets),
            archived=archived,
            shards=shards(archived),
        )
    )
