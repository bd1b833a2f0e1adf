"""From the facts of a converged capture to its manifest, and where that is published."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sameshot.manifest.rules import check, common_window_ns, order, totals
from sameshot.manifest.values import Capture, Manifest, Target
from sameshot.manifest.wire import body, digest
from sameshot.model import JobRef, check_name


def build(capture: Capture, targets: Iterable[Target]) -> Manifest:
    """Sort the targets, count them, compute the common window and the digest.

    Raises ManifestError where the facts contradict each other (an empty set, a target with neither or both of artifact
    and failure, SUCCEEDED without every trace): such a manifest must never be published.
    """
    ordered = tuple(sorted(targets, key=order))
    capture = msgspec.structs.replace(capture, common_window_ns=common_window_ns(ordered))
    manifest = Manifest(capture, ordered, totals(capture, ordered), sha256="")
    check(manifest)
    return msgspec.structs.replace(manifest, sha256=digest(body(manifest)))


def manifest_key(job: JobRef, capture_id: str) -> str:
    """Where the manifest of a capture stands below the archive's root."""
    for name, what in ((job.namespace, "Namespace"), (job.name, "Job"), (capture_id, "Capture id")):
        check_name(name, what)
    return f"{job.path}/{capture_id}/manifest.json"
