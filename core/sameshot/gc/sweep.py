"""Goes through an archive and removes what may go: of each capture the manifest first, so that at no moment somebody
finds a whole one whose files are gone. What was ended in the middle is finished by a later run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from sameshot.errors import NotFound, StorageError, UsageError
from sameshot.gc.choose import LEFTOVER_S, Receipt, Rule, Why, choose, seconds_of
from sameshot.gc.layout import Census, Folder, Place, place_of
from sameshot.manifest import SCHEMA
from sameshot.storage import Storage

AT_ONCE = 16  # requests

Tell = Callable[[int, int, str], None]
"""Called with (how many are done, of how many (0: nobody knows), what is done)."""


class Swept(msgspec.Struct, frozen=True):
    """One capture's folder and what became of it."""

    namespace: str
    job: str
    attempt: int
    capture_id: str
    why: Why
    files: int
    size: int
    series: str | None = None
    converged_s: float | None = None


class Report(msgspec.Struct, frozen=True):
    """`removed` are those that went (on a dry run: would), `troubles` what could not be done and why."""

    archive: str
    dry_run: bool
    removed: tuple[Swept, ...]
    kept: dict[Why, int]
    foreign: int
    uploads: int | None
    troubles: tuple[str, ...]
    unreadable: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.removed)


async def sweep(
    storage: Storage,
    rule: Rule,
    *,
    now_s: float,
    namespace: str | None = None,
    dry_run: bool = False,
    tell: Tell = lambda *_: None,
) -> Report:
    """Raises StorageError where the archive can't be listed; single failures after that are in the report."""
    census, listed = Census(), 0
    async with aclosing(storage.scan(namespace or "")) as objects:
        async for each in objects:
            census.add(each)
            listed += 1
            if listed % 1000 == 0:
                tell(listed, 0, "objects listed")
    run = _Run(storage, now_s, tell)
    receipts = await run.read([each.place for each in census if each.published])
    verdicts = choose(census, receipts, rule, now_s)
    going = [(folder, why) for folder, why in verdicts if why.goes]
    gone = going if dry_run else await run.remove(going)
    uploads = None if dry_run else await run.abort_uploads(namespace or "")
    kept: dict[Why, int] = {}
    for _, why in verdicts:
        if not why.goes:
            kept[why] = kept.get(why, 0) + 1
    return Report(
        archive=storage.url,
        dry_run=dry_run,
        removed=tuple(_swept(folder, why, receipts.get(folder.place)) for folder, why in gone),
        kept=kept,
        foreign=census.foreign,
        uploads=uploads,
        troubles=tuple(run.troubles),
        unreadable=tuple(run.unreadable),
    )


def _swept(folder: Folder, why: Why, receipt: Receipt | None) -> Swept:
    return Swept(
        *folder.place,
        why=why,
        files=folder.files,
        size=folder.size,
        series=None if receipt is None else receipt.series,
        converged_s=None if receipt is None else receipt.converged_s,
    )


class _Run:
    def __init__(self, storage: Storage, now_s: float, tell: Tell) -> None:
        self._storage = storage
        self._now_s = now_s
        self._tell = tell
        self._turn = asyncio.Semaphore(AT_ONCE)
        self.troubles: list[str] = []
        self.unreadable: list[str] = []

    # --- manifests --------------------------------------------------------------------------------------------

    async def read(self, places: list[Place]) -> dict[Place, Receipt]:
        done, found = 0, {}

        async def one(place: Place) -> None:
            nonlocal done
            async with self._turn:
                receipt = await self._receipt(place)
            if receipt is not None:
                found[place] = receipt
            done += 1
            self._tell(done, len(places), "manifests read")

        await _all(one(place) for place in places)
        return found

    async def _receipt(self, place: Place) -> Receipt | None:
        try:
            return await asyncio.to_thread(_understood, await self._storage.get(place.manifest), place)
        except NotFound:
            pass  # somebody else was first
        except StorageError as error:
            self.troubles.append(str(error))
        except (msgspec.MsgspecError, ValueError) as error:
            self.unreadable.append(f"{self._storage.uri(place.manifest)} is left as it is: {str(error)[:200]}")
        return None

    # --- removing ---------------------------------------------------------------------------------------------

    async def remove(self, going: list[tuple[Folder, Why]]) -> list[tuple[Folder, Why]]:
        gone = []
        for number, (folder, why) in enumerate(going):
            self._tell(number, len(going), "captures removed")
            try:
                if why is Why.EXPIRED:
                    await self._storage.delete(folder.place.manifest)
                elif not await self._still_left(folder.place):
                    continue
                keys = await self._storage.list(folder.place.folder)
                troubles = len(self.troubles)
                await _all(self._delete(key) for key in keys)
                if len(self.troubles) == troubles:
                    gone.append((folder, why))
            except StorageError as error:
                self.troubles.append(str(error))
        return gone

    async def _still_left(self, place: Place) -> bool:
        """Whether nothing has come since the listing, which may be long ago."""
        async with aclosing(self._storage.scan(place.folder)) as objects:
            found = Census()
            async for each in objects:
                found.add(each)
        return all(not each.published and self._now_s - each.newest_s > LEFTOVER_S for each in found)

    async def _delete(self, key: str) -> None:
        async with self._turn:
            try:
                await self._storage.delete(key)
            except StorageError as error:
                self.troubles.append(str(error))

    async def abort_uploads(self, prefix: str) -> int | None:
        """None: it can't be asked for here."""
        try:
            return await self._storage.abort_uploads(
                prefix, wanted=lambda key: place_of(key) is not None, before_s=self._now_s - LEFTOVER_S
            )
        except UsageError:
            return None
        except StorageError as error:
            self.troubles.append(str(error))
            return None


async def _all(calls: Iterable[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in calls:
            group.create_task(each)


class _Job(msgspec.Struct):
    namespace: str
    name: str
    attempt: int
    series: str | None = None


class _Capture(msgspec.Struct):
    capture_id: str
    job: _Job
    converged_at: str


class _Totals(msgspec.Struct):
    archived: int


class _Manifest(msgspec.Struct):
    schema: str
    capture: _Capture
    totals: _Totals


def _understood(data: bytes, place: Place) -> Receipt:
    """Raises ValueError or MsgspecError for what is no manifest of this very capture."""
    told = msgspec.json.decode(data, type=_Manifest)
    if told.schema != SCHEMA:
        raise ValueError(f"its schema is {told.schema[:60]!r}")
    capture = told.capture
    said = Place(capture.job.namespace, capture.job.name, capture.job.attempt, capture.capture_id)
    if said != place:
        raise ValueError(f"it is the manifest of {said.folder[:200]}")
    return Receipt(capture.job.series or capture.job.name, seconds_of(capture.converged_at), told.totals.archived)
