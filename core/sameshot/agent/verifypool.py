"""A bounded number of reading processes, smallest file first, and a spare one for small files behind large ones.

Every trace has an allowance by its own size (`states.allowance_s`), so a small one can't wait for minutes until large
ones have been read: while all processes read large files, the spare one takes the small ones.

On a node of a cluster traces come from pods that know nothing of each other. One pod never has all processes, the
pod for which the least time was spent comes first, and a reading that takes far longer than its size explains is ended;
the spare one does not wait for that. However odd the files of one pod are, those of another come through.
A process that dies while it reads is replaced and its file is read once more, this time without making columns; if the
second one dies too, the file (or the machine) is the reason. A reading that nobody waits for any longer is ended at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from sameshot.agent.capturebook import Verified
from sameshot.agent.verifyworker import Answer, Job, scratch_of
from sameshot.errors import SameshotError, TraceError

log = logging.getLogger(__name__)

TRIES = 2
SMALL = 32 << 20  # read within seconds
# How long one reading of a pod's file may take: a packed file can hold any number of bytes, and one that is still
# written to has no end.
BUDGET_FIXED_S, BUDGET_BYTES_PER_S = 30.0, 4e6
SLOW_FIXED_S = 5.0
IDLE_S = 60.0  # a process without work gives its memory back to the training node
_LINE_LIMIT = 1 << 20


class VerifierBroke(SameshotError):
    """The reading process died, or reported a fault of its own, more than once."""


class _Waiting(msgspec.Struct):
    size: int
    number: int
    job: Job
    owner: str
    result: asyncio.Future[Verified]


class VerifyPool:
    """`workers` processes and the spare one, started when there is work.

    `command` is replaced in tests only.
    """

    def __init__(self, workers: int, niceness: int, *, command: Sequence[str] | None = None) -> None:
        own = (sys.executable, "-P", "-m", "sameshot.agent.verifyworker", str(os.getpid()), str(niceness))
        self._regular = [_Slot(tuple(command or own)) for _ in range(max(1, workers))]
        self._spare = _Slot(tuple(command or own))
        self._slots = [*self._regular, self._spare]
        self._waiting: list[_Waiting] = []
        self._used: dict[str, float] = {}  # owner → seconds spent on its files since the last time nobody waited
        self._nudging: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._serve(slot)) for slot in self._slots]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._nudging is not None:
            self._nudging.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self._slots:
            await slot.stop()

    async def warm(self) -> None:
        """Start the regular processes now: a trace is about to come, and an interpreter takes a moment."""
        for slot in self._regular:
            try:
                await slot.ensure()
            except OSError as error:
                log.warning("verifier not started why=%r; tried again when a trace comes", str(error))

    @property
    def pids(self) -> list[int]:
        return [pid for slot in self._slots if (pid := slot.pid) is not None]

    async def verify(self, job: Job, size: int, *, owner: str = "") -> Verified:
        """Raises TraceError (the trace is bad), OSError (the disk is full), VerifierBroke. Cancelling ends the work.

        `owner` is the pod that it comes from, empty on a single machine; of a pod TimeoutError, too.
        """
        result: asyncio.Future[Verified] = asyncio.get_running_loop().create_future()
        self._count += 1
        async with self._changed:
            self._waiting.append(_Waiting(size, self._count, job, owner, result))
            self._changed.notify_all()
        try:
            return await result
        finally:
            result.cancel()

    async def _serve(self, slot: _Slot) -> None:
        while True:
            try:
                one = await self._next(slot)
            except TimeoutError:
                await slot.stop()
                continue
            budget_s = BUDGET_FIXED_S + one.size / BUDGET_BYTES_PER_S if one.owner else None
            try:
                async with asyncio.timeout(budget_s):
                    await self._read(slot, one.job, one.result)
            except TimeoutError:
                log.warning("verifying given up path=%s after %.0f s", one.job.path, budget_s or 0)
                await slot.abandon(one.job)
                if not one.result.done():
                    one.result.set_exception(TimeoutError())
            except Exception as error:  # a slot must survive whatever one file does to it
                log.exception("verifying failed path=%s", one.job.path)
                if not one.result.done():
                    one.result.set_exception(VerifierBroke(f"{type(error).__name__}: {error}"))

    async def _next(self, slot: _Slot) -> _Waiting:
        """The waiting file that this slot should read next; TimeoutError when there was none for `IDLE_S`."""
        async with asyncio.timeout(IDLE_S), self._changed:
            self._account(slot)
            self._changed.notify_all()  # its owner's next file may be read now
            await self._changed.wait_for(lambda: self._choose(slot) is not None)
            one = self._choose(slot)
            assert one is not None
            self._waiting.remove(one)
            slot.reading, slot.owner, slot.since = one.size, one.owner, time.monotonic()
            if one.owner:
                asyncio.get_running_loop().call_later(_slow_after_s(one.size), self._nudge)
            self._changed.notify_all()  # the spare one may have to step in
            return one

    def _account(self, slot: _Slot) -> None:
        if slot.owner:
            self._used[slot.owner] = self._used.get(slot.owner, 0.0) + time.monotonic() - slot.since
        slot.reading, slot.owner = 0, ""
        if not self._waiting:
            self._used.clear()

    def _choose(self, slot: _Slot) -> _Waiting | None:
        """Smallest first; of pods, that for which the least time was spent, and none that has its share already."""
        if slot is self._spare and not all(other.holds_up(time.monotonic()) for other in self._regular):
            return None
        served = Counter(other.owner for other in self._slots if other.owner)
        most = max(1, len(self._regular) - 1)  # one is left for the others
        ready = [
            one for one in self._waiting if served[one.owner] < most and (slot is not self._spare or one.size <= SMALL)
        ]
        return min(ready, key=lambda one: (self._used.get(one.owner, 0.0), one.size, one.number), default=None)

    def _nudge(self) -> None:
        """A reading goes on for long: the spare one may have to step in."""
        self._nudging = asyncio.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _read(self, slot: _Slot, job: Job, result: asyncio.Future[Verified]) -> None:
        trouble, wanted = "", job.columns
        for attempt in range(1, TRIES + 1):
            if result.done():
                return
            if attempt > 1:
                job = msgspec.structs.replace(job, columns="")
            asked = asyncio.create_task(slot.ask(job))
            either: set[asyncio.Future[Any]] = {asked, result}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:  # also where its time is over
                if not asked.done():
                    asked.cancel()
                    await asyncio.gather(asked, return_exceptions=True)
            if result.done():
                await slot.abandon(job)  # it is in the middle of a file that nobody wants any more
                return
            try:
                answer = asked.result()
            except (SameshotError, OSError) as error:
                trouble = str(error)
                log.warning("verifier died path=%s attempt=%d why=%r", job.path, attempt, trouble)
                await slot.abandon(job)
                continue
            if answer.verified is not None:
                if answer.no_columns or (attempt > 1 and wanted):
                    log.warning("no columns path=%s why=%r", job.path, answer.no_columns or trouble)
                result.set_result(answer.verified)
                return
            if (broken := answer.broken) is not None:
                result.set_exception(
                    TraceError(
                        broken.kind, broken.detail, byte_offset=broken.byte_offset, event_index=broken.event_index
                    )
                )
                return
            if answer.errno is not None:
                result.set_exception(OSError(answer.errno, answer.trouble or ""))
                return
            trouble = answer.trouble or "no answer"
        result.set_exception(VerifierBroke(f"The verifier broke {TRIES} times on {job.path}: {trouble}."))


class _Slot:
    """One process, or none at the moment."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.reading = 0  # bytes of the file that it reads now
        self.owner = ""  # whose file that is
        self.since = 0.0  # when it began (monotonic clock)
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    def holds_up(self, now: float) -> bool:
        """Whether small files should not wait for it: it reads a large one, or has been reading for far too long."""
        return self.reading > SMALL or (bool(self.owner) and now - self.since >= _slow_after_s(self.reading))

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def ensure(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=_LINE_LIMIT,
                )
            return self._process

    async def ask(self, job: Job) -> Answer:
        process = await self.ensure()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise VerifierBroke(f"its process ended with {_ending(await process.wait())}")
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError as error:
            raise VerifierBroke(f"its process answered what nobody understands ({error})") from None

    async def abandon(self, job: Job) -> None:
        """End the process in the middle of a job, and remove what it had written so far."""
        pid = None if self._process is None else self._process.pid
        await self.stop()
        if pid is not None:
            for path in scratch_of(job, pid):
                path.unlink(missing_ok=True)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # it holds nothing that a half-written scratch file would harm
        await process.wait()


def _slow_after_s(size: int) -> float:
    return SLOW_FIXED_S + size / BUDGET_BYTES_PER_S


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
