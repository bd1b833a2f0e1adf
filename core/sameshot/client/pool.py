"""Open connections of an event loop, for endpoints where making one is costly (`Endpoint.kept`).

Pollers make a client every few seconds, and each would pay for TLS, and in a cluster for a port-forward. A channel that
nobody uses is kept for a while; channels of gRPC connect again by themselves. All of a loop's end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import grpc

from sameshot.api.transport import Endpoint, aio_channel

KEPT_S = 120.0
"""So long a channel without a user stays open."""


@dataclass
class _Kept:
    channel: grpc.aio.Channel
    users: int = 0
    ending: asyncio.TimerHandle | None = None


@dataclass
class _Pool:
    """`guard` is an asynchronous generator, for a loop that ends (`asyncio.run`) closes those that are under way."""

    channels: dict[Endpoint, _Kept] = field(default_factory=dict)
    guard: AsyncGenerator[None, None] | None = None
    closing: asyncio.Task[None] | None = None


_POOLS: dict[asyncio.AbstractEventLoop, _Pool] = {}


def lent(to: Endpoint) -> grpc.aio.Channel:
    """A channel for as long as it is needed; then it is given back, and not closed. Without a running loop it is one's
    own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return aio_channel(to)
    pool = _pool()
    kept = pool.channels.get(to)
    if kept is None:
        kept = pool.channels[to] = _Kept(aio_channel(to))
    if kept.ending is not None:
        kept.ending.cancel()
        kept.ending = None
    kept.users += 1
    return kept.channel


async def give_back(to: Endpoint, channel: grpc.aio.Channel) -> None:
    """Once for each `lent`. One that this loop did not lend is closed."""
    loop = asyncio.get_running_loop()
    kept = _POOLS[loop].channels.get(to) if loop in _POOLS else None
    if kept is None or kept.channel is not channel or kept.users == 0:
        await channel.close()
        return
    kept.users -= 1
    if kept.users == 0:
        kept.ending = loop.call_later(KEPT_S, _end, loop, to)


def _pool() -> _Pool:
    loop = asyncio.get_running_loop()
    for other in list(_POOLS):  # those of other threads come and go
        if other.is_closed():  # it ended without closing what ran in it
            _POOLS.pop(other, None)
    if loop not in _POOLS:
        pool = _POOLS[loop] = _Pool()
        pool.guard = _guarding(loop, pool)
        with contextlib.suppress(StopIteration):
            pool.guard.__anext__().send(None)  # to its yield; from now on the loop knows of it
    return _POOLS[loop]


async def _guarding(loop: asyncio.AbstractEventLoop, pool: _Pool) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _POOLS.pop(loop, None)
        for kept in pool.channels.values():
            await kept.channel.close()


def _end(loop: asyncio.AbstractEventLoop, to: Endpoint) -> None:
    if loop in _POOLS and (kept := _POOLS[loop].channels.pop(to, None)) is not None:
        _POOLS[loop].closing = loop.create_task(kept.channel.close())  # a loop alone forgets its tasks
