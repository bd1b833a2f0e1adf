"""Run an agent until it is told to end (SIGTERM, SIGINT)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from sameshot.agent import safefs
from sameshot.agent.agent import Agent
from sameshot.agent.config import AgentConfig
from sameshot.agent.service import AgentService
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.views import MAX_MESSAGE_BYTES
from sameshot.errors import UsageError

log = logging.getLogger(__name__)

GRACE_S = 1.0  # for calls under way when the agent ends
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


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
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a second agent on the same port must fail, not share it
        ]
    )
    sameshot_pb2_grpc.add_AgentServicer_to_server(AgentService(agent), server)  # type: ignore[no-untyped-call]
    address = _bind(server, config.listen)
    await server.start()
    try:
        if config.address_file is not None:
            safefs.write_atomically(config.address_file, f"{address}\n".encode(), durable=False)
        yield address
    finally:
        await server.stop(GRACE_S)


def _bind(server: grpc.aio.Server, listen: str) -> str:
    """Without TLS only this machine may connect: a loopback address, or a socket that only our user may open."""
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"{path} is not a socket; remove it or choose another address.")
        before = os.umask(0o077)
        try:
            server.add_insecure_port(listen)
        except RuntimeError as error:
            raise UsageError(f"The agent can't listen on {listen}: {error}.") from None
        finally:
            os.umask(before)
        return listen
    host, _, port = listen.rpartition(":")
    if host not in _LOOPBACK or not port.isdigit():
        raise UsageError(f"{listen!r} is no address for an agent; use unix:/path, or a loopback host with a port.")
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise UsageError(f"The agent can't listen on {listen}: {error}.") from None
    return f"{host}:{bound}"
