"""The beginning of the capture step: a request finds the capture that its key has already, or starts one.

    view = await begin(request)                # preflight and start, or the capture that this key has already
    request = pinned(request, view)            # from now on this very job attempt is meant

Whoever is cancelled, killed or restarted begins again with the same request key and finds the capture that runs or has
run: nothing here cancels one.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from sameshot.client import AsyncClient, CaptureView
from sameshot.errors import DeadlinePassed, JobBusy, NoSuchJob, SameshotError, UnknownCapture, Unreachable
from sameshot.steps.follow import Seen
from sameshot.steps.kept import USABLE, kept, not_looked
from sameshot.steps.patience import patiently
from sameshot.steps.preflight import Say, action_for, check, dialled, other_job, pauses, wait_until_clear
from sameshot.steps.request import Action, CaptureRequest

LAST_WORD_S = 2.0
"""So much longer `begin` takes where it is cancelled while the coordinator answers."""
_LAST_LOOK_S = 2.0  # at the deadline


async def begin(
    request: CaptureRequest,
    progress: Say | None = None,
    seen: Seen | None = None,
    starting: Callable[[], None] | None = None,
) -> CaptureView:
    """The capture of this request: the one that its key has already, running or usable, else a new one. Which of the
    two it is, `progress` is told. `seen` is called with it, also where the coroutine is cancelled while the
    coordinator answers: that cancels no capture, and whoever stops here can still say which one goes on. `starting` is
    called before each start is sent: from then on one may have begun, though nobody ever said so.

    Raises what stands in the way (JobEnded, NotArmed, OtherAttempt, JobBusy), RequestKeyConflict, PolicyRefused,
    Unreachable. A coordinator that is being restarted is waited for; the call may be repeated at any time. Where a
    request does not want to wait for others (`if_busy`), a coordinator that is a version older may still queue it
    behind one that started at the same moment.
    """

    async def attempt() -> CaptureView:
        async with dialled(
            request.address, caller=request.caller, uid=request.uid, attempt=request.attempt, wait_s=None, say=progress
        ) as client:
            known = await _known(client, request)
            if known is None:
                await check(client, request)
            if starting is not None:
                starting()
            # Between the look and this anybody may have started another; only the coordinator can rule that out.
            view = await _told(
                client.start_capture(
                    request.spec,
                    request.request_key,
                    only_if_free=request.if_busy is not Action.WAIT,
                    family=request.family,
                ),
                seen,
            )
            if progress is not None and known is not None and view.capture_id == known.capture_id:
                progress(f"Found the capture of {_time(view)} again (same request key): {view.capture_id}.")
            return view

    try:
        return await patiently(attempt)
    except (NoSuchJob, Unreachable) as error:
        if (there := await kept(request)) is None:
            if unsure := not_looked(request):
                raise type(error)(f"{error} {unsure}") from None
            raise
    if seen is not None:
        seen(there)
    if progress is not None:
        progress(f"Found the capture of {_time(there)} in the archive (same request key): {there.capture_id}.")
    return there


async def _told(starting: Coroutine[Any, Any, CaptureView], seen: Seen | None) -> CaptureView:
    """The capture that is being started, told at once. Who is cancelled meanwhile waits a moment for the answer."""
    task = asyncio.ensure_future(starting)
    try:
        view = await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(SameshotError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                view = await task
                if seen is not None:
                    seen(view)
        raise
    if seen is not None:
        seen(view)
    return view


def _time(view: CaptureView) -> str:
    ns = view.accepted_at_ns or view.frozen_at_ns or view.converged_at_ns  # a manifest does not say the first
    if not ns:
        return "an unknown time"
    return datetime.datetime.fromtimestamp(ns // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def begin_when_clear(
    request: CaptureRequest, *, deadline: float, progress: Say | None = None, seen: Seen | None = None
) -> CaptureView:
    """`begin`, after waiting for what the request wants to wait for.

    Raises as `begin` does; at `deadline` (absolute, seconds since the epoch) what is waited for, Unreachable where
    nobody answered by then, and DeadlinePassed, with its view, where the capture began just then. A last look may take
    two seconds longer.
    """
    refused: SameshotError | None = None
    begun: list[CaptureView] = []

    def see(view: CaptureView) -> None:
        begun.append(view)
        if seen is not None:
            seen(view)

    bound = asyncio.timeout(max(deadline - time.time(), 0.0) + _LAST_LOOK_S)
    try:
        async with bound:
            async for left in pauses(deadline):  # what only the coordinator sees may refuse it again and again
                try:
                    return await begin(request, progress, see)
                except (NoSuchJob, JobBusy, Unreachable) as error:
                    if action_for(request, error) is not Action.WAIT or not left:
                        raise
                    refused = error
                await wait_until_clear(request, deadline, progress)
    except TimeoutError:
        if not bound.expired():
            raise
        if begun:
            raise DeadlinePassed(
                f"Capture {begun[-1].capture_id} began when the time was over already.", begun[-1]
            ) from None
        refused = refused or Unreachable(
            f"The coordinator at {request.address} did not answer before the deadline. Should it have begun a capture "
            "all the same, a retry with the same request key finds it."
        )
    assert refused is not None
    raise refused


def pinned(request: CaptureRequest, view: CaptureView) -> CaptureRequest:
    """The same request, of the very job attempt that is being captured and no later one at the same address; and by the
    same caller, in whatever process (its OS user may be another). Who that is, the coordinator knows best: in a cluster
    it is the account of a token."""
    job = view.job
    return msgspec.structs.replace(
        request, job=job.name, uid=job.uid, attempt=job.attempt, caller=view.caller or request.caller
    )


async def _known(client: AsyncClient, request: CaptureRequest) -> CaptureView | None:
    """The key's capture if `start_capture` will give it again: then the state of the job does not matter any more."""
    try:
        view = await client.get(request_key=request.request_key)
    except UnknownCapture:
        return None
    if wrong := other_job(request, view.job):
        raise wrong
    return view if not view.state.terminal or view.state in USABLE else None
