"""Who may ask an agent, and for which job.

On one machine whoever can reach the socket may. In a cluster every call brings the token of a coordinator's own
account, made for agents (audience), and each coordinator may act for its own job only: the account's name says for
which. The token is looked at before anything of the request is read. Whether that job has anything to do with this node
is asked afterwards (`Agent.check_job`), of the agent's own list of pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import grpc

from sameshot.api.status import abort
from sameshot.errors import SameshotError
from sameshot.model import JobRef

_caller: ContextVar[str | None] = ContextVar("caller", default=None)


class Callers(Protocol):
    async def admit(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Who calls; None: nobody in particular. Raises Denied, or Unreachable where nobody can say."""
        ...

    def check(self, caller: str | None, job: JobRef) -> None:
        """Raise Denied unless this caller may act for this job."""
        ...


class ThisMachine:
    """Whoever can connect: through loopback, or a socket that only its owner can open."""

    async def admit(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        return None

    def check(self, caller: str | None, job: JobRef) -> None: ...


class AtTheDoor(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Turns a call away before its message is read, whatever method it is for."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        try:
            _caller.set(await self._callers.admit(handler_call_details.invocation_metadata or ()))
        except SameshotError as error:
            return _refusing(error)
        return await continuation(handler_call_details)


def caller_of_this_call() -> str | None:
    """Whom `AtTheDoor` has let in; it runs in the same task as the method."""
    return _caller.get()


def _refusing(error: SameshotError) -> Any:
    async def refuse(_: Any, context: Any) -> Any:
        await abort(context, error)

    # Of a stream, nothing is read until it is asked for.
    return grpc.stream_unary_rpc_method_handler(refuse)
