"""Accept a capture for this node's targets: judge each of them, write it down, answer.

Nothing is sent to a worker before the acceptance is on disk. A refusal is a fact like any other, with its reason, and
stays what it is when the request is repeated: dispatch is at-least-once, keyed by (capture_id, target_id).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sameshot import states
from sameshot.agent import room, safefs
from sameshot.agent.announce import CAPTURES
from sameshot.agent.capturebook import Accepted, Capture, CaptureBook, CaptureRecord, Status, Target
from sameshot.agent.registrations import Known
from sameshot.errors import RequestKeyConflict
from sameshot.model import CaptureSpec, FailureReason, Identity, JobRef, Phase, TargetFact, TargetState
from sameshot.profiler.config import TRACE_NAME, check_output_path

log = logging.getLogger(__name__)

NS_PER_MS = 1_000_000
MAX_CANCELLED_EARLY = 10_000


class Wanted(msgspec.Struct, frozen=True):
    """One target of a request: the logical worker and the incarnation that the caller saw."""

    target_id: str
    registration: str


class Order(msgspec.Struct, frozen=True):
    """A whole request. `announce_timeout_ms` counts from the planned end of the window."""

    job: JobRef
    capture_id: str
    spec: CaptureSpec
    start_at_ns: int
    announce_timeout_ms: int
    targets: tuple[Wanted, ...]


class _Judged(msgspec.Struct, frozen=True):
    wanted: Wanted
    accepted: Accepted
    fact: TargetFact
    limit_bytes: int | None = None


class Dispatch:
    """`prepared_share`: see `room`. `free` tells the free bytes of a file system; replaced in tests."""

    def __init__(
        self,
        book: CaptureBook,
        rates: room.Rates,
        spool: Path,
        *,
        keep_free_bytes: int,
        prepared_share: float,
        free: Callable[[Path], int] = room.free_bytes,
    ) -> None:
        self._book = book
        self._rates = rates
        self._spool = spool
        self._keep_free = keep_free_bytes
        self._prepared_share = prepared_share
        self._free = free
        self._one_at_a_time = asyncio.Lock()
        self._cancelled_early: dict[tuple[JobRef, str], str] = {}

    async def accept(self, order: Order, known: Sequence[Known]) -> Capture:
        """Accept what is new in `order`; `known` are the registrations of its job on this node.

        Raises RequestKeyConflict where the capture id is known with another job or spec.
        """
        async with self._one_at_a_time:  # two captures must not count the same room as theirs
            capture = self._book.get(order.capture_id)
            if capture is not None:
                _check_same(capture.record, order)
            have = {} if capture is None else capture.targets
            fresh = [wanted for wanted in order.targets if wanted.target_id not in have]
            if capture is not None and not fresh:
                return capture
            record = capture.record if capture is not None else _record(order)
            if (reason := self.cancelled_early(order.job, order.capture_id)) is not None:
                record = msgspec.structs.replace(record, withdrawn=reason)
            judged = await asyncio.to_thread(self._judge_all, order, record, fresh, known)
            record = msgspec.structs.replace(record, targets=(*record.targets, *(each.accepted for each in judged)))
            try:
                capture = await asyncio.to_thread(self._book.accept, record, [Status(each.fact) for each in judged])
            except OSError as error:
                return self._not_written(record, judged, error)
            await asyncio.to_thread(self._book.prune)
            return capture

    def _not_written(self, record: CaptureRecord, judged: Sequence[_Judged], error: OSError) -> Capture:
        """What can't be written down is not accepted: a restart would forget it. The answer alone says so."""
        reason = FailureReason.NO_ROOM if error.errno in safefs.DISK_FULL else FailureReason.SPOOL_FAILED
        detail = f"Nothing was sent: the spool {self._spool} can't be written ({error.strerror})."
        capture = Capture(self._spool, record)
        for each in judged:
            refused = each if each.fact.state.terminal else _failed(each, reason, detail)
            capture.targets[each.wanted.target_id] = Target(self._spool, each.accepted, Status(refused.fact))
        return capture

    async def cancel(self, capture: Capture, reason: str) -> None:
        """Write down that the capture was cancelled, so that nothing is asked for after a restart either.

        A disk that can't be written only warns: what was taken back stays taken back.
        """
        async with self._one_at_a_time:
            capture.cancel(reason)
            try:
                await asyncio.to_thread(self._book.accept, capture.record, [])
            except OSError as error:
                log.warning("cancel not written capture=%s why=%r; a restart forgets it", capture.id, str(error))

    def cancel_early(self, job: JobRef, capture_id: str, reason: str) -> None:
        """A cancel overtook its dispatch: the dispatch, when it comes, must find that it is too late."""
        self._cancelled_early[job, capture_id] = reason[:500]
        while len(self._cancelled_early) > MAX_CANCELLED_EARLY:
            del self._cancelled_early[next(iter(self._cancelled_early))]  # the oldest

    def cancelled_early(self, job: JobRef, capture_id: str) -> str | None:
        """The reason of a cancel that came before the dispatch was written down; None: there was none."""
        return self._cancelled_early.get((job, capture_id))

    def _judge_all(
        self, order: Order, record: CaptureRecord, fresh: Sequence[Wanted], known: Sequence[Known]
    ) -> list[_Judged]:
        judged = [_judge(wanted, known) for wanted in fresh]
        if record.withdrawn is not None:
            detail = f"The capture was cancelled before this target was dispatched ({record.withdrawn})."
            return [_failed(each, FailureReason.CANCELLED, detail) for each in judged]
        refused = self._without_room(order, judged)
        return [self._prepared(order, each, refused.get(each.wanted.target_id)) for each in judged]

    def _without_room(self, order: Order, judged: Sequence[_Judged]) -> dict[str, str]:
        size, prepared = self._window(order.job, order.spec)
        demands = [
            room.Demand(each.wanted.target_id, Path(each.accepted.path), size, prepared, each.limit_bytes)
            for each in judged
            if not each.fact.state.terminal
        ]
        return room.refused(demands, self._promised(), keep_free=self._keep_free, free=self._free)

    def _promised(self) -> list[room.Demand]:
        """What was accepted and has not been written yet: windows, and what is prepared of them once they are there."""
        demands = []
        for capture in self._book.unsettled():
            size, prepared = self._window(capture.record.job, capture.record.spec)
            for target in capture.open_targets:
                path = Path(target.accepted.path)
                if target.fact.state < TargetState.ANNOUNCED:
                    demands.append(room.Demand(target.id, path, size, prepared))
                elif target.fact.state is TargetState.ANNOUNCED:
                    known = target.fact.announced_bytes
                    rest = prepared if known is None else int(known * self._prepared_share)
                    demands.append(room.Demand(target.id, path, 0, rest))
        return demands

    def _window(self, job: JobRef, spec: CaptureSpec) -> tuple[int, int]:
        """Bytes that one window may write, and bytes that preparing it may add."""
        size = self._rates.bytes_per_ms(job, spec) * spec.duration_ms
        return int(size), int(size * self._prepared_share)

    def _prepared(self, order: Order, judged: _Judged, no_room: str | None) -> _Judged:
        """The same with its output folder made, or failed."""
        if judged.fact.state.terminal:
            return judged
        if no_room is not None:
            return _failed(judged, FailureReason.NO_ROOM, f"Nothing was sent: {no_room}. Free space, or ask for less.")
        check_output_path(output_path(judged.accepted, order.capture_id))
        try:
            try:
                _make_folder(judged.accepted, order.capture_id, self._spool)
            except FileNotFoundError:  # a finished target's folder was being tidied away around it
                _make_folder(judged.accepted, order.capture_id, self._spool)
        except (OSError, safefs.Unsafe) as error:
            return _failed(judged, *_folder_problem(judged.accepted, self._spool, error))
        return judged


def output_path(accepted: Accepted, capture_id: str) -> str:
    """Where Kineto is told to write, as the worker sees it."""
    return "/".join((accepted.worker_path.rstrip("/"), CAPTURES, capture_id, *accepted.output_parts, TRACE_NAME))


def _record(order: Order) -> CaptureRecord:
    end_ns = order.start_at_ns + order.spec.duration_ms * NS_PER_MS
    return CaptureRecord(
        capture_id=order.capture_id,
        job=order.job,
        spec=order.spec,
        start_at_ns=order.start_at_ns,
        announce_by_ns=end_ns + order.announce_timeout_ms * NS_PER_MS,
        accepted_at_ns=time.time_ns(),
    )


def _check_same(record: CaptureRecord, order: Order) -> None:
    if record.job != order.job or record.spec != order.spec:
        raise RequestKeyConflict(
            f"Capture {order.capture_id} was accepted here before with another job or spec; nothing was dispatched."
        )


def _judge(wanted: Wanted, known: Sequence[Known]) -> _Judged:
    """Whether this very incarnation may be captured now."""
    found = next((each for each in known if each.registration.uuid == wanted.registration), None)
    if found is None or found.registration.target_id != wanted.target_id:
        identity = Identity(registration=wanted.registration)
        fact = TargetFact(wanted.target_id, identity, TargetState.PENDING)
        return _failed(
            _Judged(wanted, Accepted(wanted.target_id), fact),
            FailureReason.STALE_REGISTRATION,
            f"No registration {wanted.registration[:40]!r} of {wanted.target_id[:120]} is on this node.",
        )
    one, worker = found.registration, found.worker
    judged = _Judged(
        wanted,
        Accepted(wanted.target_id, one, str(found.where.path), found.where.worker_path, found.uid, found.gid),
        TargetFact(wanted.target_id, one.identity, TargetState.DISPATCHED),
        found.where.limit_bytes,
    )
    if worker.current:
        return judged
    replaced = any(each.worker.current and each.registration.target_id == wanted.target_id for each in known)
    ending = not worker.alive or one.phase is Phase.EXITING
    reason = FailureReason.WORKER_EXITED if ending and not replaced else FailureReason.STALE_REGISTRATION
    detail = f"Worker {one.uuid} (rank {one.rank}, pid {one.pid}) was not asked: {worker.note or 'it is not current'}."
    return _failed(judged, reason, detail)


def _failed(judged: _Judged, reason: FailureReason, detail: str) -> _Judged:
    fact = msgspec.structs.replace(judged.fact, state=TargetState.PENDING)  # nothing was dispatched
    return msgspec.structs.replace(judged, fact=states.fail(fact, reason, detail))


def _make_folder(accepted: Accepted, capture_id: str, spool: Path) -> None:
    """Make the folder that the worker writes to, and prove that a file can be moved from it into the spool."""
    root, parts = Path(accepted.path), (CAPTURES, capture_id, *accepted.output_parts)
    safefs.make_directories(root, *parts, uid=accepted.uid, gid=accepted.gid)
    name = f".probe-{os.getpid()}"
    with safefs.directory(root, *parts) as source, safefs.directory(spool) as target:
        os.close(
            os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=source)
        )
        try:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            os.unlink(name, dir_fd=target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=source)
            raise


def _folder_problem(accepted: Accepted, spool: Path, error: Exception) -> tuple[FailureReason, str]:
    if isinstance(error, OSError) and error.errno in safefs.DISK_FULL:
        return (
            FailureReason.NO_ROOM,
            f"Nothing was sent: no folder can be made below {accepted.path} ({error.strerror}).",
        )
    if isinstance(error, OSError) and error.errno == errno.EXDEV:
        why = f"{accepted.path} and the spool {spool} are on different mounts; put them on the same one"
    else:
        why = f"no folder for the trace can be made below {accepted.path}: {error}"
    return FailureReason.SPOOL_FAILED, f"Nothing was sent: {why}."
