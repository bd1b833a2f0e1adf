"""Who calls a coordinator of a cluster, and may they: a token for this job's coordinators alone, and the API server's
word on the account behind it. A caller never sends its own API credential."""

from __future__ import annotations

from sameshot.api.door import Metadata, bearer
from sameshot.coordinator.auth import Call, Caller
from sameshot.errors import Denied, Unreachable
from sameshot.kube.reviews import AccessReviews, TokenReviews, Who, expires_in
from sameshot.model import JobRef


class TokenAuthenticator:
    """`job` is what rights are asked on, in its own namespace; `operator` a username. Both reviews are remembered for
    seconds only (`kube.reviews`)."""

    def __init__(self, tokens: TokenReviews, rights: AccessReviews, job: JobRef, operator: str) -> None:
        self._tokens = tokens
        self._rights = rights
        self._job = job
        self._operator = operator

    async def caller(self, metadata: Metadata, call: Call) -> Caller:
        """Every word of the caller's but its token is ignored."""
        token = bearer(metadata)
        who = await self._tokens.who(token, outage_s=call.outage_s)
        await self._check(who, call)
        return Reviewed(who, token, call, self)

    async def still(self, who: Who, token: str, call: Call) -> None:
        """A token lasts for minutes and a call may last longer: one that has expired by its own word was good when it
        came, and then the rights of its account decide. An API server that is away ends nothing that has begun."""
        try:
            if expires_in(token) > 0 and await self._tokens.who(token) != who:
                raise Denied("The token is somebody else's by now.")
            await self._check(who, call)
        except Unreachable:
            pass

    async def _check(self, who: Who, call: Call) -> None:
        if who.username == self._operator and call in (Call.RETIRE, Call.DESCRIBE):
            return
        if not call.verb:
            raise Denied(f"{who.username} may not call {call.rpc}: only the operator ({self._operator}) may.")
        await self._rights.check(who, call.verb, self._job.name, outage_s=call.outage_s)


class Reviewed:
    """The account behind a token."""

    def __init__(self, who: Who, token: str, call: Call, by: TokenAuthenticator) -> None:
        self.name = who.username
        self._who, self._token, self._call, self._by = who, token, call, by

    async def check_again(self) -> None:
        await self._by.still(self._who, self._token, self._call)
