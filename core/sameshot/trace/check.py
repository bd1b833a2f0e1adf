"""Read a published capture again, byte by byte, against its manifest (`sameshot manifest verify`).

Whatever the manifest does not name is ignored: it is the only way in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
from isal import isal_zlib

from sameshot.errors import NotFound, StorageError, UnknownCapture, VerificationFailed
from sameshot.manifest import Manifest, Target, decode
from sameshot.model import Artifact, Encoding
from sameshot.storage import Storage

_BLOCK = 1 << 20
_GzipError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub declares an instance


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


def open_manifest(path_or_uri: str) -> tuple[Storage, Manifest]:
    """Read a capture's manifest; the storage is rooted where its URIs are relative to.

    Raises UnknownCapture where there is none and ManifestError where it is refused.
    """
    storage, key = locate(path_or_uri)
    return storage, read_manifest(storage, key)


def read_manifest(storage: Storage, key: str) -> Manifest:
    try:
        return decode(storage.get_sync(key))
    except NotFound:
        raise UnknownCapture(
            f"There is no manifest at {storage.uri(key)}; it is published when its capture has converged."
        ) from None


def check_capture(storage: Storage, key: str) -> CheckReport:
    """Check every file that the manifest at `key` names; raises VerificationFailed listing each target that differs."""
    report = inspect_capture(storage, key)
    if report.failed:
        bad = "; ".join(
            f"{target.target_id} ({'rank unknown' if target.rank is None else f'rank {target.rank}'}): "
            + ", ".join(target.problems)
            for target in report.failed
        )
        raise VerificationFailed(
            f"{len(report.failed)} of {len(report.targets)} targets of {report.uri} are not what its manifest states: "
            f"{bad}. Nothing was changed; fetch these files again from where the capture was copied from."
        )
    return report


def inspect_capture(storage: Storage, key: str) -> CheckReport:
    """`check_capture` for callers that want the whole picture: problems are in the report.

    Still raises ManifestError (a refused manifest has nothing to compare with), UnknownCapture where there is none, and
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
    for what, uri, stated_size, stated_sha256, artifact in _named(target):
        files += 1
        size += stated_size
        try:
            with storage.open_read(prefix + uri) as stream:
                problems += (
                    f"{what} {uri} {found}" for found in _compare(stream, stated_size, stated_sha256, artifact)
                )
        except NotFound:
            problems.append(f"{what} {uri} is not there")
        except StorageError:
            raise
        except OSError as error:
            problems.append(f"{what} {uri} can't be read ({error.strerror or error})")
    return TargetCheck(target.target_id, target.identity.rank, files, size, tuple(problems))


def _named(target: Target) -> Iterator[tuple[str, str, int, str, Artifact | None]]:
    if (artifact := target.artifact) is not None:
        yield "trace", artifact.uri, artifact.size, artifact.sha256, artifact
        if (columns := artifact.columns) is not None:
            yield "columns", columns.uri, columns.size, columns.sha256, None
    if target.failure is not None and (raw := target.failure.raw) is not None:
        yield "raw bytes", raw.uri, raw.size, raw.sha256, None


def _compare(stream: BinaryIO, size: int, sha256: str, artifact: Artifact | None) -> Iterator[str]:
    stored = _Tally()
    decoder = _Decoder(artifact) if artifact is not None else None
    while block := stream.read(_BLOCK):
        stored.add(block)
        if decoder is not None:
            decoder.feed(block)
    if stored.size != size:
        yield f"has {stored.size} bytes, the manifest states {size}"
    elif stored.sha256 != sha256:
        yield f"has other bytes: its sha256 is {stored.sha256}, the manifest states {sha256}"
    elif decoder is not None:  # of damaged bytes it is not worth saying that they also decode to something else
        yield from decoder.problems()


class _Tally:
    def __init__(self) -> None:
        self.size = 0
        self._digest = hashlib.sha256()

    def add(self, block: bytes) -> None:
        self.size += len(block)
        self._digest.update(block)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class _Decoder:
    """What the stored bytes decode to, in bounded memory; stops where they exceed what the manifest states."""

    def __init__(self, artifact: Artifact) -> None:
        self._stated = artifact
        self._raw = _Tally()
        self._gzip = isal_zlib.decompressobj(31) if artifact.encoding is Encoding.GZIP else None
        self._broken = ""

    def feed(self, block: bytes) -> None:
        if self._gzip is None:
            self._raw.add(block)
            return
        more = True
        while more and not self._broken:
            if self._gzip.eof:
                self._broken = "has bytes after its gzip stream"
                return
            try:
                decoded = self._gzip.decompress(block, _BLOCK)
            except _GzipError as error:
                self._broken = f"is no sound gzip stream ({error})"
                return
            self._raw.add(decoded)
            if self._raw.size > self._stated.raw_size:
                self._broken = f"decodes to more than the {self._stated.raw_size} bytes that the manifest states"
            block = self._gzip.unused_data if self._gzip.eof else self._gzip.unconsumed_tail
            more = bool(block) or (len(decoded) == _BLOCK and not self._gzip.eof)  # output may wait without input

    def problems(self) -> Iterator[str]:
        if self._broken:
            yield self._broken
        elif self._gzip is not None and not self._gzip.eof:
            yield "ends in the middle of its gzip stream"
        elif (self._raw.size, self._raw.sha256) != (self._stated.raw_size, self._stated.raw_sha256):
            yield (
                f"decodes to {self._raw.size} bytes with sha256 {self._raw.sha256}, the manifest states "
                f"{self._stated.raw_size} with {self._stated.raw_sha256}"
            )
