"""What this agent has accepted and how far each target has come, on disk before anybody is told.

    <spool>/captures/<capture_id>/capture.json           what was accepted; durable before Dispatch answers
                                 /<target>/status.json   the strongest fact so far; durable when it is the last one
                                 /<target>/raw.json      the trace as its worker wrote it, moved here at announce
                                 /<target>/stored        the bytes for the archive
                                 /<target>/columns       its events as Parquet, for the archive

The disk is the truth after a restart: a trace in its place means ANNOUNCED even where the status on disk is older or
damaged, so between two durable writes nothing needs to wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sameshot import states
from sameshot.agent import safefs
from sameshot.errors import UsageError
from sameshot.model import CaptureSpec, Encoding, JobRef, Registration, TargetFact, TargetState
from sameshot.profiler.config import TRACE_NAME, traced_file
from sameshot.trace.columns.write import Written

log = logging.getLogger(__name__)

# Ids must be known for as long as a caller may repeat a request key of a capture that never reached the archive; a
# record is some kilobytes. Whatever is younger than a day is kept in any case: its coordinator may still ask.
KEEP_SETTLED = 1_000
KEEP_ALL_NS = 24 * 3_600 * 10**9

_CAPTURE_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,56}")
_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")


class Verified(msgspec.Struct, frozen=True):
    """What verification found, kept so that a restarted agent goes on with the upload.

    `columns` None: not wanted, or lost; the trace does not depend on them.
    """

    stored_size: int
    stored_sha256: str
    encoding: Encoding
    raw_size: int
    raw_sha256: str
    window_start_ns: int
    window_end_ns: int
    columns: Written | None = None


class Accepted(msgspec.Struct, frozen=True):
    """One target as it was accepted. `path` and `worker_path` are its `$SAMESHOT_DIR` seen from here and from there."""

    target_id: str
    registration: Registration | None = None  # None: refused, there is nothing to look for
    path: str = ""
    worker_path: str = ""
    uid: int = -1
    gid: int = -1

    @property
    def owner(self) -> str:
        """The pod that its bytes come from, so that one pod's can't hold up another's; empty on a single machine."""
        return self.path if self.path != self.worker_path else ""

    @property
    def output_parts(self) -> tuple[str, ...]:
        """Where this target's trace appears below the captures' own folder: container, local rank."""
        assert self.registration is not None
        one = self.registration
        return (one.container, f"rank-{one.rank}" if one.local_rank is None else str(one.local_rank))

    @property
    def file_name(self) -> str:
        """A file with another pid is not this worker's."""
        assert self.registration is not None
        return traced_file(TRACE_NAME, self.registration.pid)


class Status(msgspec.Struct, frozen=True):
    fact: TargetFact
    verified: Verified | None = None


class CaptureRecord(msgspec.Struct, frozen=True):
    """What was accepted. `announce_by_ns` is CLOCK_REALTIME: without a final file by then a target is MISSING."""

    capture_id: str
    job: JobRef
    spec: CaptureSpec
    start_at_ns: int
    announce_by_ns: int
    accepted_at_ns: int
    targets: tuple[Accepted, ...] = ()
    withdrawn: str | None = None  # the reason that a cancel gave


class Target:
    """One target of an accepted capture: what was accepted, and the strongest fact so far.

    `trouble` is why its file can't be taken right now, empty where nothing stands in the way.
    """

    def __init__(self, folder: Path, accepted: Accepted, status: Status) -> None:
        self.folder = folder
        self.accepted = accepted
        self.status = status
        self.trouble = ""
        self.writing = threading.Lock()
        self.written = TargetState.PENDING  # the strongest state on disk: a late writer must not take it back

    @property
    def fact(self) -> TargetFact:
        return self.status.fact

    @property
    def id(self) -> str:
        return self.accepted.target_id

    @property
    def raw(self) -> Path:
        return self.folder / "raw.json"

    @property
    def stored(self) -> Path:
        return self.folder / "stored"

    @property
    def columns(self) -> Path:
        return self.folder / "columns"

    @property
    def bytes(self) -> tuple[Path, ...]:
        return (self.raw, self.stored, self.folder / "raw.json.refused")

    @property
    def slug(self) -> str:
        return self.folder.name


class Capture:
    def __init__(self, folder: Path, record: CaptureRecord) -> None:
        self.folder = folder
        self.record = record
        self.targets: dict[str, Target] = {}
        self.asking = asyncio.Lock()  # asking for a window and taking it back must not overtake each other

    @property
    def id(self) -> str:
        return self.record.capture_id

    def cancel(self, reason: str) -> None:
        """From here on nothing is asked for. On disk with `CaptureBook.accept`."""
        if self.record.withdrawn is None:
            self.record = msgspec.structs.replace(self.record, withdrawn=reason[:500])

    @property
    def open_targets(self) -> list[Target]:
        return [target for target in self.targets.values() if not target.fact.state.terminal]

    @property
    def facts(self) -> list[TargetFact]:
        return [target.fact for target in self.targets.values()]


class CaptureBook:
    """All accepted captures. `strongest_claim` is what the node's profiler back end can observe."""

    def __init__(self, spool: Path, strongest_claim: TargetState) -> None:
        self._root = spool / "captures"
        self._strongest_claim = strongest_claim
        self._captures: dict[str, Capture] = {}
        self._unsettled: dict[str, Capture] = {}  # may hold some that are settled by now

    def load(self) -> None:
        """Rebuild from disk. A damaged record is set aside with a warning; the others are not affected."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in sorted(self._root.iterdir()):
            try:
                record = msgspec.json.decode((folder / "capture.json").read_bytes(), type=CaptureRecord)
            except FileNotFoundError:
                continue  # it was never accepted: the agent ended before the record was complete
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("capture record unreadable folder=%s why=%r; it is left as it is", folder, str(error))
                continue
            capture = Capture(folder, record)
            for accepted in record.targets:
                target_folder = folder / slug(accepted.target_id)
                target = Target(target_folder, accepted, _rebuild(target_folder, accepted))
                capture.targets[target.id] = target
                if is_delivered(target.fact):  # the agent ended between saying so and making room
                    self.drop_bytes(target)
            self._captures[capture.id] = self._unsettled[capture.id] = capture
        self.prune()

    def get(self, capture_id: str) -> Capture | None:
        return self._captures.get(capture_id)

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._captures.values()))

    def unsettled(self) -> list[Capture]:
        """Captures with open targets: what is looked at often does not grow with the history."""
        for capture in list(self._unsettled.values()):
            if not capture.open_targets:
                self._unsettled.pop(capture.id, None)
        return list(self._unsettled.values())

    def knows_job(self, job: JobRef) -> bool:
        return any(capture.record.job == job for capture in self)

    def accept(self, record: CaptureRecord, statuses: Iterable[Status]) -> Capture:
        """Write the first status of every new target and, durably, the record; raises OSError where that fails.

        Blocks on the disk: call it in a thread. The capture is known only once everything is written.
        """
        folder = self._root / record.capture_id
        folder.mkdir(mode=0o700, exist_ok=True)
        known = self._captures.get(record.capture_id)
        capture = Capture(folder, record)
        if known is not None:
            capture.targets.update(known.targets)
        first = {status.fact.target_id: status for status in statuses}
        for accepted in record.targets:
            if accepted.target_id in capture.targets:
                continue
            target_folder = folder / slug(accepted.target_id)
            target_folder.mkdir(mode=0o700, exist_ok=True)
            status = first[accepted.target_id]
            safefs.write_atomically(
                target_folder / "status.json", msgspec.json.encode(status), durable=status.fact.state.terminal
            )
            capture.targets[accepted.target_id] = Target(target_folder, accepted, status)
        safefs.write_atomically(folder / "capture.json", msgspec.json.encode(record), durable=True)
        with safefs.directory(self._root) as fd:
            os.fsync(fd)
        if known is not None:  # keep the object that others hold
            withdrawn = known.record.withdrawn  # a cancel that came while we wrote
            known.record = record if withdrawn is None else msgspec.structs.replace(record, withdrawn=withdrawn)
            known.targets = capture.targets
            capture = known
        self._captures[capture.id] = self._unsettled[capture.id] = capture
        return capture

    def prune(self) -> int:
        """Forget settled captures beyond the newest `KEEP_SETTLED`, unless they are young or bytes are left in them.

        Blocks on the disk. Returns how many were forgotten.
        """
        if len(self._captures) <= KEEP_SETTLED:
            return 0
        settled = sorted((one for one in self if not one.open_targets), key=lambda one: one.record.accepted_at_ns)
        young = time.time_ns() - KEEP_ALL_NS
        pruned = 0
        for capture in settled[: max(0, len(settled) - KEEP_SETTLED)]:
            if capture.record.accepted_at_ns > young or _holds_bytes(capture):
                continue
            try:
                (capture.folder / "capture.json").unlink(missing_ok=True)  # half a removal is no capture
                shutil.rmtree(capture.folder)
            except OSError as error:
                log.warning("capture record not removed folder=%s why=%r", capture.folder, str(error))
                continue
            self._captures.pop(capture.id, None)
            pruned += 1
        return pruned

    def strengthened(self, target: Target, seen: TargetFact, verified: Verified | None = None) -> Status:
        """What would be known with this fact; nothing is changed."""
        merged = states.merge(target.fact, seen, strongest_claim=self._strongest_claim)
        return Status(merged, verified or target.status.verified)

    def merge(self, target: Target, seen: TargetFact, verified: Verified | None = None) -> bool:
        """Strengthen what is known and served; True where something changed. On disk with `write`."""
        status = self.strengthened(target, seen, verified)
        changed = status != target.status
        target.status = status
        return changed

    def write(self, target: Target, status: Status) -> None:
        """Write a status down. Blocks on the disk where the fact must survive a power failure: call it in a thread.

        A full disk must not lose what memory still knows, so it only warns.
        """
        state = status.fact.state
        with target.writing:
            if state < target.written:
                return
            try:
                safefs.write_atomically(
                    target.folder / "status.json", msgspec.json.encode(status), durable=state.terminal
                )
                target.written = state
            except OSError as error:
                log.warning("status not written target=%s folder=%s why=%r", target.id, target.folder, str(error))

    def drop_bytes(self, target: Target) -> None:
        """Give the room of a delivered trace back."""
        for path in (target.raw, target.stored, target.columns):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                path.unlink()


def check_capture_id(capture_id: str) -> str:
    """A capture id becomes a folder name on nodes and in the archive: lower-case hex (and dashes) only."""
    if not _CAPTURE_ID.fullmatch(capture_id):
        raise UsageError(f"{capture_id[:80]!r} is not a capture id: 8 to 64 lower-case hex digits or dashes.")
    return capture_id


def slug(target_id: str) -> str:
    """A folder name for a target: readable, and distinct for distinct ids."""
    readable = _UNFIT.sub("_", target_id).strip("._-")[-60:]
    return f"{readable}-{hashlib.sha256(target_id.encode()).hexdigest()[:10]}"


def _rebuild(folder: Path, accepted: Accepted) -> Status:
    """The status on disk, strengthened by what stands beside it."""
    try:
        status = msgspec.json.decode((folder / "status.json").read_bytes(), type=Status)
        if status.fact.target_id != accepted.target_id:
            raise msgspec.ValidationError("status of another target")
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("status unreadable, rebuilt from disk target=%s why=%r", accepted.target_id, str(error))
        identity = accepted.registration.identity if accepted.registration else None
        fact = TargetFact(accepted.target_id, state=TargetState.DISPATCHED)
        status = Status(fact if identity is None else msgspec.structs.replace(fact, identity=identity))
    for pattern in ("stored.*", "columns.*"):  # of a verifier that ended with the agent before us
        for scratch in folder.glob(pattern):
            with contextlib.suppress(OSError):
                scratch.unlink()
    fact = status.fact
    if fact.state < TargetState.ANNOUNCED and (size := _size(folder / "raw.json")) is not None:
        fact = msgspec.structs.replace(fact, state=TargetState.ANNOUNCED, announced_bytes=size, note="")
        return Status(fact)
    if fact.state is TargetState.VERIFIED:
        verified = status.verified
        if verified is None or _size(folder / "stored") != verified.stored_size:
            # What was to be uploaded is not there any more: read the trace again. The claim itself stays true.
            return Status(fact)
        if verified.columns is not None and _size(folder / "columns") != verified.columns.size:
            log.warning("columns lost, the trace goes without target=%s", accepted.target_id)
            return Status(fact, msgspec.structs.replace(verified, columns=None))
    return status


def _holds_bytes(capture: Capture) -> bool:
    """Whether a trace that is in no archive may still be here (also one that was refused, see `announce.take`)."""
    return any(_size(path) is not None for target in capture.targets.values() for path in target.bytes)


def is_delivered(fact: TargetFact) -> bool:
    """Whether the archive holds the bytes, as an artifact or beside a failure."""
    return fact.artifact is not None or (fact.failure is not None and fact.failure.raw is not None)


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None
