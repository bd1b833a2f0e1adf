"""Attending one agent for one capture: list, dispatch at once, then look again and again.

Every agent has an attendant of its own, so none ever waits for another. An attendant reports and never decides: what
its silence or its answers mean is the capture's part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import Timings
from sameshot.coordinator.links import AgentLink, Facts, Listing
from sameshot.coordinator.plan import Seen, dispatchable
from sameshot.coordinator.targets import TargetSet
from sameshot.errors import SameshotError, TryAgain
from sameshot.model import CaptureSpec, FailureReason, TargetState
from sameshot.states import Contact, Deadlines

# A left-out worker is withdrawn by now or never: its agent does not answer, or its window has begun.
_RELEASE_TRIES = 5


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What every agent is asked for. `announce_s` counts from the planned end of the window.

    `strangers` are the agents that said they don't know this id; None: nobody can, it is new by itself.
    """

    capture_id: str
    spec: CaptureSpec
    start_at_ns: int
    announce_s: float
    deadlines: Deadlines
    strangers: frozenset[str] | None


class Attendant:
    def __init__(
        self,
        link: AgentLink,
        offer: Offer,
        targets: TargetSet,
        clock: Clock,
        timings: Timings,
        news: Callable[[], None],
    ) -> None:
        self.link = link
        self.contact = Contact()
        self.listing: Listing | None = None  # of this capture, taken before the set was closed
        self.dispatched = False  # a request was sent, whether or not it arrived
        self._sent: dict[str, None] = {}  # target ids that any request named
        self._asking = asyncio.Lock()  # asking for windows and taking them back must not overtake each other
        self._offer = offer
        self._targets = targets
        self._clock = clock
        self._timings = timings
        self._news = news

    def seen(self) -> Seen:
        """What the agent says for the freeze; where it is silent, what it said at any earlier time."""
        agent, now, earlier = self.link.key, self.listing, self.link.listing
        if now is not None:
            return Seen(agent, now.node, now.workers, unregistered=now.unregistered)
        silent = self.contact.trouble or self.link.trouble or f"no answer within {self._timings.freeze_s:g} s"
        return Seen(agent, silent=silent) if earlier is None else Seen(agent, earlier.node, earlier.workers, silent)

    @property
    def silent(self) -> bool:
        """Its targets may stay undecided for long; the next capture need not wait for that."""
        long_ago = self._clock.monotonic() - 3 * self._timings.call_s
        return bool(self.contact.trouble) and self.contact.silent_since(long_ago)

    @property
    def left_out(self) -> list[str]:
        """Targets that were sent and are not in the set that was closed meanwhile."""
        mine = self._targets.of(self.link.key)
        return [target_id for target_id in self._sent if target_id not in mine]

    async def release(self) -> None:
        """Take back, as well as can be, what was sent for workers that closing the set left out.

        Nobody waits for them and nothing of theirs is counted, but a window should not be recorded for nothing.
        """
        for _ in range(_RELEASE_TRIES):
            async with self._asking:
                only = self.left_out if self._targets.of(self.link.key) else []
                reason = "this worker does not belong to the set of the capture"
                try:
                    told = await self.link.withdraw(self._offer.capture_id, reason, self._timings.call_s, only=only)
                except TryAgain:
                    pass
                except SameshotError:
                    return
                else:
                    about = [fact for fact in told.targets if fact.target_id in self.left_out]
                    if all(fact.state >= TargetState.CONSUMED for fact in about):
                        return  # taken back, or too late for that
            await self._clock.sleep(self._timings.poll_s)

    async def run(self) -> None:
        """Until every target of this agent is decided; cancelled when the capture ends earlier."""
        listing = await self._list()
        if self._targets.closed:
            return  # too late: its workers belong to the next capture
        self.listing = listing
        mine = [worker.registration for worker in listing.workers if dispatchable(worker)]
        self._targets.propose(self.link.key, mine, self._offer.deadlines)
        self._news()
        known = False
        while mine and (not self._targets.closed or self._targets.open(self.link.key)):
            try:
                async with self._asking:
                    facts = await (self._look() if known else self._dispatch())
            except TryAgain as error:
                self._trouble(error)
            except SameshotError as error:
                if not known:
                    self._refused(error)
                    return
                self._trouble(error)
                known = False  # it does not know us any more: ask again, and take that answer for good
            else:
                known = facts.known
                self._take(facts)
            await self._clock.sleep(self._pause_s if known else self._timings.poll_s)

    async def _list(self) -> Listing:
        while True:
            try:
                listing = await self.link.list_workers(self._timings.freeze_s)
            except SameshotError as error:
                self._trouble(error)
                await self._clock.sleep(self._timings.poll_s)
            else:
                self.contact = Contact(listing.asked_at)
                return listing

    async def _dispatch(self) -> Facts:
        """At least once: asked again until the agent has answered, and whenever it has forgotten us."""
        offer, agent = self._offer, self.link.key
        if offer.strangers is not None and agent not in offer.strangers and not self.dispatched:
            await self._check_unknown()
        asked = self._targets.open(agent)
        self.dispatched = True
        self._sent.update(dict.fromkeys(fact.target_id for fact in asked))
        request = pb.DispatchRequest(
            capture_id=offer.capture_id,
            start_at_ns=offer.start_at_ns,
            announce_timeout_ms=int(offer.announce_s * 1000),
            targets=[
                pb.DispatchTarget(target_id=fact.target_id, registration=fact.identity.registration or "")
                for fact in asked
            ],
        )
        to_proto(offer.spec, request.spec)
        return await self.link.dispatch(request, self._timings.call_s)

    async def _check_unknown(self) -> None:
        """An agent that was silent when this id was chosen may hold an older capture's traces under it."""
        if await self.link.known_captures([self._offer.capture_id], self._timings.call_s):
            raise SameshotError(
                f"{self.link.name} has traces of an earlier, lost capture under this id; it was not asked again."
            )

    async def _look(self) -> Facts:
        return await self.link.facts(self._offer.capture_id, self._timings.call_s)

    def _take(self, facts: Facts) -> None:
        self.contact = Contact(facts.asked_at)
        now = self._clock.monotonic()
        if self._targets.merge(self.link.key, facts.targets, self.link.capabilities, now):
            self._news()

    def _trouble(self, error: SameshotError) -> None:
        self.contact = msgspec.structs.replace(self.contact, trouble=self.link.trouble or str(error))

    def _refused(self, error: SameshotError) -> None:
        now, agent = self._clock.monotonic(), self.link.key
        self._targets.fail(FailureReason.REFUSED, lambda _: str(error), now, agent=agent)
        self._news()

    @property
    def _pause_s(self) -> float:
        """Large jobs are looked at less often, so that looking never takes the coordinator's whole time."""
        return max(self._timings.poll_s, len(self._targets.agents()) / self._timings.polls_per_s)
