"""A coordinator in a cluster: what is followed, who is let in and how agents are called, put around the same server.

Its token for the API server may list and watch pods and ask for reviews; nothing in a capture writes there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from sameshot.api.transport import Endpoint
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import CoordinatorConfig
from sameshot.coordinator.configfile import ClusterConfig
from sameshot.coordinator.podagents import PodAgents
from sameshot.coordinator.policyfile import PolicyFile
from sameshot.coordinator.server import CoordinatorServer, run_until_told
from sameshot.coordinator.tokenauth import TokenAuthenticator
from sameshot.errors import UsageError
from sameshot.fresh import Fresh
from sameshot.kube import names
from sameshot.kube.agentpods import AgentPods
from sameshot.kube.api import TROUBLES
from sameshot.kube.inpod import way
from sameshot.kube.podlist import PodList
from sameshot.kube.pods import AnyObject
from sameshot.kube.reviews import AccessReviews, TokenReviews
from sameshot.kube.scrape import scraped
from sameshot.kube.tokens import FileToken

log = logging.getLogger(__name__)

FIRST_LISTS_WITHIN_S = 10.0  # then it serves all the same, and says to captures what is missing
BEAT_S, DEAD_AFTER_S = 1.0, 60.0


class ClusterCoordinator:
    """Everything of one coordinator. `start` returns the address in force."""

    def __init__(self, config: ClusterConfig, *, clock: Clock | None = None) -> None:
        """Raises UsageError for what can't be used: no policy, no authority, no API server."""
        self.config = config
        self._api = way(config.api_server, config.api_token, config.api_ca).api("coordinator")
        self._pods = PodList(self._api, namespace=config.job.namespace, unarmed=True)
        self._agents = AgentPods(self._api, config.agents_namespace)
        self.directory = PodAgents(config.job, self._pods, self._agents, config.agent_port)
        self.tokens = TokenReviews(self._api, names.audience_of(config.job))
        self.rights = AccessReviews(
            self._api, group=names.GROUP, resource=names.CAPTURES, namespace=config.job.namespace
        )
        self.policy = PolicyFile(config.policy)
        self.server = CoordinatorServer(
            CoordinatorConfig(
                job=config.job,
                archive=config.archive,
                series=config.series,
                backend=config.backend,
                listen=config.listen,
                tls=config.tls,
                timings=config.timings,
            ),
            clock=clock,
            directory=self.directory,
            authenticator=TokenAuthenticator(self.tokens, self.rights, config.job, config.operator),
            connect=AgentChannels(config.ca, FileToken(config.agent_token)),
            policy=self.policy,
            later_attempt=lambda: self.directory.later_attempt,
        )
        self._beaten_at: float | None = None
        self._waits_for = "it is starting"
        self._around = contextlib.AsyncExitStack()

    async def start(self) -> str:
        """Serve once the API server has told who is there, or a while later without that."""
        await self._around.enter_async_context(self._probed())
        if await asyncio.to_thread(self._is_batch_job):
            self._pods.only_children_of(self.config.job.uid)
        lists = [asyncio.to_thread(each.start, FIRST_LISTS_WITHIN_S) for each in (self._pods, self._agents)]
        await asyncio.gather(*lists)
        if trouble := self.directory.trouble:
            log.warning("%s Until then captures are refused.", trouble)
        address = await self.server.start()
        self._waits_for = ""
        log.info("serving job=%s uid=%s address=%s", self.config.job, self.config.job.uid, address)
        return address

    async def drain(self) -> None:
        """Before the end: captures that run are waited for; new ones are asked to come to the next coordinator."""
        await self.server.drain(self.config.drain_s)

    async def stop(self) -> None:
        await self.server.stop()
        await asyncio.to_thread(self._close_lists)
        await self._around.aclose()

    def dead(self) -> str:
        if self._beaten_at is None or (still_s := time.monotonic() - self._beaten_at) < DEAD_AFTER_S:
            return ""
        return f"its event loop has stood still for {still_s:.0f} s"

    def waits_for(self) -> str:
        return self._waits_for

    def _is_batch_job(self) -> bool:
        """Then its pods are its own children, and nobody asks whose the pods of hundreds of other Jobs here are."""
        job = self.config.job
        path = f"/apis/batch/v1/namespaces/{job.namespace}/jobs/{job.name}"
        try:
            found = msgspec.json.decode(self._api.get(path), type=AnyObject)
        except TROUBLES:
            return False  # another kind, gone, or not known now: each pod's owners are climbed
        return found.metadata.uid == job.uid

    def _close_lists(self) -> None:
        self._pods.close()
        self._agents.close()

    @contextlib.asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        """Probes and metrics, each where it is asked for; nothing of metrics is imported elsewhere. Threads answer
        which know of this one's loop only when it last turned."""
        beating = asyncio.create_task(self._beat())
        try:
            with contextlib.ExitStack() as stack:
                if self.config.probe:
                    log.info("probes at %s", stack.enter_context(scraped(self.config.probe, None, self)))
                if self.config.metrics:
                    from sameshot.coordinator.metrics import CoordinatorMetrics

                    tallies = {"token": self.tokens.tally, "access": self.rights.tally}
                    metrics = CoordinatorMetrics(self.server.config, self.server.book, tallies, self.policy)
                    address = stack.enter_context(scraped(self.config.metrics, metrics, self))
                    log.info("metrics and probes at %s", address)
                yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._beaten_at = time.monotonic()
            await asyncio.sleep(BEAT_S)


class AgentChannels:
    """How the agent at an address is called: TLS for the one name that all agents' certificates have, and a token that
    only ever goes to who has shown such a certificate. The authority is read anew when it was replaced."""

    def __init__(self, ca: Path, token: FileToken) -> None:
        """Raises UsageError where the authority can't be read."""
        self._token = token
        try:
            self._ca = Fresh(lambda: _filled(ca), ca)
        except OSError as error:
            raise UsageError(f"The authority of the agents' certificates can't be read: {error}.") from None

    def __call__(self, address: str) -> Endpoint:
        with contextlib.suppress(OSError):  # it is being replaced: the one in force goes on
            self._ca.look()
        return Endpoint(address, self._ca.value, names.AGENT_HOST, self._token)


def _filled(path: Path) -> bytes:
    if not (data := path.read_bytes()).strip():
        raise OSError(f"{path} is empty")
    return data


async def serve_in_cluster(config: ClusterConfig) -> None:
    """Run a coordinator until SIGTERM or SIGINT (or cancellation)."""
    await run_until_told(ClusterCoordinator(config))
