"""Who is calling, and may they: on one machine the caller's own word, in a cluster a token (`tokenauth`).

Request keys are scoped to the caller, so its name is needed even where everybody may do everything.
"""

from __future__ import annotations

import enum
from typing import Protocol

from sameshot.api.door import Metadata
from sameshot.api.transport import CALLER_KEY

# While the API server can't be asked, its last word holds so long for calls that only look.
READING_OUTAGE_S = 120.0


class Call(enum.Enum):
    """The calls of `service Coordinator`, by name, with the verb on `captures.sameshot.dev` that each asks for."""

    DESCRIBE = "Describe", "get"
    START = "StartCapture", "create"
    GET = "GetCapture", "get"
    WATCH = "WatchCapture", "get"
    LIST = "ListCaptures", "list"
    CANCEL = "CancelCapture", "delete"
    MANIFEST = "GetManifest", "get"
    WORKERS = "ListWorkers", "list"
    RETIRE = "Retire", ""  # no verb gives it: it is the operator's alone

    @property
    def rpc(self) -> str:
        return self.value[0]

    @property
    def verb(self) -> str:
        return self.value[1]

    @property
    def outage_s(self) -> float:
        return READING_OUTAGE_S if self.verb in ("get", "list") else 0.0


class Caller(Protocol):
    """One who was let in."""

    @property
    def name(self) -> str: ...

    async def check_again(self) -> None:
        """For a call that lasts: raises `Denied` where it would be refused by now."""
        ...


class Authenticator(Protocol):
    """Name the caller of a gRPC call, or raise `Denied`, or `Unreachable` where nobody can say."""

    async def caller(self, metadata: Metadata, call: Call) -> Caller: ...


class Doorkeeper:
    """Judges calls of `service Coordinator` before they are read (`api.door`), right and all."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._calls = {call.rpc: call for call in Call}

    async def admit(self, method: str, metadata: Metadata) -> Caller | None:
        """None for a method that there is not: no other one takes that for a caller."""
        call = self._calls.get(method)
        return None if call is None else await self._authenticator.caller(metadata, call)


class LocalCaller:
    """On one machine the socket's directory is private to its owner, so the caller's own word (its OS user) will do."""

    async def caller(self, metadata: Metadata, call: Call) -> Caller:
        for key, value in metadata:
            if key == CALLER_KEY and value:
                return Trusted(str(value))
        return Trusted("local")


class Trusted:
    def __init__(self, name: str) -> None:
        self.name = name

    async def check_again(self) -> None:
        pass
