"""Whose an object in an archive is, by its name alone: `<namespace>/<job>/<attempt>/<capture id>/…`. Pure.

Whatever is not called so is not ours, and never touched: archives may share a bucket with anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sameshot.errors import InvalidSpec
from sameshot.model import check_name
from sameshot.storage import Stored

MANIFEST = "manifest.json"
_CAPTURE_ID = re.compile(r"[0-9a-f]{32}")
_ATTEMPT = re.compile(r"0|[1-9][0-9]{0,8}")


class Place(NamedTuple):
    """The folder of one capture."""

    namespace: str
    job: str
    attempt: int
    capture_id: str

    @property
    def folder(self) -> str:
        return f"{self.namespace}/{self.job}/{self.attempt}/{self.capture_id}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}/{MANIFEST}"


def place_of(key: str) -> Place | None:
    """The capture whose file this is; None: it is nobody's."""
    pieces = key.split("/")
    if len(pieces) < 5 or not _CAPTURE_ID.fullmatch(pieces[3]) or not _ATTEMPT.fullmatch(pieces[2]):
        return None
    try:
        namespace, job = check_name(pieces[0], "namespace"), check_name(pieces[1], "job")
    except InvalidSpec:
        return None
    return Place(namespace, job, int(pieces[2]), pieces[3])


class Folder(NamedTuple):
    """What lies in a capture's folder. `newest_s`: when the last of it came, in seconds since 1970."""

    place: Place
    files: int
    size: int
    newest_s: float
    published: bool


class Census:
    """Counts an archive's objects, one at a time: what it keeps grows with the captures, not with the files."""

    def __init__(self) -> None:
        self._folders: dict[Place, Folder] = {}
        self.foreign = 0

    def add(self, stored: Stored) -> None:
        place = place_of(stored.key)
        if place is None:
            self.foreign += 1
            return
        known = self._folders.get(place) or Folder(place, 0, 0, 0.0, False)
        self._folders[place] = Folder(
            place,
            known.files + 1,
            known.size + stored.size,
            max(known.newest_s, stored.modified_s),
            known.published or stored.key == place.manifest,
        )

    def __iter__(self) -> Iterator[Folder]:
        return iter(sorted(self._folders.values()))
