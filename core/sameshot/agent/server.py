"""Run an agent until it is told to end (SIGTERM, SIGINT)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from sameshot.agent import certificate, safefs
from sameshot.agent.agent import Agent
from sameshot.agent.config import AgentConfig
from sameshot.agent.service import AgentService
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.door import guarded
from sameshot.api.transport import MAX_MESSAGE_BYTES, bind
from sameshot.ending import told_to_end

log = logging.getLogger(__name__)

GRACE_S = 1.0  # for calls under way when the agent ends


async def serve(config: AgentConfig) -> None:
    """Serve until SIGTERM or SIGINT; what is unfinished goes on at the next start.

    Raises UsageError where the address, the spool or a socket directory can't be used.
    """
    ending = told_to_end()
    agent = Agent(config)
    try:
        async with _probed(agent):  # from the first moment: to start may take longer than a probe waits
            await agent.start()
            serving, ended = asyncio.create_task(_serve(agent)), asyncio.create_task(ending.wait())
            try:
                await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
                log.info("ending node=%s", config.node)
            finally:
                serving.cancel()
                ended.cancel()
                await asyncio.gather(serving, ended, return_exceptions=True)
    finally:
        await agent.close()


async def _serve(agent: Agent) -> None:
    config = agent.config
    if config.tls is not None:  # workers find their daemon meanwhile, and what was accepted goes on
        await certificate.until_usable(config.tls, agent.health.wait_for)
    async with listening(agent) as address:
        agent.health.wait_for("")
        log.info("serving node=%s address=%s backend=%s", config.node, address, config.backend.value)
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _probed(agent: Agent) -> AsyncIterator[None]:
    """Metrics and probes, where they are asked for; nothing of them is imported elsewhere."""
    if agent.config.metrics is None:
        yield
        return
    from sameshot.agent.metrics import AgentMetrics
    from sameshot.kube.scrape import scraped

    beating = asyncio.create_task(agent.health.beat())
    try:
        with scraped(agent.config.metrics, AgentMetrics(agent), agent.health) as address:
            log.info("metrics and probes at %s", address)
            yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


@contextlib.asynccontextmanager
async def listening(agent: Agent) -> AsyncIterator[str]:
    """Serve the agent's gRPC face; yields the address in force."""
    config = agent.config
    # A manifest of thousands of ranks has several MB.
    server = guarded(config.callers, max_request=MAX_MESSAGE_BYTES, network=config.tls is not None)
    sameshot_pb2_grpc.add_AgentServicer_to_server(AgentService(agent), server)  # type: ignore[no-untyped-call]
    address = bind(server, config.listen, "the agent", config.tls)
    await server.start()
    try:
        if config.address_file is not None:
            safefs.write_atomically(config.address_file, f"{address}\n".encode(), durable=False)
        yield address
    finally:
        await server.stop(GRACE_S)
