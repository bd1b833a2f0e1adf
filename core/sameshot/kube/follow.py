"""Following the objects of one path of the API: list them, watch what changes, and begin anew where that breaks off.

One thread, which blocks on the server and on nothing else. While the server is away the last list holds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from sameshot.kube.api import TROUBLES, Api, ApiError
from sameshot.kube.deep import decoded

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
BETWEEN_WATCHES_S = 0.1


T = TypeVar("T")


class Follower(Generic[T]):
    """`understand` makes of each object what is to be kept of it, as it comes; None: nothing. (Whole objects are only
    there a page at a time: anybody may make his as large as he can.) `replace` gets each whole list of these, `take`
    each change after it: its kind, the object's uid, and what is kept. All are called in the one thread; `understand`
    raises nothing.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        *,
        understand: Callable[[msgspec.Raw], T | None],
        replace: Callable[[Sequence[T]], None],
        take: Callable[[str, str, T | None], None],
        name: str,
    ) -> None:
        self.trouble = "it has not answered yet"
        """Why the server does not tell us what changes now; empty: it does."""
        self.heard_at: float | None = None
        """When the server was last heard of (monotonic); a quiet watch says something at least once a minute."""
        self.restarts = 0
        """Times that it was begun anew because of some trouble."""
        self._api = api
        self._path = path
        self._query = dict(query)
        self._understand = understand
        self._replace = replace
        self._take = take
        self._name = name
        self._listed = threading.Event()
        self._ending = threading.Event()
        self._heard = False  # whether watching has worked since the last list

    @property
    def listed(self) -> bool:
        """Whether there was a whole list, be it long ago."""
        return self._listed.is_set()

    @property
    def ending(self) -> threading.Event:
        return self._ending

    def start(self, within_s: float) -> bool:
        """Begin to follow; whether the server has answered within that time."""
        threading.Thread(target=self._follow, name=self._name, daemon=True).start()
        return self._listed.wait(within_s)

    def close(self) -> None:
        self._ending.set()
        self._api.close()

    def _follow(self) -> None:
        pause, cached, forgot = FIRST_PAUSE_S, True, False
        while not self._ending.is_set():
            self._heard = False
            try:
                version = self._list(cached)
                cached = True
                while not self._ending.wait(BETWEEN_WATCHES_S):
                    version = self._watch(version)
                return
            except Exception as error:
                trouble = error
            if self._heard:  # a list alone proves little: watching may be what is refused
                pause, forgot = FIRST_PAUSE_S, False
            if isinstance(trouble, ApiError) and trouble.expired:
                cached = False  # what to follow from is too long ago, and so may be what the server has at hand
                if not forgot:
                    forgot = True
                    self._ending.wait(BETWEEN_WATCHES_S)
                    continue
            self.restarts += 1
            self._complain(trouble, pause)
            self._ending.wait(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _complain(self, error: Exception, pause: float) -> None:
        self.trouble = str(error) or type(error).__name__
        if not isinstance(error, TROUBLES):
            log.error("following the API server failed; begun again", exc_info=error)
        elif not self._ending.is_set():
            log.warning("no answer of the API server why=%r; the last list is kept, again in %.1f s", str(error), pause)

    def _list(self, cached: bool) -> str:
        """All of them anew. `cached`: as the server has them at hand; whatever is newer comes by the watch.

        The followers of a large cluster may all start at once, and a list that must be the newest makes the server read
        every object there is.
        """
        version, items = "", list[T]()
        for page in self._api.list(self._path, {**self._query, "resourceVersion": "0"} if cached else self._query):
            version = page.version
            items += [kept for raw in page.items if (kept := self._understand(raw)) is not None]
        self._replace(items)
        self.trouble = ""
        self.heard_at = time.monotonic()
        self._listed.set()
        return version

    def _watch(self, version: str) -> str:
        """Take in changes until the server ends this watch; the version to go on from."""
        for change in self._api.watch(self._path, self._query, version):
            self._heard = True
            self.heard_at = time.monotonic()
            about = decoded(change.object, _Versioned).metadata
            version = about.resource_version or version
            if change.kind != "BOOKMARK":
                self._take(change.kind, about.uid, self._understand(change.object))
        self._heard = True
        self.heard_at = time.monotonic()
        return version


class _VersionedMeta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _VersionedMeta
