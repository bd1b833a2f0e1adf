"""The one door of every server: who calls is judged before anything of a message is read.

gRPC reads a message whole, up to its limit, before a method runs; whoever may connect could fill a server's memory with
messages that never end. An interceptor runs before: from it a call is refused with its message unread, and no more of
it than a stream's window has been taken in. What can be there at a time is bounded, too: 100 connections that begin
calls as fast as they can cost 45 MiB where they are refused at once and 90 MiB where the API server leaves them waiting
(gRPC 1.85; 340 MiB without the options below).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import grpc

from sameshot.api.status import abort
from sameshot.api.transport import SERVER_OPTIONS, TOKEN_KEY
from sameshot.errors import Denied, SameshotError, TryAgain

Metadata = Iterable[tuple[str, str | bytes]]

# Of a server that the network reaches.
MOST_CALLS = 512  # at once; more than strangers may wait for the API server (`kube.reviews`)
MOST_CONNECTIONS = 1024  # at once, of 72 KiB each (gRPC 1.85, TLS): the next ones are closed unheard
NETWORK_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_concurrent_streams", 100),  # of a connection, the least that RFC 9113 recommends
    # Calls that nobody has looked at yet: from the first number on some are refused, from the second on all.
    ("grpc.server.max_pending_requests", MOST_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * MOST_CALLS),
    # A stream's window, as long as nobody reads from it; gRPC's own is 64 KiB, and grows.
    ("grpc.http2.lookahead_bytes", 8 << 10),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 10_000),  # gRPC's own is two minutes
    # Without a call; a client connects again when it has one. So nobody keeps a place who is let in nowhere.
    ("grpc.max_connection_idle_ms", 120_000),
]

_let_in: ContextVar[Any] = ContextVar("let_in")


class Doorkeeper(Protocol):
    async def admit(self, method: str, metadata: Metadata) -> Any:
        """Who calls, for `who_called`; `method` is a bare name. Raises Denied, or Unreachable where nobody can say."""
        ...


def guarded(keeper: Doorkeeper, *, max_request: int, network: bool) -> grpc.aio.Server:
    """A server where `keeper` stands at the door; `max_request` bytes are the most that a message to it may have.

    `network`: others than this machine can connect, so what they take is bounded.
    """
    options = {**dict(SERVER_OPTIONS), "grpc.max_receive_message_length": max_request}
    if network:
        options |= dict(NETWORK_OPTIONS)
    most = MOST_CALLS if network else None
    # gRPC counts calls that interceptors wait for, too, but refuses one only after they have judged it.
    door = AtTheDoor(keeper, most)
    return grpc.aio.server(options=list(options.items()), interceptors=[door], maximum_concurrent_rpcs=most)


class AtTheDoor(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Turns a call away before its message is read, whatever method it is for; at once where `most` are judged."""

    def __init__(self, keeper: Doorkeeper, most: int | None = None) -> None:
        self._keeper = keeper
        self._most = most
        self._judged = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        if self._most is not None and self._judged >= self._most:
            return _refusing(TryAgain("More calls come than can be taken; call again."))
        self._judged += 1
        try:
            _let_in.set(await self._keeper.admit(method, handler_call_details.invocation_metadata or ()))
        except SameshotError as error:
            return _refusing(error)
        finally:
            self._judged -= 1
        return await continuation(handler_call_details)


def who_called() -> Any:
    """Whom the doorkeeper has let in with this call: it ran in the same task. LookupError where there was none."""
    return _let_in.get()


def bearer(metadata: Metadata) -> str:
    """The token that a call brought. Raises Denied where there is none, or more than one."""
    found = [value for key, value in metadata if key == TOKEN_KEY]
    if not found:
        raise Denied(
            "The call brought no token. Callers in a cluster ask for one (TokenRequest) for the audience of whom they "
            "call; use an address of the form kube:<namespace>/<job>."
        )
    if len(found) > 1 or not isinstance(found[0], str):
        raise Denied("What the call brought as a token is none.")
    scheme, _, token = found[0].partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Denied("What the call brought as authorization is no Bearer token.")
    return token.strip()


def _refusing(error: SameshotError) -> Any:
    async def refuse(_: Any, context: Any) -> Any:
        await abort(context, error)

    # Of a stream, nothing is read until it is asked for.
    return grpc.stream_unary_rpc_method_handler(refuse)
