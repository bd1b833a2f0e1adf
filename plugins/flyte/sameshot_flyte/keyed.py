"""The capture of an `Asked`, where its id is not known: found by its request key, or begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sameshot.client import CaptureView
from sameshot.errors import (
    DeadlinePassed,
    JobBusy,
    NoSuchJob,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
)
from sameshot.steps.begin import begin, pinned
from sameshot.steps.glance import ANSWER_S
from sameshot.steps.kept import USABLE
from sameshot.steps.preflight import check, dialled, other_job
from sameshot.steps.request import CaptureRequest
from sameshot_flyte.asked import Asked

CLOCKS_DIFFER_S = 5.0
"""So far behind the connector's clock a coordinator's may be."""


async def begun(asked: Asked, ends: float, starting: Callable[[], None]) -> CaptureView:
    """Begins it, or finds one that serves. `starting` is called before each start is sent.

    Raises what stands in the way; without an answer by `ends` (of the loop's clock): Unreachable.
    """
    request, found = asked.request, list[CaptureView]()
    try:
        async with asyncio.timeout_at(ends):
            found.append(await begin(request, seen=found.append, starting=starting))
    except TimeoutError:
        if not found:
            raise Unreachable(
                f"The coordinator at {request.address} did not answer in time; should it have begun a capture all the "
                "same, it is found by its request key."
            ) from None
    if not _ours(asked, found[-1]):
        raise JobBusy(
            f"Capture {found[-1].capture_id} of an earlier attempt is being cancelled; the next one begins after it.",
            own=True,
        )
    return found[-1]


async def own(asked: Asked) -> CaptureView | None:
    """What was begun for this `Asked`, as far as can be told, or would be found by a new attempt anyway."""
    view = await newest(asked.request)
    if view is None or not _ours(asked, view):
        return None
    if wrong := other_job(asked.request, view.job):
        raise wrong
    return view


async def newest(request: CaptureRequest) -> CaptureView | None:
    """The newest capture of the request's key."""
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client,
        ):
            return await client.get(request_key=request.request_key)
    except TimeoutError:
        raise Unreachable(f"The coordinator at {request.address} did not answer within {ANSWER_S:g} s.") from None
    except UnknownCapture:
        return None


async def obstacle(asked: Asked) -> SameshotError:
    """What has stood in the way until the deadline, as far as it can be seen now."""
    request = asked.request
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client,
        ):
            await check(client, request)
    except (NoSuchJob, TryAgain) as error:
        return error
    except TimeoutError:
        pass
    return DeadlinePassed("No capture had begun by then.")


def of(asked: Asked, view: CaptureView) -> Asked:
    return msgspec.structs.replace(
        asked,
        request=pinned(asked.request, view),
        capture_id=view.capture_id,
        manifest_uri=view.manifest_uri,
        unanswered=False,
    )


def says_nothing(error: SameshotError) -> bool:
    """Of the capture or its job: nobody answered, or not somebody who knew; what is none of our errors was said by a
    proxy, or by a coordinator that was just being ended."""
    return type(error) is SameshotError or (
        isinstance(error, TryAgain) and not isinstance(error, JobBusy | DeadlinePassed)
    )


def _ours(asked: Asked, view: CaptureView) -> bool:
    """One that runs or is usable is what every attempt wants. One that failed, or is being cancelled, is only where it
    was begun since: else it is an earlier attempt's. Two machines' clocks are compared for that: a coordinator that is
    too far behind makes a failed capture be tried once more, one ahead of us by the pause between two attempts makes
    the earlier one's failure be told again. Neither matters to what `create` has begun."""
    if view.state in USABLE or not (view.state.terminal or view.cancel_requested):
        return True
    began_ns = view.accepted_at_ns or view.frozen_at_ns or view.converged_at_ns or 0  # a manifest lacks the first
    return began_ns / 1e9 >= asked.since - CLOCKS_DIFFER_S
