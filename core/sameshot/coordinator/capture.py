"""One capture's life: wait for the slot, dispatch, close the set, look until everything is decided, publish.

Each agent has an attendant (a task of its own), and `run` alone decides: it wakes when one has news or time has passed,
closes the set, gives up what is overdue and notices convergence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol

import msgspec

from sameshot import states
from sameshot.api.views import CaptureView
from sameshot.coordinator.attend import Attendant, Order
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import Timings
from sameshot.coordinator.links import Facts, Roster, ask_all
from sameshot.coordinator.plan import Frozen, freeze
from sameshot.coordinator.publish import Publisher
from sameshot.coordinator.slot import Slot
from sameshot.coordinator.targets import TargetSet
from sameshot.coordinator.withdrawal import Withdrawal
from sameshot.manifest.rules import common_window_ns
from sameshot.manifest.values import Target
from sameshot.model import CaptureSpec, CaptureState, FailureReason, JobRef, Outcome
from sameshot.states import Deadlines

_log = logging.getLogger(__name__)
_NS = 1_000_000_000
# Longer between two looks at the clock than any call may take: we were not running.
_AWAY_S = 10.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, and under which id. Without a request key `n` is 1."""

    capture_id: str
    caller: str
    request_key: str
    n: int
    spec: CaptureSpec


class Surroundings(Protocol):
    """What all captures of a coordinator share."""

    job: JobRef
    series: str
    backend: str
    clock: Clock
    timings: Timings
    roster: Roster
    publisher: Publisher
    slot: Slot[CaptureRun]


class CaptureRun:
    def __init__(self, request: Request, around: Surroundings, strangers: frozenset[str] | None) -> None:
        """`strangers`: agents that said they don't know this id; None: nobody can know it (it is new by itself)."""
        self.request = request
        self.targets = TargetSet()
        self.accepted_at_ns = around.clock.wall_ns()
        self.settled = asyncio.Event()  # converged; only the manifest may still be on its way
        self.ended = asyncio.Event()  # the outcome stands
        self._around = around
        self._clock = around.clock
        self._timings = around.timings
        self._strangers = strangers
        self._state = CaptureState.WAITING
        self._note = ""
        self._cancelled = False
        self._withdrawn = ""
        self._leaves_recordings = False
        self._frozen: Frozen | None = None
        self._order: Order | None = None
        self._frozen_at_ns: int | None = None
        self._converged_at_ns: int | None = None
        self._common_window_ns: int | None = None
        self._published = False
        self._uri = around.publisher.uri(request.capture_id)
        self._window_ends = 0.0
        self._last_look = 0.0
        self._judge_from = 0.0
        self._attendants: dict[str, Attendant] = {}
        self._news = asyncio.Event()
        self._watchers: set[asyncio.Event] = set()
        self._leaving: asyncio.Task[None] | None = None
        around.slot.join(self, self._news.set)

    # ---- what others see

    @property
    def capture_id(self) -> str:
        return self.request.capture_id

    @property
    def state(self) -> CaptureState:
        return self._state

    @property
    def published(self) -> bool:
        return self._published

    def view(self, *, targets: bool = True) -> CaptureView:
        facts = self.targets.facts
        return CaptureView(
            capture_id=self.request.capture_id,
            job=self._around.job,
            series=self._around.series,
            caller=self.request.caller,
            request_key=self.request.request_key,
            n=self.request.n,
            spec=self.request.spec,
            state=self._state,
            note=self._note,
            backend=self._around.backend,
            world_size=self._frozen.world_size if self._frozen else None,
            generation=self._frozen.generation if self._frozen else "",
            accepted_at_ns=self.accepted_at_ns,
            start_at_ns=self._order.start_at_ns if self._order else None,
            common_window_ns=self._common_window_ns,
            frozen_at_ns=self._frozen_at_ns,
            converged_at_ns=self._converged_at_ns,
            published=self._published,
            manifest_uri=self._uri,
            cancel_requested=self._cancelled,
            withdrawn=self._withdrawn,
            expected=len(facts),
            archived=sum(fact.artifact is not None for fact in facts),
            failed=sum(fact.failure is not None for fact in facts),
            targets=facts if targets else (),
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set at every change, for as long as the block lasts."""
        event = asyncio.Event()
        self._watchers.add(event)
        try:
            yield event
        finally:
            self._watchers.discard(event)

    async def cancel(self) -> None:
        """Ask for the end; returns once the capture has ended. Changes nothing after convergence."""
        if not self.settled.is_set():
            self._cancelled = True
            self._change()
        await self.ended.wait()

    # ---- the life

    async def run(self) -> None:
        try:
            await self._wait_for_slot()
            if not self._cancelled:
                await self._collect()
            outcome = self._converge()
            self._give_slot_back()
            if outcome is not None:
                await self._publish(outcome)
        except Exception as error:
            _log.exception("capture %s broke off", self.capture_id)
            self._say(f"The coordinator itself failed ({error!r}); its log has more. Archived traces are kept.")
            self._move(CaptureState.FAILED)
            self.settled.set()
        finally:
            if self._leaving is None:
                self._around.slot.leave(self)

    async def _wait_for_slot(self) -> None:
        while (head := self._around.slot.head) is not self and not self._cancelled:
            assert head is not None
            waits = head.targets.holding_slot()
            self._say(f"waits for capture {head.capture_id}: {waits or 'some'} of its workers may still be recording")
            await self._wait(self._timings.poll_s)
        self._say("")

    async def _collect(self) -> None:
        order = self._open()
        with contextlib.ExitStack() as dispatching:
            dispatching.enter_context(self._around.roster.hurry())
            self._attendants = {
                link.address: Attendant(link, order, self.targets, self._clock, self._timings, self._change)
                for link in self._around.roster.links()
            }
            tasks = [asyncio.create_task(each.run()) for each in self._attendants.values()]
            try:
                await self._until_decided(order, dispatching)
            finally:
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, Exception):
                        _log.error("attending an agent broke off", exc_info=result)
        if self._frozen is None:
            self._close(order)
        if self._cancelled and not self.targets.converged:
            await self._withdraw()

    async def _until_decided(self, order: Order, dispatching: contextlib.ExitStack) -> None:
        """Returns when every target is decided, when there is none, or at a cancel."""
        closes_at = self._clock.monotonic() + self._timings.freeze_s
        while not self._cancelled:
            now = self._clock.monotonic()
            if self._frozen is None and (now >= closes_at or all(each.listing for each in self._attendants.values())):
                self._close(order)
                dispatching.close()
            if self._frozen is not None:
                if self._present(now):
                    contacts = {address: each.contact for address, each in self._attendants.items()}
                    if self.targets.expire(contacts, now):
                        self._change()
                if self.targets.converged or not self._frozen.targets:
                    return
                if not self.targets.holding_slot(but=self._is_silent):
                    self._around.slot.leave(self)
            await self._wait(self._timings.poll_s)

    def _open(self) -> Order:
        """Fix the offered start and with it every deadline."""
        spec, timings = self.request.spec, self._timings
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
        self._order = Order(
            capture_id=self.capture_id,
            spec=spec,
            start_at_ns=self._clock.wall_ns() + int(delay_s * _NS),
            announce_s=announce_s,
            deadlines=Deadlines(announce_by=self._window_ends + announce_s + timings.agent_first_s),
            strangers=self._strangers,
        )
        self._move(CaptureState.DISPATCHING)
        return self._order

    def _close(self, order: Order) -> None:
        """Freeze the set; who has not answered by now owes its targets."""
        self._frozen = freeze([each.seen() for each in self._attendants.values()])
        self._frozen_at_ns = self._clock.wall_ns()
        self.targets.close(self._frozen.targets, order.deadlines)
        self._say(self._frozen.message)
        self._move(CaptureState.COLLECTING)

    def _is_silent(self, address: str) -> bool:
        return address in self._attendants and self._attendants[address].silent

    def _present(self, now: float) -> bool:
        """False for a moment after this process itself was away (suspended, starved): what was not heard meanwhile is
        nobody else's fault, so every agent is asked once more before anything is given up."""
        if now - self._last_look > _AWAY_S:
            self._judge_from = now + states.LAST_ANSWER_GRACE_S
        self._last_look = now
        return now >= self._judge_from

    def _converge(self) -> Outcome | None:
        """Everything is decided. None: there is nothing to publish, the capture ends here."""
        self._converged_at_ns = self._clock.wall_ns()
        facts = self.targets.facts
        if not facts:
            if self._cancelled:
                self._withdrawn = "It was cancelled before anything was dispatched."
            self._move(CaptureState.CANCELLED if self._cancelled else CaptureState.FAILED)
            self.settled.set()
            return None
        outcome = states.outcome(facts, cancelled=self._cancelled)
        self._common_window_ns = common_window_ns(
            Target(each.target_id, each.identity, each.artifact, each.failure) for each in facts
        )
        if self._common_window_ns is not None and self._common_window_ns < self.request.spec.duration_ms * 500_000:
            common_ms = self._common_window_ns / 1e6
            self._say(
                f"{self._note} The traces have only {common_ms:.0f} ms of {self.request.spec.duration_ms} ms in "
                "common.".strip()
            )
        self._move(CaptureState.PUBLISHING)
        self.settled.set()
        return outcome

    async def _publish(self, outcome: Outcome) -> None:
        remarks, final = self._note, msgspec.structs.replace(self.view(), state=CaptureState(outcome.value))
        async for progress in self._around.publisher.publish(final):
            if progress.published:
                self._published, self._uri = True, progress.uri
            self._say(f"{remarks} {progress.note}".strip())
            self._move(CaptureState(outcome.value))
            self._change()

    # ---- the end by a cancel

    async def _withdraw(self) -> None:
        asked = [each.link for each in self._attendants.values() if each.dispatched]
        asked = [link for link in asked if self.targets.open(link.address)]
        withdrawal = Withdrawal(self.targets)
        reason = f"cancelled by {self.request.caller}"
        answers = await ask_all(asked, lambda link: link.withdraw(self.capture_id, reason, self._timings.call_s))
        now = self._clock.monotonic()
        for link in asked:
            answer = answers[link.address]
            told = answer if isinstance(answer, Facts) else None
            if told is not None:
                self.targets.merge(link.address, told.targets, link.capabilities, now)
            withdrawal.answered(link, told)
        self._withdrawn = withdrawal.words()
        self._leaves_recordings = withdrawal.leaves_recordings
        self.targets.fail(FailureReason.CANCELLED, withdrawal.detail, now)
        self._change()

    def _give_slot_back(self) -> None:
        """At once, unless workers may still be recording a window that nobody waits for any more."""
        wait_s = self._window_ends - self._clock.monotonic()
        if self._leaves_recordings and wait_s > 0:
            self._leaving = asyncio.create_task(self._leave_later(wait_s))
        else:
            self._around.slot.leave(self)

    async def _leave_later(self, wait_s: float) -> None:
        try:
            await self._clock.sleep(wait_s)
        finally:
            self._around.slot.leave(self)

    # ---- news

    def _move(self, state: CaptureState) -> None:
        moved = states.advance(self._state, state)
        if moved is not self._state:
            self._state = moved
            self._change()
            if moved.terminal:
                self.ended.set()

    def _say(self, note: str) -> None:
        if note != self._note:
            self._note = note
            self._change()

    def _change(self) -> None:
        self._news.set()
        for watcher in self._watchers:
            watcher.set()

    async def _wait(self, at_most_s: float) -> None:
        """Until there is news or time has passed. News of many agents is gathered, so that a large job's facts are
        looked through a few times a second and not once per answer."""
        passing = asyncio.ensure_future(self._clock.sleep(at_most_s))
        coming = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((passing, coming), return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()
            coming.cancel()
        await asyncio.sleep(len(self.targets.addresses()) / 5000)
        self._news.clear()
