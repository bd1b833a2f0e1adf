"""An API server's port-forward as websocket clients see it: subprotocol `v4.channel.k8s.io`.

The i-th port of the query has channel 2i for data and 2i+1 for errors; the first frame of each, sent by the server, is
the port in two bytes, little-endian. The connection ends when all its ports have ended; there is no half-closing.
(What the kubelet does: k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go.)
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

from aiohttp import WSMsgType, web

PROTOCOL = "v4.channel.k8s.io"


async def forward(request: web.BaseRequest, host: str, ports: list[int]) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=(PROTOCOL,), autoping=True)
    await socket.prepare(request)
    for index, port in enumerate(ports):
        for channel in (2 * index, 2 * index + 1):
            await socket.send_bytes(bytes([channel]) + struct.pack("<H", port))
    queues: list[asyncio.Queue[bytes | None]] = [asyncio.Queue() for _ in ports]
    tasks = [
        asyncio.create_task(_one(socket, 2 * index, host, port, queues[index])) for index, port in enumerate(ports)
    ]
    ending = asyncio.create_task(_close_after(socket, tasks))
    try:
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            index, is_error = divmod(message.data[0], 2)
            if index < len(ports) and not is_error:
                queues[index].put_nowait(bytes(message.data[1:]))
    finally:
        for task in (ending, *tasks):
            task.cancel()
        await asyncio.gather(ending, *tasks, return_exceptions=True)
    return socket


async def _close_after(socket: web.WebSocketResponse, tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
    await socket.close()


async def _one(socket: web.WebSocketResponse, channel: int, host: str, port: int, queue: asyncio.Queue[bytes]) -> None:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        text = f"error forwarding port {port} to pod: failed to connect to localhost:{port} inside namespace: {error}"
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes([channel + 1]) + text.encode())
        return
    sending = asyncio.create_task(_send(queue, writer))
    try:
        while data := await reader.read(32 << 10):
            await socket.send_bytes(bytes([channel]) + data)
    except ConnectionError:
        pass
    finally:
        sending.cancel()
        writer.close()


async def _send(queue: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(await queue.get())
            await writer.drain()
