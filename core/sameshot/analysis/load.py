"""One target of a manifest → the frame of its trace, from verified bytes only, however they are kept.

Stored columns first: they hold all that analysis reads and cost a hundredth of parsing. Else the raw trace, whose own
columns are then kept under the analysis' output for the next time. Either way each byte that counts is compared with
what the manifest states; columns that were made here are trusted only as far as their own footer and digest prove.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.errors import NotFound, TraceError, VerificationFailed
from sameshot.manifest import Target
from sameshot.model import Artifact
from sameshot.storage import Storage
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace

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
    try:
        with storage.open_read(prefix + artifact.uri) as stream:
            return load_trace(stream, target)
    except NotFound as error:
        raise VerificationFailed(
            f"The trace of {who(target)} is not at {artifact.uri}, where the manifest says it is; nothing was "
            "analysed. Copy the whole capture folder, or analyse it where it was published."
        ) from error


def load_trace(stream: BinaryIO, target: Target) -> Loaded:
    """From the raw trace: `stream` are the stored bytes (plain or gzip). Raises as `load` does."""
    artifact = artifact_of(target)
    frames = FrameBuilder()
    columns = ColumnBuilder(frames)
    try:
        found = read_trace(stream, columns)
    except TraceError as error:
        if stream.seekable():
            stream.seek(0)
            _compare(target, artifact, *_stored(stream))
        raise TraceError(
            error.kind,
            f"{error.detail} (the trace of {who(target)}; its bytes are those that the manifest states)",
            byte_offset=error.byte_offset,
            event_index=error.event_index,
        ) from error
    _compare(target, artifact, found.size, found.sha256)
    if (found.raw_size, found.raw_sha256) != (artifact.raw_size, artifact.raw_sha256):
        raise VerificationFailed(
            f"The trace of {who(target)} ({artifact.uri}) decodes to {found.raw_size} bytes with sha256 "
            f"{found.raw_sha256}, the manifest states {artifact.raw_size} with {artifact.raw_sha256}; nothing was "
            "analysed."
        )
    frames.oddities.update(columns.oddities)
    return Loaded(
        frames.frame(),
        found.base_time_ns or 0,
        (found.window_start_ns, found.window_end_ns),
        found.raw_size,
        found.raw_sha256,
    )


def artifact_of(target: Target) -> Artifact:
    if target.artifact is None:
        raise VerificationFailed(f"The manifest holds no trace of {who(target)}, so nothing can be verified.")
    return target.artifact


def who(target: Target) -> str:
    rank = target.identity.rank
    return target.target_id if rank is None else f"rank {rank} ({target.target_id})"


def _stored(stream: BinaryIO) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while block := stream.read(_BLOCK):
        size += len(block)
        digest.update(block)
    return size, digest.hexdigest()


def _compare(target: Target, artifact: Artifact, size: int, sha256: str) -> None:
    if (size, sha256) != (artifact.size, artifact.sha256):
        raise VerificationFailed(
            f"The trace of {who(target)} ({artifact.uri}) has {size} bytes with sha256 {sha256}, the manifest states "
            f"{artifact.size} with {artifact.sha256}; nothing was analysed. Fetch it again from where it came from."
        )
