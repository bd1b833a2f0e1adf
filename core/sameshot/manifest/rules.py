"""What holds in every manifest, written or read, and the numbers that follow from its targets."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from sameshot.manifest.values import Capture, Manifest, Provenance, Target, Totals, refuse, shown
from sameshot.model import Artifact, Outcome, path_problem

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|\+00:00)")
_MAX_WORLD_SIZE = 1_000_000  # far above any job; keeps a hostile manifest from making us list 10^18 missing ranks


def order(target: Target) -> tuple[bool, int, str]:
    """By rank, unknown ranks last, then target_id."""
    rank = target.identity.rank
    return rank is None, rank or 0, target.target_id


def common_window_ns(targets: Iterable[Target]) -> int | None:
    """The time that all artifacts cover; negative where they don't overlap, None without any."""
    artifacts = [target.artifact for target in targets if target.artifact is not None]
    if not artifacts:
        return None
    return min(each.window_end_ns for each in artifacts) - max(each.window_start_ns for each in artifacts)


def totals(capture: Capture, targets: tuple[Target, ...]) -> Totals:
    """Count the targets; see `Totals`."""
    have = {target.identity.rank for target in targets if target.artifact is not None}
    if capture.world_size is not None:
        wanted: Iterable[int] = range(min(capture.world_size, _MAX_WORLD_SIZE))
    else:
        wanted = sorted({target.identity.rank for target in targets if target.identity.rank is not None})
    archived = sum(target.artifact is not None for target in targets)
    missing = tuple(rank for rank in wanted if rank not in have)
    return Totals(len(targets), archived, len(targets) - archived, missing)


def check(manifest: Manifest) -> None:
    """Raise ManifestError unless the manifest is consistent in itself (its files are not looked at)."""
    capture, targets = manifest.capture, manifest.targets
    if not targets:
        refuse("it is empty: a capture without a single target proves nothing")
    _check_capture(capture)
    ids: set[str] = set()
    uris: dict[str, str] = {}
    for target in targets:
        where = f"target {target.target_id!r}"
        if not target.target_id or target.target_id in ids:
            refuse(f"{where} is there twice" if target.target_id else "a target has an empty target_id")
        ids.add(target.target_id)
        if (target.artifact is None) == (target.failure is None):
            refuse(f"{where} must have an artifact or a failure, and not both")
        rank = target.identity.rank
        if rank is not None and rank < 0:
            refuse(f"{where} has rank {rank}")
        for part, uri, size, sha256 in _files(target):
            _check_file(f"{where}, {part}", uri, size, sha256)
            if uri in uris:  # one trace has then overwritten the other
                refuse(f"{where} and {uris[uri]} name the same file {uri!r}")
            uris[uri] = where
        if target.artifact is not None:
            _check_artifact(target.artifact, where)
    if capture.provenance is Provenance.CAPTURED:
        _check_one_trace_per_worker(capture, targets)
    if targets != tuple(sorted(targets, key=order)):
        refuse("its targets are not sorted by rank (unknown ranks last), then target_id")
    counted = totals(capture, targets)
    if manifest.totals != counted:
        refuse(f"its totals are {shown(manifest.totals)}, its targets make {shown(counted)}")
    if capture.common_window_ns != (window := common_window_ns(targets)):
        refuse(f"its common window is {capture.common_window_ns} ns, its artifacts make {window} ns")
    _check_outcome(capture.outcome, counted)


def _check_one_trace_per_worker(capture: Capture, targets: tuple[Target, ...]) -> None:
    """Two traces of one rank, or of one process, are no set of ranks. (Imported files may state what they like.)"""
    ranks: dict[int, str] = {}
    registrations: dict[str, str] = {}
    for target in targets:
        if target.artifact is None:
            continue
        where, rank, registration = f"target {target.target_id!r}", target.identity.rank, target.identity.registration
        if rank is not None:
            if rank in ranks:
                refuse(f"{where} and {ranks[rank]} both have a trace of rank {rank}")
            if capture.world_size is not None and rank >= capture.world_size:
                refuse(f"{where} has a trace of rank {rank} in a world of {capture.world_size}")
            ranks[rank] = where
        if registration is not None:
            if registration in registrations:
                refuse(f"{where} and {registrations[registration]} both have a trace of registration {registration}")
            registrations[registration] = where


def _check_outcome(outcome: Outcome, totals: Totals) -> None:
    """SUCCEEDED only with every trace; a smaller set of ranks must not look like a whole one."""
    if outcome is Outcome.CANCELLED:
        return
    if totals.archived == 0:
        expected = Outcome.FAILED
    elif totals.failed == 0 and not totals.missing_ranks:
        expected = Outcome.SUCCEEDED
    else:
        expected = Outcome.PARTIAL
    if outcome is not expected:
        refuse(
            f"its outcome is {outcome}, but {totals.archived} of {totals.expected} targets are archived and "
            f"{len(totals.missing_ranks)} ranks are missing, which makes {expected}"
        )


def _check_capture(capture: Capture) -> None:
    if capture.world_size is not None and not 1 <= capture.world_size <= _MAX_WORLD_SIZE:
        refuse(f"its world size is {capture.world_size}")
    for name, value in (("n", capture.n), ("job.attempt", capture.job.attempt)):
        if value < 0:
            refuse(f"capture.{name} is {value}")
    if capture.spec is None and capture.provenance is Provenance.CAPTURED:
        refuse("it does not say what was to be recorded (capture.spec)")
    _check_int64("capture.start_at_ns", capture.start_at_ns)
    for name, moment in (("frozen_at", capture.frozen_at), ("converged_at", capture.converged_at)):
        if moment is not None and not _is_timestamp(moment):
            refuse(f"capture.{name} is {moment!r}, expected RFC 3339 in UTC like 2026-01-31T12:00:00Z")


def _check_artifact(artifact: Artifact, where: str) -> None:
    _check_file(f"{where}, decoded artifact", None, artifact.raw_size, artifact.raw_sha256)
    _check_int64(f"{where}, window_start_ns", artifact.window_start_ns)
    _check_int64(f"{where}, window_end_ns", artifact.window_end_ns)
    if artifact.window_end_ns < artifact.window_start_ns:
        refuse(f"{where} has a window that ends before it starts")


def _files(target: Target) -> list[tuple[str, str, int, str]]:
    """Every file that a target names: (what, uri, size, sha256)."""
    named: list[tuple[str, str, int, str]] = []
    if (artifact := target.artifact) is not None:
        named.append(("artifact", artifact.uri, artifact.size, artifact.sha256))
        if (columns := artifact.columns) is not None:
            named.append(("columns", columns.uri, columns.size, columns.sha256))
    if target.failure is not None and (raw := target.failure.raw) is not None:
        named.append(("raw bytes", raw.uri, raw.size, raw.sha256))
    return named


def _check_file(where: str, uri: str | None, size: int, sha256: str) -> None:
    if uri is not None and (problem := path_problem(uri)) is not None:
        refuse(f"{where}: the URI {uri!r} is refused, {problem}")
    if not 0 <= size < 2**63:
        refuse(f"{where}: the size is {size}")
    if not _SHA256.fullmatch(sha256):
        refuse(f"{where}: {sha256!r} is no sha256 in lower-case hex")


def _check_int64(where: str, value: int | None) -> None:
    if value is not None and not -(2**63) <= value < 2**63:
        refuse(f"{where} is {value}, beyond 64 bits")


def _is_timestamp(text: str) -> bool:
    if not _TIMESTAMP.fullmatch(text):
        return False
    try:
        datetime.datetime.fromisoformat(text[:19])
    except ValueError:
        return False
    return True
