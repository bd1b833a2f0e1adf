"""A directory as an object store: whole files only, under their final name only when they are safely on disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from sameshot.errors import AlreadyExists, Forbidden, NotFound, StorageError
from sameshot.storage.retry import retrying
from sameshot.storage.values import Stored
from sameshot.threads import DaemonThreads

_T = TypeVar("_T")
_BLOCK = 1 << 20
_THREADS = 8
_TEMPORARY = ".sameshot-"
_PAGE = 1_000
_TRIES = 3
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalBackend:
    """Blocking file operations, run in threads of their own.

    One that hangs (a dead NFS server) is abandoned at its deadline. Its thread is lost until the server is back: when
    all of them are, operations wait for one until their own deadline, and nobody else's threads are taken.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = DaemonThreads(_THREADS, "sameshot-archive")

    def uri(self, key: str) -> str:
        return self._path(key).as_uri()

    async def put_file(self, key: str, path: Path, size: int, sha256: str, deadline_s: float) -> None:
        final = self._path(key)
        await self._run(f"Copying {path} to {final}", deadline_s, lambda: _copy(path, final, size, sha256))

    async def put_new(self, key: str, data: bytes, deadline_s: float) -> None:
        final = self._path(key)
        await self._run(f"Writing {final}", deadline_s, lambda: _create(final, data))

    async def put(self, key: str, data: bytes, deadline_s: float) -> None:
        final = self._path(key)
        await self._run(f"Writing {final}", deadline_s, lambda: _replace(final, data))

    async def get(self, key: str, deadline_s: float) -> bytes:
        return await self._run(f"Reading {self._path(key)}", deadline_s, lambda: self.get_sync(key, deadline_s))

    async def size(self, key: str, deadline_s: float) -> int | None:
        path = self._path(key)

        def look() -> int | None:
            try:
                return path.stat().st_size if path.is_file() else None
            except OSError as error:
                raise _storage_error(f"Looking at {path}", error) from error

        return await self._run(f"Looking at {path}", deadline_s, look)

    async def list(self, prefix: str, deadline_s: float) -> list[str]:
        folder = self._root / prefix
        return await self._run(f"Listing {folder}", deadline_s, lambda: sorted(self._keys(folder)))

    async def scan(self, prefix: str, deadline_s: float) -> AsyncGenerator[Stored]:
        folder = self._root / prefix
        found = self._stored(folder)
        while page := await self._run(f"Listing {folder}", deadline_s, lambda: list(itertools.islice(found, _PAGE))):
            for each in page:
                yield each

    async def delete(self, key: str, deadline_s: float) -> None:
        path = self._path(key)
        await self._run(f"Deleting {path}", deadline_s, lambda: self._remove(path))

    async def abort_uploads(
        self, prefix: str, wanted: Callable[[str], bool], before_s: float, deadline_s: float
    ) -> int:
        """Files under a temporary name, whose writer was killed."""
        folder = self._root / prefix

        def abort() -> int:
            count = 0
            for path in self._files(folder):
                if not path.name.startswith(_TEMPORARY) or not wanted(path.relative_to(self._root).as_posix()):
                    continue
                if (there := _looked_at(path)) and there.st_mtime < before_s:
                    self._remove(path)
                    count += 1
            return count

        return await self._run(f"Tidying {folder}", deadline_s, abort)

    def get_sync(self, key: str, deadline_s: float) -> bytes:
        with self.open_read(key, deadline_s) as stream:
            try:
                return stream.read()
            except OSError as error:
                raise _storage_error(f"Reading {self._path(key)}", error) from error

    def open_read(self, key: str, deadline_s: float) -> BinaryIO:
        path = self._path(key)
        try:
            if path.exists() and not path.is_file():  # opening a FIFO would block
                raise NotFound(f"There is no file {path}.")
            return path.open("rb")
        except _NOTHING_THERE:
            raise NotFound(f"There is no file {path}.") from None
        except OSError as error:
            raise _storage_error(f"Opening {path}", error) from error

    def _path(self, key: str) -> Path:
        return self._root / key

    def _keys(self, folder: Path) -> Iterator[str]:
        for path in self._files(folder):
            if not path.name.startswith(_TEMPORARY):
                yield path.relative_to(self._root).as_posix()

    def _stored(self, folder: Path) -> Iterator[Stored]:
        for key in self._keys(folder):
            if there := _looked_at(self._path(key)):
                yield Stored(key, there.st_size, there.st_mtime)

    def _files(self, folder: Path) -> Iterator[Path]:
        def fail(error: OSError) -> None:
            if not isinstance(error, _NOTHING_THERE):
                raise _storage_error(f"Listing {folder}", error) from error

        for where, _, names in os.walk(folder, onerror=fail):
            yield from (Path(where) / name for name in names)

    def _remove(self, path: Path) -> None:
        """And the folders above that are empty then, as an object store has none."""
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise _storage_error(f"Deleting {path}", error) from error
        for folder in itertools.takewhile(lambda each: each != self._root, path.parents):
            try:
                folder.rmdir()
            except OSError:
                return  # something is in it, or somebody else was first

    async def _run(self, what: str, deadline_s: float, work: Callable[[], _T]) -> _T:
        import asyncio  # as in retrying

        async def in_thread() -> _T:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

        return await retrying(what, deadline_s, in_thread, lambda _: False, str)


def _copy(source: Path, final: Path, size: int, sha256: str) -> None:
    """Copy, hash on the way, sync, and only then rename: the name never stands for other or fewer bytes."""
    digest, copied = hashlib.sha256(), 0
    with _temporary_beside(final) as (temporary, out):
        try:
            with source.open("rb") as stream:
                while copied <= size and (block := stream.read(_BLOCK)):  # one that is still written to has no end
                    digest.update(block)
                    copied += len(block)
                    _write(out, block, final, kept=source)
        except OSError as error:
            raise StorageError(f"Reading {source} for the archive failed: {error}; nothing was stored.") from error
        if (copied, digest.hexdigest()) != (size, sha256):
            raise StorageError(source_changed(source, size, copied))
        _commit(final, out, lambda: os.replace(temporary, final))


def _create(final: Path, data: bytes) -> None:
    """A hard link, unlike a rename, fails where the name is taken: also between processes and over NFS."""
    with _temporary_beside(final) as (temporary, out):
        _write(out, data, final)
        try:
            _commit(final, out, lambda: os.link(temporary, final))
        except FileExistsError:
            raise AlreadyExists(f"{final} is there already; it was left as it is.") from None


def _replace(final: Path, data: bytes) -> None:
    with _temporary_beside(final) as (temporary, out):
        _write(out, data, final)
        _commit(final, out, lambda: os.replace(temporary, final))


@contextlib.contextmanager
def _temporary_beside(final: Path) -> Iterator[tuple[Path, BinaryIO]]:
    temporary = final.parent / f"{_TEMPORARY}{uuid.uuid4().hex}.tmp"
    out = _opened(temporary)
    try:
        with out:
            yield temporary, out
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _opened(temporary: Path) -> BinaryIO:
    for left in reversed(range(_TRIES)):
        try:
            _make_folders(temporary.parent)
            return temporary.open("xb", buffering=0)
        except FileNotFoundError as error:  # whoever deletes takes empty folders along
            if not left:
                raise _storage_error(f"Writing to {temporary.parent}", error) from error
        except OSError as error:
            raise _storage_error(f"Writing to {temporary.parent}", error) from error
    raise AssertionError


def _looked_at(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None  # gone since it was listed


def _write(out: BinaryIO, data: bytes, final: Path, kept: Path | None = None) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[out.write(view) :]
    except OSError as error:
        raise _storage_error(f"Writing {final}", error, kept) from error


def _commit(final: Path, out: BinaryIO, name_it: Callable[[], None]) -> None:
    try:
        os.fsync(out.fileno())  # a full disk may only be noticed here
        name_it()
        _sync_folder(final.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise _storage_error(f"Writing {final}", error) from error


def _make_folders(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _storage_error(what: str, error: OSError, kept: Path | None = None) -> StorageError:
    keeps = f" {kept} is kept." if kept else ""
    if error.errno in _FULL:
        return StorageError(
            f"{what} failed, no space is left for it ({error.strerror}).{keeps} Make room and try again."
        )
    kind = Forbidden if isinstance(error, PermissionError) else StorageError
    return kind(f"{what} failed: {error.strerror or error}.{keeps}")


def source_changed(source: Path, size: int, found: int) -> str:
    """The message for a local file that is no longer what was verified."""
    state = (
        f"it has {found} bytes, {size} were verified" if found != size else "its sha256 is no longer the verified one"
    )
    return f"{source} changed after it was verified ({state}); it was not stored, and it is kept as it is."
