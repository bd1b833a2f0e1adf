"""From ANNOUNCED to the end: verify, archive, and only then say so. One task per announced trace.

Every trace has its own allowance, so a large or stuck one delays nobody else. Whatever happens, local bytes are removed
only after the archive has confirmed them, and the fact of it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from sameshot import states
from sameshot.agent import safefs
from sameshot.agent.archive import FIRST_PAUSE_S, LONGEST_PAUSE_S, Archive
from sameshot.agent.capturebook import Capture, CaptureBook, Target, Verified
from sameshot.agent.journal import Journal
from sameshot.agent.verifypool import VerifierBroke, VerifyPool
from sameshot.agent.verifyworker import Job
from sameshot.errors import StorageError, TraceError
from sameshot.model import Encoding, FailureReason, InvalidKind, RawBytes, TargetFact, TargetState

log = logging.getLogger(__name__)

# A first event this much after the offered start is a late start. The bytes decide: the back end knows only when the
# config was fetched, and asks a second time where it takes a window for dropped.
LATE_START_NS = 250_000_000


# Of the time that is left for verification: then columns are given up, so that they never cost a trace its allowance.
_COLUMNS_SHARE = 0.5


class _GivenUp(Exception):
    """The delivery ends here: `reason`, and whether the raw bytes may still be archived beside the failure."""

    def __init__(self, reason: FailureReason, detail: str, *, archive_raw: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.archive_raw = archive_raw


class Delivery:
    def __init__(
        self,
        book: CaptureBook,
        pool: VerifyPool,
        archive: Archive,
        journal: Journal,
        *,
        encoding: Encoding,
        columns: bool,
        allowance_share: float,
    ) -> None:
        self._book = book
        self._pool = pool
        self._archive = archive
        self._journal = journal
        self._encoding = encoding
        self._columns = columns
        self._allowance_share = allowance_share
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def begin(self, capture: Capture, target: Target) -> None:
        """Bring an announced trace to its end. Calling it again while it is under way changes nothing."""
        key = (capture.id, target.id)
        if key not in self._tasks and not target.fact.state.terminal:
            task = asyncio.create_task(self._deliver(capture, target))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """Stop where it is; the disk knows how to go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, capture: Capture, target: Target) -> None:
        size = target.fact.announced_bytes or 0
        deadline = time.monotonic() + self._allowance_share * states.allowance_s(size)
        try:
            await self._verify_and_archive(capture, target, size, deadline)
        except _GivenUp as end:
            await self._fail(capture, target, end, deadline)
        except Exception as error:
            log.exception("delivery broke capture=%s target=%s", capture.id, target.id)
            reason = (
                FailureReason.ARCHIVE_FAILED
                if target.fact.state is TargetState.VERIFIED
                else FailureReason.VERIFY_FAILED
            )
            detail = f"The agent itself failed: {type(error).__name__}: {error}. {_kept(target)}"
            await self._fail(capture, target, _GivenUp(reason, detail), deadline)

    async def _verify_and_archive(self, capture: Capture, target: Target, size: int, deadline: float) -> None:
        verified = target.status.verified
        if verified is None:
            verified = await self._verify(target, size, deadline)
            self._journal.record("read", capture.id, target.id)
        fact = target.fact
        late = verified.window_start_ns > capture.record.start_at_ns + LATE_START_NS
        seen = msgspec.structs.replace(fact, state=TargetState.VERIFIED, late_start=late, note="archiving")
        await self._learn(capture, target, seen, "verified", verified=verified)
        try:
            artifact = await self._archive.put_trace(capture, target, verified, deadline=deadline, late_start=late)
        except StorageError as error:
            detail = f"The trace is verified but could not be archived: {error} {_kept(target)}"
            raise _GivenUp(FailureReason.ARCHIVE_FAILED, detail) from error
        done = msgspec.structs.replace(target.fact, state=TargetState.ARCHIVED, artifact=artifact, note="")
        await self._learn(capture, target, done, "archived")
        await asyncio.to_thread(self._book.drop_bytes, target)

    async def _verify(self, target: Target, size: int, deadline: float) -> Verified:
        registration = target.accepted.registration
        assert registration is not None
        job = Job(
            path=str(target.raw),
            stored=str(target.stored),
            registration=registration.uuid,
            rank=registration.rank,
            bound_by=registration.bound_by,
            encoding=self._encoding,
            columns=str(target.columns) if self._columns else "",
            columns_by=time.monotonic() + _COLUMNS_SHARE * max(0.0, deadline - time.monotonic()),
        )
        self._book.merge(target, msgspec.structs.replace(target.fact, note="verifying"))
        pause = FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    return await self._pool.verify(job, size, owner=target.accepted.owner)
            except TimeoutError:
                detail = f"Reading its {size} bytes did not end within its allowance. {_kept(target)}"
                raise _GivenUp(FailureReason.VERIFY_TIMEOUT, detail) from None
            except TraceError as error:
                raise _GivenUp(InvalidKind(error.kind).reason, str(error), archive_raw=True) from error
            except VerifierBroke as error:
                raise _GivenUp(FailureReason.VERIFY_FAILED, str(error), archive_raw=True) from error
            except OSError as error:
                if error.errno not in safefs.DISK_FULL:
                    raise _GivenUp(
                        FailureReason.VERIFY_FAILED, f"The trace can't be read: {error}", archive_raw=True
                    ) from error
                if time.monotonic() + pause >= deadline:
                    detail = f"The node's disk is full, so its bytes could not be prepared. {_kept(target)}"
                    raise _GivenUp(FailureReason.ARCHIVE_FAILED, detail) from error
                self._book.merge(target, msgspec.structs.replace(target.fact, note="waits for room on the node's disk"))
                if job.columns:
                    log.warning("no columns path=%s why='the disk is full, and the trace comes first'", target.raw)
                    job = msgspec.structs.replace(job, columns="")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _fail(self, capture: Capture, target: Target, end: _GivenUp, deadline: float) -> None:
        raw: RawBytes | None = None
        detail = end.detail
        if end.archive_raw:
            note = f"{end.reason.value}, archiving the raw bytes"
            self._book.merge(target, msgspec.structs.replace(target.fact, note=note))
            try:
                raw = await self._archive.put_raw(capture, target, deadline=deadline)
            except Exception as error:  # whatever the store did: the target must come to its end
                if not isinstance(error, StorageError):
                    log.exception("archiving raw bytes broke capture=%s target=%s", capture.id, target.id)
                detail += f" Its raw bytes could not be archived ({error}). {_kept(target)}"
        failed = states.fail(target.fact, end.reason, detail)
        if raw is not None and failed.failure is not None:
            failed = msgspec.structs.replace(failed, failure=msgspec.structs.replace(failed.failure, raw=raw))
        await self._learn(capture, target, failed, "failed")
        if raw is not None:
            await asyncio.to_thread(self._book.drop_bytes, target)

    async def _learn(
        self, capture: Capture, target: Target, fact: TargetFact, event: str, *, verified: Verified | None = None
    ) -> None:
        """On disk first, then in memory where others read it: nobody is told what a restart would forget."""
        await asyncio.to_thread(self._book.write, target, self._book.strengthened(target, fact, verified))
        self._book.merge(target, fact, verified)
        detail = fact.failure.reason.value if fact.failure else ""
        self._journal.record(event, capture.id, target.id, detail)


def _kept(target: Target) -> str:
    return f"Its bytes are kept on the node as {target.raw}."
