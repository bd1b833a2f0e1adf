"""The seam that says who is calling. Request keys are scoped to the caller, so this is the answer's only use here."""

from __future__ import annotations

from typing import Any, Protocol

from sameshot.api.transport import CALLER_KEY


class Authenticator(Protocol):
    """Name the caller of a gRPC call, or raise `Denied`."""

    async def caller(self, context: Any) -> str: ...


class LocalCaller:
    """On one machine the socket's directory is private to its owner, so the caller's own word (its OS user) will do."""

    async def caller(self, context: Any) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == CALLER_KEY and value:
                return str(value)
        return "local"
