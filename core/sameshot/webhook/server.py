"""Reviews over HTTPS until SIGTERM or SIGINT.

An API server waits two seconds for us while somebody's pod waits for it. So every answer has a deadline below that, and
what can't be looked at in time is admitted as it is. Anybody in the cluster may connect: bodies are bounded in size and
in time, a connection that asks nothing is closed, and above a number of connections the longest idle ones are.

    POST /arm       an AdmissionReview (admission.k8s.io/v1) of a pod that is being created
    GET  /healthz   200 while reviews come to an end; 503 once one has been running for STUCK_AFTER_S
    GET  /readyz    200 while new reviews are taken
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from sameshot.errors import UsageError
from sameshot.threads import DaemonThreads
from sameshot.webhook import review
from sameshot.webhook.certificates import LOOK_EVERY_S, Certificates

log = logging.getLogger(__name__)

# The API server's own timeout for us is 2 s; what is left of it is for the way there and back, and a TLS handshake.
BODY_WITHIN_S = 0.9
REVIEW_WITHIN_S = 0.8
# An API server takes objects of up to 3 MiB; as JSON inside a review one may be larger than it was on its way there.
MAX_BODY_BYTES = 8 << 20
THREADS = 4  # a review takes a millisecond; more would only share one interpreter
STUCK_AFTER_S = 30.0

HANDSHAKE_WITHIN_S = 5.0
FIRST_REQUEST_WITHIN_S = 5.0
IDLE_S = 120.0  # an API server keeps a connection for 90 s and must be the one that closes it
MAX_CONNECTIONS = 512
SWEEP_EVERY_S = 1.0
GRACE_S = 5.0  # for reviews under way at the end

Answer = Callable[[bytes], tuple[bytes, review.Request, review.Verdict]]


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`certificate` and `key` are PEM files. `listen` is `host:port` (port 0: any); the address in force is written to
    `address_file` once the webhook serves."""

    certificate: Path
    key: Path
    listen: str = "0.0.0.0:8443"
    address_file: Path | None = None
    look_every_s: float = LOOK_EVERY_S  # at the files, for rotated ones


async def serve(config: WebhookConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError where the address or the certificate can't be used."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # not in a main thread: whoever runs it cancels it
            loop.add_signal_handler(number, ending.set)
    async with listening(config) as address:
        log.info("serving address=%s", address)
        await ending.wait()
        log.info("ending")


@contextlib.asynccontextmanager
async def listening(config: WebhookConfig, answer: Answer = review.answer) -> AsyncIterator[str]:
    """Serve; yields the address in force."""
    certificates = Certificates(config.certificate, config.key)
    taken = _socket(config.listen)
    desk = _Desk(answer)
    runner = web.AppRunner(
        desk.application(),
        access_log=None,
        keepalive_timeout=IDLE_S,
        lingering_time=1.0,
        auto_decompress=False,  # API servers send plain JSON; a small body must not become a huge one
        shutdown_timeout=GRACE_S,
    )
    await runner.setup()
    assert runner.server is not None
    listener = await asyncio.get_running_loop().create_server(
        runner.server, sock=taken, ssl=certificates.context, ssl_handshake_timeout=HANDSHAKE_WITHIN_S, backlog=256
    )
    beside = [asyncio.create_task(certificates.follow(config.look_every_s)), asyncio.create_task(desk.sweep(runner))]
    try:
        host, port = taken.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if config.address_file is not None:
            scratch = config.address_file.with_name(f".{config.address_file.name}.tmp")
            scratch.write_text(f"{address}\n")
            scratch.replace(config.address_file)
        yield address
    finally:
        desk.closing = True
        listener.close()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await runner.cleanup()
        desk.close()


class _Desk:
    """Takes requests, has them answered in a few threads, and knows which connections ever asked for anything."""

    def __init__(self, answer: Answer) -> None:
        self.closing = False
        self._answer = answer
        self._threads = DaemonThreads(THREADS, "review", grace_s=1.0)
        self._running: dict[object, float] = {}  # reviews that nobody may wait for any more, too: since when
        self._heard: dict[object, float] = {}  # connection → when it last asked, or was seen first
        self._asked: set[object] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/arm", self._arm)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.on_response_prepare.append(self._note)
        return app

    def close(self) -> None:
        self._threads.shutdown()

    # --- requests

    async def _arm(self, request: web.Request) -> web.Response:
        began = time.monotonic()
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await _body(request)
        except TimeoutError:
            return _refused(408, f"The review did not arrive within {BODY_WITHIN_S:g} s.")
        except _TooLarge:
            return _refused(413, f"A review of more than {MAX_BODY_BYTES} bytes is not looked at.")
        try:
            answered = await self._answered(body)
        except review.Malformed as error:
            return _refused(400, f"This is no review: {error}.")
        log.debug("answered bytes=%d ms=%.1f", len(body), (time.monotonic() - began) * 1000)
        return web.Response(body=answered, content_type="application/json")

    async def _answered(self, body: bytes) -> bytes:
        """The answer, whatever happens. Raises Malformed."""
        try:
            async with asyncio.timeout(REVIEW_WITHIN_S):
                answered, request, verdict = await self._reviewed(body)
        except review.Malformed:
            raise
        except TimeoutError:
            log.warning("not looked at in time, admitted as it is bytes=%d", len(body))
            return review.unchanged(body, "the webhook had no time for this pod; it is not armed for captures")
        except Exception:
            log.exception("a defect, the pod is admitted as it is bytes=%d", len(body))
            return review.unchanged(body, "the webhook failed, see its log; this pod is not armed for captures")
        log.info(
            "reviewed namespace=%r pod=%r outcome=%s warnings=%r",
            request.namespace,
            review.name_of(request),
            verdict.outcome.value,
            verdict.warnings,
        )
        return answered

    async def _reviewed(self, body: bytes) -> tuple[bytes, review.Request, review.Verdict]:
        key = object()

        def work() -> tuple[bytes, review.Request, review.Verdict]:
            self._running[key] = time.monotonic()
            try:
                return self._answer(body)
            finally:
                del self._running[key]

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _health(self, request: web.Request) -> web.Response:
        since = min(list(self._running.values()), default=None)
        if since is not None and (lasts := time.monotonic() - since) > STUCK_AFTER_S:
            return web.Response(status=503, text=f"A review has been running for {lasts:.0f} s.\n")
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503, text="ending\n") if self.closing else web.Response(text="ok\n")

    # --- connections

    async def _note(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self._heard[request.protocol] = time.monotonic()
        self._asked.add(request.protocol)

    async def sweep(self, runner: web.AppRunner) -> None:
        """Close connections that ask nothing; runs until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            assert runner.server is not None
            now, here = time.monotonic(), runner.server.connections
            self._heard = {each: self._heard.get(each, now) for each in here}
            self._asked.intersection_update(here)
            idlest = sorted(here, key=lambda each: self._heard[each])
            spare = max(0, len(here) - MAX_CONNECTIONS)
            for index, each in enumerate(idlest):
                silent = each not in self._asked and now - self._heard[each] >= FIRST_REQUEST_WITHIN_S
                if silent or index < spare:
                    each.force_close()


class _TooLarge(Exception):
    pass


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _TooLarge
    pieces, size = [], 0
    async for piece in request.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _TooLarge
    return b"".join(pieces)


def _refused(status: int, why: str) -> web.Response:
    """No review at all: API servers take it as a call that failed, and admit the pod (failure policy Ignore)."""
    log.warning("not answered status=%d why=%r", status, why)
    response = web.Response(status=status, text=f"{why}\n")
    response.force_close()
    return response


def _socket(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{listen!r} is no address for the webhook; use host:port, for example 0.0.0.0:8443.")
    host = host.strip("[]")
    try:
        return socket.create_server(
            (host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
    except (OSError, OverflowError) as error:
        raise UsageError(f"The webhook can't listen on {listen}: {error}.") from None
