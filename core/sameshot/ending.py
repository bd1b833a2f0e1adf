"""How a service learns that it is to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal


def told_to_end() -> asyncio.Event:
    """Set at SIGTERM or SIGINT. Outside of the main thread it is not: whoever runs the service there cancels it."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, ending.set)
    return ending
