"""The capture step: one request becomes one capture, waited for, judged, and told in a small result.

    result = capture(request)                  # all of it; or, for engines that wait in their own way:

    view = await begin(request)                # preflight and start, or the capture that this key has already
    request = pinned(request, view)            # from now on this very job attempt is meant
    result = await finish(request, view.capture_id, manifest_uri=view.manifest_uri, deadline=…)
    accept(result)                             # raises unless it is good enough

Nothing here cancels a capture but the deadline: whoever is cancelled, killed or restarted begins again with the same
request key and finds the capture that runs or has run.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from sameshot.client import AsyncClient, CaptureView
from sameshot.errors import (
    DeadlinePassed,
    JobBusy,
    JobEnded,
    NoSuchJob,
    NotArmed,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
    VerificationFailed,
    of_exit_code,
)
from sameshot.manifest import Manifest
from sameshot.model import CaptureState, Outcome
from sameshot.steps.archive import decoded, read_manifest
from sameshot.steps.cancel import end
from sameshot.steps.follow import Seen, archived, follow
from sameshot.steps.kept import USABLE, kept
from sameshot.steps.patience import patiently
from sameshot.steps.places import shards
from sameshot.steps.preflight import (
    Say,
    action_for,
    check,
    dialled,
    other_job,
    pauses,
    wait_until_clear,
)
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult, fitted, shortened
from sameshot.steps.store import wait
from sameshot.steps.verdict import Verdict, had_targets, judge, missing, nobody

__all__ = [
    "accept",
    "begin",
    "begin_when_clear",
    "capture",
    "finish",
    "follow",
    "pinned",
    "result_of",
    "run",
    "skipped",
]

CANCEL_ALLOWANCE_S = 30.0
"""So much longer than its timeout a step may take: until the cancel is confirmed, with what was kept."""

_ANSWER_S = 10.0  # of a coordinator that need not be there
_LAST_LOOK_S, _LAST_WORD_S = 2.0, 2.0  # at the deadline; when cancelled
_LOOK_S = 5.0  # for the archive, beside the deadline


# ---- the beginning


async def begin(request: CaptureRequest, progress: Say | None = None, seen: Seen | None = None) -> CaptureView:
    """The capture of this request: the one that its key has already, running or usable, else a new one. Which of the
    two it is, `progress` is told. `seen` is called with it, also where the coroutine is cancelled while the
    coordinator answers: that cancels no capture, and whoever stops here can still say which one goes on.

    Raises what stands in the way (JobEnded, NotArmed, OtherAttempt, JobBusy), RequestKeyConflict, PolicyRefused,
    Unreachable. A coordinator that is being restarted is waited for; the call may be repeated at any time. Where a
    request does not want to wait for others (`if_busy`), a coordinator that is a version older may still queue it
    behind one that started at the same moment.
    """

    async def attempt() -> CaptureView:
        async with dialled(request.address, caller=request.caller, uid=request.uid) as client:
            known = await _known(client, request)
            if known is None:
                await check(client, request)
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
    except (NoSuchJob, Unreachable):
        if (there := await kept(request)) is None:
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
            async with asyncio.timeout(_LAST_WORD_S):
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
    same caller, in whatever process (its OS user may be another)."""
    job = view.job
    return msgspec.structs.replace(
        request, job=job.name, uid=job.uid, attempt=job.attempt, caller=request.caller or view.caller or None
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


# ---- the end


async def finish(
    request: CaptureRequest,
    capture_id: str,
    *,
    manifest_uri: str = "",
    deadline: float | None = None,
    progress: Say | None = None,
    seen: Seen | None = None,
) -> CaptureResult:
    """Follow a capture to its end, cancel it at the deadline, and judge it. Parameters as for `follow`."""
    try:
        view = await follow(
            request, capture_id, manifest_uri=manifest_uri, deadline=deadline, progress=progress, seen=seen
        )
    except DeadlinePassed as passed:
        return await _give_up(request, capture_id, manifest_uri, passed, progress, deadline)
    return await result_of(request, view, timed_out=_ended_late(view, deadline))


def _ended_late(view: CaptureView, deadline: float | None) -> bool:
    """Whether a cancelled capture ended after the deadline: then it was the deadline that ended it, as far as can be
    seen, though the process that saw to that was killed before it could tell. Two machines' clocks are compared."""
    if deadline is None or view.state is not CaptureState.CANCELLED:
        return False
    ended = time.time() if view.converged_at_ns is None else view.converged_at_ns / 1e9
    return ended >= deadline


async def result_of(request: CaptureRequest, view: CaptureView, *, timed_out: bool = False) -> CaptureResult:
    """What came of a capture, and whether that is enough for this request; reads the manifest for its digest."""
    verdict, sha256 = judge(view, request.min_ranks), None
    why = nobody(view) if view.outcome is Outcome.FAILED and not had_targets(view) else None
    # Its workers may have gone between the preflight and the dispatch; whatever else it was is no reason to skip.
    if why in (JobEnded, NotArmed) and request.if_unavailable is Action.SKIP:
        return skipped(request, why(verdict.message))
    if view.published:
        try:
            sha256 = (await _manifest(request, view)).sha256
        except SameshotError as error:
            if verdict.exit_code == 0:
                verdict = Verdict(error.exit_code, f"The capture's manifest could not be read: {error}")
    said = verdict.message
    if timed_out and verdict.exit_code:
        said = f"Not done within {request.timeout_s:g} s. {said}"
    result = CaptureResult(
        capture_id=view.capture_id,
        request_key=view.request_key or request.request_key,
        n=view.n,
        job=view.job if view.job.namespace else None,
        series=view.series,
        outcome=view.outcome,
        published=view.published,
        manifest_uri=view.manifest_uri,
        manifest_sha256=sha256,
        expected=view.expected,
        archived=view.archived,
        missing=missing(view),
        window_ms=view.spec.duration_ms,
        common_window_ms=None if view.common_window_ns is None else view.common_window_ns // 1_000_000,
        withdrawn=shortened(view.withdrawn),
        timed_out=timed_out,
        shards=shards(view.archived) if sha256 is not None else (),
        exit_code=verdict.exit_code,
        message=shortened(said),
        warning=verdict.warning,
    )
    return fitted(result)


async def _give_up(
    request: CaptureRequest,
    capture_id: str,
    manifest_uri: str,
    passed: DeadlinePassed,
    progress: Say | None,
    deadline: float | None,
) -> CaptureResult:
    """The deadline has passed: cancel, and tell what was kept. One that has converged stays what it is, and one that
    is published is never called late: the archive is asked before the cancel, and after one that failed."""
    last: CaptureView | None = passed.view
    uri = manifest_uri or ("" if last is None else last.manifest_uri)
    if (there := await _in_archive(capture_id, uri, _LOOK_S)) is not None:
        return await result_of(request, there, timed_out=_ended_late(there, deadline))
    if last is not None and last.state.terminal:
        return await result_of(request, last, timed_out=_ended_late(last, deadline))
    if progress is not None:
        progress(f"{passed} Cancelling it.")
    try:
        async with asyncio.timeout(CANCEL_ALLOWANCE_S):
            view, was_over = await end(request.address, capture_id, caller=request.caller, uid=request.uid)
    except (SameshotError, TimeoutError) as error:
        if (there := await _in_archive(capture_id, uri, _LOOK_S)) is not None:
            return await result_of(request, there, timed_out=_ended_late(there, deadline))
        why = str(error) or f"the coordinator did not confirm it within {CANCEL_ALLOWANCE_S:g} s."
        return fitted(
            CaptureResult(
                capture_id=capture_id,
                request_key=request.request_key,
                job=None if last is None else last.job,
                manifest_uri=uri,
                expected=0 if last is None else last.expected,
                archived=0 if last is None else last.archived,
                window_ms=request.spec.duration_ms,
                exit_code=TryAgain.exit_code,
                message=shortened(
                    f"Not done within {request.timeout_s:g} s, and the cancel is not confirmed: {why} "
                    "A retry with the same request key finds the capture, if it is still known."
                ),
            )
        )
    return await result_of(request, view, timed_out=not was_over or _ended_late(view, deadline))


async def _in_archive(capture_id: str, manifest_uri: str, within_s: float) -> CaptureView | None:
    """The published capture; None where there is none, as far as can be told in that time."""
    if not manifest_uri:
        return None
    with contextlib.suppress(SameshotError, TimeoutError):
        async with asyncio.timeout(within_s):
            return await archived(capture_id, manifest_uri)
    return None


async def _manifest(request: CaptureRequest, view: CaptureView) -> Manifest:
    """From the coordinator, who can read the archive; from the archive itself where there is no coordinator any more.

    Raises ManifestError, VerificationFailed, or what the archive said.
    """
    try:
        async with (
            asyncio.timeout(_ANSWER_S),
            dialled(request.address, caller=request.caller, uid=request.uid) as client,
        ):
            data = await client.manifest(view.capture_id)
        read = await decoded(data)
    except (TryAgain, NoSuchJob, UnknownCapture, TimeoutError):
        read = await read_manifest(view.manifest_uri)
    if read.capture.capture_id != view.capture_id:
        raise VerificationFailed(
            f"The manifest at {view.manifest_uri} is of capture {read.capture.capture_id}, not of {view.capture_id}."
        )
    return read


# ---- all of it


async def run(request: CaptureRequest, progress: Say | None = None, seen: Seen | None = None) -> CaptureResult:
    """Start (or find) the capture, wait for it, judge it. However it ended is told in the result.

    Raises what kept it from being started, unless the request wants that skipped; whoever cancels the coroutine leaves
    the capture running. `seen` is called with each view of it.
    """
    deadline = time.time() + request.timeout_s
    try:
        view = await begin_when_clear(request, deadline=deadline, progress=progress, seen=seen)
    except (NoSuchJob, JobBusy) as error:
        if action_for(request, error) is Action.SKIP:
            return skipped(request, error)
        raise
    except DeadlinePassed as passed:
        late: CaptureView = passed.view
        return await _give_up(pinned(request, late), late.capture_id, late.manifest_uri, passed, progress, deadline)
    return await finish(
        pinned(request, view),
        view.capture_id,
        manifest_uri=view.manifest_uri,
        deadline=deadline,
        progress=progress,
        seen=seen,
    )


def capture(request: CaptureRequest, progress: Say | None = None, seen: Seen | None = None) -> CaptureResult:
    """`run` for callers without an event loop."""
    return wait(run(request, progress, seen))


def skipped(request: CaptureRequest, why: SameshotError) -> CaptureResult:
    """Nothing was captured, and that is what the request wanted in this case."""
    return fitted(
        CaptureResult(
            request_key=request.request_key, window_ms=request.spec.duration_ms, message=shortened(f"Skipped: {why}")
        )
    )


def accept(result: CaptureResult) -> CaptureResult:
    """The result, if the step is content with it; else raises the error of its exit code, with its message."""
    if result.exit_code == 0:
        return result
    raise of_exit_code(result.exit_code)(result.message)
