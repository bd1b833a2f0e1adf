"""Cancelling a capture, by its id: an id names one capture for ever, so a late cancel can't hit the next attempt's.

A request key works, too, for whoever knows nothing else (exit handlers); it means the key's newest capture.
"""

from __future__ import annotations

import asyncio
import contextlib

from sameshot.client import CaptureView
from sameshot.errors import NoSuchJob, UnknownCapture, Unreachable
from sameshot.model import CaptureState
from sameshot.steps.follow import is_over
from sameshot.steps.patience import patiently
from sameshot.steps.preflight import dialled
from sameshot.steps.results import CancelResult, fitted, shortened
from sameshot.steps.store import wait


async def cancel_async(
    address: str,
    capture_id: str | None = None,
    *,
    request_key: str | None = None,
    caller: str | None = None,
    uid: str | None = None,
    wait_s: float = 10.0,
) -> CancelResult:
    """Cancel, and say what that really did; a capture that is over stays what it is, so this may be repeated.

    Waits at most `wait_s` for the manifest of a capture that had just converged. `uid` tells jobs of this machine apart
    that have the same name. An id that nobody knows gives a result with exit code 5: there was such a capture, and what
    became of it is not known. A key that nobody knows, or whose job is not there, is nothing to cancel: exit code 0.
    Raises NoSuchJob (for an id), Unreachable, Denied, UsageError.
    """
    try:
        view, was_over = await end(address, capture_id, request_key=request_key, caller=caller, uid=uid, wait_s=wait_s)
    except (UnknownCapture, NoSuchJob) as error:
        if request_key is not None:  # an exit handler asks whatever was begun, and it may be that nothing was
            return CancelResult(
                capture_id="", state="UNKNOWN", message=shortened(f"There is nothing to cancel: {error}")
            )
        if isinstance(error, NoSuchJob):
            raise
        return CancelResult(
            capture_id=capture_id or "", state="UNKNOWN", exit_code=error.exit_code, message=shortened(str(error))
        )
    return fitted(
        CancelResult(
            capture_id=view.capture_id,
            state=view.state.value,
            withdrawn=shortened(view.withdrawn),
            archived=view.archived,
            was_over=was_over,
            message=shortened(_words(view, was_over)),
        )
    )


def cancel(
    address: str,
    capture_id: str | None = None,
    *,
    request_key: str | None = None,
    caller: str | None = None,
    uid: str | None = None,
    wait_s: float = 10.0,
) -> CancelResult:
    """`cancel_async` for callers without an event loop, and for signal handlers that interrupt one."""
    return wait(cancel_async(address, capture_id, request_key=request_key, caller=caller, uid=uid, wait_s=wait_s))


async def end(
    address: str,
    capture_id: str | None = None,
    *,
    request_key: str | None = None,
    caller: str | None = None,
    uid: str | None = None,
    wait_s: float = 10.0,
) -> tuple[CaptureView, bool]:
    """The capture after the cancel, and whether it had converged before."""
    sent = ""  # the id of the capture that was told to end; whether the answer came or not

    async def attempt() -> tuple[CaptureView, bool]:
        nonlocal sent
        async with dialled(address, caller=caller, uid=uid) as client:
            view = await (client.get(sent) if sent else client.get(capture_id, request_key=request_key))
            if not view.state.terminal:
                sent = view.capture_id
                view = await client.cancel(sent)
            was_over = not (sent and (view.cancel_requested or view.state is CaptureState.CANCELLED))
            with contextlib.suppress(Unreachable, TimeoutError):  # what the cancel did is known already
                async with asyncio.timeout(wait_s):
                    while not is_over(view):
                        await asyncio.sleep(0.2)
                        view = await client.get(view.capture_id)
            return view, was_over

    return await patiently(attempt)


def _words(view: CaptureView, was_over: bool) -> str:
    kept = f"{view.archived} of {view.expected} traces are kept" if view.archived else "no trace is kept"
    if was_over:
        return f"Capture {view.capture_id} was over already: {view.state.value}; {kept}."
    return f"Capture {view.capture_id} is {view.state.value}; {kept}. {view.withdrawn}".strip()
