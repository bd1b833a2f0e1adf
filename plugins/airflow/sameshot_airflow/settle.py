"""Waiting for a capture until it is settled: the same in the triggerer and in a worker.

What comes out is an event, a small dict that survives the metadata database:

    {"kind": "done", "result": …}                           it has ended; `result` is a CaptureResult
    {"kind": "timeout", "result": …}                        its deadline passed, and it was cancelled
    {"kind": "error", "error": "Denied", "message": …}      it can't be followed; the error's class and message
    {"kind": "ready"}                                       (of a wait for a job) it can be captured now
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameshot.errors import SameshotError
    from sameshot.steps.request import CaptureRequest

Event = dict[str, Any]
Say = Callable[[str], None]

BACKSTOP = timedelta(minutes=5)
CANCEL_WAIT_S = 10.0  # for a cancelled capture to say what it kept; a triggerer gives `on_kill` 30 s for all


async def settle(request: CaptureRequest, capture_id: str, manifest_uri: str, deadline: float, say: Say) -> Event:
    """Follow a capture to its end, or to `deadline` (absolute, seconds since the epoch) and then cancel it."""
    await load("sameshot.steps.finish")
    from sameshot.errors import SameshotError
    from sameshot.steps.finish import finish
    from sameshot.steps.results import to_builtins

    try:
        result = await finish(request, capture_id, manifest_uri=manifest_uri, deadline=deadline, progress=say)
    except SameshotError as error:
        return failed(error)
    return {"kind": "timeout" if result.timed_out else "done", "result": to_builtins(result)}


def backstop(deadline: float) -> timedelta:
    """When the scheduler is to take a deferred task back that no triggerer has followed to its deadline: later than a
    triggerer needs to cancel and to tell."""
    return timedelta(seconds=max(deadline - time.time(), 0.0)) + BACKSTOP


async def load(module: str) -> None:
    """Import beside the event loop: grpc and what comes with it take some 0.3 s, once, and other triggers share it."""
    await asyncio.to_thread(importlib.import_module, module)


def failed(error: SameshotError) -> Event:
    from sameshot.steps.results import shortened

    return {"kind": "error", "error": type(error).__name__, "message": shortened(str(error), 1000)}


async def cancelled(request: CaptureRequest, capture_id: str, wait_s: float) -> str:
    """Cancel by id (never by key: a late cancel must not hit a newer attempt's capture); what that did, in words.

    Raises no error of ours, and takes at most a second longer than `wait_s`.
    """
    await load("sameshot.steps.cancel")
    from sameshot.errors import SameshotError
    from sameshot.steps.cancel import cancel_async

    try:
        async with asyncio.timeout(wait_s + 1):
            done = await cancel_async(
                request.address, capture_id, caller=request.caller, uid=request.uid, wait_s=wait_s
            )
    except (SameshotError, TimeoutError) as error:
        return f"The cancel of capture {capture_id} is not confirmed: {error or f'no answer within {wait_s:.0f} s'}"
    return done.message
