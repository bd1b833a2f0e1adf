"""Attending one agent for one capture: list, dispatch at once, then look again and again.

Every agent has an attendant of its own, so none ever waits for another. An attendant reports and never decides: what
its silence or its answers mean is the capture's part.
"""

from __future__ import annotations

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
from sameshot.model import CaptureSpec, FailureReason
from sameshot.states import Contact, Deadlines


class Order(msgspec.Struct, frozen=True, kw_only=True):
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
        order: Order,
        targets: TargetSet,
        clock: Clock,
        timings: Timings,
        news: Callable[[], None],
    ) -> None:
        self.link = link
        self.contact = Contact()
        self.listing: Listing | None = None  # of this capture, taken before the set was closed
        self.dispatched = False  # a request was sent, whether or not it arrived
        self._order = order
        self._targets = targets
        self._clock = clock
        self._timings = timings
        self._news = news

    def seen(self) -> Seen:
        """What the agent says for the freeze; where it is silent, what it said at any earlier time."""
        address, now, earlier = self.link.address, self.listing, self.link.listing
        if now is not None:
            return Seen(address, now.node, now.workers)
        silent = self.contact.trouble or self.link.trouble or f"no answer within {self._timings.freeze_s:g} s"
        return Seen(address, silent=silent) if earlier is None else Seen(address, earlier.node, earlier.workers, silent)

    @property
    def silent(self) -> bool:
        """Its targets may stay undecided for long; the next capture need not wait for that."""
        long_ago = self._clock.monotonic() - 3 * self._timings.call_s
        return bool(self.contact.trouble) and self.contact.silent_since(long_ago)

    async def run(self) -> None:
        """Until every target of this agent is decided; cancelled when the capture ends earlier."""
        listing = await self._list()
        if self._targets.closed:
            return  # too late: its workers belong to the next capture
        self.listing = listing
        mine = [worker.registration for worker in listing.workers if dispatchable(worker)]
        self._targets.propose(self.link.address, mine, self._order.deadlines)
        self._news()
        known = False
        while mine and (not self._targets.closed or self._targets.open(self.link.address)):
            try:
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
        order, address = self._order, self.link.address
        if order.strangers is not None and address not in order.strangers and not self.dispatched:
            await self._check_unknown()
        self.dispatched = True
        request = pb.DispatchRequest(
            capture_id=order.capture_id,
            start_at_ns=order.start_at_ns,
            announce_timeout_ms=int(order.announce_s * 1000),
            targets=[
                pb.DispatchTarget(target_id=fact.target_id, registration=fact.identity.registration or "")
                for fact in self._targets.open(address)
            ],
        )
        to_proto(order.spec, request.spec)
        return await self.link.dispatch(request, self._timings.call_s)

    async def _check_unknown(self) -> None:
        """An agent that was silent when this id was chosen may hold an older capture's traces under it."""
        if await self.link.known_captures([self._order.capture_id], self._timings.call_s):
            raise SameshotError(
                f"{self.link.name} has traces of an earlier, lost capture under this id; it was not asked again."
            )

    async def _look(self) -> Facts:
        return await self.link.facts(self._order.capture_id, self._timings.call_s)

    def _take(self, facts: Facts) -> None:
        self.contact = Contact(facts.asked_at)
        now = self._clock.monotonic()
        if self._targets.merge(self.link.address, facts.targets, self.link.capabilities, now):
            self._news()

    def _trouble(self, error: SameshotError) -> None:
        self.contact = msgspec.structs.replace(self.contact, trouble=self.link.trouble or str(error))

    def _refused(self, error: SameshotError) -> None:
        now, address = self._clock.monotonic(), self.link.address
        self._targets.fail(FailureReason.REFUSED, lambda _: str(error), now, address=address)
        self._news()

    @property
    def _pause_s(self) -> float:
        """Large jobs are looked at less often, so that looking never takes the coordinator's whole time."""
        return max(self._timings.poll_s, len(self._targets.addresses()) / self._timings.polls_per_s)
