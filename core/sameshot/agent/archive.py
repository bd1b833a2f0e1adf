"""Copy what was verified to the archive, and the raw bytes of what was not beside the failure record.

Names in the archive are derived here, from the accepted record only: nothing that a worker or a caller writes can lead
out of `<namespace>/<job>/<attempt>/<capture_id>/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakValueDictionary

from sameshot.agent import safefs
from sameshot.agent.capturebook import Capture, Target, Verified
from sameshot.errors import AlreadyExists, StorageError, UsageError
from sameshot.manifest import decode, manifest_key
from sameshot.model import Artifact, Columns, Encoding, JobRef, RawBytes
from sameshot.storage import Storage
from sameshot.trace.stored import COLUMNS_NAME

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
COLUMNS_ALLOWANCE_S = 15.0
COLUMNS_BYTES_PER_S = 20e6
LEAST_ATTEMPT_S = 2.0  # a store that is to answer needs this long; less is no attempt


class Archive:
    """At most `uploads` files on their way at once; every one is tried again until its own deadline."""

    def __init__(self, storage: Storage, uploads: int) -> None:
        self._storage = storage
        self._gate = asyncio.Semaphore(max(1, uploads))
        self.failures = 0  # attempts that failed, since the start
        # One pod has one upload at a time: another pod's need not wait until all of its large ones are through.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def put_trace(
        self, capture: Capture, target: Target, verified: Verified, *, deadline: float, late_start: bool
    ) -> Artifact:
        """Upload the stored bytes. `deadline` is of the monotonic clock; StorageError when it passed.

        Columns follow; where they can't be stored the artifact is without, and a warning says so.
        """
        suffix = ".gz" if verified.encoding is Encoding.GZIP else ""
        uri = f"{_rank_folder(target)}/trace.json{suffix}"
        await self._put(
            f"{_prefix(capture)}/{uri}",
            target.stored,
            verified.stored_size,
            verified.stored_sha256,
            deadline=deadline,
            owner=target.accepted.owner,
        )
        return Artifact(
            uri=uri,
            size=verified.stored_size,
            sha256=verified.stored_sha256,
            encoding=verified.encoding,
            raw_size=verified.raw_size,
            raw_sha256=verified.raw_sha256,
            window_start_ns=verified.window_start_ns,
            window_end_ns=verified.window_end_ns,
            late_start=late_start,
            columns=await self._put_columns(capture, target, verified, deadline),
        )

    async def _put_columns(
        self, capture: Capture, target: Target, verified: Verified, deadline: float
    ) -> Columns | None:
        columns = verified.columns
        if columns is None:
            return None
        uri = f"{_rank_folder(target)}/{COLUMNS_NAME}"
        key = f"{_prefix(capture)}/{uri}"
        # The trace is there: columns are not worth waiting for until its deadline.
        deadline = min(deadline, time.monotonic() + COLUMNS_ALLOWANCE_S + columns.size / COLUMNS_BYTES_PER_S)
        try:
            await self._put(
                key,
                target.columns,
                columns.size,
                columns.sha256,
                deadline=deadline,
                owner=target.accepted.owner,
            )
        except StorageError as error:
            log.warning("no columns key=%s why=%r; the trace is archived", key, str(error))
            return None
        return Columns(uri, columns.size, columns.sha256, columns.schema)

    async def put_raw(self, capture: Capture, target: Target, *, deadline: float) -> RawBytes:
        """Upload a trace that failed verification exactly as it is."""
        uri = f"failed/{target.slug}/raw"
        try:
            held = await asyncio.to_thread(safefs.hold_open, target.raw)
        except OSError as error:
            raise StorageError(f"They can't be read: {error}") from error
        try:
            size, sha256 = await asyncio.to_thread(_measure, target.raw, target.fact.announced_bytes)
            key, owner = f"{_prefix(capture)}/{uri}", target.accepted.owner
            await self._put(key, target.raw, size, sha256, deadline=deadline, owner=owner)
        finally:
            os.close(held)
        return RawBytes(uri=uri, size=size, sha256=sha256)

    async def publish(self, job: JobRef, capture_id: str, manifest: bytes) -> tuple[str, bool]:
        """(URI, whether the identical manifest was there already). Never overwrites.

        Raises UsageError for a manifest of another capture or job, ManifestError for one that is not sound, and
        AlreadyExists where somebody else has published another one.
        """
        stated = decode(manifest).capture
        if stated.capture_id != capture_id or stated.job.ref != job:
            raise UsageError(
                f"The manifest is of capture {stated.capture_id} of {stated.job.ref}, not of {capture_id} of {job}; "
                "nothing was published."
            )
        key = manifest_key(job, capture_id)
        try:
            await self._storage.put_new(key, manifest)
        except AlreadyExists:
            if await self._storage.get(key) != manifest:
                raise
            return self._storage.uri(key), True
        return self._storage.uri(key), False

    async def _put(self, key: str, path: Path, size: int, sha256: str, *, deadline: float, owner: str = "") -> None:
        turn = self._turns.setdefault(owner, asyncio.Lock()) if owner else contextlib.nullcontext()

        async def attempt(left_s: float) -> None:
            try:
                await self._storage.put_file(key, path, size=size, sha256=sha256, deadline_s=left_s)
            except StorageError:
                self.failures += 1
                raise

        async with turn, self._gate:
            await insist(attempt, deadline=deadline, what=key)


async def insist(action: Callable[[float], Awaitable[object]], *, deadline: float, what: str) -> None:
    """Try until it works or `deadline` passes, then raise the last StorageError.

    The storage repeats what a passing fault explains; this loop is for what a person mends: a full disk, a bucket that
    is not there yet, expired credentials. `action` is told how many seconds are left.
    """
    pause = FIRST_PAUSE_S
    while True:
        try:
            await action(max(LEAST_ATTEMPT_S, deadline - time.monotonic()))
            return
        except StorageError as error:
            if time.monotonic() + pause + LEAST_ATTEMPT_S > deadline:
                raise
            log.warning("upload failed key=%s why=%r; tried again until its deadline", what, str(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _prefix(capture: Capture) -> str:
    return manifest_key(capture.record.job, capture.id).rpartition("/")[0]


def _rank_folder(target: Target) -> str:
    """Readable by rank, and of this incarnation only: two workers may claim one rank, on different nodes."""
    registration = target.accepted.registration
    assert registration is not None
    return f"rank-{registration.rank}-{registration.uuid[:8]}"


def _measure(path: Path, announced: int | None) -> tuple[int, str]:
    """Size and digest. Raises StorageError for a file that grew since it was taken: it would never end."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if announced is not None and size > announced:
            raise StorageError(f"It was announced with {announced} bytes, has {size} by now, and is still written to.")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
