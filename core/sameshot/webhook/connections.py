"""Which connections are kept. Anybody in the cluster may connect, and a connection costs memory while it stands.

One that never asks for anything is closed soon, and above a number of connections the longest idle ones are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

SWEEP_EVERY_S = 0.5


class Connections:
    """Both times count from the moment a connection was accepted; at most `most` of them stay open."""

    def __init__(self, *, handshake_within_s: float, first_request_within_s: float, most: int) -> None:
        self._handshake_within_s = handshake_within_s
        self._first_request_within_s = first_request_within_s
        self._most = most
        self._heard: dict[object, float] = {}  # connection → when it last asked, or was accepted
        self._asked: set[object] = set()

    def factory(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """What an event loop's server makes a connection with."""

        def made() -> asyncio.Protocol:
            connection = server()
            self._heard[connection] = time.monotonic()
            return connection

        return made

    def note(self, request: web.BaseRequest) -> None:
        """This connection asks for something."""
        self._heard[request.protocol] = time.monotonic()
        self._asked.add(request.protocol)

    async def sweep(self, server: web.Server) -> None:
        """Close what need not be kept; runs until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now, here = time.monotonic(), server.connections
            self._forget(set(here), now - self._handshake_within_s - 1.0)
            spare = len(here) - self._most
            for index, each in enumerate(sorted(here, key=lambda each: self._heard.get(each, now))):
                silent = each not in self._asked and now - self._heard.get(each, now) >= self._first_request_within_s
                if silent or index < spare:
                    each.force_close()

    def _forget(self, here: set[object], before: float) -> None:
        """The server knows a connection only after its handshake; what it does not know after that has gone."""
        for each, heard in list(self._heard.items()):
            if each not in here and heard < before:
                del self._heard[each]
                self._asked.discard(each)
