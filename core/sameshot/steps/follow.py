"""Watching a capture to its proven end: terminal, and its manifest in the archive.

The coordinator is asked as long as there is one; it may be restarted meanwhile. When it is gone, the manifest in the
archive is the fact. A capture that neither of them knows any more comes back as UNKNOWN: it was lost, and a retry with
the same request key begins another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

from sameshot.api.archived import view_of
from sameshot.client import AsyncClient, CaptureView
from sameshot.client.wire import PATIENCE_S
from sameshot.errors import (
    DeadlinePassed,
    ManifestError,
    NoSuchJob,
    NotFound,
    SameshotError,
    StorageError,
    TryAgain,
    UnknownCapture,
    Unreachable,
)
from sameshot.model import CaptureState, JobRef
from sameshot.steps.archive import read_manifest
from sameshot.steps.preflight import Say, dialled, other_job
from sameshot.steps.request import CaptureRequest
from sameshot.steps.verdict import had_targets, never_published
from sameshot.steps.words import news

Seen = Callable[[CaptureView], None]
"""Called with each view of the capture as it comes."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_ANSWER_S = 10.0  # a coordinator says at once how things stand when a watch begins
_QUIET_S = 30.0  # a watch that says nothing for so long is begun anew: its connection may be dead without a sign
_LAST_LOOK_S = 2.0  # whoever comes late (a restarted engine) still learns how it ended
ENDED_GRACE_S = 15.0
"""A job that is known to have ended publishes nothing after that."""


async def follow(
    request: CaptureRequest,
    capture_id: str,
    *,
    manifest_uri: str = "",
    deadline: float | None = None,
    progress: Say | None = None,
    seen: Seen | None = None,
) -> CaptureView:
    """The capture as it ended: published, or without targets, or (state UNKNOWN) lost.

    `manifest_uri` is where its manifest will be, as every view of it says; without it a coordinator that is gone for
    good leaves nothing to look at. Raises DeadlinePassed at `deadline` (absolute, seconds since the epoch; None: the
    request's timeout from now): nothing was cancelled then. Cancelling the coroutine cancels no capture either.
    """
    ends = time.time() + request.timeout_s if deadline is None else deadline
    following = _Following(request, capture_id, manifest_uri, progress, seen)
    bound = asyncio.timeout(max(ends - time.time(), _LAST_LOOK_S))
    try:
        async with bound:
            return await following.until_over()
    except TimeoutError:
        if not bound.expired():
            raise
        raise DeadlinePassed(following.where_it_stands(), following.last) from None


def is_over(view: CaptureView) -> bool:
    """Nothing more will become of it: published, or ended in a way that leaves no manifest."""
    return view.published or (view.state.terminal and not had_targets(view)) or never_published(view)


async def archived(capture_id: str, manifest_uri: str) -> CaptureView:
    """The capture as its manifest tells it. Raises NotFound where there is none (yet), StorageError where the archive
    can't tell, ManifestError where the manifest is damaged or another capture's."""
    return (await archived_as(capture_id, manifest_uri))[0]


async def archived_as(capture_id: str, manifest_uri: str) -> tuple[CaptureView, str]:
    """The same, and the manifest's digest."""
    read = await read_manifest(manifest_uri)
    if read.capture.capture_id != capture_id:
        raise ManifestError(
            f"The manifest at {manifest_uri} is of capture {read.capture.capture_id}, not of {capture_id}."
        )
    return view_of(read, manifest_uri), read.sha256


class _Following:
    def __init__(
        self, request: CaptureRequest, capture_id: str, manifest_uri: str, progress: Say | None, seen: Seen | None
    ) -> None:
        self.last: CaptureView | None = None
        self._request = request
        self._capture_id = capture_id
        self._manifest_uri = manifest_uri
        self._progress = progress
        self._seen = seen
        self._job: JobRef | None = None
        self._trouble = ""
        self._silent_since: float | None = None
        self._heard_at = 0.0
        self._ended_since: float | None = None

    async def until_over(self) -> CaptureView:
        pause = _FIRST_PAUSE_S
        while True:
            before = self.last
            if (over := await self._look()) is not None:
                return over
            pause = min(pause * 1.5, _LONGEST_PAUSE_S) if self.last is before else _FIRST_PAUSE_S
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))

    def where_it_stands(self) -> str:
        last, what = self.last, f"Capture {self._capture_id}"
        if last is None:
            return f"{what} was not seen before the deadline: {self._trouble or 'nobody answered'}"
        if last.state.terminal:
            why = last.note or "no agent answers"
            return f"{what} ended as {last.state.value} and was not published before the deadline: {why}"
        return f"{what} is {last.state.value} at the deadline, {last.archived} of {last.expected} traces are archived."

    async def _look(self) -> CaptureView | None:
        """Watch for as long as that goes; the capture if it is over."""
        request, began = self._request, time.monotonic()
        try:
            async with dialled(
                request.address, caller=request.caller, uid=request.uid, attempt=request.attempt
            ) as client:
                return await self._watch(client)
        except UnknownCapture as error:
            return await self._archived_or_lost(str(error), lost="Neither the coordinator nor the archive knows")
        except NoSuchJob as error:
            now = time.monotonic()
            self._ended_since = self._ended_since or now
            gone = now - self._ended_since > ENDED_GRACE_S
            return await self._archived_or_lost(
                str(error), lost="The coordinator is gone with its job, and the archive does not know" if gone else ""
            )
        except SameshotError as error:
            if not isinstance(error, TryAgain) and type(error) is not SameshotError:
                raise
            # The latter: what is none of our errors was not said by a coordinator that knew what it said, but by a
            # proxy (INTERNAL, CANCELLED), or by one that was just being ended (UNKNOWN).
            now = time.monotonic()
            self._silent_since = self._silent_since or (
                began if self._heard_at < began else now
            )  # a quiet watch is none
            self._say(str(error))
            if now - self._silent_since <= PATIENCE_S:
                return None
            over = await self._archived_or_lost(str(error))
            if over is None and not isinstance(error, TryAgain):
                raise
            return over

    async def _watch(self, client: AsyncClient) -> CaptureView | None:
        """The capture if it is over; None where the watch ended or went quiet before. Raises Unreachable where not even
        its beginning came."""
        loop, heard = asyncio.get_running_loop(), False
        async with contextlib.aclosing(client.watch(self._capture_id)) as views:
            try:
                async with asyncio.timeout(_ANSWER_S) as bound:
                    async for view in views:
                        heard = True
                        bound.reschedule(loop.time() + _QUIET_S)
                        self._heard(view)
                        if is_over(view):
                            return view
            except TimeoutError:
                if not heard:
                    raise Unreachable(
                        f"The coordinator at {self._request.address} did not answer within {_ANSWER_S:g} s."
                    ) from None
        return None

    def _heard(self, view: CaptureView) -> None:
        self._silent_since = self._ended_since = None
        self._heard_at = time.monotonic()
        self._trouble = ""
        if self._progress is not None:
            for line in news(self.last, view):
                self._progress(line)
        self.last = view
        if self._seen is not None:
            self._seen(view)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            if self._progress is not None:
                self._progress(f"waiting: {trouble}")

    async def _archived_or_lost(self, why: str, *, lost: str = "") -> CaptureView | None:
        """The capture as its manifest tells it. Where there is none: UNKNOWN if it is `lost` (in words), else None."""
        self._say(why)
        uri = self._manifest_uri or (self.last.manifest_uri if self.last is not None else "")
        if uri:
            try:
                view = await archived(self._capture_id, uri)
            except NotFound:
                pass
            except StorageError as error:
                self._say(str(error))
                return None
            else:
                self._heard(view)
                return view
        return await self._lost(uri, lost) if lost else None

    async def _lost(self, uri: str, why: str) -> CaptureView:
        job = self.last.job if self.last is not None else await served(self._request)
        return lost(
            self._request, self._capture_id, job, why, manifest_uri=uri, n=self.last.n if self.last is not None else 0
        )


def lost(
    request: CaptureRequest, capture_id: str, job: JobRef, why: str, *, manifest_uri: str = "", n: int = 0
) -> CaptureView:
    """A capture that nobody knows any more; `why` is the beginning of that sentence."""
    return CaptureView(
        capture_id=capture_id,
        job=job,
        request_key=request.request_key,
        n=n,
        spec=request.spec,
        state=CaptureState.UNKNOWN,
        manifest_uri=manifest_uri,
        note=f"{why} capture {capture_id} any more: it is lost. A retry with the same request key begins a new one.",
    )


async def served(request: CaptureRequest) -> JobRef:
    """The job, if its coordinator still says so; else what was asked for, without a namespace. At the same address
    the coordinator of another job may answer by now."""
    with contextlib.suppress(SameshotError):
        async with dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client:
            found = (await client.describe()).job
            if other_job(request, found) is None:
                return found
    return asked_for(request)


def asked_for(request: CaptureRequest) -> JobRef:
    """What a request says of its job, where nobody can say more."""
    return JobRef("", request.job or "", request.uid or "", request.attempt or 0)
