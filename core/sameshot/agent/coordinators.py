"""Who calls an agent in a cluster: coordinators, each with a token of its own account, and for its own job only."""

from __future__ import annotations

import logging

from sameshot.api.door import Metadata, bearer
from sameshot.errors import Denied
from sameshot.kube import names
from sameshot.kube.reviews import TokenReviews
from sameshot.model import JobRef

log = logging.getLogger(__name__)

OUTAGE_S = 600.0
"""So long the API server's last word on a token holds while it is away: longer than any capture takes."""


class Coordinators:
    """The coordinators of a cluster; `namespace` is where their accounts are. `refused` counts calls."""

    def __init__(self, reviews: TokenReviews, namespace: str = names.COORDINATORS_NAMESPACE) -> None:
        self.reviews = reviews
        self.refused = 0
        self._namespace = namespace

    async def admit(self, method: str, metadata: Metadata) -> str | None:
        """Raises Denied, too, for an account that is no coordinator's: whoever may make tokens of an account of its
        own can make one for agents."""
        try:
            caller = (await self.reviews.who(bearer(metadata))).username
            if not caller.startswith(names.username_of(self._namespace, names.ACCOUNT_PREFIX)):
                raise Denied(f"{caller} is no coordinator, and an agent serves nobody else.")
        except Denied:
            self.refused += 1
            raise
        return caller

    def check(self, caller: str | None, job: JobRef) -> None:
        if not names.usable(job) or caller != names.username_of(self._namespace, names.account_of(job)):
            self.refused += 1
            log.warning("refused: %s asked for job %s (uid %s), which is not its own", caller, job, job.uid[:60])
            raise Denied(f"{caller} is not the coordinator of {job}; an agent serves each one its own job only.")
