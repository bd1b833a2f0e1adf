"""Run an agent until it is told to end (SIGTERM, SIGINT)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator

import grpc

from sameshot.agent import safefs
from sameshot.agent.agent import Agent
from sameshot.agent.config import AgentConfig
from sameshot.agent.service import AgentService
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.transport import SERVER_OPTIONS, bind

log = logging.getLogger(__name__)

GRACE_S = 1.0  # for calls under way when the agent ends


async def serve(config: AgentConfig) -> None:
    """Serve until SIGTERM or SIGINT; what is unfinished goes on at the next start.

    Raises UsageError where the address, the spool or a socket directory can't be used.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # not in a main thread: whoever runs it cancels it
            loop.add_signal_handler(number, ending.set)
    agent = Agent(config)
    try:
        await agent.start()
        async with listening(agent) as address:
            log.info("serving node=%s address=%s backend=%s", config.node, address, config.backend.value)
            await ending.wait()
            log.info("ending node=%s", config.node)
    finally:
        await agent.close()


@contextlib.asynccontextmanager
async def listening(agent: Agent) -> AsyncIterator[str]:
    """Serve the agent's gRPC face; yields the address in force."""
    config = agent.config
    server = grpc.aio.server(options=SERVER_OPTIONS)
    sameshot_pb2_grpc.add_AgentServicer_to_server(AgentService(agent), server)  # type: ignore[no-untyped-call]
    address = bind(server, config.listen, "the agent")
    await server.start()
    try:
        if config.address_file is not None:
            safefs.write_atomically(config.address_file, f"{address}\n".encode(), durable=False)
        yield address
    finally:
        await server.stop(GRACE_S)
