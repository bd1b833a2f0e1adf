"""What is asked, and what is answered: every review in time, whatever happens to it.

An API server waits two seconds for us while somebody's pod waits for it. So each answer has a deadline below that, and
a pod that can't be looked at in time, or where something of ours fails, is admitted as it is.

    POST /arm       an AdmissionReview (admission.k8s.io/v1) of a pod that is being created
    GET  /healthz   200 while reviews come to an end; 503 once one has been running for 30 s
    GET  /readyz    200 while new reviews are taken; 503 once the webhook is about to end
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from sameshot.threads import DaemonThreads
from sameshot.webhook import review
from sameshot.webhook.room import Held, NoRoom, Room
from sameshot.webhook.tally import Missed, Tally

log = logging.getLogger(__name__)

THREADS = 4  # a review takes a tenth of a millisecond; more would only share one interpreter

Answer = Callable[[bytes], tuple[bytes, review.Request, review.Verdict]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's own timeout for us is 2 s; what the first two leave of it is for the way there and back."""

    body_within_s: float = 0.9
    review_within_s: float = 0.8
    # A review takes up to 55 times the memory of its body (a list of empty objects; measured), so these, together with
    # what a server of idle connections takes, stay below the container's limit. etcd takes no object above 1.5 MiB.
    body_bytes: int = 2 << 20
    held_bytes: int = 32 << 20  # of all bodies that are being read, or reviewed
    large_bytes: int = 128 << 10  # above that, reviews take turns; a pod is rarely a tenth of it
    stuck_after_s: float = 30.0


class Desk:
    """The requests of one webhook. `note` hears of each."""

    def __init__(self, answer: Answer, limits: Limits, note: Callable[[web.BaseRequest], None]) -> None:
        self.closing = False
        self.tally = Tally()
        self._answer = answer
        self._limits = limits
        self._threads = DaemonThreads(THREADS, "review", grace_s=1.0)
        self._large = DaemonThreads(1, "large review", grace_s=1.0)
        self._room = Room(limits.held_bytes)
        self._running: dict[object, float] = {}  # reviews that nobody may wait for any more, too: since when
        self._note = note

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._around], client_max_size=self._limits.body_bytes)
        app.router.add_post("/arm", self._arm)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        return app

    def close(self) -> None:
        self._threads.shutdown()
        self._large.shutdown()

    @property
    def held_bytes(self) -> int:
        return self._room.taken

    def stuck(self) -> str:
        """In words; empty while reviews come to an end."""
        since = min(list(self._running.values()), default=None)
        if since is not None and (lasts := time.monotonic() - since) > self._limits.stuck_after_s:
            return f"A review has been running for {lasts:.0f} s."
        return ""

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._note(request)
        response = await handler(request)
        if self.closing:  # whoever keeps its connection would still come here
            response.force_close()
        return response

    async def _arm(self, request: web.Request) -> web.Response:
        held = Held(self._room)
        try:
            return await self._looked_at(request, held)
        finally:
            held.let_go()

    async def _looked_at(self, request: web.Request, held: Held) -> web.Response:
        try:
            async with asyncio.timeout(self._limits.body_within_s):
                body = await _body(request, self._limits.body_bytes, held)
        except TimeoutError:
            self.tally.count(Missed.TOO_SLOW)
            return _refused(408, f"The review did not arrive within {self._limits.body_within_s:g} s.")
        except _TooLarge:
            self.tally.count(Missed.TOO_LARGE)
            return _refused(413, f"A review of more than {self._limits.body_bytes} bytes is not looked at.")
        except NoRoom:
            self.tally.count(Missed.NO_ROOM)
            return _refused(503, f"Reviews of {self._limits.held_bytes} bytes in all are being looked at already.")
        try:
            answered = await self._answered(body, held)
        except review.Malformed as error:
            self.tally.count(Missed.MALFORMED)
            return _refused(400, f"This is no review: {error}.")
        return web.Response(body=answered, content_type="application/json")

    async def _answered(self, body: bytes, held: Held) -> bytes:
        """The answer, whatever happens. Raises Malformed."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.review_within_s):
                answered, request, verdict = await self._reviewed(body, held)
        except review.Malformed:
            raise
        except TimeoutError:
            self.tally.count(Missed.LATE)
            log.warning("not looked at in time, admitted as it is bytes=%d", len(body))
            return review.unchanged(body, "the webhook had no time for this pod; it is not armed for captures")
        except Exception:
            self.tally.count(Missed.FAILED)
            log.exception("a defect, the pod is admitted as it is bytes=%d", len(body))
            return review.unchanged(body, "the webhook failed, see its log; this pod is not armed for captures")
        self.tally.count(verdict.outcome)
        self.tally.took(time.monotonic() - began)
        log.info(
            "reviewed namespace=%r pod=%r outcome=%s warnings=%r",
            request.namespace,
            review.name_of(request),
            verdict.outcome.value,
            verdict.warnings,
        )
        return answered

    async def _reviewed(self, body: bytes, held: Held) -> tuple[bytes, review.Request, review.Verdict]:
        key = object()
        todo = [body]  # emptied when it is over, since threads may come late to work that was given up

        def work() -> tuple[bytes, review.Request, review.Verdict]:
            self._running[key] = time.monotonic()
            try:
                return self._answer(todo[0])
            finally:
                del self._running[key]

        def over(_: Future[tuple[bytes, review.Request, review.Verdict]]) -> None:
            todo.clear()
            held.let_go()

        threads = self._threads if len(body) <= self._limits.large_bytes else self._large
        held.share()
        try:
            future = threads.submit(work)
        except RuntimeError:  # it is ending
            held.let_go()
            raise
        future.add_done_callback(over)
        return await asyncio.wrap_future(future)

    async def _health(self, request: web.Request) -> web.Response:
        stuck = self.stuck()
        return web.Response(status=503 if stuck else 200, text=f"{stuck or 'ok'}\n")

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503, text="ending\n") if self.closing else web.Response(text="ok\n")


class _TooLarge(Exception):
    pass


async def _body(request: web.Request, limit: int, held: Held) -> bytes:
    """Raises _TooLarge and NoRoom; counts what has come, not what is announced."""
    if (request.content_length or 0) > limit:
        raise _TooLarge
    pieces, size = [], 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > limit:
            raise _TooLarge
        held.grow(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def _refused(status: int, why: str) -> web.Response:
    """No review at all: API servers take it as a call that failed, and admit the pod (failure policy Ignore)."""
    log.warning("not answered status=%d why=%r", status, why)
    response = web.Response(status=status, text=f"{why}\n")
    response.force_close()
    return response
