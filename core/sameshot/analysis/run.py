"""From a manifest's address to a written report: verified reads, `map` per rank, `reduce`, two files.

The manifest is the only way in: files that it does not name are never looked at, and each byte that is read is compared
with what it states, while it is read.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import BinaryIO

import msgspec

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.rank import summarise
from sameshot.analysis.summary import RankSummary, Summary
from sameshot.errors import CaptureFailed, NotFound, SameshotError, TraceError, VerificationFailed
from sameshot.manifest import Target
from sameshot.model import Artifact
from sameshot.storage import Storage
from sameshot.trace.capture_check import locate, read_manifest
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace

Progress = Callable[[int, int, str], None]
"""Called after each rank with (ranks done, ranks in all, the target just done)."""

_POOL_FROM = 96 << 20  # bytes of JSON; below, starting processes costs more than they save
_MOST_WORKERS = 8
_BLOCK = 1 << 20


def map_rank(trace: BinaryIO | Path, target: Target) -> RankSummary:
    """Summarise the trace of one target of a manifest; nothing but this one trace is looked at.

    `trace` are the stored bytes (plain or gzip). Raises VerificationFailed where they are not what the manifest
    states, and TraceError where they are but are no sound trace.
    """
    if isinstance(trace, Path):
        with trace.open("rb") as stream:
            return map_rank(stream, target)
    artifact = _artifact(target)
    frames = FrameBuilder()
    columns = ColumnBuilder(frames)
    try:
        found = read_trace(trace, columns)
    except TraceError as error:
        if trace.seekable():
            trace.seek(0)
            _compare(target, artifact, *_stored(trace))
        raise TraceError(
            error.kind,
            f"{error.detail} (the trace of {_who(target)}; its bytes are those that the manifest states)",
            byte_offset=error.byte_offset,
            event_index=error.event_index,
        ) from error
    _compare(target, artifact, found.size, found.sha256)
    if (found.raw_size, found.raw_sha256) != (artifact.raw_size, artifact.raw_sha256):
        raise VerificationFailed(
            f"The trace of {_who(target)} ({artifact.uri}) decodes to {found.raw_size} bytes with sha256 "
            f"{found.raw_sha256}, the manifest states {artifact.raw_size} with {artifact.raw_sha256}; nothing was "
            "analysed."
        )
    frames.oddities.update(columns.oddities)
    return summarise(
        frames.frame(),
        target_id=target.target_id,
        identity=target.identity,
        base_ns=found.base_time_ns or 0,
        window_ns=(found.window_start_ns, found.window_end_ns),
        raw_size=found.raw_size,
        raw_sha256=found.raw_sha256,
    )


def analyze(
    location: str, out: Path | None, *, workers: int | None = None, progress: Progress | None = None
) -> Summary:
    """Analyse the capture whose manifest (or its folder) is at this path or URI.

    Writes `summary.json` and `report.html` into `out`, each atomically (None: nothing is written). `workers` processes
    read traces side by side; by default one process does it all unless the traces are large. Which ranks are missing
    stands in the result (`Summary.missing`): whether that is good enough is the caller's decision.

    Raises UnknownCapture, ManifestError, VerificationFailed, StorageError, and CaptureFailed where no rank has a trace.
    """
    storage, key = locate(location)
    manifest = read_manifest(storage, key)
    targets = [target for target in manifest.targets if target.artifact is not None]
    if not targets:
        raise CaptureFailed(
            f"No rank of capture {manifest.capture.capture_id} has a verified trace, so there is nothing to analyse: "
            + "; ".join(f"{_who(t)}: {t.failure.reason.value}" for t in manifest.targets if t.failure is not None)
        )
    folder = key.rpartition("/")[0]
    summaries = []
    for summary in _map_all(storage, folder + "/" if folder else "", targets, _workers(workers, targets)):
        summaries.append(summary)
        if progress is not None:
            progress(len(summaries), len(targets), summary.target_id)
    result = reduce_ranks(manifest, summaries, location=storage.uri(key))
    if out is not None:
        write(result, out)
    return result


def write(summary: Summary, out: Path) -> None:
    """Write `summary.json` and `report.html`; whoever looks sees the old file or the new one, never a part."""
    from sameshot.analysis.report import render  # a caller that only wants numbers needs no templates

    out.mkdir(parents=True, exist_ok=True)
    page = render(summary).encode()
    _replace(out / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    _replace(out / "report.html", page)


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _workers(wanted: int | None, targets: list[Target]) -> int:
    if wanted is None:
        whole = sum(_artifact(target).raw_size for target in targets)
        wanted = min(os.cpu_count() or 1, _MOST_WORKERS) if whole >= _POOL_FROM else 1
    return max(1, min(wanted, len(targets)))


def _map_all(storage: Storage, prefix: str, targets: list[Target], workers: int) -> Iterator[RankSummary]:
    if workers == 1:
        for target in targets:
            yield _map_stored(storage, prefix, target)
        return
    # spawn: a fork of a process with threads (gRPC, object stores) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(_map_in_process, storage.url, prefix, target): target for target in targets}
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BrokenProcessPool as error:
            raise SameshotError(
                "A process that read traces was killed (out of memory?); nothing was written. Try again with fewer "
                "workers."
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def _map_in_process(url: str, prefix: str, target: Target) -> RankSummary:
    return _map_stored(Storage.open(url), prefix, target)


def _map_stored(storage: Storage, prefix: str, target: Target) -> RankSummary:
    artifact = _artifact(target)
    try:
        with storage.open_read(prefix + artifact.uri) as stream:
            return map_rank(stream, target)
    except NotFound as error:
        raise VerificationFailed(
            f"The trace of {_who(target)} is not at {artifact.uri}, where the manifest says it is; nothing was "
            "analysed. Copy the whole capture folder, or analyse it where it was published."
        ) from error


def _artifact(target: Target) -> Artifact:
    if target.artifact is None:
        raise VerificationFailed(f"The manifest holds no trace of {_who(target)}, so nothing can be verified.")
    return target.artifact


def _stored(stream: BinaryIO) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while block := stream.read(_BLOCK):
        size += len(block)
        digest.update(block)
    return size, digest.hexdigest()


def _compare(target: Target, artifact: Artifact, size: int, sha256: str) -> None:
    if (size, sha256) != (artifact.size, artifact.sha256):
        raise VerificationFailed(
            f"The trace of {_who(target)} ({artifact.uri}) has {size} bytes with sha256 {sha256}, the manifest states "
            f"{artifact.size} with {artifact.sha256}; nothing was analysed. Fetch it again from where it came from."
        )


def _who(target: Target) -> str:
    rank = target.identity.rank
    return target.target_id if rank is None else f"rank {rank} ({target.target_id})"
