"""The summary of a single rank of a capture."""

from __future__ import annotations

from pathlib import Path

from sameshot.analysis import RankSummary
from sameshot.analysis.run import map_targets
from sameshot.trace.capture_check import locate, read_manifest


def map_one(location: str, target_id: str, *, cache: Path | None = None) -> RankSummary:
    storage, key = locate(location)
    targets = [target for target in read_manifest(storage, key).targets if target.target_id == target_id]
    ((_, summary, _),) = map_targets(storage, key, targets, cache=cache)
    return summary
