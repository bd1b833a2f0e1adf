"""How the parts connect: channel options, where a server may listen, and who is calling.

On one machine nothing is encrypted, and a caller is believed when it says who it is. So only this machine may connect:
through a loopback address, or through a socket that only its owner can open. In a cluster every connection is TLS, and
every call brings a token.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec

from sameshot.errors import SameshotError, UsageError
from sameshot.fresh import Fresh
from sameshot.hostport import joined, parted

# A job of thousands of ranks makes messages of several MB; gRPC's own limit is 4 MB. Both sides allow this much.
MAX_MESSAGE_BYTES = 64 << 20

# So often a silent connection is asked whether it still stands, and so long it may take to answer. NATs and load
# balancers drop what is idle for a minute or more.
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000

# Metadata: the operating system's user that makes a call.
CALLER_KEY = "x-sameshot-caller"
TOKEN_KEY = "authorization"
"""Metadata: `Bearer <token>`, only ever sent through TLS."""

_SIZES: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


def _keepalive(every_ms: int) -> list[tuple[str, Any]]:
    """gRPC 1.85 waits a minute for the answer to a ping, whatever the keepalive's own timeout is; so both are set."""
    return [
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
    ]


CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    # gRPC waits up to two minutes before it looks at a restarted peer again; a capture has seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # A peer whose node is gone, or whose connection was dropped on the way, sends nothing and never closes. While a
    # call runs, silence is asked about; nobody may be watched in vain for longer than both together.
    *_keepalive(KEEPALIVE_MS),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    # A second server on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # A watcher that has gone in silence is not kept.
    *_keepalive(3 * KEEPALIVE_MS),
    # gRPC's own answer to a ping every 20 s is GOAWAY (too_many_pings): it wants five minutes between them.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 4),
]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServerTls(msgspec.Struct, frozen=True):
    """PEM files: the certificate chain, leaf first, and its key. Both are read anew where they were replaced."""

    certificate: Path
    key: Path


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server is, and how it is spoken to.

    `address` is `host:port` or `unix:/path`. With `ca` (PEM) the connection is TLS, the server's certificate must be
    for `server_name`, and `token` is asked at every call, in a thread of gRPC's.

    `called` names the server in messages, where the address says little. `failed` is told every error that a client met
    there, and returns the one to raise: whoever found the way may know more. `kept`: the connection may stay open for
    the next client of the same event loop, as it was costly to make.
    """

    address: str
    ca: bytes = b""
    server_name: str = ""
    token: Callable[[], str] | None = None
    called: str = ""
    failed: Callable[[SameshotError], SameshotError] | None = None
    kept: bool = False


def channel(to: Endpoint) -> grpc.Channel:
    if not to.ca:
        return grpc.insecure_channel(to.address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(to.address, _credentials(to), options=_options(to))


def aio_channel(to: Endpoint) -> grpc.aio.Channel:
    if not to.ca:
        return grpc.aio.insecure_channel(to.address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(to.address, _credentials(to), options=_options(to))


def _options(to: Endpoint) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = [("grpc.ssl_target_name_override", to.server_name)] if to.server_name else []
    return [*CHANNEL_OPTIONS, *named]


def _credentials(to: Endpoint) -> grpc.ChannelCredentials:
    secure = grpc.ssl_channel_credentials(root_certificates=to.ca)
    if to.token is None:
        return secure
    token = to.token

    class Bearer(grpc.AuthMetadataPlugin):
        def __call__(self, context: Any, callback: Any) -> None:
            try:
                callback(((TOKEN_KEY, f"Bearer {token()}"),), None)
            except SameshotError as error:
                callback((), error)

    return grpc.composite_channel_credentials(secure, grpc.metadata_call_credentials(Bearer()))


def bind(server: grpc.aio.Server, listen: str, who: str, tls: ServerTls | None = None) -> str:
    """Have `server` listen at `unix:/path` or `host:port` (port 0: any); returns the address in force.

    Without `tls` the host must be a loopback. A socket is made for its owner alone. Raises UsageError for every other
    address, where it is taken, and for a certificate that can't be used; `who` is the server in words.
    """
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"{path} is not a socket; remove it or choose another address.")
        before = os.umask(0o077)
        try:
            _listen(server, listen, who, None)
        finally:
            os.umask(before)
        return listen
    found = parted(listen)
    if found is None or (tls is None and found[0] not in _LOOPBACK):
        raise UsageError(
            f"{listen!r} is no address for {who}; use unix:/path, or a loopback host with a port (any host with a "
            "certificate and its key)."
        )
    return joined(found[0], _listen(server, joined(*found), who, tls))


def _listen(server: grpc.aio.Server, listen: str, who: str, tls: ServerTls | None) -> int:
    try:
        if tls is not None:
            return int(server.add_secure_port(listen, _server_credentials(tls, who)))
        return int(server.add_insecure_port(listen))
    except RuntimeError as error:
        raise UsageError(f"{who.capitalize()} can't listen on {listen}: {error}.") from None


def _server_credentials(tls: ServerTls, who: str) -> grpc.ServerCredentials:
    """A new certificate serves from the next connection on: gRPC asks at every handshake."""

    def read() -> Any:
        chain = tls.certificate.read_bytes()
        return grpc.ssl_server_certificate_configuration([(tls.key.read_bytes(), chain)])

    try:
        pair = Fresh(read, tls.certificate, tls.key)
    except OSError as error:
        raise UsageError(f"The certificate of {who} can't be read: {error}.") from None

    def fetch() -> Any:
        with contextlib.suppress(OSError):  # it is being replaced: the one in force goes on
            if pair.look():
                return pair.value
        return None

    return grpc.dynamic_ssl_server_credentials(pair.value, fetch)
