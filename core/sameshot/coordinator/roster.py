"""All agents of a job: whom the directory names now, and who is remembered although it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

from sameshot.api.transport import Endpoint
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.directory import AgentDirectory
from sameshot.coordinator.links import AgentLink, Connect, Listing
from sameshot.coordinator.plan import Seen, dispatchable, freeze
from sameshot.errors import SameshotError
from sameshot.model import JobRef, Registration
from sameshot.profiler.daemon import BackendName

if TYPE_CHECKING:  # a coordinator of one machine knows no pods
    from sameshot.coordinator.podwords import PodsSeen

# How long an agent is remembered that the directory does not name: it may be unreadable for a moment, and a job whose
# pods have just ended still has a manifest to be published.
_FORGET_S = 600.0


class Roster:
    """The links to all agents that the directory names, and what all of them ever said."""

    def __init__(
        self,
        directory: AgentDirectory,
        job: JobRef,
        clock: Clock,
        backend: BackendName,
        connect: Connect = Endpoint,
    ) -> None:
        self._directory = directory
        self._job = job
        self._clock = clock
        self._backend = backend
        self._connect = connect
        self._links: dict[str, AgentLink] = {}
        self._named_at: dict[str, float] = {}
        self._hurried = 0
        self.named: tuple[AgentLink, ...] = ()
        """Those that the directory named at the last look."""
        self.last_seen: dict[int, Registration] = {}
        """Who was last seen alive as each rank: of a worker whose pod has gone nothing else tells."""

    def links(self) -> list[AgentLink]:
        """One per agent that the directory names now."""
        now = self._clock.monotonic()
        found = []
        for at in self._directory.agents():
            if at.key not in self._links:
                self._links[at.key] = AgentLink(
                    at, self._job, self._clock, self._backend, self._connect, self._directory.find, self._heard
                )
            else:
                self._links[at.key].move(at)
            self._named_at[at.key] = now
            found.append(self._links[at.key])
        self.named = tuple(found)
        for key in [each for each in self._links if self._named_at[each] < now - _FORGET_S]:
            # Its channel closes with the last capture that still holds the link.
            del self._links[key], self._named_at[key]
        return found

    def known(self) -> list[AgentLink]:
        """Those, and the ones that were named a while ago."""
        self.links()
        return list(self._links.values())

    def registered(self) -> tuple[int | None, int | None]:
        """(ranks of the job that a live worker covers, its world size), as agents last said; None: nobody has."""
        heard = [link for link in self.named if link.listing is not None]
        if not heard:
            return None, None
        plan = freeze([Seen(each.key, each.listing.node, each.listing.workers) for each in heard if each.listing])
        return sum(each.agent is not None for each in plan.targets), plan.world_size

    def pods(self) -> PodsSeen | None:
        return self._directory.pods()

    @property
    def trouble(self) -> str:
        """Why it can't be said at all where the job's workers are; empty: it can."""
        return self._directory.trouble

    def _heard(self, listing: Listing) -> None:
        for worker in listing.workers:
            if dispatchable(worker) and worker.registration.rank is not None:
                self.last_seen[worker.registration.rank] = worker.registration

    def poll_interval_s(self, default: float) -> float:
        """The longest time between two polls of a worker that any agent stated."""
        stated = [each.listing.poll_interval_s for each in self.links() if each.listing is not None]
        return max((each for each in stated if each > 0), default=default)

    @contextlib.contextmanager
    def hurry(self) -> Iterator[None]:
        """While a capture asks everybody anyway, nothing else is asked: it must not wait behind our curiosity."""
        self._hurried += 1
        try:
            yield
        finally:
            self._hurried -= 1

    async def listen(self, every_s: float, timeout_s: float) -> None:
        """Keep the listings fresh, each agent at its own pace, until cancelled."""
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                fresh = self._clock.monotonic() - every_s / 2
                for link in self.links():  # also in a hurry: an agent may have moved
                    busy = self._hurried or (link.key in asking and not asking[link.key].done())
                    if not busy and (link.listing is None or link.listing.asked_at < fresh or link.trouble):
                        asking[link.key] = asyncio.create_task(_quietly(link.list_workers(timeout_s)))
                await self._clock.sleep(every_s)
        finally:
            for task in asking.values():
                task.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)


async def _quietly(call: Awaitable[object]) -> None:
    with contextlib.suppress(SameshotError):
        await call
