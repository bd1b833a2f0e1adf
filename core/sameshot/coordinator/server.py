"""Starting and stopping a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.door import guarded
from sameshot.api.sameshot_pb2_grpc import add_CoordinatorServicer_to_server
from sameshot.api.transport import Endpoint, bind
from sameshot.coordinator.auth import Authenticator, Doorkeeper, LocalCaller
from sameshot.coordinator.book import Book
from sameshot.coordinator.clock import Clock, SystemClock
from sameshot.coordinator.config import CoordinatorConfig, Policy
from sameshot.coordinator.directory import AgentDirectory, AgentsFile, FixedAgents
from sameshot.coordinator.links import Connect
from sameshot.coordinator.manifests import Manifests
from sameshot.coordinator.publish import Publisher
from sameshot.coordinator.retirement import Retirement
from sameshot.coordinator.roster import Roster
from sameshot.coordinator.service import CoordinatorService
from sameshot.ending import told_to_end
from sameshot.storage import Storage

# Of a message to us, the largest being a spec with a request key of 512 characters; what we answer may be large.
MAX_REQUEST = 64 << 10


class CoordinatorServer:
    """One running coordinator. `start` returns the address in force; `stop` loses unfinished captures, by design."""

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        clock: Clock | None = None,
        directory: AgentDirectory | None = None,
        authenticator: Authenticator | None = None,
        connect: Connect = Endpoint,
        policy: Policy | None = None,
        later_attempt: Callable[[], int | None] = lambda: None,
    ) -> None:
        """What is not given is as on one machine: agents by address, the caller's own word, the policy of `config`."""
        clock = clock or SystemClock()
        self.config = config
        self.roster = Roster(directory or _directory(config), config.job, clock, config.backend, connect)
        manifests = Manifests(Storage.open(config.archive), config.job)
        publisher = Publisher(self.roster, manifests, clock, config.timings)
        self.retirement = Retirement(config.job, clock, later_attempt)
        self.book = Book(
            config,
            self.roster,
            manifests,
            publisher,
            clock,
            policy=policy or (lambda: config.policy),
            retirement=self.retirement,
        )
        self._server = guarded(
            Doorkeeper(authenticator or LocalCaller()), max_request=MAX_REQUEST, network=config.tls is not None
        )
        service = CoordinatorService(config, self.book)
        add_CoordinatorServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Raises UsageError where the address can't be used."""
        address = bind(self._server, self.config.listen, "the coordinator", self.config.tls)
        await self._server.start()
        timings = self.config.timings
        self._listening = asyncio.create_task(self.roster.listen(timings.listing_s, timings.freeze_s))
        if self.config.address_file is not None:
            _write_atomically(self.config.address_file, address)
        return address

    async def drain(self, at_most_s: float = 0.0) -> None:
        """Take no new captures, and wait until none is worked on any more, at most that long."""
        self.retirement.tell(pb.REPLACED, for_good=True)
        ends = time.monotonic() + at_most_s
        while self.book.unsettled and time.monotonic() < ends:
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        await self._server.stop(grace=0.2)
        await self.book.close()
        await self.roster.close()


async def serve(config: CoordinatorConfig) -> None:
    """Run a coordinator until SIGTERM or SIGINT (or cancellation)."""
    await run_until_told(CoordinatorServer(config))


class Service(Protocol):
    async def start(self) -> str: ...

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


async def run_until_told(server: Service) -> None:
    """Start it, and drain and stop it at SIGTERM or SIGINT (a cancellation stops at once)."""
    ending = told_to_end()
    await server.start()
    try:
        await ending.wait()
        await server.drain()
    finally:
        await server.stop()


def _directory(config: CoordinatorConfig) -> AgentDirectory:
    if config.agents_file is not None:
        return AgentsFile(config.agents_file, also=config.agents)
    return FixedAgents(config.agents)


def _write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text + "\n")
    scratch.replace(path)
