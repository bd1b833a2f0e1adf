"""How the parts connect: channel options, where a server may listen, and who is calling.

Nothing here is encrypted, and a caller is believed when it says who it is. So only this machine may connect: through a
loopback address, or through a socket that only its owner can open.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import grpc

from sameshot.errors import UsageError

# A job of thousands of ranks makes messages of several MB; gRPC's own limit is 4 MB. Both sides allow this much.
MAX_MESSAGE_BYTES = 64 << 20

# So often a silent connection is asked whether it still stands, and so long it may take to answer. NATs and load
# balancers drop what is idle for a minute or more.
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000

# Metadata: the operating system's user that makes a call.
CALLER_KEY = "x-sameshot-caller"

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

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def bind(server: grpc.aio.Server, listen: str, who: str) -> str:
    """Have `server` listen at `unix:/path` or a loopback `host:port` (port 0: any); returns the address in force.

    A socket is made for its owner alone. Raises UsageError for every other address, and where it is taken; `who` is
    the server in words.
    """
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"{path} is not a socket; remove it or choose another address.")
        before = os.umask(0o077)
        try:
            _listen(server, listen, who)
        finally:
            os.umask(before)
        return listen
    host, _, port = listen.rpartition(":")
    if host not in _LOOPBACK or not port.isdigit():
        raise UsageError(f"{listen!r} is no address for {who}; use unix:/path, or a loopback host with a port.")
    return f"{host}:{_listen(server, listen, who)}"


def _listen(server: grpc.aio.Server, listen: str, who: str) -> int:
    try:
        return int(server.add_insecure_port(listen))
    except RuntimeError as error:
        raise UsageError(f"{who.capitalize()} can't listen on {listen}: {error}.") from None
