"""A capture as a connector of Flyte sees it: `create`, `get` and `delete`, whichever SDK asks.

    asked = await create(request)              # begins the capture, or finds that of the same key; some seconds at most
    asked = await create_from(inputs, place, caller=…)                   # the same, of what a task is given
    polled = Polled()                                                    # one for a process
    status = await polled.get(asked)           # again and again, by any process
    await polled.delete(asked)                 # cancels; may be repeated

A connector remembers next to nothing that matters: a capture that can't begin yet is begun by a later `get`, and one
that is past its deadline is cancelled by it. Two things are not known to other processes: that after a `delete` nothing
is to be begun any more, and that a start which a `get` has sent was not answered.

It answers within seconds and as good as never with an error, as Flyte's back ends are hard on both (flyteplugins
1.16.8, pluginmachinery/internal/webapi and webapi/connector; those of 2.0.43 do the same, and all numbers are defaults
that can be configured):

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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sameshot.client import CaptureView
from sameshot.errors import (
    CaptureCancelled,
    NoSuchJob,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
    UsageError,
)
from sameshot.model import CaptureState
from sameshot.steps.begin import LAST_WORD_S, pinned
from sameshot.steps.cancel import cancel_async, end
from sameshot.steps.contract import FLYTE
from sameshot.steps.finish import CANCEL_ALLOWANCE_S, ended_late, in_archive, result_of, skipped
from sameshot.steps.follow import is_over
from sameshot.steps.glance import ANSWER_S, Glance, Glances
from sameshot.steps.kept import kept
from sameshot.steps.lately import Lately, Since
from sameshot.steps.preflight import action_for
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult, fitted, shortened
from sameshot.steps.words import news
from sameshot_flyte.asked import Asked, Place, request_of
from sameshot_flyte.keyed import begun, newest, obstacle, of, own, says_nothing
from sameshot_flyte.phases import NOT_BEGUN, UNDER_WAY, Phase, ended, refused

PATIENCE_S = 30.0
"""For so long a coordinator that is not heard, or a published manifest that can't be read, is asked again and again
before that is the answer; two polls of Flyte's own."""

_BEGIN_S = 6.5  # and LAST_WORD_S
_GET_S = 8.5
_CANCEL_S, _CANCEL_WAIT_S = 5.5, 2.5  # until it is confirmed; of that at most for the manifest of what was kept
_SPARE_S, _PAUSE_S = 0.5, 0.1
_WORDS = 1000  # characters of a message: Flyte keeps it with the execution

_log = logging.getLogger(__name__)


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
    """`create` of what a task's inputs ask for. What can't be read is settled, too: another attempt would read the same
    again."""
    try:
        asked = await create(request_of(inputs, place, caller), now=now)
    except UsageError as error:
        since = now()
        nothing = Asked(
            request=CaptureRequest(request_key=f"{FLYTE.engine.value}/refused"), since=since, deadline=since
        )
        asked = _settled(nothing, error)
    return msgspec.structs.replace(asked, base_url=base_url)


async def create(request: CaptureRequest, *, now: Callable[[], float] = time.time) -> Asked:
    """Begin the capture, or find the one that this key has already. Idempotent.

    Raises none of our errors. What can't be helped by asking again is settled, and `get` tells it; where nobody
    answered, `get` asks again.
    """
    since, starts = now(), list[float]()
    asked = Asked(request=request, since=since, deadline=since + request.timeout_s)
    try:
        view = await begun(asked, asyncio.get_running_loop().time() + _BEGIN_S, lambda: starts.append(now()))
    except SameshotError as error:
        action = action_for(request, error)
        if action is Action.SKIP:
            return msgspec.structs.replace(asked, settled=skipped(request, error))
        if says_nothing(error):
            return msgspec.structs.replace(asked, unanswered=bool(starts))
        return asked if action is Action.WAIT else _settled(asked, error)
    return of(asked, view)


class Polled:
    """Looks at captures; one for a process. `now` is in seconds since the epoch, `clock` monotonic."""

    def __init__(
        self,
        glances: Glances | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._glances = glances or Glances(clock)
        self._now = now
        self._silent, self._unread = Since(clock), Since(clock)
        self._known: Lately[Asked] = Lately(clock)  # what looks have begun or found; others find it by its key
        self._cancelled: Lately[bool] = Lately(clock)  # at the deadline, by us; others go by the time of its end
        self._deleted: Lately[bool] = Lately(clock)
        self._beginning: Counter[str] = Counter()  # looks that are about to begin it

    async def get(self, asked: Asked) -> Status:
        """How it stands. Never raises: each error becomes a phase, a failed one where asking again can't help."""
        if asked.settled is not None:
            return _told(asked.settled)
        ends = asyncio.get_running_loop().time() + _GET_S
        asked = self._known.get(_name(asked)) or asked
        try:
            async with asyncio.timeout_at(ends):
                if asked.capture_id:
                    seen = await self._glances.look(asked.request, asked.capture_id, asked.manifest_uri)
                else:
                    view = await self._found_or_begun(asked, ends - LAST_WORD_S)
                    if isinstance(view, Status):
                        return view
                    seen, asked = Glance(view), of(asked, view)
                    self._known.put(_name(asked), asked)
                return await self._stands(asked, seen, ends)
        except TimeoutError:
            words = f"No answer within {_GET_S:g} s."
            if asked.capture_id:
                return self._waits(asked, words)
            return self._without(asked, Unreachable(words))
        except SameshotError as error:
            return _failed(asked, error.exit_code, str(error))
        except Exception as error:
            _log.exception("looking at capture %s failed", asked.capture_id or asked.request.request_key)
            words = f"The connector failed, and its log says where: {type(error).__name__}: {error}"
            return _failed(asked, SameshotError.exit_code, words)

    # ---- not begun yet

    async def _found_or_begun(self, asked: Asked, ends: float) -> CaptureView | Status:
        """The capture that an earlier look, or the `create` that got no answer, has begun; else it is begun now."""
        try:
            try:
                view = await own(asked)
            except (NoSuchJob, Unreachable):  # it may be done already, and its job, too
                if (view := await kept(asked.request)) is None:
                    raise
            if view is None and self._now() < asked.deadline:
                view = await self._begun(asked, ends)
            if view is None:
                raise await obstacle(asked)
        except SameshotError as error:
            if isinstance(error, NoSuchJob | TryAgain) or says_nothing(error):
                return self._without(asked, error)
            raise
        self._silent.forget(_name(asked))
        return view

    async def _begun(self, asked: Asked, ends: float) -> CaptureView:
        """Nothing is begun after a `delete`; and what was just beginning then is cancelled, should it not have been
        found. Raises CaptureCancelled, or as `keyed.begun`."""
        name = _name(asked)

        def unless_deleted() -> None:
            if self._deleted.get(name):
                raise CaptureCancelled("Nothing is captured: that was cancelled before a capture had begun.")

        def starting() -> None:
            unless_deleted()
            self._known.put(name, msgspec.structs.replace(asked, unanswered=True))

        unless_deleted()
        self._beginning[name] += 1
        try:
            view = await begun(asked, ends, starting)
        except SameshotError as error:
            if not says_nothing(error):
                self._known.forget(name)
            raise
        finally:
            self._beginning[name] -= 1
            if not self._beginning[name]:
                del self._beginning[name]
        if self._deleted.get(name) and not view.state.terminal:
            request = pinned(asked.request, view)
            self._known.put(name, of(asked, view))
            view, _ = await end(
                request.address, view.capture_id, caller=request.caller, uid=request.uid, wait_s=_SPARE_S
            )
        return view

    def _without(self, asked: Asked, error: SameshotError) -> Status:
        """There is no capture, and this is why."""
        request, late = asked.request, self._now() >= asked.deadline
        action, silence = action_for(request, error), says_nothing(error)
        if not silence:
            self._silent.forget(_name(asked))
        if action is Action.SKIP:
            return _told(skipped(request, error))
        if not late and (action is Action.WAIT or (silence and self._silent.seconds(_name(asked)) < PATIENCE_S)):
            return Status(NOT_BEGUN, shortened(f"waiting: {error}", _WORDS))
        waited = f"Waited in vain for {request.timeout_s:g} s. " if late else ""
        return _failed(asked, error.exit_code, f"{waited}{error}")

    # ---- begun

    async def _stands(self, asked: Asked, seen: Glance, ends: float) -> Status:
        if seen.view is not None and is_over(seen.view):
            return await self._over(asked, seen.view, ends, sha256=seen.sha256)
        if self._now() >= asked.deadline:
            return await self._end(asked, seen, ends)
        if seen.view is None:
            return self._waits(asked, seen.trouble)
        words = shortened("; ".join(news(None, seen.view)), _WORDS)
        return Status(UNDER_WAY[seen.view.state], words, manifest_uri=asked.manifest_uri)

    async def _over(self, asked: Asked, view: CaptureView, ends: float, *, sha256: str | None = None) -> Status:
        """Judge it. A published one is good for whoever has patience: that its manifest can't be read just now is not
        the end of it."""
        ours = view.state is CaptureState.CANCELLED and self._cancelled.get(view.capture_id) is not None
        late = ours or ended_late(view, asked.deadline, self._now())
        try:
            async with asyncio.timeout_at(ends - _SPARE_S):
                result = await result_of(asked.request, view, timed_out=late, sha256=sha256, answer_s=ANSWER_S / 2)
        except TimeoutError:
            trouble = f"Capture {view.capture_id} is published, and its manifest could not be read in time."
        else:
            if result.manifest_sha256 is not None or result.exit_code != TryAgain.exit_code or not view.published:
                self._unread.forget(view.capture_id)
                return _told(result, asked.manifest_uri)
            trouble = result.message
        if self._unread.seconds(view.capture_id) < PATIENCE_S:
            return Status(Phase.RUNNING, shortened(f"waiting: {trouble}", _WORDS), manifest_uri=asked.manifest_uri)
        return _failed(asked, TryAgain.exit_code, trouble)

    async def _end(self, asked: Asked, seen: Glance, ends: float) -> Status:
        """The deadline has passed: cancel by the capture's id, and judge what came of it."""
        request, trouble = asked.request, seen.trouble
        left_s = ends - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(ends - 2 * _SPARE_S):
                view, was_over = await end(
                    request.address,
                    asked.capture_id,
                    caller=request.caller,
                    uid=request.uid,
                    wait_s=max(left_s - ANSWER_S, _SPARE_S),  # the manifest is to be read, too
                )
        except TimeoutError:
            trouble = trouble or f"The coordinator at {request.address} did not confirm it in time."
        except (NoSuchJob, UnknownCapture, TryAgain) as error:
            trouble = str(error)
        else:
            if not was_over:
                self._cancelled.put(view.capture_id, True)
            if is_over(view) or (view.state.terminal and self._overdue(asked)):
                return await self._over(asked, view, ends)
            if view.state.terminal:
                words = (
                    f"{_late(asked)}: capture {view.capture_id} is {view.state.value}, and not published. {view.note}"
                )
                return Status(Phase.RUNNING, shortened(words.strip(), _WORDS), manifest_uri=asked.manifest_uri)
            trouble = f"It is {view.state.value}. {view.note}"
        return self._waits(asked, trouble)

    def _waits(self, asked: Asked, trouble: str) -> Status:
        """Until somebody says how it stands, or confirms the cancel that is due; not without end."""
        if self._overdue(asked):
            words = f"{_late(asked)}, and nobody confirms the end of capture {asked.capture_id}. {trouble}"
            return _failed(asked, TryAgain.exit_code, words.strip())
        words = "waiting:"
        if self._now() >= asked.deadline:
            words = f"{_late(asked)}, so capture {asked.capture_id} is being cancelled."
        words = shortened(f"{words} {trouble}".strip(), _WORDS)
        return Status(Phase.RUNNING, words, manifest_uri=asked.manifest_uri)

    def _overdue(self, asked: Asked) -> bool:
        return self._now() >= asked.deadline + CANCEL_ALLOWANCE_S

    # ---- delete

    async def delete(self, asked: Asked) -> str:
        """Cancel what was begun, and begin nothing any more; in words what that did. Idempotent.

        By the capture's id. Where none is known, the newest of the key is meant, whichever attempt began it: Flyte
        begins the next attempt only after this. Raises TryAgain (Unreachable) where a capture that was begun, or may
        have been, may still run and nobody confirms the cancel: Flyte calls again. Some time after the deadline nobody
        needs that: every capture ends by itself.
        """
        self._deleted.put(_name(asked), True)
        asked = self._known.get(_name(asked)) or asked
        if asked.settled is not None:
            return f"Nothing is cancelled. {asked.settled.message}"
        try:
            async with asyncio.timeout(_CANCEL_S):
                return await self._ended(asked)
        except TimeoutError:
            told: SameshotError = Unreachable(
                f"The coordinator at {asked.request.address} did not confirm the cancel within {_CANCEL_S:g} s."
            )
        except SameshotError as error:
            told = error
        if isinstance(told, NoSuchJob):
            return f"There is nothing to cancel any more. {told}"
        asked = self._known.get(_name(asked)) or asked
        if not (asked.capture_id or asked.unanswered):
            return f"Nothing is cancelled: as far as is known none has begun, and one that has ends by itself. {told}"
        if (there := await in_archive(asked.capture_id, asked.manifest_uri, ANSWER_S)) is not None:
            return f"Capture {asked.capture_id} was over already: {there.state.value}."
        if isinstance(told, TryAgain) and not self._overdue(asked):
            raise told
        which = f"Capture {asked.capture_id}" if asked.capture_id else "What may have begun"
        return f"{which} is not cancelled, and ends by itself. {told}"

    async def _ended(self, asked: Asked) -> str:
        """Raises NoSuchJob, Unreachable, Denied."""
        request, capture_id, name = asked.request, asked.capture_id, _name(asked)
        if not capture_id:
            while (view := await newest(request)) is None:
                if not self._beginning[name] or not (self._known.get(name) or asked).unanswered:
                    return "Nothing was begun yet, so nothing is cancelled."
                await asyncio.sleep(_PAUSE_S)  # a start is on its way
            capture_id, request = view.capture_id, pinned(request, view)
        done = await cancel_async(
            request.address, capture_id, caller=request.caller, uid=request.uid, wait_s=_CANCEL_WAIT_S
        )
        return done.message


def _name(asked: Asked) -> str:
    return f"{asked.request.request_key} {asked.since}"


def _late(asked: Asked) -> str:
    return f"Not done within {asked.request.timeout_s:g} s"


def _settled(asked: Asked, error: SameshotError) -> Asked:
    result = CaptureResult(
        request_key=asked.request.request_key,
        window_ms=asked.request.spec.duration_ms,
        exit_code=error.exit_code,
        message=shortened(str(error)),
    )
    return msgspec.structs.replace(asked, settled=fitted(result))


def _failed(asked: Asked, exit_code: int, words: str) -> Status:
    return Status(refused(exit_code), shortened(words, _WORDS), manifest_uri=asked.manifest_uri)


def _told(result: CaptureResult, manifest_uri: str = "") -> Status:
    words = f"{result.message} {result.warning}".strip()
    return Status(ended(result), words, result, result.manifest_uri or manifest_uri)
