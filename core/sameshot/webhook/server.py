"""Serve reviews over HTTPS until SIGTERM or SIGINT.

Whoever ends it may just have told others not to come here any more, and they learn it later: for a while it goes on
serving, not ready, so that no pod is missed while a Deployment is rolled out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from aiohttp import web

from sameshot.ending import told_to_end
from sameshot.errors import UsageError
from sameshot.hostport import joined, parted
from sameshot.webhook import review
from sameshot.webhook.certificates import LOOK_EVERY_S, Certificates
from sameshot.webhook.connections import Connections
from sameshot.webhook.desk import Answer, Desk, Limits

log = logging.getLogger(__name__)

IDLE_S = 120.0  # an API server keeps a connection for 90 s and must be the one that closes it
GRACE_S = 3.0  # for reviews under way at the end


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`certificate` and `key` are PEM files. `listen` is `host:port` (port 0: any; host *: all addresses of both
    families); the address in force is written to
    `address_file` once the webhook serves. Times are seconds."""

    certificate: Path
    key: Path
    listen: str = "*:8443"
    address_file: Path | None = None
    metrics: str = ""  # host:port of /metrics; empty: none
    look_every_s: float = LOOK_EVERY_S  # at the files, for rotated ones
    handshake_within_s: float = 5.0
    first_request_within_s: float = 5.0
    connections: int = 512
    drain_s: float = 5.0  # how long it goes on serving once it was told to end
    limits: Limits = Limits()


class Webhook(msgspec.Struct, frozen=True):
    """One that is serving."""

    address: str
    desk: Desk
    metrics: str = ""


async def serve(config: WebhookConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError where the address or the certificate can't be used."""
    ending = told_to_end()
    async with listening(config) as webhook:
        log.info("serving address=%s", webhook.address)
        await ending.wait()
        log.info("ending in_s=%g", config.drain_s)
        webhook.desk.closing = True
        await asyncio.sleep(config.drain_s)


@contextlib.asynccontextmanager
async def listening(config: WebhookConfig, answer: Answer = review.answer) -> AsyncIterator[Webhook]:
    """Serve; reviews are answered by `answer`, in threads."""
    certificates = Certificates(config.certificate, config.key)
    connections = Connections(
        handshake_within_s=config.handshake_within_s,
        first_request_within_s=config.first_request_within_s,
        most=config.connections,
    )
    desk = Desk(answer, config.limits, connections.note)
    with contextlib.ExitStack() as stack, _socket(config.listen) as taken:
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
            connections.factory(runner.server),
            sock=taken,
            ssl=certificates.context,
            ssl_handshake_timeout=config.handshake_within_s,
            backlog=256,
        )
        beside = [
            asyncio.create_task(certificates.follow(config.look_every_s)),
            asyncio.create_task(connections.sweep(runner.server)),
        ]
        try:
            scrape = stack.enter_context(_scraped(config.metrics, desk, certificates))
            host, port = taken.getsockname()[:2]
            address = joined(host, port)
            if config.address_file is not None:
                scratch = config.address_file.with_name(f".{config.address_file.name}.tmp")
                scratch.write_text(f"{address}\n")
                scratch.replace(config.address_file)
            yield Webhook(address, desk, scrape)
        finally:
            desk.closing = True
            listener.close()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await runner.cleanup()
            desk.close()


@contextlib.contextmanager
def _scraped(listen: str, desk: Desk, certificates: Certificates) -> Iterator[str]:
    if not listen:
        yield ""
        return
    from sameshot.kube.scrape import scraped
    from sameshot.webhook.metrics import WebhookHealth, WebhookMetrics

    with scraped(listen, WebhookMetrics(desk, certificates), WebhookHealth(desk)) as address:
        yield address


def _socket(listen: str) -> socket.socket:
    found = parted(listen)
    if found is None:
        raise UsageError(f"{listen!r} is no address for the webhook; use host:port, or *:8443 for all addresses.")
    host, port = found
    everywhere = host == "*"
    both = everywhere and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("" if everywhere else host, port),
            family=socket.AF_INET6 if both or ":" in host else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=256,
        )
    except (OSError, OverflowError) as error:
        raise UsageError(f"The webhook can't listen on {listen}: {error}.") from None
