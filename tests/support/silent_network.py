"""A network that may fall silent: connections stay open, new ones are taken, and nothing comes through any more.

async with network_to(client.address) as network:
    …                        # talk to network.address
    network.fall_silent()    # the peer's node is gone, or a NAT has dropped the connection
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Network:
    def __init__(self) -> None:
        self.address = ""
        self.silent = asyncio.Event()

    def fall_silent(self) -> None:
        self.silent.set()


@contextlib.asynccontextmanager
async def network_to(address: str) -> AsyncIterator[Network]:
    """Forwards to `host:port`, in both directions, until it falls silent."""
    network, host_port = Network(), address.rsplit(":", 1)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if network.silent.is_set():
                break
            into.write(data)
            await into.drain()
        if network.silent.is_set():
            await asyncio.Event().wait()  # nobody is told of the end either
        into.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError, OSError):
            if network.silent.is_set():
                await asyncio.Event().wait()
            far_reader, far_writer = await asyncio.open_connection(host_port[0], int(host_port[1]))
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, far_writer))
                group.create_task(pump(far_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    network.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield network
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
