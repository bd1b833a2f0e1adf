"""Who calls an agent in a cluster: coordinators, each with a token of its own account, and for its own job only."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sameshot.api.transport import TOKEN_KEY
from sameshot.errors import Denied
from sameshot.kube import names
from sameshot.kube.reviews import TokenReviews
from sameshot.model import JobRef

log = logging.getLogger(__name__)

OUTAGE_S = 600.0
"""So long the API server's last word on a token holds while it is away: longer than any capture takes."""

_BEARER = "bearer "


class Coordinators:
    """The coordinators of a cluster; `namespace` is where their accounts are. `refused` counts calls."""

    def __init__(self, reviews: TokenReviews, namespace: str = names.COORDINATORS_NAMESPACE) -> None:
        self.reviews = reviews
        self.refused = 0
        self._namespace = namespace

    async def admit(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        try:
            return (await self.reviews.who(_token(metadata))).username
        except Denied:
            self.refused += 1
            raise

    def check(self, caller: str | None, job: JobRef) -> None:
        if not names.usable(job) or caller != names.username_of(self._namespace, names.account_of(job)):
            self.refused += 1
            log.warning("refused: %s asked for job %s (uid %s), which is not its own", caller, job, job.uid[:60])
            raise Denied(f"{caller} is not the coordinator of {job}; an agent serves each one its own job only.")


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Empty where none came."""
    for key, value in metadata:
        if key == TOKEN_KEY and isinstance(value, str) and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    return ""
