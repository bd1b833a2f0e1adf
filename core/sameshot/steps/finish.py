"""The end of the capture step: a capture is followed, cancelled at its deadline, judged, and told in a small result.

    result = await finish(request, view.capture_id, manifest_uri=view.manifest_uri, deadline=…)

for a request that is `pinned` to the capture's job attempt. `result_of` is the judgement alone, for whoever has
followed the capture. Nothing here cancels it but the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from sameshot.client import CaptureView
from sameshot.errors import (
    DeadlinePassed,
    JobEnded,
    NoSuchJob,
    NotArmed,
    SameshotError,
    TryAgain,
    UnknownCapture,
    VerificationFailed,
)
from sameshot.manifest import Manifest
from sameshot.model import CaptureState, Outcome
from sameshot.steps.archive import decoded, read_manifest
from sameshot.steps.cancel import end
from sameshot.steps.follow import Seen, archived, follow
from sameshot.steps.places import shards
from sameshot.steps.preflight import Say, dialled
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult, fitted, shortened
from sameshot.steps.verdict import Verdict, had_targets, judge, missing, nobody

CANCEL_ALLOWANCE_S = 30.0
"""So much longer than its timeout a step may take: until the cancel is confirmed, with what was kept."""

_ANSWER_S = 10.0  # of a coordinator that need not be there
_LOOK_S = 5.0  # for the archive, beside the deadline


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
        return await give_up(request, capture_id, manifest_uri, passed, progress, deadline)
    return await result_of(request, view, timed_out=ended_late(view, deadline))


def ended_late(view: CaptureView, deadline: float | None, now: float | None = None) -> bool:
    """Whether a cancelled capture ended after the deadline: then it was the deadline that ended it, as far as can be
    seen, though the process that saw to that was killed before it could tell. Two machines' clocks are compared. An
    end that nobody has noted is taken to be `now` (None: by the clock)."""
    if deadline is None or view.state is not CaptureState.CANCELLED:
        return False
    if view.converged_at_ns is None:
        return (time.time() if now is None else now) >= deadline
    return view.converged_at_ns / 1e9 >= deadline


async def result_of(
    request: CaptureRequest,
    view: CaptureView,
    *,
    timed_out: bool = False,
    sha256: str | None = None,
    answer_s: float | None = None,
) -> CaptureResult:
    """What came of a capture, and whether that is enough for this request.

    Reads the manifest for its digest, unless that is given as `sha256`. The coordinator is asked for it first, and may
    take `answer_s` (None: ten seconds).
    """
    verdict = judge(view, request.min_ranks)
    why = nobody(view) if view.outcome is Outcome.FAILED and not had_targets(view) else None
    # Its workers may have gone between the preflight and the dispatch; whatever else it was is no reason to skip.
    if why in (JobEnded, NotArmed) and request.if_unavailable is Action.SKIP:
        return skipped(request, why(verdict.message))
    if view.published and sha256 is None:
        try:
            sha256 = (await _manifest(request, view, _ANSWER_S if answer_s is None else answer_s)).sha256
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


async def give_up(
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
    if (there := await in_archive(capture_id, uri, _LOOK_S)) is not None:
        return await result_of(request, there, timed_out=ended_late(there, deadline))
    if last is not None and last.state.terminal:
        return await result_of(request, last, timed_out=ended_late(last, deadline))
    if progress is not None:
        progress(f"{passed} Cancelling it.")
    try:
        async with asyncio.timeout(CANCEL_ALLOWANCE_S):
            view, was_over = await end(request.address, capture_id, caller=request.caller, uid=request.uid)
    except (SameshotError, TimeoutError) as error:
        if (there := await in_archive(capture_id, uri, _LOOK_S)) is not None:
            return await result_of(request, there, timed_out=ended_late(there, deadline))
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
    return await result_of(request, view, timed_out=not was_over or ended_late(view, deadline))


def skipped(request: CaptureRequest, why: SameshotError) -> CaptureResult:
    """Nothing was captured, and that is what the request wanted in this case."""
    return fitted(
        CaptureResult(
            request_key=request.request_key, window_ms=request.spec.duration_ms, message=shortened(f"Skipped: {why}")
        )
    )


async def in_archive(capture_id: str, manifest_uri: str, within_s: float) -> CaptureView | None:
    """The capture as its manifest tells it; None where there is none, as far as can be told in that time."""
    if not manifest_uri:
        return None
    with contextlib.suppress(SameshotError, TimeoutError):
        async with asyncio.timeout(within_s):
            return await archived(capture_id, manifest_uri)
    return None


async def _manifest(request: CaptureRequest, view: CaptureView, answer_s: float) -> Manifest:
    """From the coordinator, who can read the archive; from the archive itself where there is no coordinator any more.

    Raises ManifestError, VerificationFailed, or what the archive said.
    """
    try:
        async with (
            asyncio.timeout(answer_s),
            dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client,
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
