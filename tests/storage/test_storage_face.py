"""What any store must do, shown on a local directory and on S3 over real HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sameshot.errors import AlreadyExists, NotFound, StorageError, UsageError
from sameshot.storage import Storage
from support.s3 import make_bucket, moto_server, s3_environment

TWO_PARTS = 9 << 20


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "local":
        yield Storage.open(str(tmp_path / "archive"))
        return
    endpoint = request.getfixturevalue("endpoint")
    bucket = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    make_bucket(endpoint, bucket)
    with s3_environment(endpoint):
        yield Storage.open(f"s3://{bucket}/some/prefix")


def local_file(folder: Path, data: bytes) -> tuple[Path, dict[str, object]]:
    path = folder / "spooled.json.gz"
    path.write_bytes(data)
    return path, {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("size", [0, 1, 1000, TWO_PARTS])
def test_a_stored_file_reads_back_byte_by_byte(storage: Storage, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path, facts = local_file(tmp_path, data)
    asyncio.run(storage.put_file("ns/job/0/trace.json.gz", path, **facts))
    assert asyncio.run(storage.size("ns/job/0/trace.json.gz")) == size
    assert asyncio.run(storage.get("ns/job/0/trace.json.gz")) == data
    assert storage.get_sync("ns/job/0/trace.json.gz") == data
    assert path.read_bytes() == data


def test_an_open_object_streams_and_seeks(storage: Storage, tmp_path: Path) -> None:
    data = os.urandom(TWO_PARTS)
    path, facts = local_file(tmp_path, data)
    asyncio.run(storage.put_file("trace", path, **facts))
    with storage.open_read("trace") as stream:
        assert stream.read(10) == data[:10]
        assert stream.read(6 << 20) == data[10 : 10 + (6 << 20)]
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == data[-5:]
        assert stream.read(1) == b""


@pytest.mark.parametrize("size", [1000, TWO_PARTS])
def test_storing_the_same_file_again_is_fine(storage: Storage, tmp_path: Path, size: int) -> None:
    path, facts = local_file(tmp_path, os.urandom(size))
    for _ in range(2):
        asyncio.run(storage.put_file("trace", path, **facts))
    assert asyncio.run(storage.list()) == ["trace"]


@pytest.mark.parametrize("size", [0, 1000, TWO_PARTS])
def test_data_takes_the_place_of_what_was_there(storage: Storage, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    asyncio.run(storage.put("ns/summary.json", b"old"))
    asyncio.run(storage.put("ns/summary.json", data))
    assert asyncio.run(storage.get("ns/summary.json")) == data
    assert asyncio.run(storage.list()) == ["ns/summary.json"]
    with pytest.raises(StorageError, match="refused"):
        asyncio.run(storage.put("../outside", data))


@pytest.mark.parametrize("size", [1000, TWO_PARTS])
def test_a_file_that_changed_after_verification_is_not_stored(storage: Storage, tmp_path: Path, size: int) -> None:
    path, facts = local_file(tmp_path, os.urandom(size))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"changed after it was verified.*sha256"):
        asyncio.run(storage.put_file("trace", path, **facts))
    path.write_bytes(data[:-1])
    with pytest.raises(StorageError, match=rf"it has {size - 1} bytes, {size} were verified"):
        asyncio.run(storage.put_file("trace", path, **facts))
    assert asyncio.run(storage.size("trace")) is None
    assert asyncio.run(storage.list()) == []
    assert path.exists()


@pytest.mark.parametrize("size", [1000, TWO_PARTS])
def test_a_file_without_an_end_is_not_read_for_ever(storage: Storage, size: int) -> None:
    """As one is to which somebody still writes faster than it can be read."""
    with pytest.raises(StorageError, match=r"it has \d+ bytes, .* were verified"):
        asyncio.run(storage.put_file("trace", Path("/dev/zero"), size=size, sha256="0" * 64))
    assert asyncio.run(storage.list()) == []


def test_a_vanished_file_is_a_storage_error_naming_it(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone\.json"):
        asyncio.run(storage.put_file("trace", tmp_path / "gone.json", size=1, sha256="0" * 64))
    assert asyncio.run(storage.list()) == []


def test_a_new_object_is_never_written_over_another(storage: Storage) -> None:
    asyncio.run(storage.put_new("a/manifest.json", b"first"))
    for data in (b"second", b"first"):
        with pytest.raises(AlreadyExists, match=r"manifest\.json"):
            asyncio.run(storage.put_new("a/manifest.json", data))
    assert asyncio.run(storage.get("a/manifest.json")) == b"first"
    assert asyncio.run(storage.list()) == ["a/manifest.json"]


def test_of_many_creators_at_once_exactly_one_wins(storage: Storage) -> None:
    async def race() -> list[object]:
        return await asyncio.gather(
            *(storage.put_new("a/manifest.json", b"%d" % each) for each in range(12)), return_exceptions=True
        )

    results = asyncio.run(race())
    won = [index for index, result in enumerate(results) if result is None]
    assert len(won) == 1
    assert sum(isinstance(result, AlreadyExists) for result in results) == 11
    assert asyncio.run(storage.get("a/manifest.json")) == b"%d" % won[0]


def test_what_is_not_there_is_told_apart_from_a_failing_store(storage: Storage) -> None:
    assert asyncio.run(storage.size("nothing")) is None
    assert asyncio.run(storage.list("nothing")) == []
    with pytest.raises(NotFound, match="nothing"):
        asyncio.run(storage.get("nothing"))
    with pytest.raises(NotFound, match="nothing"):
        storage.get_sync("nothing")
    with pytest.raises(NotFound, match="nothing"):
        storage.open_read("nothing")


def test_listing_is_by_folder_and_sorted(storage: Storage) -> None:
    for key in ("b/x", "a/2", "a/10/deep", "ab/y", "a b/ü"):
        asyncio.run(storage.put_new(key, b""))
    assert asyncio.run(storage.list()) == ["a b/ü", "a/10/deep", "a/2", "ab/y", "b/x"]
    assert asyncio.run(storage.list("a")) == ["a/10/deep", "a/2"]
    assert asyncio.run(storage.list("a/")) == ["a/10/deep", "a/2"]
    assert asyncio.run(storage.get("a b/ü")) == b""


TRICKS = [
    "../x",
    "a/../../x",
    "/etc/passwd",
    "a//b",
    "a/",
    "",
    ".",
    "a/./b",
    "a\\b",
    "a\0b",
    "a\nb",
    "s3://b/k",
    "k" * 1025,
]


@pytest.mark.parametrize("key", TRICKS)
def test_a_name_that_could_lead_elsewhere_is_refused(storage: Storage, tmp_path: Path, key: str) -> None:
    path, facts = local_file(tmp_path, b"data")
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: asyncio.run(storage.put_file(key, path, **facts)),
        lambda: asyncio.run(storage.put_new(key, b"x")),
        lambda: asyncio.run(storage.get(key)),
        lambda: asyncio.run(storage.size(key)),
        lambda: storage.open_read(key),
        lambda: storage.uri(key),
    ):
        with pytest.raises(StorageError, match="refused"):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_addresses_of_one_folder_mean_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b"
    monkeypatch.chdir(tmp_path)
    asyncio.run(Storage.open(str(folder)).put_new("k", b"v"))
    for address in ("a b", f"file://{tmp_path}/a%20b", folder.as_uri(), f"{folder}/"):
        assert Storage.open(address).get_sync("k") == b"v"
        assert Storage.open(address).url == folder.as_uri()
    assert Storage.open("a b").uri("x/y") == (folder / "x/y").as_uri()
    assert Storage.open("s3://bucket/p/").uri("x/y") == "s3://bucket/p/x/y"


@pytest.mark.parametrize("url", ["gs://bucket/x", "http://host/x", "file://host/x", "s3://", "s3://bucket/a/../b", ""])
def test_an_address_that_is_no_archive_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        Storage.open(url)


def test_a_deleted_object_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
    for key in ("ns/job/0/a", "ns/job/0/ab", "ns/job/1/a"):
        asyncio.run(storage.put(key, b"x"))
    for _ in range(2):
        asyncio.run(storage.delete("ns/job/0/a"))
    asyncio.run(storage.delete("ns/job/0/ab/below"))  # no folder there, and no object
    asyncio.run(storage.delete("never/was"))
    assert asyncio.run(storage.list()) == ["ns/job/0/ab", "ns/job/1/a"]
    with pytest.raises(StorageError):
        asyncio.run(storage.delete("../outside"))


def test_a_scan_tells_sizes_and_times_of_what_a_list_names(storage: Storage) -> None:
    before = time.time()
    for key, size in (("ns/a", 3), ("ns/b/c", 0), ("nsx", 1)):
        asyncio.run(storage.put(key, b"x" * size))

    async def scanned(prefix: str) -> dict[str, int]:
        found = [each async for each in storage.scan(prefix)]
        assert all(before - 2 <= each.modified_s <= time.time() + 2 for each in found)  # S3 tells whole seconds
        return {each.key: each.size for each in found}

    assert asyncio.run(scanned("")) == {"ns/a": 3, "ns/b/c": 0, "nsx": 1}
    assert asyncio.run(scanned("ns/")) == {"ns/a": 3, "ns/b/c": 0}
    assert asyncio.run(scanned("nothing")) == {}
