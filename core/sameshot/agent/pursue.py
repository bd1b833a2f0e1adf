"""Keep asking the profiler daemons until every target of a capture has its window, and follow what they know.

One task per capture, so a silent daemon delays only the captures that need it. Asking is at-least-once: a config that
the daemon forgot (an agent restart empties the broker) is asked for again, one that was fetched never is. Stock dynolog
can't tell the two apart: there a config is asked for again when its start is past and Kineto has begun no file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sameshot.agent import safefs
from sameshot.agent.announce import CAPTURES
from sameshot.agent.capturebook import Capture, CaptureBook, Target
from sameshot.agent.daemons import Daemons
from sameshot.agent.dispatch import NS_PER_MS, output_path
from sameshot.agent.journal import Journal
from sameshot.errors import SameshotError, Unreachable
from sameshot.model import TargetFact, TargetState, WaitsFor
from sameshot.profiler.daemon import (
    CAPABILITIES,
    BackendName,
    ProfilerDaemon,
    TriggerFact,
    TriggerRequest,
    TriggerStatus,
)

log = logging.getLogger(__name__)

_STATES = {
    TriggerStatus.NOT_MATCHED: TargetState.DISPATCHED,
    TriggerStatus.BUSY: TargetState.DISPATCHED,
    TriggerStatus.QUEUED: TargetState.QUEUED,
    TriggerStatus.CONSUMED: TargetState.CONSUMED,
}
_ASK_AGAIN = {TriggerStatus.NOT_MATCHED: WaitsFor.NOT_MATCHED, TriggerStatus.BUSY: WaitsFor.BUSY}


class Pursuit:
    def __init__(
        self, book: CaptureBook, daemons: Daemons, journal: Journal, *, backend: BackendName, retry_s: float
    ) -> None:
        self._book = book
        self._daemons = daemons
        self._journal = journal
        self._remembers = not CAPABILITIES[
            backend
        ].sees_fetches  # a stock daemon outlives this agent, a broker does not
        self._retry_s = retry_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, capture: Capture) -> None:
        """Pursue a capture until none of its targets waits for a window; calling it again changes nothing."""
        if capture.id not in self._tasks:
            task = asyncio.create_task(self._pursue(capture))
            self._tasks[capture.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(capture.id, None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def withdraw(self, capture: Capture, targets: Sequence[Target]) -> dict[str, TriggerFact]:
        """Take back what was not fetched; target_id → what is true now. Unreachable daemons leave theirs out."""
        found: dict[str, TriggerFact] = {}
        async with capture.asking:
            for daemon, mine in self._by_daemon(targets):
                try:
                    facts = await daemon.withdraw(capture.id, [target.id for target in mine])
                except SameshotError as error:
                    log.warning("withdrawal failed capture=%s why=%r", capture.id, str(error))
                    continue
                found.update({fact.target_id: fact for fact in facts})
        return found

    async def _pursue(self, capture: Capture) -> None:
        while waiting := [target for target in capture.open_targets if target.fact.state < TargetState.ANNOUNCED]:
            groups = self._by_daemon(waiting)
            await asyncio.gather(*(self._round(capture, daemon, targets) for daemon, targets in groups))
            await asyncio.sleep(self._retry_s)

    async def _round(self, capture: Capture, daemon: ProfilerDaemon, targets: Sequence[Target]) -> None:
        try:
            async with capture.asking:
                known = {fact.target_id: fact for fact in await daemon.facts(capture.id)}
                asked = [target for target in targets if self._must_ask(capture, target, known.get(target.id))]
                lost = await self._lost(capture, targets, known)
                if asked or lost:
                    facts = await daemon.trigger(
                        [
                            *(_request(capture, target) for target in asked),
                            *(_request(capture, target, again=True) for target in lost),
                        ]
                    )
                    known.update({fact.target_id: fact for fact in facts})
            for target in targets:
                fact = known.get(target.id)
                # Of what is still to be asked for, only a fresh answer says what it waits for.
                if fact is not None and (target in asked or fact.status not in _ASK_AGAIN):
                    await self._learn(capture, target, _as_target_fact(target, fact))
        except Unreachable as error:
            for target in targets:
                if not target.trouble:
                    note = f"the profiler daemon does not answer: {error}"
                    self._book.merge(target, msgspec.structs.replace(target.fact, note=note))
        except Exception:
            log.exception("asking the profiler daemon failed capture=%s; tried again", capture.id)

    def _may_ask(self, capture: Capture, target: Target) -> bool:
        record = capture.record
        if record.withdrawn is not None or target.fact.state.terminal or target.trouble:
            return False
        # A window that begins later than this can't be over in time.
        return time.time_ns() <= record.announce_by_ns - record.spec.duration_ms * NS_PER_MS

    def _must_ask(self, capture: Capture, target: Target, known: TriggerFact | None) -> bool:
        if not self._may_ask(capture, target):
            return False
        if known is not None:
            return known.status in _ASK_AGAIN
        return target.fact.state < TargetState.QUEUED or (
            target.fact.state is TargetState.QUEUED and not self._remembers
        )

    async def _lost(self, capture: Capture, targets: Sequence[Target], known: dict[str, TriggerFact]) -> list[Target]:
        """Targets whose config a stock daemon may have lost: their start is past and there is no trace of a window."""
        queued = [one for one in targets if (fact := known.get(one.id)) and fact.status is TriggerStatus.QUEUED]
        if not self._remembers or not queued or time.time_ns() < capture.record.start_at_ns:
            return []
        may_ask = [target for target in queued if self._may_ask(capture, target)]
        return [target for target in may_ask if await asyncio.to_thread(_nothing_begun, capture, target)]

    async def _learn(self, capture: Capture, target: Target, fact: TargetFact) -> None:
        before = target.fact.state
        if target.trouble or capture.record.withdrawn is not None:  # its note says more than any daemon knows
            fact = msgspec.structs.replace(fact, note=target.fact.note)
        self._book.merge(target, fact)
        if (after := target.fact.state) is not before:
            self._journal.record(after.name.lower(), capture.id, target.id)
            await asyncio.to_thread(self._book.write, target, target.status)

    def _by_daemon(self, targets: Sequence[Target]) -> list[tuple[ProfilerDaemon, list[Target]]]:
        groups: dict[int, tuple[ProfilerDaemon, list[Target]]] = {}
        for target in targets:
            daemon = self._daemons.of(target.accepted.path)
            if daemon is not None and target.accepted.registration is not None:
                groups.setdefault(id(daemon), (daemon, []))[1].append(target)
        return list(groups.values())


def _nothing_begun(capture: Capture, target: Target) -> bool:
    """Whether Kineto has made no file: it makes `….tmp` as soon as it accepts a config. False where we can't look."""
    accepted = target.accepted
    try:
        with safefs.directory(Path(accepted.path), CAPTURES, capture.id, *accepted.output_parts) as folder:
            return not any(name.startswith(accepted.file_name) for name in os.listdir(folder))
    except (OSError, safefs.Unsafe):
        return False


def _request(capture: Capture, target: Target, *, again: bool = False) -> TriggerRequest:
    registration = target.accepted.registration
    assert registration is not None
    return TriggerRequest(
        capture_id=capture.id,
        target_id=target.id,
        pid=registration.pid,
        kineto_job_id=registration.kineto_job_id,
        spec=capture.record.spec,
        start_at_ns=capture.record.start_at_ns,
        output_path=output_path(target.accepted, capture.id),
        again=again,
    )


def _as_target_fact(target: Target, fact: TriggerFact) -> TargetFact:
    """A trigger's answer in the words of the state machine; what it does not say stays as it was."""
    state = _STATES.get(fact.status, target.fact.state)
    return msgspec.structs.replace(
        target.fact,
        state=state,
        note=_ASK_AGAIN.get(fact.status, ""),
        late_start=fact.late_start if fact.late_start is not None else target.fact.late_start,
        last_poll_age_s=fact.last_poll_age_s,
    )
