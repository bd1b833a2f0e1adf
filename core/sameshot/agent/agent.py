"""The agent of one node: what it owns, how the parts hand over to each other, and how it comes back after a restart.

Dispatch ─▶ dispatch (accept, on disk) ─▶ pursue (ask the daemons)      announce (see the file) ─▶ delivery
                                      └─▶ announce (watch for the file) ──────────────┘    (verify, archive)
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Coroutine, Hashable, Set
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sameshot import states
from sameshot.agent import room, safefs
from sameshot.agent.announce import (
    CAPTURES,
    Announcer,
    Sight,
    Sighting,
    Watch,
    discard_leftover,
    leftover_written_ns,
)
from sameshot.agent.archive import Archive
from sameshot.agent.capturebook import Capture, CaptureBook, Target
from sameshot.agent.config import AgentConfig
from sameshot.agent.daemons import DaemonFor, Daemons, daemon_factory
from sameshot.agent.delivery import Delivery
from sameshot.agent.dispatch import NS_PER_MS, Dispatch, Order
from sameshot.agent.health import Health
from sameshot.agent.journal import Journal
from sameshot.agent.pursue import Pursuit
from sameshot.agent.registrations import Registrations
from sameshot.agent.spoolttl import SpoolTtl
from sameshot.agent.verifypool import VerifyPool
from sameshot.errors import NoSuchJob, UsageError
from sameshot.model import FailureReason, JobRef, TargetState, WaitsFor, Worker
from sameshot.profiler.daemon import CAPABILITIES, TriggerStatus
from sameshot.storage import Storage
from sameshot.threads import DaemonThreads

log = logging.getLogger(__name__)

_T = TypeVar("_T")

THREADS = 32
MAX_UNREGISTERED = 100
CLOSE_WITHIN_S = 5.0  # for a dispatch or a cancel that is being written down
# An unfinished file of a window that is over is nobody's, once nothing was written to it for this long after the time
# that the window itself takes; it is looked for so long.
LEFTOVER_QUIET_S = 10.0
LEFTOVER_WITHIN_S = 600.0

_FAILURES = {
    Sight.UNSAFE: FailureReason.UNSAFE_FILE,
    Sight.STUCK: FailureReason.SPOOL_FAILED,
    Sight.EXITED: FailureReason.WORKER_EXITED,
    Sight.GAVE_UP: FailureReason.MISSING,
}
_NOT_HELD = (TriggerStatus.NOT_MATCHED, TriggerStatus.BUSY)


class Agent:
    """`make_daemon`, `storage` and `free` are the seams to the outside; None means the real thing of `config`."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        make_daemon: DaemonFor | None = None,
        storage: Storage | None = None,
        free: Callable[[Path], int] = room.free_bytes,
    ) -> None:
        self.config = config
        self.health = Health()
        self.journal = Journal()
        self.registrations = Registrations(config.worker_dirs, config.node)
        self.book = CaptureBook(config.spool, CAPABILITIES[config.backend].strongest_claim)
        self.rates = room.Rates(config.spool)
        self.pool = VerifyPool(config.verify_workers, config.niceness)
        self.archive = Archive(storage or Storage.open(config.archive), config.uploads)
        self.daemons = Daemons(
            config.worker_dirs,
            make_daemon or daemon_factory(config.backend, config.dynolog, config.poll_interval_s),
        )
        self.delivery = Delivery(
            self.book,
            self.pool,
            self.archive,
            self.journal,
            encoding=config.encoding,
            columns=config.columns,
            allowance_share=config.allowance_share,
        )
        self.pursuit = Pursuit(self.book, self.daemons, self.journal, backend=config.backend, retry_s=config.retry_s)
        self.dispatch = Dispatch(
            self.book,
            self.rates,
            config.spool,
            keep_free_bytes=config.keep_free_bytes,
            prepared_share=room.prepared_share(config.encoding, columns=config.columns),
            free=free,
        )
        self.ttl = SpoolTtl(self.book, self.journal, config.spool, config.spool_ttl_s)
        self.announcer = Announcer(config.announce_period_s, self._hand_over, self.journal)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spool_lock: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._owned: dict[Hashable, asyncio.Task[Any]] = {}

    async def start(self) -> None:
        """Take the spool, serve the workers' daemons, and go on with everything that a predecessor left unfinished."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(DaemonThreads(THREADS, "sameshot"))
        self.config.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool_lock = _own(self.config.spool)
        self.book.load()
        self.rates.load()
        self.pool.start()
        await self.config.worker_dirs.start()
        await self.daemons.start()
        for capture in self.book:
            if capture.open_targets:
                self.journal.record("resumed", capture.id)
                self._follow(capture)
                if capture.record.withdrawn is not None:
                    self._spawn(self._take_back(capture))
        self.announcer.start()
        self._sweeping = asyncio.create_task(self._keep_spool())

    async def close(self) -> None:
        """Stop; everything that is under way is on disk and goes on at the next start."""
        if self._owned:
            await asyncio.wait(list(self._owned.values()), timeout=CLOSE_WITHIN_S)
            for task in list(self._owned.values()):
                task.cancel()
        with contextlib.suppress(TimeoutError):  # every thread may hang in a file system
            await asyncio.wait_for(asyncio.to_thread(self.announcer.stop), 2 * CLOSE_WITHIN_S)
        ending = [*self._tasks, *([self._sweeping] if self._sweeping is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.pursuit.close()
        await self.delivery.close()
        await self.pool.close()
        await self.daemons.close()
        await self.config.worker_dirs.close()
        if self._spool_lock is not None:
            os.close(self._spool_lock)

    # --- what callers ask ------------------------------------------------------------------------------------

    async def workers(self, job: JobRef) -> list[Worker]:
        """Every registration of this job on this node, dead ones too; empty where it has none (yet)."""
        found = await asyncio.to_thread(self.registrations.of, job)
        ages = {path: await self.daemons.poll_ages(path) for path in {str(known.where.path) for known in found}}
        return [
            msgspec.structs.replace(
                known.worker,
                last_poll_age_s=ages[str(known.where.path)].get(
                    (known.registration.kineto_job_id, known.registration.pid)
                ),
            )
            for known in found
        ]

    def unregistered(self, job: JobRef) -> list[str]:
        """Of each place of this job on this node where somebody should have registered long ago: why, in words."""
        return list(self.config.worker_dirs.unregistered(job))[:MAX_UNREGISTERED]

    async def accept(self, order: Order) -> Capture:
        """Accept a capture for this node and begin. Raises NoSuchJob for a job that has no worker here.

        A caller that goes away half-way changes nothing; one that repeats its request shares the answer.
        """
        return await self._share(order, lambda: self._accept(order))

    async def _accept(self, order: Order) -> Capture:
        known = await asyncio.to_thread(self.registrations.of, order.job)
        if not known:
            await self.check_job(order.job)
        capture = await self.dispatch.accept(order, known)
        if self.book.get(capture.id) is capture:
            reason = self.dispatch.cancelled_early(order.job, capture.id)
            if reason is not None and capture.record.withdrawn is None:
                capture.cancel(reason)  # it came while the acceptance was being written
                self._spawn(self._withdraw(capture, reason))
            for target in capture.targets.values():
                reason = target.fact.failure.reason.value if target.fact.failure else ""
                self.journal.record(target.fact.state.name.lower(), capture.id, target.id, reason)
            self._follow(capture)
        return capture

    def capture_of(self, job: JobRef, capture_id: str) -> Capture | None:
        """An accepted capture of this very job."""
        capture = self.book.get(capture_id)
        return capture if capture is not None and capture.record.job == job else None

    async def withdraw(self, capture: Capture, reason: str) -> None:
        """Take back what no worker has fetched; what was fetched goes on to its end, and its note says so.

        Like `accept`, the agent's own once it has begun.
        """
        await self._share(("withdraw", capture.id), lambda: self._withdraw(capture, reason))

    async def take_back(self, capture: Capture, reason: str, only: Set[str]) -> None:
        """The same for some targets; the others go on, and nothing stops a later request for these."""
        for target_id in only & capture.targets.keys():
            self.journal.record("withdrawn", capture.id, target_id, reason[:500])
        await self._share(("take back", capture.id, frozenset(only)), lambda: self._take_back(capture, only))

    async def _withdraw(self, capture: Capture, reason: str) -> None:
        capture.cancel(reason)
        self.journal.record("withdrawn", capture.id, detail=reason[:500])
        await self._take_back(capture)  # first of all: a disk that is full or slow must not stand before it
        await self.dispatch.cancel(capture, reason)

    async def check_job(self, job: JobRef) -> None:
        """Raise NoSuchJob unless this node has, or had, something to do with the job."""
        if self.book.knows_job(job) or any(where.job == job for where in self.config.worker_dirs.current()):
            return
        if not await asyncio.to_thread(self.registrations.of, job):
            raise NoSuchJob(f"No worker of {job} (uid {job.uid[:60]}) is known on node {self.config.node}.")

    async def _take_back(self, capture: Capture, only: Set[str] | None = None) -> None:
        wanted = [target for target in capture.open_targets if only is None or target.id in only]
        waiting = [target for target in wanted if target.fact.state < TargetState.ANNOUNCED]
        # A broker that was started after the fetch knows nothing of it and would call it taken back.
        facts = await self.pursuit.withdraw(capture, [t for t in waiting if t.fact.state < TargetState.CONSUMED])
        for target in waiting:
            fact = facts.get(target.id)
            status = None if fact is None else fact.status
            if target.fact.state >= TargetState.ANNOUNCED:
                continue  # its file came while we asked
            if status is TriggerStatus.WITHDRAWN:
                await self._fail(capture, target, FailureReason.CANCELLED, "Taken back before its worker fetched it.")
            elif status in _NOT_HELD and target.fact.state < TargetState.QUEUED:
                await self._fail(capture, target, FailureReason.CANCELLED, "Cancelled before its worker was triggered.")
            else:
                note = "cancelled, but its worker may have the request already: the window can't be taken back"
                self.book.merge(target, msgspec.structs.replace(target.fact, note=note))

    # --- from part to part -----------------------------------------------------------------------------------

    def _follow(self, capture: Capture) -> None:
        """Put every open target where it belongs. Safe to call again."""
        for target in capture.open_targets:
            if target.fact.state >= TargetState.ANNOUNCED:
                self.delivery.begin(capture, target)
            elif target.accepted.registration is not None:
                self.announcer.watch(self._watch(capture, target))
        if any(target.fact.state < TargetState.ANNOUNCED for target in capture.open_targets):
            self.pursuit.begin(capture)
            self._spawn(self.pool.warm())

    async def _share(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do `work` to its end whatever becomes of the caller; who asks for the same meanwhile gets the same end.

        A handler is cancelled when its caller's deadline passes, but a thread that writes can't be: a second one beside
        it would write the same files.
        """
        task = self._owned.get(key)
        if task is None:
            task = self._owned[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._owned.pop(key, None))
        result: _T = await asyncio.shield(task)
        return result

    def _watch(self, capture: Capture, target: Target) -> Watch:
        accepted = target.accepted
        assert accepted.registration is not None
        return Watch(
            capture_id=capture.id,
            target_id=target.id,
            registration=accepted.registration,
            root=Path(accepted.path),
            parts=(CAPTURES, capture.id, *accepted.output_parts),
            file_name=accepted.file_name,
            uid=accepted.uid,
            destination=target.raw,
            announce_by_ns=capture.record.announce_by_ns,
            give_up_at_ns=capture.record.announce_by_ns + int(self.config.late_look_s * 1e9),
            most_bytes=self.rates.most_bytes(capture.record.job, capture.record.spec) if accepted.owner else None,
        )

    def _hand_over(self, sighting: Sighting) -> None:
        """Called in the announcing thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: self._spawn(self._on_sighting(sighting)))

    async def _on_sighting(self, sighting: Sighting) -> None:
        capture = self.book.get(sighting.watch.capture_id)
        target = None if capture is None else capture.targets.get(sighting.watch.target_id)
        if capture is None or target is None:
            return
        if sighting.sight is Sight.ANNOUNCED and sighting.size is not None:
            seen = msgspec.structs.replace(
                target.fact, state=TargetState.ANNOUNCED, announced_bytes=sighting.size, note="waits for a verifier"
            )
            target.trouble = ""
            self.book.merge(target, seen)
            self.announcer.forget(capture.id, target.id)
            self.delivery.begin(capture, target)
            await self.pursuit.withdraw(capture, [target])  # nobody offers this window once more
            await asyncio.to_thread(self._note_size, capture, target)
            return
        if target.fact.state >= TargetState.ANNOUNCED:
            return  # a repeated dispatch had it watched once more after its file was taken
        if sighting.sight is Sight.HINDERED:
            target.trouble = sighting.detail
            self.book.merge(target, msgspec.structs.replace(target.fact, note=sighting.detail))
            if sighting.size is not None:
                await self.pursuit.withdraw(capture, [target])  # its window is over
            return
        reason, detail = _FAILURES[sighting.sight], sighting.detail
        if reason is FailureReason.MISSING and (waits := WaitsFor.in_note(target.fact.note)) is not None:
            reason, detail = waits.reason, f"{detail} {states.WAITED_IN_VAIN[waits]}"
        if reason is FailureReason.WORKER_EXITED:
            await asyncio.to_thread(discard_leftover, sighting.watch)
        await self._fail(capture, target, reason, detail)
        # Nobody else may fetch what was meant for this worker, neither its successor nor a process with its pid.
        await self.pursuit.withdraw(capture, [target])
        await self._discard_when_quiet(sighting.watch, capture, target)

    async def _discard_when_quiet(self, watch: Watch, capture: Capture, target: Target) -> None:
        """Remove the empty file of a start that Kineto refused: at its exit the worker would wait for it in vain.

        One that may still be written to, by a window that began late, stays: its worker must wait for it.
        """
        record, until = capture.record, time.monotonic() + LEFTOVER_WITHIN_S
        takes_ns = (record.spec.duration_ms + record.spec.warmup_ms) * NS_PER_MS + int(LEFTOVER_QUIET_S * 1e9)
        while (written_ns := await asyncio.to_thread(leftover_written_ns, watch)) is not None:
            left_s = (max(written_ns, record.start_at_ns) + takes_ns - time.time_ns()) / 1e9
            if left_s <= 0:
                await asyncio.to_thread(discard_leftover, watch)
                await asyncio.to_thread(self._tidy, capture, target)
                return
            if time.monotonic() + left_s > until:
                return
            await asyncio.sleep(left_s)

    def _note_size(self, capture: Capture, target: Target) -> None:
        self.book.write(target, target.status)
        self.rates.learn(capture.record, target.fact.announced_bytes or 0)
        self._tidy(capture, target)

    async def _fail(self, capture: Capture, target: Target, reason: FailureReason, detail: str) -> None:
        failed = states.fail(target.fact, reason, detail)
        await asyncio.to_thread(self.book.write, target, self.book.strengthened(target, failed))
        if self.book.merge(target, failed):
            self.announcer.forget(capture.id, target.id)
            self.journal.record("failed", capture.id, target.id, reason.value)
        await asyncio.to_thread(self._tidy, capture, target)

    def _tidy(self, capture: Capture, target: Target) -> None:
        """Remove the folders that were made for this target, as far as nothing is in them."""
        if target.accepted.registration is not None:
            parts = (CAPTURES, capture.id, *target.accepted.output_parts)
            safefs.remove_empty_directories(Path(target.accepted.path), *parts)

    async def _keep_spool(self) -> None:
        while True:
            await asyncio.sleep(self.ttl.pause_s)
            try:
                await asyncio.to_thread(self.ttl.sweep)
            except Exception:
                log.exception("a look for what is too old failed; the next one follows")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step failed", exc_info=error)


def _own(spool: Path) -> int:
    """Two agents on one spool would deliver each other's traces twice and remove each other's bytes."""
    fd = os.open(spool / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UsageError(f"Another agent already uses the spool {spool}; end it, or give this one its own.") from None
    return fd
