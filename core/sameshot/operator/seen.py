"""The objects as they were last seen: by watching, by listing, and in answers to our own writes.

These three overtake each other, so a younger version is never replaced by an older one, what is gone does not come back
in one that is older than its end, and a list (which may have been made before what watching told meanwhile) only
touches what nobody has touched since it began. Only used in the event loop's thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator

from sameshot.arm.values import Json, inside
from sameshot.operator.sources import Source

log = logging.getLogger(__name__)

MOST_OF_A_KIND = 10_000
MOST_GONE = 1_000  # of a source, that are remembered: answers to our own writes are late by seconds
Place = tuple[str, str]
"""Namespace (empty: none) and name."""


def place_of(thing: Json) -> Place:
    metadata = inside(thing, "metadata")
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


class Seen:
    """`changed` is told each change: the source, the object before (None: there was none), and after. Of `slim` sources
    only the version is kept: there may be many of them, and whoever is told takes what he needs. Of one source and
    namespace no more than `most` are kept: users' namespaces may hold any number. What comes later is left out."""

    def __init__(
        self,
        changed: Callable[[Source, Json | None, Json | None], None],
        *,
        slim: Collection[Source] = (),
        most: int = MOST_OF_A_KIND,
    ) -> None:
        self._changed = changed
        self._slim = slim
        self._most = most
        self._full: set[tuple[Source, str]] = set()
        self._things: dict[Source, dict[str, dict[str, Json]]] = {source: {} for source in Source}  # by namespace, name
        self._gone: dict[Source, OrderedDict[object, str]] = {source: OrderedDict() for source in Source}
        self._touched: dict[tuple[Source, Place], int] = {}  # also of what is gone, while a list is under way
        self._count = 0
        self._lists = 0

    def get(self, source: Source, namespace: str, name: str) -> Json | None:
        return self._things[source].get(namespace, {}).get(name)

    def all(self, source: Source) -> Iterator[Json]:
        for things in self._things[source].values():
            yield from things.values()

    def all_in(self, source: Source, namespace: str) -> Iterator[Json]:
        yield from self._things[source].get(namespace, {}).values()

    def count(self, source: Source) -> int:
        return sum(map(len, self._things[source].values()))

    @property
    def full(self) -> int:
        """Kinds in namespaces of which some were left out."""
        return len(self._full)

    def _has_room(self, source: Source, place: Place) -> bool:
        where = (source, place[0])
        if place[0] and len(self._things[source].get(place[0], ())) >= self._most:
            if where not in self._full:
                self._full.add(where)
                log.warning(
                    "namespace %r has %d of the %s; more are not looked at while there are so many",
                    place[0], self._most, source.value,
                )  # fmt: skip
            return False
        return True

    def put(self, source: Source, thing: Json) -> None:
        """It is kept without what lists leave out and what nobody here reads."""
        metadata = {key: value for key, value in inside(thing, "metadata").items() if key != "managedFields"}
        thing = {key: value for key, value in thing.items() if key not in ("apiVersion", "kind")} | {
            "metadata": metadata
        }
        place = place_of(thing)
        before = self.get(source, *place)
        if before is not None and not _newer(thing, before):
            return
        ended = self._gone[source].get((place, metadata.get("uid")))
        if ended is not None and not _later(str(metadata.get("resourceVersion")), ended):
            return
        if before is None and not self._has_room(source, place):
            return
        self._touch(source, place)
        self._things[source].setdefault(place[0], {})[place[1]] = _slim(thing) if source in self._slim else thing
        self._changed(source, before, thing)

    def drop(self, source: Source, place: Place, uid: str | None = None, version: str = "") -> None:
        """It is gone; with `uid`: only where this very object is the one that was seen. `version`: of its end, or of a
        list that it is not in; empty: the one that was seen last. (What only lost its labels may come back later.)"""
        before = self.get(source, *place)
        if before is None or (uid is not None and inside(before, "metadata").get("uid") != uid):
            return
        self._touch(source, place)
        self._end(source, before, version)
        things = self._things[source][place[0]]
        del things[place[1]]
        if not things:
            del self._things[source][place[0]]
            self._full.discard((source, place[0]))
        self._changed(source, before, None)

    def _end(self, source: Source, thing: Json, version: str) -> None:
        meta, gone = inside(thing, "metadata"), self._gone[source]
        last = str(meta.get("resourceVersion"))
        which = (place_of(thing), meta.get("uid"))
        gone[which] = version if version and _later(version, last) else last
        gone.move_to_end(which)
        while len(gone) > MOST_GONE:
            gone.popitem(last=False)

    def begin(self) -> int:
        """A list is about to be asked for; the mark is for `listed`."""
        self._lists += 1
        return self._count

    def listed(self, source: Source, things: Iterable[Json] | None, mark: int, version: str = "") -> None:
        """All there is of a source, as a list that began at that mark says; None: it failed, nothing is known."""
        self._lists -= 1
        found = None if things is None else {place_of(each): each for each in things}
        if found is not None:
            for place, thing in found.items():
                if self._touched.get((source, place), 0) <= mark:
                    self.put(source, thing)
            for place in [each for each in map(place_of, self.all(source)) if each not in found]:
                if self._touched.get((source, place), 0) <= mark:
                    self.drop(source, place, version=version)
        if not self._lists:
            self._touched.clear()
            self._count = 0

    def _touch(self, source: Source, place: Place) -> None:
        if self._lists:
            self._count += 1
            self._touched[source, place] = self._count


def _newer(thing: Json, than: Json) -> bool:
    """Whether this is another object, or a later version of the same."""
    new, old = inside(thing, "metadata"), inside(than, "metadata")
    if new.get("uid") != old.get("uid"):
        return True
    return _later(str(new.get("resourceVersion")), str(old.get("resourceVersion")))


def _later(one: str, other: str) -> bool:
    """Versions are counted up in one etcd.
    (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions)"""
    return int(one) > int(other) if one.isdecimal() and other.isdecimal() else one != other


def _slim(thing: Json) -> Json:
    metadata = inside(thing, "metadata")
    return {"metadata": {key: metadata.get(key) for key in ("namespace", "name", "uid", "resourceVersion")}}
