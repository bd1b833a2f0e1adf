"""Object storage behind one small face: a local directory, or S3 and what speaks its protocol.

    storage = Storage.open("s3://bucket/prefix")        # or file:///path, or a plain path
    await storage.put_file(key, path, size=…, sha256=…) # checked on the way and afterwards
    await storage.put_new(manifest_key, data)           # only where nothing is: AlreadyExists
    await storage.put(key, data)                        # whatever is there

Every call ends within its deadline: with its result, or with a StorageError that says what the store did. What a
passing fault can explain (503, a slow or lost connection) is tried again until then.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from sameshot.errors import StorageError, UsageError
from sameshot.model import path_problem
from sameshot.storage.local import LocalBackend
from sameshot.storage.values import Stored

__all__ = ["Storage", "Stored"]

_SLOWEST_BYTES_PER_S = 20_000_000  # an upload may take this much longer than the deadline of a small request


class _Backend(Protocol):
    """What a kind of store must do. Keys are checked before; errors are StorageError, NotFound, AlreadyExists."""

    def uri(self, key: str) -> str: ...
    async def put_file(self, key: str, path: Path, size: int, sha256: str, deadline_s: float) -> None: ...
    async def put_new(self, key: str, data: bytes, deadline_s: float) -> None: ...
    async def put(self, key: str, data: bytes, deadline_s: float) -> None: ...
    async def get(self, key: str, deadline_s: float) -> bytes: ...
    async def size(self, key: str, deadline_s: float) -> int | None: ...
    async def list(self, prefix: str, deadline_s: float) -> list[str]: ...
    def scan(self, prefix: str, deadline_s: float) -> AsyncGenerator[Stored]: ...
    async def delete(self, key: str, deadline_s: float) -> None: ...
    async def abort_uploads(
        self, prefix: str, wanted: Callable[[str], bool], before_s: float, deadline_s: float
    ) -> int: ...
    def get_sync(self, key: str, deadline_s: float) -> bytes: ...
    def open_read(self, key: str, deadline_s: float) -> BinaryIO: ...


class Storage:
    """A root in an object store. Keys are relative names below it: segments joined by `/`, never `..`."""

    def __init__(self, url: str, backend: _Backend, deadline_s: float) -> None:
        self.url = url
        self.deadline_s = deadline_s
        self._backend = backend

    @classmethod
    def open(cls, url: str, *, deadline_s: float = 60, aws: Mapping[str, str] | None = None) -> Storage:
        """A plain path, `file:///path` or `s3://bucket/prefix`. Nothing is contacted or created yet.

        S3 takes its endpoint, region and credentials the standard way (AWS_* environment, web identity, instance role);
        an `http://` endpoint in AWS_ENDPOINT_URL is used as it is. `aws` holds variables of the same names for this
        storage alone: they win over the environment's, and a key in it is used with its own secret and token only.
        Raises UsageError for anything else.
        """
        scheme = urlsplit(url).scheme if "://" in url else ""
        if scheme == "s3":
            return cls._open_s3(url, deadline_s, aws or {})
        if scheme == "file":
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost"):
                raise UsageError(f"{url} names a folder on another host; write file:///path with three slashes.")
            url = unquote(parts.path)
        elif scheme:
            raise UsageError(
                f"{url} is no archive that sameshot knows; use a path, file:///path or s3://bucket/prefix."
            )
        if not url:
            raise UsageError("The archive's location is empty; use a path, file:///path or s3://bucket/prefix.")
        root = Path(os.path.abspath(url))
        return cls(root.as_uri(), LocalBackend(root), deadline_s)

    @classmethod
    def _open_s3(cls, url: str, deadline_s: float, aws: Mapping[str, str]) -> Storage:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        if not bucket or (prefix and path_problem(prefix)):
            raise UsageError(f"{url} is no S3 location; write s3://bucket or s3://bucket/prefix.")
        try:
            from sameshot.storage.s3 import S3Backend
        except ImportError as error:
            raise UsageError(f"S3 needs the package {error.name}: pip install 'sameshot[agent]'.") from error
        url = f"s3://{bucket}/{prefix}".rstrip("/")
        return cls(url, S3Backend(bucket, prefix, url, deadline_s, aws), deadline_s)

    def uri(self, key: str) -> str:
        """The address of `key`, as a person or another tool would write it."""
        return self._backend.uri(_checked(key))

    async def put_file(self, key: str, path: Path, *, size: int, sha256: str, deadline_s: float | None = None) -> None:
        """Copy the local file `path`, whose size and sha256 (hex) are known, to `key`.

        When this returns, the store holds these very bytes: they were hashed again while they were read, S3 compared a
        SHA-256 checksum of every part, and the store reported the right size. An object under that name is replaced,
        so a restarted upload is safe. The deadline is `deadline_s`, else the storage's own plus the size / 20 MB/s.
        """
        allowed = self.deadline_s + size / _SLOWEST_BYTES_PER_S if deadline_s is None else deadline_s
        await self._backend.put_file(_checked(key), path, size, sha256, allowed)

    async def put_new(self, key: str, data: bytes) -> None:
        """Create the object, whole or not at all; raises AlreadyExists, touching nothing, where there is one.

        Of several callers at the same time exactly one wins. An answer lost on the way is resolved by looking: these
        very bytes, after an attempt of this call that may have arrived, are its own.
        """
        await self._backend.put_new(_checked(key), data, self.deadline_s)

    async def put(self, key: str, data: bytes) -> None:
        """Store the object, whole or not at all, in place of what may be there: a reader sees the old or the new."""
        await self._backend.put(_checked(key), data, self.deadline_s)

    async def get(self, key: str) -> bytes:
        """The whole object; raises NotFound. For small ones (manifests); `open_read` streams."""
        return await self._backend.get(_checked(key), self.deadline_s)

    async def size(self, key: str) -> int | None:
        """Bytes of the object, None where there is none."""
        return await self._backend.size(_checked(key), self.deadline_s)

    async def list(self, prefix: str = "") -> list[str]:
        """All keys below the folder `prefix` ("" is the root), sorted. `a/b` covers `a/b/c`, not `a/bc`."""
        prefix = prefix.rstrip("/")
        return await self._backend.list(_checked(prefix) if prefix else "", self.deadline_s)

    def scan(self, prefix: str = "") -> AsyncGenerator[Stored]:
        """What `list` lists, with sizes and times, in no order, a page at a time: for places with any number of
        objects. The deadline holds for each page."""
        prefix = prefix.rstrip("/")
        return self._backend.scan(_checked(prefix) if prefix else "", self.deadline_s)

    async def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        await self._backend.delete(_checked(key), self.deadline_s)

    async def abort_uploads(self, prefix: str = "", *, wanted: Callable[[str], bool], before_s: float) -> int:
        """Remove what uploads to `wanted` keys below `prefix` left behind that began before that time (seconds since
        1970) and never ended: parts that no listing shows, and that cost room all the same. How many there were.

        In a folder a key is that of the temporary file, beside the one that it was to be. Raises UsageError where this
        can't be asked of the store here (S3 without the package boto3)."""
        prefix = prefix.rstrip("/")
        return await self._backend.abort_uploads(_checked(prefix) if prefix else "", wanted, before_s, self.deadline_s)

    def get_sync(self, key: str) -> bytes:
        """`get` for callers without an event loop."""
        return self._backend.get_sync(_checked(key), self.deadline_s)

    def open_read(self, key: str) -> BinaryIO:
        """A buffered, seekable stream in bounded memory; raises NotFound. The deadline holds for each read."""
        return self._backend.open_read(_checked(key), self.deadline_s)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"


def _checked(key: str) -> str:
    if problem := path_problem(key):
        raise StorageError(f"The object name {key!r} is refused, nothing was read or written: {problem}.")
    return key
