"""Files below a `results_uri`: a local path, `file://` or `s3://`, replaced one by one, atomically.

Results lie outside the archive and are written with a credential of their own. On S3 that is
`SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID`, `…_AWS_SECRET_ACCESS_KEY`, and where needed `…_AWS_SESSION_TOKEN`, `…_AWS_REGION`
and `…_AWS_ENDPOINT_URL`; what is not given so is taken from the AWS_* of the environment, as for the archive.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sameshot.errors import NotFound, UsageError
from sameshot.storage import Storage

PREFIX = "SAMESHOT_RESULTS_"

_T = TypeVar("_T")
_AT_ONCE = 16  # requests: results are many small files, and a store takes tens of ms for each
_BLOCK = 1 << 20


def open_results(results_uri: str, environment: Mapping[str, str] = os.environ) -> Storage:
    """Where results are written. Nothing is contacted yet. Raises UsageError for what is no such place."""
    if not results_uri:
        raise UsageError("No place for results was given; use a path, file:///path or s3://bucket/prefix.")
    own = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX + "AWS_")}
    return Storage.open(results_uri, aws=own)


class Folder:
    """A folder of results, for callers without an event loop (and for those with one: they are made to wait).

    Raises StorageError where the store does not do what was asked; a file is then as it was before.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path
        self._storage = storage

    def uri(self, name: str = "") -> str:
        return self._storage.uri(f"{self.path}/{name}" if name else self.path)

    def under(self, name: str) -> Folder:
        return Folder(self._storage, f"{self.path}/{name}")

    def put(self, name: str, data: bytes) -> str:
        """Write or replace one file; its URI."""
        wait(self._storage.put(f"{self.path}/{name}", data))
        return self.uri(name)

    def put_many(self, files: Mapping[str, bytes]) -> None:
        """Write or replace several files side by side, in no order."""
        wait(self._put_many(files))

    def put_all(self, folder: Path) -> None:
        """Write or replace every file of a local folder and of those in it, under the same names.

        Each is old or new as a whole. Files that only the store has stay.
        """
        wait(self._put_all([(path, path.relative_to(folder).as_posix()) for path in _files(folder)]))

    def get(self, name: str) -> bytes | None:
        """None where there is no such file."""
        try:
            return self._storage.get_sync(f"{self.path}/{name}")
        except NotFound:
            return None

    def get_all(self, names: list[str]) -> list[bytes | None]:
        """Several at once, in the given order."""
        return wait(self._get_all(names))

    async def _put_many(self, files: Mapping[str, bytes]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def put(name: str, data: bytes) -> None:
            async with limit:
                await self._storage.put(f"{self.path}/{name}", data)

        async with asyncio.TaskGroup() as group:
            for name, data in files.items():
                group.create_task(put(name, data))

    async def _put_all(self, files: list[tuple[Path, str]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def put(path: Path, name: str) -> None:
            async with limit:
                size, sha256 = _facts(path)
                await self._storage.put_file(f"{self.path}/{name}", path, size=size, sha256=sha256)

        async with asyncio.TaskGroup() as group:
            for path, name in files:
                group.create_task(put(path, name))

    async def _get_all(self, names: list[str]) -> list[bytes | None]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def get(name: str) -> bytes | None:
            async with limit:
                try:
                    return await self._storage.get(f"{self.path}/{name}")
                except NotFound:
                    return None

        return await asyncio.gather(*map(get, names))


def wait(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine, from code that is not one. Where a loop runs in this thread (some engines call plain
    functions from theirs), the work gets a thread with a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _single(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_single, work).result()


def _single(work: Coroutine[Any, Any, _T]) -> _T:
    """Of errors that came together, the first: each says enough on its own."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _facts(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            size += len(block)
            digest.update(block)
    return size, digest.hexdigest()
