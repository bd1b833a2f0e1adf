"""A store or a network that misbehaves, over real HTTP: retried inside the deadline, else a StorageError."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.errors import AlreadyExists, Forbidden, StorageError
from sameshot.storage import Storage
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_client, s3_environment

SMALL, LARGE = 1000, 17 << 20  # one request; three parts of at most 8 MiB
REPEATED = [Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_ANSWER, Fault.SLOW]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        make_bucket(url, "archive")
        yield url


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(endpoint, checks_digests=True) as proxy, s3_environment(proxy.url):
        yield proxy


def archive(request: pytest.FixtureRequest, deadline_s: float = 60) -> Storage:
    return Storage.open(f"s3://archive/{abs(hash(request.node.nodeid))}", deadline_s=deadline_s)


def spooled(folder: Path, size: int) -> tuple[Path, dict[str, Any]]:
    path = folder / "spooled.json.gz"
    path.write_bytes(os.urandom(size))
    return path, {"size": size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def unfinished_uploads(endpoint: str, storage: Storage) -> list[str]:
    prefix = storage.url.removeprefix("s3://archive/")
    uploads = s3_client(endpoint).list_multipart_uploads(Bucket="archive").get("Uploads", [])
    return [upload["Key"] for upload in uploads if upload["Key"].startswith(prefix)]


@pytest.mark.parametrize("fault", REPEATED)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_upload_survives_a_passing_fault(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path, fault: Fault, size: int
) -> None:
    is_slow = fault is Fault.SLOW
    storage = archive(request, deadline_s=16 if is_slow else 60)
    path, facts = spooled(tmp_path, size)
    hit, times = "" if size == SMALL else "partNumber=2", 1 if is_slow else 2
    proxy.add(fault, method="PUT", query=hit, times=times, delay_s=8)  # longer than one attempt may take: 4 s of 16
    asyncio.run(storage.put_file("trace", path, **facts))
    assert proxy.count(fault=fault) == times
    assert proxy.count("PUT", hit) == times + 1
    assert storage.get_sync("trace") == path.read_bytes()
    if size == LARGE:
        assert proxy.count("PUT", "partNumber=1") == 1  # only the part was repeated, not the file


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_ANSWER])
@pytest.mark.parametrize(("method", "query"), [("POST", "?uploads"), ("POST", "?uploadId"), ("HEAD", "")])
def test_a_fault_around_the_parts_is_survived_too(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path, fault: Fault, method: str, query: str
) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, LARGE)
    proxy.add(fault, method=method, query=query)
    asyncio.run(storage.put_file("trace", path, **facts))
    assert proxy.count(fault=fault) == 1
    assert storage.get_sync("trace") == path.read_bytes()


@pytest.mark.parametrize("fault", REPEATED)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_lasting_fault_is_a_storage_error_within_the_deadline(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path, fault: Fault, size: int
) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, size)
    proxy.add(fault, times=10**6, delay_s=60)
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        asyncio.run(storage.put_file("trace", path, **facts, deadline_s=3))
    assert time.monotonic() - began < 3 + 2  # the rest is for a loaded machine
    assert str(path) in str(caught.value)
    assert storage.uri("trace") in str(caught.value)
    if fault is Fault.UNAVAILABLE:
        assert "503" in str(caught.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == facts["sha256"]


def test_a_deadline_shorter_than_any_pause_is_a_storage_error_too(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path
) -> None:
    path, facts = spooled(tmp_path, SMALL)
    proxy.add(Fault.UNAVAILABLE, times=10**6)
    with pytest.raises(StorageError):
        asyncio.run(archive(request).put_file("trace", path, **facts, deadline_s=0.5))


def test_the_error_says_what_the_store_said(request: pytest.FixtureRequest, proxy: FaultyProxy) -> None:
    storage = archive(request, deadline_s=2)
    proxy.add(Fault.UNAVAILABLE, times=10**6)
    with pytest.raises(StorageError, match=r"failed \d+ times in 2 s: .*503.*SlowDown"):
        asyncio.run(storage.put_new("manifest.json", b"x"))
    assert proxy.count("PUT") > 2


@pytest.mark.parametrize(
    ("fault", "said", "kind"),
    [(Fault.DENIED, "AccessDenied", Forbidden), (Fault.BAD_REQUEST, "InvalidRequest", StorageError)],
)
def test_a_refusal_is_not_repeated(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path, fault: Fault, said: str, kind: type
) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, SMALL)
    proxy.add(fault, times=10**6)
    with pytest.raises(StorageError, match=said) as refused:
        asyncio.run(storage.put_file("trace", path, **facts))
    assert type(refused.value) is kind
    with pytest.raises(StorageError, match=said):
        asyncio.run(storage.put_new("manifest.json", b"x"))
    assert proxy.count("PUT") == 2


def test_a_missing_bucket_is_named(proxy: FaultyProxy, tmp_path: Path) -> None:
    storage = Storage.open("s3://no-such-bucket/x")
    path, facts = spooled(tmp_path, SMALL)
    with pytest.raises(StorageError, match="the bucket of s3://no-such-bucket/x is not there"):
        asyncio.run(storage.put_file("trace", path, **facts))
    assert proxy.count("PUT") == 1


def test_a_store_that_is_not_there_ends_within_the_deadline(tmp_path: Path) -> None:
    path, facts = spooled(tmp_path, SMALL)
    with s3_environment("http://127.0.0.1:9"):  # the discard port: connection refused
        storage = Storage.open("s3://archive/x", deadline_s=2)
        began = time.monotonic()
        with pytest.raises(StorageError, match="trace"):
            asyncio.run(storage.put_file("trace", path, **facts))
        with pytest.raises(StorageError, match="trace"):
            storage.get_sync("trace")
    assert time.monotonic() - began < 2 * 2 + 3


def test_every_part_carries_its_checksum(request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, LARGE)
    asyncio.run(storage.put_file("large", path, **facts))
    path, facts = spooled(tmp_path, SMALL)
    asyncio.run(storage.put_file("small", path, **facts))
    asyncio.run(storage.put_new("manifest.json", b"x"))
    bodies = [seen for seen in proxy.seen if seen.method == "PUT"]
    assert len(bodies) == 5
    assert all("x-amz-checksum-sha256" in seen.headers for seen in bodies)
    started = next(seen for seen in proxy.seen if seen.method == "POST")
    assert started.headers["x-amz-checksum-algorithm"] == "SHA256"


@pytest.mark.parametrize(("size", "query"), [(SMALL, ""), (LARGE, "partNumber=2")])
def test_a_byte_flipped_on_the_way_is_noticed_by_the_store_and_sent_again(
    request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path, size: int, query: str
) -> None:
    """The proxy compares checksums as S3 does; moto by itself stores the flipped byte."""
    storage = archive(request)
    path, facts = spooled(tmp_path, size)
    proxy.add(Fault.FLIP, method="PUT", query=query)
    asyncio.run(storage.put_file("trace", path, **facts))
    assert proxy.count(fault=Fault.FLIP) == 1
    assert storage.get_sync("trace") == path.read_bytes()


def test_bytes_that_flip_every_time_are_a_storage_error(
    request: pytest.FixtureRequest, endpoint: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, LARGE)
    proxy.add(Fault.FLIP, method="PUT", query="partNumber", times=10**6)
    with pytest.raises(StorageError, match="BadDigest"):
        asyncio.run(storage.put_file("trace", path, **facts, deadline_s=3))
    assert asyncio.run(storage.size("trace")) is None


@pytest.mark.parametrize(("size", "query"), [(SMALL, ""), (LARGE, "partNumber=3")])
def test_a_store_that_kept_only_a_part_is_found_by_the_size_it_reports(
    request: pytest.FixtureRequest, endpoint: str, tmp_path: Path, size: int, query: str
) -> None:
    """Behind a store that compares no checksums (moto, some look-alikes of S3)."""
    with FaultyProxy(endpoint) as careless, s3_environment(careless.url):
        storage = archive(request)
        path, facts = spooled(tmp_path, size)
        careless.add(Fault.HALVE, method="PUT", query=query)
        with pytest.raises(StorageError, match=rf"bytes after the upload of {size}; .* is kept"):
            asyncio.run(storage.put_file("trace", path, **facts))


def test_a_large_object_is_read_in_few_requests(request: pytest.FixtureRequest, proxy: FaultyProxy) -> None:
    storage = archive(request)
    data = os.urandom(9 << 20)
    asyncio.run(storage.put_new("trace", data))
    assert storage.get_sync("trace") == data
    with storage.open_read("trace") as stream:
        assert b"".join(iter(lambda: stream.read(1 << 20), b"")) == data
    assert proxy.count("GET") <= 2 * 4


def test_a_file_that_changed_leaves_no_unfinished_upload(
    request: pytest.FixtureRequest, endpoint: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, LARGE)
    path.write_bytes(os.urandom(LARGE))
    with pytest.raises(StorageError, match="changed after it was verified"):
        asyncio.run(storage.put_file("trace", path, **facts))
    assert asyncio.run(storage.size("trace")) is None
    assert unfinished_uploads(endpoint, storage) == []


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_ANSWER, Fault.SLOW, Fault.CONFLICT])
def test_publishing_survives_a_passing_fault(request: pytest.FixtureRequest, proxy: FaultyProxy, fault: Fault) -> None:
    storage = archive(request, deadline_s=12)
    proxy.add(fault, method="PUT", delay_s=5)
    asyncio.run(storage.put_new("manifest.json", b"mine"))
    assert proxy.count("PUT", fault=fault) == 1
    assert asyncio.run(storage.get("manifest.json")) == b"mine"


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.SLOW])
def test_publishing_after_a_fault_never_overwrites_what_another_published(
    request: pytest.FixtureRequest, proxy: FaultyProxy, fault: Fault
) -> None:
    storage = archive(request, deadline_s=12)
    asyncio.run(storage.put_new("manifest.json", b"theirs"))
    proxy.add(fault, method="PUT", delay_s=5)
    with pytest.raises(AlreadyExists):
        asyncio.run(storage.put_new("manifest.json", b"mine"))
    assert proxy.count("PUT", fault=fault) == 1
    assert asyncio.run(storage.get("manifest.json")) == b"theirs"


@pytest.mark.parametrize("fault", [*REPEATED, Fault.SHORT_ANSWER])
def test_reading_survives_a_passing_fault(request: pytest.FixtureRequest, proxy: FaultyProxy, fault: Fault) -> None:
    storage = archive(request, deadline_s=8)
    data = os.urandom(6 << 20)
    asyncio.run(storage.put_new("trace", data))
    proxy.add(fault, method="GET", delay_s=5)
    assert asyncio.run(storage.get("trace")) == data
    proxy.add(fault, method="GET", delay_s=5)
    assert storage.get_sync("trace") == data
    proxy.add(fault, method="GET", query="list-type", delay_s=5)
    assert asyncio.run(storage.list()) == ["trace"]
    proxy.add(fault, method="HEAD", delay_s=5)
    assert asyncio.run(storage.size("trace")) == len(data)
    assert proxy.count(fault=fault) == 4


def test_a_cancelled_upload_ends_at_once(request: pytest.FixtureRequest, proxy: FaultyProxy, tmp_path: Path) -> None:
    storage = archive(request)
    path, facts = spooled(tmp_path, SMALL)
    proxy.add(Fault.SLOW, method="PUT", delay_s=60)

    async def cancel() -> None:
        task = asyncio.create_task(storage.put_file("trace", path, **facts))
        async with asyncio.timeout(20):
            while proxy.count("PUT") == 0:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(20):
                await task

    asyncio.run(cancel())
    assert asyncio.run(storage.size("trace")) is None
