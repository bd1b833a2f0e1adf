"""Make a capture of traces that somebody else wrote (`sameshot manifest create`): verify, store, describe.

    <out>/manifest.json
    <out>/rank-<rank>/trace.json.gz, columns.parquet     of every sound trace
    <out>/failed/rank-<rank>/raw                         of every broken one: its bytes as they are

The caller says which file is which rank's; nothing here guesses. What no file contradicts is believed, what a trace
says itself is checked: its rank, the size of its world, that two ranks were not given one trace. The folder appears
under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

import msgspec

from sameshot.errors import TraceError, UsageError
from sameshot.manifest import Capture, Job, Manifest, Provenance, Target, build, encode, timestamp
from sameshot.model import (
    Artifact,
    BoundBy,
    Columns,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    InvalidKind,
    Outcome,
    RawBytes,
    TargetState,
    check_name,
    path_problem,
)
from sameshot.trace.header import OURS
from sameshot.trace.pool import in_processes
from sameshot.trace.stored import COLUMNS_NAME, DISK_FULL, verify_and_store
from sameshot.trace.verify import Expectation, VerifiedTrace
from sameshot.trace.workplace import check_place, empty, publish, sync, workplace

MAX_WORLD_SIZE = 100_000
"""Every missing rank becomes a target of the manifest; a damaged trace must not make us write millions."""

_POOL_FROM = 96 << 20  # bytes on disk; below, starting processes costs more than they save
_MOST_WORKERS = 8
_BLOCK = 1 << 20
_UNKNOWN = "unknown"

Progress = Callable[[int, int, Target], None]
"""Called after each file with (files done, files in all, the target it became)."""


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """What to import.

    `files` are by rank. `world_size` None: what the traces state, else unknown. `hosts` and `nodes` (by rank) say where
    a rank ran, where its trace doesn't or says it wrongly.
    """

    files: Mapping[int, Path]
    out: Path
    world_size: int | None = None
    namespace: str = "local"
    job: str = "imported"
    series: str | None = None
    hosts: Mapping[int, str] = {}
    nodes: Mapping[int, str] = {}
    caller: str = _UNKNOWN
    columns: bool = True


class _File(msgspec.Struct, frozen=True):
    """One file to take in, and the folder that becomes the capture."""

    rank: int
    path: Path
    folder: Path
    columns: bool


class _Taken(msgspec.Struct, frozen=True):
    """What became of one file: `found` and `artifact`, or `failure`. `trouble`: why there are no columns."""

    found: VerifiedTrace | None = None
    artifact: Artifact | None = None
    failure: Failure | None = None
    trouble: str = ""


class Imported(msgspec.Struct, frozen=True):
    """The published capture; `path` is its manifest. `trouble` (by rank) is why a sound trace has no columns."""

    path: Path
    manifest: Manifest
    trouble: Mapping[int, str]


def import_traces(request: Import, *, workers: int | None = None, progress: Progress | None = None) -> Imported:
    """Verify every file, store it gzip-compressed under `out`, and write a manifest of provenance `imported`.

    A broken file, one whose trace states another rank or world, and a rank without file become failed targets; the
    others go on. Nothing appears at `out` unless all of it does.

    Raises UsageError where the request can't be served as it is: `out` is taken, two ranks were given one trace, the
    traces disagree about the size of their world, a file can't be read.
    """
    _check(request)
    try:
        with workplace(request.out) as part:
            manifest, trouble = _fill(request, part, workers, progress)
            publish(part, request.out)
    except OSError as error:
        raise UsageError(
            f"Nothing was imported: {error.strerror or error} ({error.filename or request.out})."
        ) from error
    return Imported(request.out / "manifest.json", manifest, trouble)


def _fill(
    request: Import, part: Path, workers: int | None, progress: Progress | None
) -> tuple[Manifest, dict[int, str]]:
    """All of the capture, and by rank why there are no columns. Traces go before columns: see `stored.py`."""
    try:
        taken = _take_all(request, part, workers, progress)
        manifest = _manifest(request, taken, part)
        (part / "manifest.json").write_bytes(encode(manifest))
        sync(part)
    except OSError as error:
        if not request.columns or error.errno not in DISK_FULL:
            raise
        why = f"the traces needed their room ({error.strerror})"
    else:
        return manifest, {rank: one.trouble for rank, one in taken.items() if one.trouble}
    # The columns of all ranks together may hold what one trace needs.
    empty(part)
    manifest, _ = _fill(msgspec.structs.replace(request, columns=False), part, workers, progress)
    return manifest, {
        target.identity.rank: why
        for target in manifest.targets
        if target.artifact is not None and target.identity.rank is not None
    }


def files_by_pattern(pattern: str, folder: Path) -> dict[int, Path]:
    """Files below `folder` whose relative name is `pattern`, where `{rank}` stands for the rank in decimal digits.

    `*` stands for anything but a slash. Nothing else of a name is interpreted. Raises UsageError for a pattern without
    `{rank}`, where nothing matches, and where two names state one rank (`rank1.json`, `rank01.json`).
    """
    if pattern.count("{rank}") != 1:
        raise UsageError(f"The pattern {pattern!r} must contain {{rank}} once, for example rank{{rank}}.json.gz.")
    if path_problem(pattern) is not None:
        raise UsageError(f"The pattern {pattern!r} must be the name of a file below the folder.")
    # Beside a `*` the digits must be all the digits that stand there: of worker12.json, 2 is no rank.
    before, after = pattern.split("{rank}")
    digits = ("(?<![0-9])" if before.endswith("*") else "") + "([0-9]{1,9})" + ("(?![0-9])" if after[:1] == "*" else "")
    wanted = re.compile(digits.join(re.escape(side).replace(r"\*", "[^/]*") for side in (before, after)))
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; --pattern needs the one that holds the traces.")
    found: dict[int, Path] = {}
    names = re.sub(r"\*+", "*", re.sub(r"[?\[]", r"[\g<0>]", pattern).replace("{rank}", "*"))
    for path in sorted(folder.glob(names)):
        match = wanted.fullmatch(path.relative_to(folder).as_posix())
        if match is None:
            continue
        rank = int(match[1])
        if rank in found:
            raise UsageError(
                f"Two files are rank {rank} by the pattern: {found[rank]} and {path}; nothing was imported. Use a "
                "narrower pattern, or name the files: RANK=FILE."
            )
        found[rank] = path
    if not found:
        raise UsageError(f"No file in {folder} has a name like {pattern}.")
    return found


def _check(request: Import) -> None:
    check_name(request.namespace, "Namespace")
    check_name(request.job, "Job")
    files, world = request.files, request.world_size
    if not files:
        raise UsageError("There is no file to import: name them as RANK=FILE.")
    if world is not None and not 1 <= world <= MAX_WORLD_SIZE:
        raise UsageError(f"A world of {world} ranks is not possible here: 1 to {MAX_WORLD_SIZE}.")
    for what, by_rank in (("file", files), ("host", request.hosts), ("node", request.nodes)):
        for rank in by_rank:
            if rank < 0 or (world is not None and rank >= world):
                raise UsageError(f"A {what} was given for rank {rank}, which is not in a world of {world or 'ranks'}.")
    seen: dict[tuple[int, int], int] = {}
    for rank, path in sorted(files.items()):
        try:
            status = path.stat()
        except OSError as error:
            raise UsageError(f"The file of rank {rank} can't be read: {path}: {error.strerror}.") from None
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"The file of rank {rank} is no regular file: {path}.")
        if (same := seen.setdefault((status.st_dev, status.st_ino), rank)) != rank:
            raise UsageError(f"Ranks {same} and {rank} were given the same file: {path}. Each rank has its own trace.")
    check_place(request.out)


def _take_all(request: Import, folder: Path, workers: int | None, progress: Progress | None) -> dict[int, _Taken]:
    files = [_File(rank, path, folder, request.columns) for rank, path in sorted(request.files.items())]
    # The largest first, so that no process is left alone with it at the end.
    files.sort(key=lambda file: -file.path.stat().st_size)
    taken: dict[int, _Taken] = {}
    with contextlib.closing(_each(files, workers)) as results:  # whoever still writes is ended before the folder is
        for file, one in results:
            taken[file.rank] = one
            _refuse_twice(file, one, taken)
            if progress is not None:
                progress(len(taken), len(files), _target(request, file.rank, one))
    return taken


def _each(files: list[_File], workers: int | None) -> Generator[tuple[_File, _Taken], None, None]:
    if workers is None:
        whole = sum(file.path.stat().st_size for file in files)
        workers = min(os.cpu_count() or 1, _MOST_WORKERS) if whole >= _POOL_FROM else 1
    if workers <= 1 or len(files) == 1:
        return ((file, _take(file)) for file in files)
    return in_processes(_take, files, workers, name=lambda file: f"rank {file.rank}")


def _take(file: _File) -> _Taken:
    """Verify and store one file; what can't be proven is kept as it is."""
    name = f"rank-{file.rank}"
    home = file.folder / name
    home.mkdir()
    try:
        stored = verify_and_store(
            file.path,
            Expectation(rank=file.rank, bound_by=BoundBy.PATH),
            store_as=home / "trace.json.gz",
            encoding=Encoding.GZIP,
            columns_as=home / COLUMNS_NAME if file.columns else None,
        )
    except TraceError as error:
        home.rmdir()
        reason = InvalidKind(error.kind).reason
        return _Taken(failure=_failure(reason, f"{file.path}: {error}", _keep(file, f"failed/{name}/raw")))
    found, columns = stored.trace, stored.columns
    artifact = Artifact(
        uri=f"{name}/trace.json.gz",
        size=found.size,
        sha256=found.sha256,
        encoding=Encoding.GZIP,
        raw_size=found.raw_size,
        raw_sha256=found.raw_sha256,
        window_start_ns=found.window_start_ns,
        window_end_ns=found.window_end_ns,
        columns=None
        if columns is None
        else Columns(f"{name}/{COLUMNS_NAME}", columns.size, columns.sha256, columns.schema),
    )
    return _Taken(found, artifact, trouble=stored.trouble)


def _keep(file: _File, uri: str) -> RawBytes:
    """Copy a file as it is."""
    final = file.folder / uri
    final.parent.mkdir(parents=True)
    size, digest = 0, hashlib.sha256()
    with file.path.open("rb") as source, final.open("wb") as copy:
        while block := source.read(_BLOCK):
            copy.write(block)
            digest.update(block)
            size += len(block)
    return RawBytes(uri, size, digest.hexdigest())


def _failure(reason: FailureReason, detail: str, raw: RawBytes | None) -> Failure:
    return Failure(reason, detail, TargetState.PENDING if raw is None else TargetState.ANNOUNCED, raw)


def _refuse_twice(file: _File, one: _Taken, taken: Mapping[int, _Taken]) -> None:
    """The bytes tell what names hide: one trace given for two ranks, packed or not."""
    for rank, other in taken.items():
        if rank == file.rank:
            continue
        both = f"{min(rank, file.rank)} and {max(rank, file.rank)}"
        if same := _digests(one) & _digests(other):
            raise UsageError(
                f"Ranks {both} were given the same trace (sha256 {min(same)}); nothing was imported. Each rank has its "
                "own trace."
            )
        if one.found is None or other.found is None:
            continue
        if (worker := _registration(one.found)) is not None and worker == _registration(other.found):
            raise UsageError(
                f"The traces given for ranks {both} were both written by the worker {worker}; nothing was imported. "
                "One worker is one rank."
            )


def _digests(one: _Taken) -> set[str]:
    """Of the file and of what it decodes to, as far as they are known."""
    if one.artifact is not None:
        return {one.artifact.sha256, one.artifact.raw_sha256}
    raw = None if one.failure is None else one.failure.raw
    return {raw.sha256} if raw is not None and raw.size else set()


def _registration(found: VerifiedTrace) -> str | None:
    """Of a trace that an armed worker wrote."""
    name = found.job_name or ""
    return name.removeprefix(OURS)[:100] if name.startswith(OURS) and len(name) > len(OURS) else None


def _manifest(request: Import, taken: Mapping[int, _Taken], folder: Path) -> Manifest:
    world = _world_size(request, taken)
    targets = [_target(request, rank, _of_this_world(request, rank, one, world, folder)) for rank, one in taken.items()]
    targets += [
        _target(
            request, rank, _Taken(failure=_failure(FailureReason.MISSING, f"No file was given for rank {rank}.", None))
        )
        for rank in range(world or 0)
        if rank not in taken
    ]
    archived = sum(target.artifact is not None for target in targets)
    now = timestamp(time.time_ns())
    capture = Capture(
        capture_id=_capture_id(request, world, targets),
        caller=request.caller,
        n=0,
        provenance=Provenance.IMPORTED,
        job=Job(request.namespace, request.job, _UNKNOWN, 0, request.series),
        world_size=world,
        backend=_UNKNOWN,
        spec=None,
        converged_at=now,
        outcome=Outcome.FAILED if not archived else Outcome.SUCCEEDED if archived == len(targets) else Outcome.PARTIAL,
    )
    return build(capture, targets)


def _world_size(request: Import, taken: Mapping[int, _Taken]) -> int | None:
    if request.world_size is not None:
        return request.world_size
    stated: dict[int, int] = {}
    for rank, one in sorted(taken.items()):
        if one.found is not None and one.found.world_size is not None:
            stated.setdefault(one.found.world_size, rank)
    if len(stated) > 1:
        which = " and ".join(f"{world} (rank {rank})" for world, rank in stated.items())
        raise UsageError(f"The traces are not of one job: their worlds have {which} ranks; nothing was imported.")
    if not stated:
        return None
    [(world, rank)] = stated.items()
    if max(taken) >= world or not 1 <= world <= MAX_WORLD_SIZE:
        raise UsageError(
            f"The trace of rank {rank} states a world of {world} ranks, but rank {max(taken)} was given; nothing was "
            "imported. Give --world-size if you know better."
        )
    return world


def _of_this_world(request: Import, rank: int, one: _Taken, world: int | None, folder: Path) -> _Taken:
    """The same, unless the trace states another size of its world than the one that was asked for."""
    if one.found is None or one.found.world_size in (None, world):
        return one
    shutil.rmtree(folder / f"rank-{rank}")
    path = request.files[rank]
    detail = f"{path}: its trace is of a world of {one.found.world_size} ranks, expected was {world}"
    raw = _keep(_File(rank, path, folder, False), f"failed/rank-{rank}/raw")
    return _Taken(failure=_failure(FailureReason.WRONG_IDENTITY, detail, raw))


def _target(request: Import, rank: int, one: _Taken) -> Target:
    found = one.found
    registration = None if found is None else _registration(found)
    identity = Identity(
        rank=rank,
        node=request.nodes.get(rank),
        host=request.hosts.get(rank) or (None if found is None else found.host_name),
        registration=registration,
        bound_by=BoundBy.PATH if registration is None else BoundBy.BYTES,
    )
    return Target(f"rank/{rank}", identity, one.artifact, one.failure)


def _capture_id(request: Import, world: int | None, targets: Iterable[Target]) -> str:
    """The same files for the same ranks of the same job are the same capture."""
    content: list[object] = [request.namespace, request.job, world]
    for target in sorted(targets, key=lambda target: target.identity.rank or 0):
        raw = None if target.failure is None else target.failure.raw
        digest = raw.sha256 if raw else target.artifact.raw_sha256 if target.artifact else None
        content.append([target.identity.rank, digest])
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]
