"""One target of a manifest → the frame of its trace, from verified bytes only, however they are kept.

Stored columns first: they hold all that analysis reads and cost a hundredth of parsing. Else the raw trace, whose own
columns are then kept under the analysis' output for the next time. Either way each byte that counts is compared with
what the manifest states; columns that were made here are trusted only as far as their own footer and digest prove.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.errors import ColumnsError, NotFound, TraceError, VerificationFailed
from sameshot.manifest import Target
from sameshot.model import Artifact
from sameshot.storage import Storage
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.schema import Footer, is_known
from sameshot.trace.columns.write import Written
from sameshot.trace.read import read_trace
from sameshot.trace.stored import MaybeColumns
from sameshot.trace.verify import VerifiedTrace

CACHE_FROM = 4 << 20
"""Bytes of JSON; smaller traces are parsed again faster than anybody would miss the columns."""

UNUSABLE_COLUMNS = "files of columns that can't be used, so the trace was read"
"""Among the oddities of a trace."""

_BLOCK = 1 << 20


class Loaded(msgspec.Struct, frozen=True):
    """A verified trace as analysis reads it. `window_ns` is CLOCK_REALTIME, `base_ns` 0 where the trace states none."""

    frame: Frame
    base_ns: int
    window_ns: tuple[int, int]
    raw_size: int
    raw_sha256: str


def load(storage: Storage, prefix: str, target: Target, *, cache: Path | None = None) -> Loaded:
    """The trace of one target, of the capture whose folder is `prefix` in `storage`.

    Raises VerificationFailed where the bytes are not what the manifest states, TraceError where they are but are no
    sound trace, StorageError where the store does not answer.
    """
    artifact = artifact_of(target)
    if artifact.columns is not None and is_known(artifact.columns.schema):
        try:
            return _from_columns(storage, prefix, target, artifact)
        except ColumnsError as error:
            return _instead_of_columns(storage, prefix, target, artifact, error)
    if cache is not None and artifact.raw_size < CACHE_FROM:
        cache = None
    if cache is not None and (found := _from_cache(cache, artifact)) is not None:
        return found
    with _opened(storage, prefix, "trace", artifact.uri, target) as stream:
        return load_trace(stream, target, cache=cache)


def load_trace(stream: BinaryIO, target: Target, *, cache: Path | None = None) -> Loaded:
    """From the raw trace: `stream` are the stored bytes (plain or gzip). Raises as `load` does.

    `cache` is a folder that gets its columns for the next time, whether or not that works.
    """
    artifact = artifact_of(target)
    frames = FrameBuilder()
    kept = None if cache is None else _Kept(cache)
    columns = ColumnBuilder(frames if kept is None else _Both(frames, kept.columns))
    try:
        found = read_trace(stream, columns)
        _compare(target, artifact, "trace", artifact.uri, (found.size, found.sha256), (artifact.size, artifact.sha256))
        if (found.raw_size, found.raw_sha256) != (artifact.raw_size, artifact.raw_sha256):
            raise VerificationFailed(
                f"The trace of {who(target)} ({artifact.uri}) decodes to {found.raw_size} bytes with sha256 "
                f"{found.raw_sha256}, the manifest states {artifact.raw_size} with {artifact.raw_sha256}; nothing was "
                "analysed."
            )
        if kept is not None:
            kept.keep(columns, found)
    except TraceError as error:
        if stream.seekable():
            stream.seek(0)
            _compare(target, artifact, "trace", artifact.uri, _digest(stream), (artifact.size, artifact.sha256))
        raise TraceError(
            error.kind,
            f"{error.detail} (the trace of {who(target)}; its bytes are those that the manifest states)",
            byte_offset=error.byte_offset,
            event_index=error.event_index,
        ) from error
    finally:
        if kept is not None:
            kept.discard()
    frames.oddities.update(columns.oddities)
    return Loaded(
        frames.frame(),
        found.base_time_ns or 0,
        (found.window_start_ns, found.window_end_ns),
        found.raw_size,
        found.raw_sha256,
    )


def _from_columns(storage: Storage, prefix: str, target: Target, artifact: Artifact) -> Loaded:
    """From the columns that the manifest lists, which are bound to the trace by their footer.

    Raises ColumnsError where they are what the manifest states and yet can't be used.
    """
    columns = artifact.columns
    assert columns is not None

    def accept(footer: Footer) -> None:
        if (problem := _foreign(footer, artifact)) is not None:
            raise VerificationFailed(
                f"The columns of {who(target)} ({columns.uri}) were not made from {artifact.uri}: {problem}; nothing "
                "was analysed."
            )

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(_opened(storage, prefix, "columns", columns.uri, target))
        # Parquet is read here and there: over a network everything is fetched first, once.
        copy = None if storage.url.startswith("file:") else stack.enter_context(tempfile.TemporaryFile())
        found = _digest(stream, copy)
        _compare(target, artifact, "columns", columns.uri, found, (columns.size, columns.sha256))
        return _read(stream if copy is None else cast("BinaryIO", copy), accept)


def _instead_of_columns(
    storage: Storage, prefix: str, target: Target, artifact: Artifact, error: ColumnsError
) -> Loaded:
    """The columns are a convenience, the trace is the evidence: it says the same, only more slowly."""
    columns = artifact.columns
    assert columns is not None
    try:
        with _opened(storage, prefix, "trace", artifact.uri, target) as stream:
            found = load_trace(stream, target)
    except VerificationFailed as second:
        raise VerificationFailed(
            f"The columns of {who(target)} ({columns.uri}) are what the manifest states, but no columns: {error} "
            f"Nor does the trace stand in for them: {second}"
        ) from error
    found.frame.oddities[UNUSABLE_COLUMNS] += 1
    return found


def _read(stream: BinaryIO, accept: Callable[[Footer], None]) -> Loaded:
    """Raises ColumnsError, whatever is wrong, and what `accept` raises."""
    stream.seek(0)
    frames = FrameBuilder()
    try:
        footer = read_columns(stream, frames, frames.wanted, accept)
        frame = frames.frame(footer)
    except (ValueError, LookupError, ArithmeticError, TypeError, RuntimeError, MemoryError) as error:
        raise ColumnsError(f"These columns hold what no trace does ({type(error).__name__}: {error}).") from error
    return Loaded(
        frame,
        footer.base_time_ns or 0,
        (footer.window_start_ns, footer.window_end_ns),
        footer.raw_size,
        footer.raw_sha256,
    )


def _foreign(footer: Footer, artifact: Artifact) -> str | None:
    """What in the footer contradicts the artifact."""
    if (footer.raw_size, footer.raw_sha256) == (artifact.raw_size, artifact.raw_sha256):
        return None
    return (
        f"they state {footer.raw_size} bytes with sha256 {footer.raw_sha256}, the manifest {artifact.raw_size} with "
        f"{artifact.raw_sha256}"
    )


# Columns of our own, beside the report. Their name holds the digest of the trace and of themselves, so that a damaged
# file can't pass for a whole one, and nothing else needs to be believed.


def _from_cache(cache: Path, artifact: Artifact) -> Loaded | None:
    """None: there is nothing usable; what is damaged is removed."""

    def accept(footer: Footer) -> None:
        if (problem := _foreign(footer, artifact)) is not None:
            raise ColumnsError(problem)

    for path in sorted(cache.glob(f"{artifact.raw_sha256}.*.parquet")):
        try:
            with path.open("rb") as stream:
                if _digest(stream)[1] == path.name.split(".")[1]:
                    return _read(stream, accept)
        except (ColumnsError, OSError):
            pass
        with contextlib.suppress(OSError):
            path.unlink()
    return None


class _Kept:
    """Columns on their way into the cache. It only saves time, so nothing that goes wrong here is an error."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
        handle, name = -1, str(cache / f".{os.getpid()}.part")
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(suffix=".part", prefix=".", dir=cache)
        if handle >= 0:
            os.close(handle)
        self._part = Path(name)
        self.columns = MaybeColumns(self._part)

    def keep(self, builder: ColumnBuilder, found: VerifiedTrace) -> None:
        written: Written | None = self.columns.close(builder.facts(found))
        if written is not None:
            with contextlib.suppress(OSError):
                os.replace(self._part, self._folder / f"{found.raw_sha256}.{written.sha256}.parquet")

    def discard(self) -> None:
        self.columns.discard()
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)


class _Both:
    """Two sinks for the same chunks."""

    def __init__(self, frames: FrameBuilder, columns: MaybeColumns) -> None:
        self._frames = frames
        self._columns = columns

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        self._columns.chunk(chunk, words)
        self._frames.chunk(chunk, words)


@contextlib.contextmanager
def _opened(storage: Storage, prefix: str, what: str, uri: str, target: Target) -> Iterator[BinaryIO]:
    try:
        stream = storage.open_read(prefix + uri)
    except NotFound as error:
        is_are = "are" if what == "columns" else "is"
        raise VerificationFailed(
            f"The {what} of {who(target)} {is_are} not at {uri}, where the manifest says; nothing was analysed. Copy "
            "the whole capture folder, or analyse it where it was published."
        ) from error
    with stream:
        yield stream


def artifact_of(target: Target) -> Artifact:
    if target.artifact is None:
        raise VerificationFailed(f"The manifest holds no trace of {who(target)}, so nothing can be verified.")
    return target.artifact


def who(target: Target) -> str:
    rank = target.identity.rank
    return target.target_id if rank is None else f"rank {rank} ({target.target_id})"


def _digest(stream: BinaryIO, copy: object | None = None) -> tuple[int, str]:
    """Size and sha256 of all that can be read; written to `copy` on the way."""
    size, digest = 0, hashlib.sha256()
    while block := stream.read(_BLOCK):
        size += len(block)
        digest.update(block)
        if copy is not None:
            cast("BinaryIO", copy).write(block)
    return size, digest.hexdigest()


def _compare(
    target: Target, artifact: Artifact, what: str, uri: str, found: tuple[int, str], stated: tuple[int, str]
) -> None:
    if found != stated:
        have = "have" if what == "columns" else "has"
        raise VerificationFailed(
            f"The {what} of {who(target)} ({uri}) {have} {found[0]} bytes with sha256 {found[1]}, the manifest states "
            f"{stated[0]} with {stated[1]}; nothing was analysed. Fetch it again from where it came from."
        )
