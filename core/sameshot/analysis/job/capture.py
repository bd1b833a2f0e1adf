"""What the manifest says: the capture, and the ranks without a trace."""

from __future__ import annotations

from collections.abc import Mapping

from sameshot.analysis.results import (
    NOT_ANALYSED,
    CaptureInfo,
    MissingRank,
    RankSummary,
)
from sameshot.manifest import Manifest, Provenance, Target
from sameshot.model import Artifact, Identity


def capture_info(manifest: Manifest, location: str) -> CaptureInfo:
    capture = manifest.capture
    captured = capture.provenance is Provenance.CAPTURED
    return CaptureInfo(
        capture_id=capture.capture_id,
        manifest=location,
        manifest_sha256=manifest.sha256,
        provenance=capture.provenance.value,
        namespace=capture.job.namespace,
        job=capture.job.name,
        job_uid=capture.job.uid,
        attempt=capture.job.attempt,
        series=capture.job.series,
        outcome=capture.outcome.value,
        world_size=capture.world_size,
        asked_window=None if capture.spec is None or not captured else capture.spec.duration_ms * 1_000_000,
        frozen_at=capture.frozen_at,
    )


def missing_ranks(
    manifest: Manifest, analysed: set[str], why: Mapping[str, str] | None = None
) -> tuple[MissingRank, ...]:
    """Failed targets, archived ones that were not analysed, and ranks of the world that no target stands for.

    `why` says of targets that have a trace, by id, what is known of why they were not analysed.
    """
    known = why or {}
    found = []
    for target in manifest.targets:
        if target.target_id in analysed:
            continue
        failure = target.failure
        found.append(
            MissingRank(
                rank=target.identity.rank,
                target_id=target.target_id,
                where=where(target.identity),
                reason=failure.reason.value if failure is not None else NOT_ANALYSED,
                detail=failure.detail
                if failure is not None
                else known.get(target.target_id, "Its trace is in the manifest but was not analysed."),
            )
        )
    named = {target.identity.rank for target in manifest.targets}
    found += [
        MissingRank(
            rank=rank,
            target_id=f"rank/{rank}",
            where="",
            reason="NOT_IN_MANIFEST",
            detail="The job's world size includes this rank, but the manifest has no target for it.",
        )
        for rank in range(manifest.capture.world_size or 0)
        if rank not in named
    ]
    return tuple(sorted(found, key=lambda m: (m.rank is None, m.rank or 0, m.target_id)))


def where(identity: Identity) -> str:
    """Pod and node as far as they are known."""
    if identity.pod and identity.node:
        return f"{identity.pod} on {identity.node}"
    return identity.pod or identity.node or ""


def artifact_of_rank(targets: dict[str, Target], rank: RankSummary) -> Artifact | None:
    target = targets.get(rank.target_id)
    return None if target is None else target.artifact
