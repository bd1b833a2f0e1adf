"""Who may ask an agent, and for which job.

On one machine whoever can reach the socket may. In a cluster every call brings the token of a coordinator's own
account, made for agents (audience), and each coordinator may act for its own job only: the account's name says for
which. The token is looked at before anything of the request is read (`api.door`). Whether that job has anything to do
with this node is asked afterwards (`Agent.check_job`), of the agent's own list of pods.
"""

from __future__ import annotations

from typing import Protocol

from sameshot.api.door import Metadata
from sameshot.model import JobRef


class Callers(Protocol):
    async def admit(self, method: str, metadata: Metadata) -> str | None:
        """Who calls; None: nobody in particular. Raises Denied, or Unreachable where nobody can say."""
        ...

    def check(self, caller: str | None, job: JobRef) -> None:
        """Raise Denied unless this caller may act for this job."""
        ...


class ThisMachine:
    """Whoever can connect: through loopback, or a socket that only its owner can open."""

    async def admit(self, method: str, metadata: Metadata) -> str | None:
        return None

    def check(self, caller: str | None, job: JobRef) -> None: ...
