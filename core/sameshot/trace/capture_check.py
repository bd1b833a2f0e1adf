"""Read a published capture again, byte by byte, against its manifest (`sameshot manifest verify`).

One pass over each file: size and sha256 of what is stored, and for a trace also everything that its first verification
proved: that it is one, whose it is, what it decodes to, and when it was recorded. Columns must say that they were made
from that trace.

Whatever the manifest does not name is ignored: it is the only way in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import msgspec

from sameshot.errors import ColumnsError, NotFound, TraceError, UnknownCapture
from sameshot.manifest import Manifest, Target, decode
from sameshot.model import Artifact, Identity
from sameshot.storage import Storage
from sameshot.trace.columns.read import read_footer
from sameshot.trace.columns.schema import is_known
from sameshot.trace.verify import Expectation, verify

_BLOCK = 1 << 20
_WINDOW_TOLERANCE_NS = 1_000  # traces state µs, often as floats


class TargetCheck(msgspec.Struct, frozen=True):
    """What reading one target's files again has shown; without problems they are what the manifest states."""

    target_id: str
    rank: int | None
    files: int
    size: int
    problems: tuple[str, ...] = ()


class CheckReport(msgspec.Struct, frozen=True):
    """The check of one capture; `uri` is its manifest."""

    uri: str
    manifest: Manifest
    targets: tuple[TargetCheck, ...]

    @property
    def failed(self) -> list[TargetCheck]:
        return [target for target in self.targets if target.problems]


def locate(path_or_uri: str) -> tuple[Storage, str]:
    """The storage rooted at a capture's folder, and the manifest's key in it.

    Takes a path, `file://` or `s3://` address of a manifest (`*.json`) or of the folder that holds `manifest.json`.
    """
    address = path_or_uri.rstrip("/") or "/"
    folder, slash, name = address.rpartition("/")
    if not name.endswith(".json"):
        return Storage.open(address), "manifest.json"
    return Storage.open(folder or ("/" if slash else ".")), name


def read_manifest(storage: Storage, key: str) -> Manifest:
    """Raises UnknownCapture where there is none and ManifestError where it is refused."""
    try:
        return decode(storage.get_sync(key))
    except NotFound:
        raise UnknownCapture(
            f"There is no manifest at {storage.uri(key)}; it is published when its capture has converged."
        ) from None


def inspect_capture(storage: Storage, key: str) -> CheckReport:
    """Read every file that the manifest at `key` names again; what differs is in the report.

    Raises ManifestError (a refused manifest has nothing to compare with), UnknownCapture where there is none, and
    StorageError where the store does not answer: that says nothing about the bytes.
    """
    manifest = read_manifest(storage, key)
    folder = key.rpartition("/")[0]
    prefix = folder + "/" if folder else ""
    return CheckReport(
        storage.uri(key), manifest, tuple(_check_target(storage, prefix, target) for target in manifest.targets)
    )


def _check_target(storage: Storage, prefix: str, target: Target) -> TargetCheck:
    problems: list[str] = []
    files = size = 0
    for what, uri, stated_size, stated_sha256 in _named(target):
        files += 1
        size += stated_size
        try:
            with storage.open_read(prefix + uri) as stream:
                stored = _Tally(stream)
                found = _trace_problem(stored, target.identity, target.artifact) if what == "trace" else None
                stored.drain()
                if what == "columns" and stored.problem(stated_size, stated_sha256) is None:
                    found = _columns_problem(stream, target.artifact)
        except NotFound:
            found = "is not there"
        except OSError as error:
            found = f"can't be read ({error.strerror or error})"
        else:  # of damaged bytes it is not worth saying what else follows from the damage
            found = stored.problem(stated_size, stated_sha256) or found
        if found:
            problems.append(f"{what} {uri} {found}")
    return TargetCheck(target.target_id, target.identity.rank, files, size, tuple(problems))


def _named(target: Target) -> Iterator[tuple[str, str, int, str]]:
    if (artifact := target.artifact) is not None:
        yield "trace", artifact.uri, artifact.size, artifact.sha256
        if (columns := artifact.columns) is not None:
            yield "columns", columns.uri, columns.size, columns.sha256
    if target.failure is not None and (raw := target.failure.raw) is not None:
        yield "raw bytes", raw.uri, raw.size, raw.sha256


def _trace_problem(stored: _Tally, identity: Identity, artifact: Artifact | None) -> str | None:
    """Whether the bytes still prove what the artifact claims: this worker's trace, this raw content, this window."""
    if artifact is None:
        return None
    try:
        found = verify(cast("BinaryIO", stored), Expectation(identity.registration, identity.rank, identity.bound_by))
    except TraceError as error:
        return f"is not the trace it should be ({error})"
    if (found.raw_size, found.raw_sha256) != (artifact.raw_size, artifact.raw_sha256):
        return (
            f"decodes to {found.raw_size} bytes with sha256 {found.raw_sha256}, the manifest states "
            f"{artifact.raw_size} with {artifact.raw_sha256}"
        )
    if found.encoding is not artifact.encoding:
        return f"is stored as {found.encoding or 'something else'}, the manifest states {artifact.encoding}"
    off_ns = max(
        abs(found.window_start_ns - artifact.window_start_ns), abs(found.window_end_ns - artifact.window_end_ns)
    )
    if off_ns > _WINDOW_TOLERANCE_NS:
        return (
            f"was recorded from {found.window_start_ns} to {found.window_end_ns} ns, the manifest states "
            f"{artifact.window_start_ns} to {artifact.window_end_ns}"
        )
    return None


def _columns_problem(stream: BinaryIO, artifact: Artifact | None) -> str | None:
    """Whether these columns say that they were made from this very trace, and as what kind of columns."""
    if artifact is None or artifact.columns is None or not is_known(artifact.columns.schema):
        return None  # of a version that this one can't judge; analysis reads the trace itself then
    stream.seek(0)
    try:
        footer = read_footer(stream)
    except ColumnsError as error:
        return f"is not the file of columns that it should be ({error})"
    if (footer.raw_size, footer.raw_sha256) != (artifact.raw_size, artifact.raw_sha256):
        return (
            f"was made from another trace: {footer.raw_size} bytes with sha256 {footer.raw_sha256}, the manifest "
            f"states {artifact.raw_size} with {artifact.raw_sha256}"
        )
    if footer.schema != artifact.columns.schema:
        return f"is of schema {footer.schema}, the manifest states {artifact.columns.schema}"
    return None


class _Tally:
    """Counts and digests what is read through it, whoever reads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = 0
        self._digest = hashlib.sha256()

    def read(self, size: int = _BLOCK) -> bytes:
        block = self._stream.read(size)
        self._size += len(block)
        self._digest.update(block)
        return block

    def drain(self) -> None:
        while self.read():
            pass

    def problem(self, size: int, sha256: str) -> str | None:
        if self._size != size:
            return f"has {self._size} bytes, the manifest states {size}"
        if (found := self._digest.hexdigest()) != sha256:
            return f"has other bytes: its sha256 is {found}, the manifest states {sha256}"
        return None
