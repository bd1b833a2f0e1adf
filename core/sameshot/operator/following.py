"""Following what users of namespaces may write: their pods, and objects of our kinds and names in their namespaces.

Not by kopf, as our own namespace is: it takes each list in as Python's values, whole, and these objects are as large,
as deep and as many as somebody likes. Here each is understood as it comes, and no more of it kept than is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from sameshot.arm.values import Json
from sameshot.kube.api import Api
from sameshot.kube.follow import Follower
from sameshot.operator.config import OperatorConfig
from sameshot.operator.kept import kept
from sameshot.operator.sources import FOLLOWED, Followed, Source

Told = Callable[[Source, str | None, Json | None], None]
"""Source, ADDED, MODIFIED, DELETED or None (it was listed), and the object as it is `kept`; None: that was the list."""


class Following:
    """`told` is called in threads of this one: one for each kind, and for each selected namespace."""

    def __init__(self, config: OperatorConfig, api: Api, told: Told) -> None:
        self._told = told
        self._followers = [
            self._follower(api, source, one, path)
            for source, one in FOLLOWED.items()
            if one.users
            for path in one.paths(config)
        ]

    def start(self) -> None:
        for each in self._followers:
            each.start(0.0)

    def close(self) -> None:
        for each in self._followers:
            each.close()

    @property
    def restarts(self) -> int:
        """Times that following was begun anew because of some trouble."""
        return sum(each.restarts for each in self._followers)

    def _follower(self, api: Api, source: Source, one: Followed, path: str) -> Follower[Json]:
        def replace(things: Sequence[Json]) -> None:
            for each in (*things, None):  # a list of nothing is told, too: all that was there is gone
                self._told(source, None, each)

        def take(kind: str, _: str, thing: Json | None) -> None:
            if thing is not None:
                self._told(source, kind, thing)

        return Follower(
            api,
            path,
            one.query,
            understand=functools.partial(kept, source),
            replace=replace,
            take=take,
            name=f"sameshot-{one.plural}",
        )
