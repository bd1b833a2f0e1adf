"""One capture's life: wait for the slot, dispatch, close the set, look until everything is decided, publish.

Each agent has an attendant (a task of its own), and `run` alone decides: it wakes when one has news or time has passed,
closes the set, gives up what is overdue and notices convergence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import msgspec

from sameshot import states
from sameshot.coordinator.attend import Attendant, Offer
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import Timings
from sameshot.coordinator.links import Facts, ask_all
from sameshot.coordinator.plan import freeze
from sameshot.coordinator.publish import Publisher
from sameshot.coordinator.record import CaptureRecord
from sameshot.coordinator.roster import Roster
from sameshot.coordinator.slot import Slot
from sameshot.coordinator.withdrawal import Withdrawal
from sameshot.manifest.rules import common_window_ns
from sameshot.manifest.values import Target
from sameshot.model import CaptureState, FailureReason, Nobody, Outcome
from sameshot.states import Deadlines

_log = logging.getLogger(__name__)
_NS = 1_000_000_000
# Longer between two looks at the clock than any call may take: we were not running.
_AWAY_S = 10.0


class Surroundings(Protocol):
    """What all captures of a coordinator share."""

    clock: Clock
    timings: Timings
    roster: Roster
    publisher: Publisher
    slot: Slot[CaptureRecord]


class CaptureRun:
    def __init__(self, record: CaptureRecord, around: Surroundings, strangers: frozenset[str] | None) -> None:
        """`strangers`: agents that said they don't know this id; None: nobody can know it (it is new by itself)."""
        self._record = record
        self._targets = record.targets
        self._around = around
        self._clock = around.clock
        self._timings = around.timings
        self._strangers = strangers
        self._leaves_recordings = False
        self._window_ends = 0.0
        self._last_look = 0.0
        self._judge_from = 0.0
        self._attendants: dict[str, Attendant] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._releases: list[asyncio.Task[None]] = []
        around.slot.join(record, record.news.set)

    async def run(self) -> None:
        try:
            await self._wait_for_slot()
            if not self._record.cancelled:
                await self._collect()
            outcome = self._converge()
            self._give_slot_back()
            if outcome is not None:
                await self._publish(outcome)
            await asyncio.gather(*self._releases, return_exceptions=True)
        except Exception as error:
            _log.exception("capture %s broke off", self._record.capture_id)
            self._record.say(f"The coordinator itself failed ({error!r}); its log has more. Archived traces are kept.")
            if not self._targets.facts:
                self._record.nobody = Nobody.BROKEN
            if not self._record.published:
                self._record.manifest_uri = ""
            self._record.move(CaptureState.FAILED)
            self._record.settled.set()
        finally:
            for release in self._releases:
                release.cancel()
            if self._leaving is None:
                self._around.slot.leave(self._record)

    async def _wait_for_slot(self) -> None:
        while (head := self._around.slot.head) is not self._record and not self._record.cancelled:
            assert head is not None
            waits = head.targets.holding_slot()
            self._record.say(
                f"waits for capture {head.capture_id}: {waits or 'some'} of its workers may still be recording"
            )
            await self._wait(self._timings.poll_s)
        self._record.say("")

    async def _collect(self) -> None:
        offer = self._open()
        with contextlib.ExitStack() as dispatching:
            dispatching.enter_context(self._around.roster.hurry())
            self._attendants = {
                link.key: Attendant(link, offer, self._targets, self._clock, self._timings, self._record.changed)
                for link in self._around.roster.links()
            }
            tasks = [asyncio.create_task(each.run()) for each in self._attendants.values()]
            try:
                await self._until_decided(offer, dispatching)
            finally:
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, Exception):
                        _log.error("attending an agent broke off", exc_info=result)
        if self._record.frozen is None:
            self._close(offer)
        if self._record.cancelled and not self._targets.converged:
            await self._withdraw()

    async def _until_decided(self, offer: Offer, dispatching: contextlib.ExitStack) -> None:
        """Returns when every target is decided, when there is none, or at a cancel."""
        closes_at = self._clock.monotonic() + self._timings.freeze_s
        while not self._record.cancelled:
            now = self._clock.monotonic()
            if self._record.frozen is None and (
                now >= closes_at or all(each.listing for each in self._attendants.values())
            ):
                self._close(offer)
                dispatching.close()
            if self._record.frozen is not None:
                if self._present(now):
                    contacts = {agent: each.contact for agent, each in self._attendants.items()}
                    if self._targets.expire(contacts, now):
                        self._record.changed()
                if self._targets.converged or not self._record.frozen.targets:
                    return
                if not self._targets.holding_slot(but=self._is_silent):
                    self._around.slot.leave(self._record)
            await self._wait(self._timings.poll_s)

    def _open(self) -> Offer:
        """Fix the offered start and with it every deadline."""
        spec, timings = self._record.request.spec, self._timings
        delay_s = (
            self._around.roster.poll_interval_s(timings.default_poll_interval_s)
            + spec.warmup_ms / 1000
            + timings.start_margin_s
            if spec.start_delay_ms is None
            else spec.start_delay_ms / 1000
        )
        announce_s = timings.announce_s + timings.announce_per_window * spec.duration_ms / 1000
        now = self._clock.monotonic()
        self._window_ends = now + delay_s + spec.duration_ms / 1000
        self._last_look = now
        offer = Offer(
            capture_id=self._record.capture_id,
            spec=spec,
            start_at_ns=self._clock.wall_ns() + int(delay_s * _NS),
            announce_s=announce_s,
            deadlines=Deadlines(announce_by=self._window_ends + announce_s + timings.agent_first_s),
            strangers=self._strangers,
        )
        self._record.start_at_ns = offer.start_at_ns
        self._record.move(CaptureState.DISPATCHING)
        return offer

    def _close(self, offer: Offer) -> None:
        """Freeze the set; who has not answered by now owes its targets."""
        roster = self._around.roster
        self._record.frozen = freeze(
            [each.seen() for each in self._attendants.values()], roster.pods(), roster.last_seen
        )
        self._record.frozen_at_ns = self._clock.wall_ns()
        self._targets.close(self._record.frozen.targets, offer.deadlines)
        left_out = [each for each in self._attendants.values() if each.left_out]
        self._releases = [asyncio.create_task(each.release()) for each in left_out]
        self._record.say(self._record.frozen.message)
        self._record.move(CaptureState.COLLECTING)

    def _is_silent(self, agent: str) -> bool:
        return agent in self._attendants and self._attendants[agent].silent

    def _present(self, now: float) -> bool:
        """False for a moment after this process itself was away (suspended, starved): what was not heard meanwhile is
        nobody else's fault, so every agent is asked once more before anything is given up."""
        if now - self._last_look > _AWAY_S:
            self._judge_from = now + states.LAST_ANSWER_GRACE_S
        self._last_look = now
        return now >= self._judge_from

    def _converge(self) -> Outcome | None:
        """Everything is decided. None: there is nothing to publish, the capture ends here."""
        record, facts = self._record, self._targets.facts
        record.converged_at_ns = self._clock.wall_ns()
        if not facts:
            if record.cancelled:
                record.withdrawn = "It was cancelled before anything was dispatched."
            elif record.frozen is not None:
                record.nobody = record.frozen.nobody
            record.move(CaptureState.CANCELLED if record.cancelled else CaptureState.FAILED)
            record.settled.set()
            return None
        outcome = states.outcome(facts, cancelled=record.cancelled)
        record.common_window_ns = common_window_ns(
            Target(each.target_id, each.identity, each.artifact, each.failure) for each in facts
        )
        window_ms = record.request.spec.duration_ms
        if record.common_window_ns is not None and record.common_window_ns < window_ms * 500_000:
            common_ms = record.common_window_ns / 1e6
            record.say(f"{record.note} The traces have only {common_ms:.0f} ms of {window_ms} ms in common.".strip())
        record.move(CaptureState.PUBLISHING)
        record.settled.set()
        return outcome

    async def _publish(self, outcome: Outcome) -> None:
        record, ended = self._record, CaptureState(outcome.value)
        remarks, final = record.note, msgspec.structs.replace(record.view(), state=ended)
        async for progress in self._around.publisher.publish(final):
            if progress.published:
                record.published, record.manifest_uri = True, progress.uri
            elif progress.over:
                record.manifest_uri = ""  # no watcher needs to wait for it
            record.say(f"{remarks} {progress.note}".strip())
            record.move(ended)
            record.changed()

    # ---- the end by a cancel

    async def _withdraw(self) -> None:
        asked = [each.link for each in self._attendants.values() if each.dispatched]
        asked = [link for link in asked if self._targets.open(link.key)]
        withdrawal = Withdrawal(self._targets)
        reason = f"cancelled by {self._record.request.caller}"
        answers = await ask_all(
            asked, lambda link: link.withdraw(self._record.capture_id, reason, self._timings.call_s)
        )
        now = self._clock.monotonic()
        for link in asked:
            answer = answers[link.key]
            told = answer if isinstance(answer, Facts) else None
            if told is not None:
                self._targets.merge(link.key, told.targets, link.capabilities, now)
            withdrawal.answered(link, told)
        self._record.withdrawn = withdrawal.words()
        self._leaves_recordings = withdrawal.leaves_recordings
        self._targets.fail(FailureReason.CANCELLED, withdrawal.detail, now)
        self._record.changed()

    def _give_slot_back(self) -> None:
        """At once, unless workers may still be recording a window that nobody waits for any more."""
        wait_s = self._window_ends - self._clock.monotonic()
        if self._leaves_recordings and wait_s > 0:
            self._leaving = asyncio.create_task(self._leave_later(wait_s))
        else:
            self._around.slot.leave(self._record)

    async def _leave_later(self, wait_s: float) -> None:
        try:
            await self._clock.sleep(wait_s)
        finally:
            self._around.slot.leave(self._record)

    async def _wait(self, at_most_s: float) -> None:
        """Until there is news or time has passed. News of many agents is gathered, so that a large job's facts are
        looked through a few times a second and not once per answer."""
        passing = asyncio.ensure_future(self._clock.sleep(at_most_s))
        coming = asyncio.ensure_future(self._record.news.wait())
        try:
            await asyncio.wait((passing, coming), return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()
            coming.cancel()
        await asyncio.sleep(len(self._targets.agents()) / 5000)
        self._record.news.clear()
