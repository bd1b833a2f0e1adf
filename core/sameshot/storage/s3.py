"""S3 through obstore (the Rust object_store crate): parts in parallel, checksums that the store compares.

Two clients. One retries inside (503, lost and slow connections), so that a multipart upload repeats a part and not the
file. The other does not, because a conditional put must know whether an earlier attempt may have arrived; obstore
itself never repeats one whose answer was lost (measured), and behind a 503 it would take its own object for another's.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from sameshot.errors import AlreadyExists, Forbidden, NotFound, StorageError, UsageError
from sameshot.storage.local import source_changed
from sameshot.storage.retry import attempt_limit_s, retrying, retrying_sync
from sameshot.storage.values import Stored

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Credential

_PART = 8 << 20
_MAX_PARTS = 9_000  # S3 takes 10,000
_PARALLEL_PARTS = 3
_READ = 4 << 20
_PAGE = 1_000  # as many as S3 lists at once
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
OWN_SETTINGS = (_KEY, _SECRET, _TOKEN, *_ENDPOINTS, *_REGIONS)
"""What one storage may have otherwise than the environment says."""


class _Unsettled(Exception):
    """A conditional put met another one that had not ended, and then there was no object (409 on S3)."""


# obstore tells apart 401, 403, 404, 409 and 412; every other status is a GenericError with the status in its text. Of
# these only a client's own mistakes are final. A body that arrived damaged is not one: it is sent again.
_FINAL_STATUS = re.compile(r"status code: (?:3\d\d|40[0-7])")
_DAMAGED_ON_THE_WAY = re.compile(
    r"BadDigest|InvalidDigest|ContentSHA256Mismatch|ChecksumMismatch|IncompleteBody|RequestTimeout"
)


def _again(error: Exception) -> bool:
    if not isinstance(error, GenericError):
        return isinstance(error, _Unsettled)
    said = str(error)
    return not _FINAL_STATUS.search(said) or bool(_DAMAGED_ON_THE_WAY.search(said))


class S3Backend:
    """`aws`: variables of the environment's names (`OWN_SETTINGS`) that win over the environment's here."""

    def __init__(self, bucket: str, prefix: str, url: str, deadline_s: float, aws: Mapping[str, str] = {}) -> None:
        self._url = url
        self._bucket = bucket
        self._aws = dict(aws)
        self._config: dict[str, Any] = {
            "prefix": prefix or None,
            "checksum_algorithm": "SHA256",
            "conditional_put": "etag",
            **_own(aws),
        }
        self._options: ClientConfig = {}
        endpoints = [self._config["endpoint"]] if "endpoint" in self._config else map(os.environ.get, _ENDPOINTS)
        if any((endpoint or "").startswith("http://") for endpoint in endpoints):
            self._options["allow_http"] = True
        self._plain = self._store(deadline_s, {"max_retries": 0})

    def _store(self, deadline_s: float, retry: RetryConfig) -> S3Store:
        options: ClientConfig = {**self._options, "timeout": timedelta(seconds=attempt_limit_s(deadline_s))}
        return S3Store(self._bucket, client_options=options, retry_config=retry, **self._config)

    def _patient(self, deadline_s: float) -> S3Store:
        """A store that repeats single requests; it gives up a little earlier than `deadline_s`, to say why."""
        return self._store(
            deadline_s,
            {
                "max_retries": 100,
                "retry_timeout": timedelta(seconds=min(240, deadline_s * 0.7)),  # longer might outlive the credentials
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    # never below the first pause: obstore panics where its jitter has no room
                    "max_backoff": timedelta(seconds=min(5, max(0.2, deadline_s / 10))),
                    "base": 2,
                },
            },
        )

    def uri(self, key: str) -> str:
        return f"{self._url}/{key}"

    async def put_file(self, key: str, path: Path, size: int, sha256: str, deadline_s: float) -> None:
        what = f"Uploading {path} to {self.uri(key)}"

        store = self._patient(deadline_s)

        async def upload() -> None:
            source = _Source(path, size, sha256)
            if size <= _PART:
                await obstore.put_async(store, key, await source.whole(), use_multipart=False)
            else:
                part = max(_PART, -(-size // _MAX_PARTS))
                await obstore.put_async(store, key, source.blocks(), chunk_size=part, max_concurrency=_PARALLEL_PARTS)
            stored = (await obstore.head_async(store, key))["size"]
            if stored != size:
                raise StorageError(f"{self.uri(key)} has {stored} bytes after the upload of {size}; {path} is kept.")

        try:
            await retrying(what, deadline_s, upload, _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def put_new(self, key: str, data: bytes, deadline_s: float) -> None:
        what = f"Creating {self.uri(key)}"
        may_have_arrived = False

        async def create() -> None:
            nonlocal may_have_arrived
            try:
                await obstore.put_async(self._plain, key, data, mode="create", use_multipart=False)
            except GenericError:
                may_have_arrived = True
                raise
            except (AlreadyExistsError, PreconditionError, NotModifiedError):
                there = await self._whole(key)
                if there is None:
                    raise _Unsettled from None
                if not (may_have_arrived and there == data):
                    raise AlreadyExists(f"{self.uri(key)} is there already; it was left as it is.") from None

        try:
            await retrying(what, deadline_s, create, _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def put(self, key: str, data: bytes, deadline_s: float) -> None:
        what = f"Writing {self.uri(key)}"
        try:
            await retrying(
                what,
                deadline_s,
                lambda: obstore.put_async(self._plain, key, data, use_multipart=False),
                _again,
                _explain,
            )
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def get(self, key: str, deadline_s: float) -> bytes:
        what = f"Reading {self.uri(key)}"
        try:
            data = await retrying(what, deadline_s, lambda: self._whole(key), _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None
        if data is None:
            raise NotFound(f"There is no object {self.uri(key)}.")
        return data

    async def size(self, key: str, deadline_s: float) -> int | None:
        what = f"Looking at {self.uri(key)}"

        async def look() -> int | None:
            try:
                return (await obstore.head_async(self._plain, key))["size"]
            except FileNotFoundError:
                return None

        try:
            return await retrying(what, deadline_s, look, _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def list(self, prefix: str, deadline_s: float) -> list[str]:
        what = f"Listing {self.uri(prefix)}"

        async def collect() -> list[str]:
            return sorted([each["path"] async for page in obstore.list(self._plain, prefix or None) for each in page])

        try:
            return await retrying(what, deadline_s, collect, _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def scan(self, prefix: str, deadline_s: float) -> AsyncGenerator[Stored]:
        what = f"Listing {self.uri(prefix)}"
        pages = _Pages(self._plain, prefix)
        while True:
            try:
                page = await retrying(what, deadline_s, pages.next, _again, _explain)
            except (BaseError, OSError) as error:
                raise self._refused(what, error) from None
            if not page:
                return
            for each in page:
                yield Stored(each["path"], each["size"], each["last_modified"].timestamp())

    async def delete(self, key: str, deadline_s: float) -> None:
        what = f"Deleting {self.uri(key)}"

        async def remove() -> None:
            try:
                await obstore.delete_async(self._plain, key)
            except FileNotFoundError:
                return  # most stores don't say so

        try:
            await retrying(what, deadline_s, remove, _again, _explain)
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def abort_uploads(
        self, prefix: str, wanted: Callable[[str], bool], before_s: float, deadline_s: float
    ) -> int:
        from sameshot.storage.uploads import Uploads

        root = f"{self._config['prefix']}/" if self._config["prefix"] else ""
        uploads = Uploads(self._bucket, root, self._url, self._aws)
        return await asyncio.to_thread(uploads.abort, f"{prefix}/" if prefix else "", wanted, before_s)

    def get_sync(self, key: str, deadline_s: float) -> bytes:
        with self.open_read(key, deadline_s) as stream:
            return stream.read()

    def open_read(self, key: str, deadline_s: float) -> BinaryIO:
        what = f"Looking at {self.uri(key)}"
        try:
            meta = retrying_sync(what, deadline_s, lambda: obstore.head(self._plain, key), _again, _explain)
        except FileNotFoundError:
            raise NotFound(f"There is no object {self.uri(key)}.") from None
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None
        return io.BufferedReader(_RangeReader(self, key, meta["size"], deadline_s), _READ)

    def read_range(self, key: str, start: int, length: int, deadline_s: float) -> bytes:
        what = f"Reading {self.uri(key)}"
        try:
            return retrying_sync(
                what,
                deadline_s,
                lambda: bytes(obstore.get_range(self._plain, key, start=start, length=length)),
                _again,
                _explain,
            )
        except FileNotFoundError:
            raise NotFound(f"{self.uri(key)} vanished while it was read.") from None
        except (BaseError, OSError) as error:
            raise self._refused(what, error) from None

    async def _whole(self, key: str) -> bytes | None:
        try:
            answer = await obstore.get_async(self._plain, key)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None

    def _refused(self, what: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageError(f"{what} failed: the bucket of {self._url} is not there. {_explain(error)}")
        kind = Forbidden if isinstance(error, PermissionDeniedError | UnauthenticatedError) else StorageError
        return kind(f"{what} was refused: {_explain(error)}")


def _own(aws: Mapping[str, str]) -> dict[str, Any]:
    """Settings of obstore from variables for one storage. A key comes with its secret and with its own token or none:
    through a provider, because obstore would add what else the environment holds."""
    if unknown := sorted(name for name in aws if name not in OWN_SETTINGS):
        raise UsageError(
            f"{', '.join(unknown)} can't be set for one store alone; these can: {', '.join(OWN_SETTINGS)}."
        )
    found: dict[str, Any] = {}
    if endpoint := next((aws[name] for name in _ENDPOINTS if aws.get(name)), None):
        found["endpoint"] = endpoint
    if region := next((aws[name] for name in _REGIONS if aws.get(name)), None):
        found["region"] = region
    if bool(aws.get(_KEY)) != bool(aws.get(_SECRET)):
        raise UsageError(f"Of a key of its own for a store, {_KEY} and {_SECRET} are needed; only one was given.")
    if aws.get(_KEY):
        credential: S3Credential = {
            "access_key_id": aws[_KEY],
            "secret_access_key": aws[_SECRET],
            "token": aws.get(_TOKEN) or None,
            "expires_at": None,
        }
        found["credential_provider"] = lambda: credential
    return found


class _Pages:
    """A listing, page by page. After a fault it goes on behind what was listed last."""

    def __init__(self, store: S3Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix or None
        self._pages: AsyncIterator[Sequence[ObjectMeta]] | None = None
        self._last: str | None = None

    async def next(self) -> Sequence[ObjectMeta]:
        """Empty at the end."""
        if self._pages is None:
            self._pages = aiter(obstore.list(self._store, self._prefix, offset=self._last, chunk_size=_PAGE))
        try:
            page = await anext(self._pages)
        except StopAsyncIteration:
            return ()
        except BaseException:
            self._pages = None
            raise
        if page:
            self._last = max(each["path"] for each in page)
        return page


class _Source:
    """The local file, read in threads and hashed on the way; it must still be what was verified."""

    def __init__(self, path: Path, size: int, sha256: str) -> None:
        self._path, self._size, self._sha256 = path, size, sha256
        self._digest, self._read = hashlib.sha256(), 0

    async def whole(self) -> bytes:
        return b"".join([block async for block in self.blocks()])

    async def blocks(self) -> AsyncIterator[bytes]:
        """Raises StorageError before the end where the file is another: the upload is then aborted, not completed."""
        try:
            stream = await asyncio.to_thread(self._path.open, "rb")
            try:
                # One that is still written to has no end.
                while self._read <= self._size and (block := await asyncio.to_thread(self._next, stream)):
                    yield block
            finally:
                stream.close()
        except OSError as error:
            raise StorageError(f"Reading {self._path} for the archive failed: {error}; nothing was stored.") from error
        if (self._read, self._digest.hexdigest()) != (self._size, self._sha256):
            raise StorageError(source_changed(self._path, self._size, self._read))

    def _next(self, stream: BinaryIO) -> bytes:
        block = stream.read(_READ)
        self._digest.update(block)
        self._read += len(block)
        return block


class _RangeReader(io.RawIOBase):
    """Reads an object by ranges: memory stays at one range, and a lost connection costs one range."""

    def __init__(self, backend: S3Backend, key: str, size: int, deadline_s: float) -> None:
        self._backend, self._key, self._size, self._deadline_s = backend, key, size, deadline_s
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        """The default asks for 8 KiB at a time, each a request."""
        blocks = []
        while (wanted := min(_READ, self._size - self._at)) > 0:
            blocks.append(self._backend.read_range(self._key, self._at, wanted, self._deadline_s))
            self._at += wanted
        return b"".join(blocks)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._at, _READ)
        if wanted <= 0:
            return 0
        data = self._backend.read_range(self._key, self._at, wanted, self._deadline_s)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _explain(error: Exception) -> str:
    """What the store said, without obstore's debug dump."""
    if isinstance(error, _Unsettled):
        return "another creation of it was under way"
    return " ".join(str(error).split("\n\nDebug source")[0].split())[:400]
