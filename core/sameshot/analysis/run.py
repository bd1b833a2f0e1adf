"""From a manifest's address to a written report: verified reads, `map` per rank, `reduce`, two files.

The manifest is the only way in: files that it does not name are never looked at, and each byte that is read is compared
with what it states, while it is read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from sameshot.analysis.device.work import Work, gather
from sameshot.analysis.files import replace
from sameshot.analysis.hta.tables import Rounding, TablePart, part_of, tables_of, write_tables
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.load import Loaded, artifact_of, load, load_trace, who
from sameshot.analysis.rank import summarise
from sameshot.analysis.results import RankSummary, Summary
from sameshot.analysis.text import some_of
from sameshot.errors import CaptureFailed, UsageError
from sameshot.manifest import Manifest, Target
from sameshot.storage import Storage
from sameshot.trace.capture_check import locate, read_manifest
from sameshot.trace.pool import in_processes

if TYPE_CHECKING:
    from sameshot.analysis.report.blocks import Section

Progress = Callable[[int, int, str], None]
"""Called after each rank with (ranks done, ranks in all, the target just done)."""

# Bytes of JSON from which processes pay: below, one process takes a few seconds, and two save little of that for a
# fifth more CPU and twice the memory (400 MB: 3.6 s alone; 2.5 s and 1.2 × the CPU by two). Columns are read so much
# faster that only large captures are worth it.
_POOL_FROM = 768 << 20
_POOL_FROM_COLUMNS = 4 << 30
_MOST_WORKERS = 8


class Mapped(msgspec.Struct, frozen=True):
    """A manifest and the summary of each of its ranks that has a trace; `location` is the manifest's address."""

    manifest: Manifest
    ranks: list[RankSummary]
    location: str
    tables: list[TablePart] = []


def map_rank(trace: BinaryIO | Path, target: Target) -> RankSummary:
    """Summarise the trace of one target of a manifest; nothing but this one trace is looked at.

    `trace` are the stored bytes (plain or gzip). Raises VerificationFailed where they are not what the manifest
    states, and TraceError where they are but are no sound trace.
    """
    if isinstance(trace, Path):
        with trace.open("rb") as stream:
            return _summarise(load_trace(stream, target), target)
    return _summarise(load_trace(trace, target), target)


def map_targets(
    storage: Storage,
    key: str,
    targets: Sequence[Target],
    *,
    cache: Path | None = None,
    workers: int = 1,
    tables: Rounding | None = None,
    fetch_pattern: str | None = None,
) -> Generator[tuple[Target, RankSummary, TablePart | None], None, None]:
    """Summarise some targets of the capture whose manifest is at `key`, one after the other as they are done.

    With `tables` each comes with its part of them: what a fan-out runs for the ranks of each task. Raises as `analyze`
    does, at the first target that can't be read.
    """
    pattern = _pattern(fetch_pattern)
    named = {target.target_id: target for target in targets}
    jobs = [_Job(storage.url, _folder(key), target, cache, tables, pattern) for target in targets]
    with contextlib.closing(_map_all(jobs, max(1, min(workers, len(jobs))))) as mapped:
        for summary, part in mapped:
            yield named[summary.target_id], summary, part


def analyze(
    location: str,
    out: Path | None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    rounding: Rounding = Rounding.EXACT,
    hta: bool = False,
    fetch_pattern: str | None = None,
) -> Summary:
    """Analyse the capture whose manifest (or its folder) is at this path or URI.

    Writes `summary.json`, `report.html` and `tables/*.parquet` into `out`, each atomically (None: nothing is written).
    `workers` processes read traces side by side; by default one process does it all unless the traces are large. Which
    ranks are missing stands in the result (`Summary.missing`): whether that is good enough is the caller's decision.
    `rounding` is that of the tables, see docs/analysis.md. `hta` runs HTA as well, for the report, `hta.json` and
    `tables/hta_*.parquet`. `fetch_pattern` (a regular expression) says which annotations fetch the next batch, where it
    is not torch's DataLoader.

    Raises UnknownCapture, ManifestError, VerificationFailed, StorageError, CaptureFailed where no rank has a trace, and
    UsageError where HTA is wanted and not installed, or the pattern is none.
    """
    if hta and out is not None:
        from sameshot.analysis.hta.engine import require_hta, run_hta
        from sameshot.analysis.hta.section import hta_section

        require_hta()
    mapped = map_capture(
        location,
        cache=None if out is None else out / "columns",
        workers=workers,
        progress=progress,
        tables=None if out is None else rounding,
        fetch_pattern=fetch_pattern,
    )
    result = reduce_ranks(mapped.manifest, mapped.ranks, location=mapped.location)
    if out is not None:
        write_tables(tables_of(mapped.tables), out / "tables")
        more = []
        if hta:  # imported above
            storage, key = locate(location)
            found = run_hta(mapped.manifest, storage, out / "tables", prefix=_folder(key))
            replace(out / "hta.json", msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
            more.append(hta_section(found))
        write(result, out, more=more)
    return result


def map_capture(
    location: str,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    tables: Rounding | None = None,
    fetch_pattern: str | None = None,
) -> Mapped:
    """Summarise every rank of the capture at this path or URI; arguments and errors are those of `analyze`.

    With `tables` also make each rank's part of the tables.
    """
    storage, key = locate(location)
    return map_manifest(
        storage,
        key,
        read_manifest(storage, key),
        cache=cache,
        workers=workers,
        progress=progress,
        tables=tables,
        fetch_pattern=fetch_pattern,
    )


def map_manifest(
    storage: Storage,
    key: str,
    manifest: Manifest,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    tables: Rounding | None = None,
    fetch_pattern: str | None = None,
) -> Mapped:
    """`map_capture` for who has read the manifest at `key`: what is there by now is not looked at again, so the traces
    are compared with the manifest that the caller knows."""
    targets = archived(manifest)
    found: dict[str, tuple[RankSummary, TablePart | None]] = {}
    mapped = map_targets(
        storage,
        key,
        targets,
        cache=cache,
        workers=_workers(workers, targets),
        tables=tables,
        fetch_pattern=fetch_pattern,
    )
    with contextlib.closing(mapped):
        for target, summary, part in mapped:
            found[target.target_id] = summary, part
            if progress is not None:
                progress(len(found), len(targets), target.target_id)
    ordered = [found[target.target_id] for target in targets]  # processes end in any order
    summaries = [summary for summary, _ in ordered]
    parts = [part for _, part in ordered if part is not None]
    return Mapped(manifest, summaries, storage.uri(key), parts)


def archived(manifest: Manifest) -> list[Target]:
    """The targets that can be analysed, in the manifest's order. Raises CaptureFailed where there are none."""
    targets = [target for target in manifest.targets if target.artifact is not None]
    if not targets:
        failed = [f"{who(t)}: {t.failure.reason.value}" for t in manifest.targets if t.failure is not None]
        raise CaptureFailed(
            f"No rank of capture {manifest.capture.capture_id} has a verified trace, so there is nothing to analyse: "
            + some_of(failed)
        )
    return targets


def write(summary: Summary, out: Path, *, more: Sequence[Section] = ()) -> None:
    """Write `summary.json` and `report.html`; whoever looks sees the old file or the new one, never a part.

    `more` are further sections of the report.
    """
    from sameshot.analysis.report import render  # a caller that only wants numbers needs no templates

    out.mkdir(parents=True, exist_ok=True)
    page = render(summary, more=more).encode()
    replace(out / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    replace(out / "report.html", page)


class _Job(NamedTuple):
    """One rank to map, as it is handed to a process."""

    url: str
    prefix: str
    target: Target
    cache: Path | None = None
    tables: Rounding | None = None
    fetch_pattern: str | None = None


def _folder(key: str) -> str:
    folder = key.rpartition("/")[0]
    return folder + "/" if folder else ""


def _workers(wanted: int | None, targets: list[Target]) -> int:
    if wanted is None:
        artifacts = [artifact_of(target) for target in targets]
        json = sum(each.raw_size for each in artifacts if each.columns is None)
        columns = sum(each.raw_size for each in artifacts if each.columns is not None)
        pays = json / _POOL_FROM + columns / _POOL_FROM_COLUMNS >= 1
        wanted = min(os.cpu_count() or 1, _MOST_WORKERS) if pays else 1
    return max(1, min(wanted, len(targets)))


def _pattern(fetch_pattern: str | None) -> str | None:
    """Refused here, before any trace is read, where it is no regular expression."""
    try:
        re.compile(fetch_pattern or "")
    except re.error as error:
        raise UsageError(f"The fetch pattern {fetch_pattern!r} is no regular expression: {error}.") from None
    return fetch_pattern


def _map_all(jobs: list[_Job], workers: int) -> Generator[tuple[RankSummary, TablePart | None], None, None]:
    """The first error ends everything: nothing is analysed from bytes that nobody proved."""
    if workers == 1:
        yield from map(_map, jobs)
        return
    with contextlib.closing(in_processes(_map, jobs, workers, name=lambda job: who(job.target))) as results:
        for _, found in results:
            yield found


def _map(job: _Job) -> tuple[RankSummary, TablePart | None]:
    loaded = load(Storage.open(job.url), job.prefix, job.target, cache=job.cache)
    work = gather(loaded.frame)
    part = None if job.tables is None else part_of(loaded.frame, job.target.identity.rank, job.tables, work)
    return _summarise(loaded, job.target, job.fetch_pattern, work), part


def _summarise(
    loaded: Loaded, target: Target, fetch_pattern: str | None = None, work: Work | None = None
) -> RankSummary:
    return summarise(
        loaded.frame,
        target_id=target.target_id,
        identity=target.identity,
        base_ns=loaded.base_ns,
        window_ns=loaded.window_ns,
        raw_size=loaded.raw_size,
        raw_sha256=loaded.raw_sha256,
        fetch_pattern=fetch_pattern,
        work=work,
    )
