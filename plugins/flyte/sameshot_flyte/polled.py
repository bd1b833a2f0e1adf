"""A capture as a connector of Flyte sees it: `create`, `get` and `delete`, whichever SDK asks.

    asked = await create(request)              # begins the capture, or finds that of the same key; some seconds at most
    asked = await create_from(inputs, place, caller=…)                   # the same, of what a task is given
    status = await Polled().get(asked)         # again and again, by any process
    await delete(asked)                        # cancels; may be repeated

A connector remembers nothing that matters: a capture that can't begin yet is begun by a later `get`, and one that is
past its deadline is cancelled by it. It answers within seconds and as good as never with an error, as Flyte's back ends
are hard on both (flyteplugins 1.16.8, pluginmachinery/internal/webapi and webapi/connector; those of 2.0.43 do the
same, and all numbers are defaults that can be configured):

- A call may take ten seconds. `get` is called every thirty.
- After an error of `create` the attempt has failed, retryably, with a traceback for its message; `delete` will not be
  called, whatever had begun.
- Errors of `get` are counted, over the whole life of a task and never reset. After the sixth it is not called any more:
  the task fails for good, or, where any call had succeeded, stays in that phase until its own timeout.
- `delete` is called when a task is aborted or its attempt has timed out; never once its phase is terminal. After an
  error it is called again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sameshot.client import CaptureView
from sameshot.client.wire import PATIENCE_S
from sameshot.errors import (
    DeadlinePassed,
    JobBusy,
    NoSuchJob,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
    UsageError,
)
from sameshot.steps.begin import begin, pinned
from sameshot.steps.cancel import cancel_async
from sameshot.steps.contract import FLYTE
from sameshot.steps.finish import CANCEL_ALLOWANCE_S, finish, result_of, skipped
from sameshot.steps.follow import is_over
from sameshot.steps.glance import ANSWER_S, Glances
from sameshot.steps.preflight import action_for, dialled
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult, shortened
from sameshot.steps.words import news
from sameshot_flyte.asked import Asked, Place, request_of
from sameshot_flyte.phases import NOT_BEGUN, UNDER_WAY, Phase, ended, refused

_log = logging.getLogger(__name__)

_BEGIN_S = 7.0
_LONGEST_S = 8.5  # any call; what it could not do is left to the next one
_CANCEL_S = 5.0


@dataclass(frozen=True)
class Status:
    """`message` is for people, while it runs and at the end. `result` is there once the phase is terminal and the
    capture was followed to its end (or skipped)."""

    phase: Phase
    message: str
    result: CaptureResult | None = None
    manifest_uri: str = ""  # where it is, or will be


async def create_from(
    inputs: Mapping[str, Any], place: Place, *, caller: str, base_url: str = "", now: Callable[[], float] = time.time
) -> Asked:
    """`create` of what a task's inputs ask for. What can't be read is settled, too: Flyte calls again after an error,
    and nothing would be better then."""
    try:
        asked = await create(request_of(inputs, place, caller), now=now)
    except UsageError as error:
        nothing = Asked(
            request=CaptureRequest(request_key=f"{FLYTE.engine.value}/refused"), since=now(), deadline=now()
        )
        asked = _settled(nothing, error)
    return msgspec.structs.replace(asked, base_url=base_url)


async def create(request: CaptureRequest, *, now: Callable[[], float] = time.time) -> Asked:
    """Begin the capture, or find the one that this key has already. Idempotent.

    Raises none of our errors. What nobody answers to is left to `get`; what can't be helped by that is settled, and
    `get` tells it.
    """
    since = now()
    asked = Asked(request=request, since=since, deadline=since + request.timeout_s)
    try:
        return await _begun(asked)
    except (NoSuchJob, JobBusy, Unreachable) as error:
        action = action_for(request, error)
        if action is Action.WAIT or isinstance(error, Unreachable):
            return asked
        if action is Action.SKIP:
            return msgspec.structs.replace(asked, settled=skipped(request, error))
        return _settled(asked, error)
    except TryAgain:
        return asked
    except SameshotError as error:
        return _settled(asked, error)


async def delete(asked: Asked) -> str:
    """Cancel what was begun; in words what that did. Idempotent. Raises Unreachable or Denied where that is not
    confirmed: Flyte calls again."""
    if asked.settled is not None:
        return "Nothing was begun, so nothing is cancelled."
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _cancelled(asked)
    except NoSuchJob as error:
        return f"There is nothing to cancel any more: {error}"
    except TimeoutError:
        raise Unreachable(
            f"The coordinator at {asked.request.address} did not confirm the cancel within {_LONGEST_S:g} s."
        ) from None


class Polled:
    """Looks at captures; one for a process."""

    def __init__(self, glances: Glances | None = None, now: Callable[[], float] = time.time) -> None:
        self._glances = glances or Glances()
        self._now = now

    async def get(self, asked: Asked) -> Status:
        """How it stands. Errors become phases: FAILED where asking again can't help. Raises nothing."""
        if asked.settled is not None:
            return _told(asked.settled)
        uri = asked.manifest_uri
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._get(asked)
        except TimeoutError:
            words = f"Neither the coordinator nor the archive said within {_LONGEST_S:g} s how the capture stands."
            if self._now() < asked.deadline + CANCEL_ALLOWANCE_S:
                phase = Phase.RUNNING if asked.capture_id else NOT_BEGUN
                return Status(phase, f"waiting: {words}", manifest_uri=uri)
            late = f"Not done within {asked.request.timeout_s:g} s. {words} A retry with the same request key finds it."
            return Status(Phase.RETRYABLE_FAILED, late, manifest_uri=uri)
        except SameshotError as error:
            return Status(refused(error.exit_code), shortened(str(error), 1000), manifest_uri=uri)
        except Exception as error:
            _log.exception("looking at capture %s", asked.capture_id or asked.request.request_key)
            words = f"The connector failed, and its log says where: {type(error).__name__}: {error}"
            return Status(Phase.RETRYABLE_FAILED, shortened(words, 1000), manifest_uri=uri)

    async def _get(self, asked: Asked) -> Status:
        if not asked.capture_id:
            found = await self._found_or_begun(asked)
            if isinstance(found, Status):
                return found
            asked = found
        return await self._look(asked)

    async def _found_or_begun(self, asked: Asked) -> Asked | Status:
        """The capture that an earlier look, or the `create` that got no answer, has begun; else it is begun now."""
        try:
            if capture := await _own_view(asked):
                return _of(asked, capture)
            if self._now() < asked.deadline:
                return await _begun(asked)
            raise DeadlinePassed(f"No capture had begun within {asked.request.timeout_s:g} s.")
        except (NoSuchJob, TryAgain) as error:
            action = action_for(asked.request, error)
            if action is Action.SKIP:
                return _told(skipped(asked.request, error))
            silent = not isinstance(error, NoSuchJob | JobBusy)
            patient = action is Action.WAIT or (silent and self._now() < asked.since + PATIENCE_S)
            if self._now() < asked.deadline and patient:
                return Status(NOT_BEGUN, shortened(f"waiting: {error}", 1000))
            late = "" if self._now() < asked.deadline else f"Waited in vain for {asked.request.timeout_s:g} s. "
            return Status(refused(error.exit_code), shortened(f"{late}{error}", 1000))

    async def _look(self, asked: Asked) -> Status:
        request, capture_id, uri = asked.request, asked.capture_id, asked.manifest_uri
        seen = await self._glances.look(request, capture_id, uri)
        if seen.view is not None and is_over(seen.view):
            return _told(await result_of(request, seen.view, timed_out=_late(asked, seen.view)), uri)
        if seen.view is not None and not seen.view.published and seen.view.state.value == "UNKNOWN":
            return _told(await result_of(request, seen.view), uri)
        if self._now() >= asked.deadline:
            return await self._end(asked)
        if seen.view is None:
            return Status(Phase.RUNNING, shortened(f"waiting: {seen.trouble}", 1000), manifest_uri=uri)
        return Status(UNDER_WAY[seen.view.state], "; ".join(news(None, seen.view)), manifest_uri=uri)

    async def _end(self, asked: Asked) -> Status:
        """The deadline has passed: cancel, and judge. It goes on in the next call where this one is cut off."""
        try:
            async with asyncio.timeout(_BEGIN_S):
                result = await finish(
                    asked.request, asked.capture_id, manifest_uri=asked.manifest_uri, deadline=asked.deadline
                )
        except TimeoutError:
            words = f"Capture {asked.capture_id} is past its deadline and is being cancelled."
            return Status(Phase.RUNNING, words, manifest_uri=asked.manifest_uri)
        return _told(result, asked.manifest_uri)


async def _begun(asked: Asked) -> Asked:
    """Raises what stands in the way; without an answer in time: Unreachable."""
    try:
        async with asyncio.timeout(_BEGIN_S):
            return _of(asked, await begin(asked.request))
    except TimeoutError:
        raise Unreachable(f"The coordinator at {asked.request.address} did not answer within {_BEGIN_S:g} s.") from None


async def _cancelled(asked: Asked) -> str:
    request, capture_id = asked.request, asked.capture_id
    if not capture_id:
        if (view := await _own_view(asked)) is None:
            return "Nothing was begun yet, so nothing is cancelled."
        capture_id = view.capture_id
    done = await cancel_async(request.address, capture_id, caller=request.caller, uid=request.uid, wait_s=_CANCEL_S)
    return done.message


async def _own_view(asked: Asked) -> CaptureView | None:
    """What was begun for this very `Asked`, under its key: not what an earlier attempt had begun, and lost."""
    request = asked.request
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            dialled(request.address, caller=request.caller, uid=request.uid) as client,
        ):
            view = await client.get(request_key=request.request_key)
    except TimeoutError:
        raise Unreachable(f"The coordinator at {request.address} did not answer within {ANSWER_S:g} s.") from None
    except UnknownCapture:
        return None
    return view if view.accepted_at_ns / 1e9 >= asked.since else None


def _of(asked: Asked, view: CaptureView) -> Asked:
    return msgspec.structs.replace(
        asked, request=pinned(asked.request, view), capture_id=view.capture_id, manifest_uri=view.manifest_uri
    )


def _late(asked: Asked, view: CaptureView) -> bool:
    ended_at = view.converged_at_ns
    return view.state.value == "CANCELLED" and ended_at is not None and ended_at / 1e9 >= asked.deadline


def _settled(asked: Asked, error: SameshotError) -> Asked:
    result = CaptureResult(
        request_key=asked.request.request_key,
        window_ms=asked.request.spec.duration_ms,
        exit_code=error.exit_code,
        message=shortened(str(error)),
    )
    return msgspec.structs.replace(asked, settled=result)


def _told(result: CaptureResult, manifest_uri: str = "") -> Status:
    words = f"{result.message} {result.warning}".strip()
    return Status(ended(result), words, result, result.manifest_uri or manifest_uri)
