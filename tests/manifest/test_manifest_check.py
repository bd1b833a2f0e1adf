"""A published capture is read again: every byte that its manifest names, and nothing else."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sameshot.errors import ManifestError, StorageError, UnknownCapture
from sameshot.manifest import decode
from sameshot.model import BoundBy, Encoding
from sameshot.storage import Storage
from sameshot.trace.capture_check import inspect_capture, locate, read_manifest
from support.manifests import (
    START_NS,
    archived_bytes,
    make_identity,
    put,
    trace_bytes,
    write_capture,
    write_manifest,
)
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_environment

FILES = [
    "node-a/main/0/trace.json.gz",
    "node-a/main/0/trace.parquet",
    "node-a/main/1/trace.json.gz",
    "raw/last.json",
]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture")


def check(manifest: Path) -> str:
    """What the check says; empty when all is well."""
    report = inspect_capture(*locate(str(manifest)))
    bad = [f"{target.target_id} (rank {target.rank}): {', '.join(target.problems)}" for target in report.failed]
    return f"{len(bad)} of {len(report.targets)} targets: {'; '.join(bad)}" if bad else ""


def edit(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_a_sound_capture_is_reported_file_by_file(manifest: Path) -> None:
    report = inspect_capture(*locate(str(manifest)))
    assert [(target.rank, target.files, target.problems) for target in report.targets] == [
        (0, 2, ()),
        (1, 1, ()),
        (2, 1, ()),
    ]
    assert report.targets[0].size == sum((manifest.parent / name).stat().st_size for name in FILES[:2])
    assert report.uri == manifest.as_uri()
    assert report.manifest == decode(manifest.read_bytes())


def test_a_golden_capture_of_an_older_build_still_checks() -> None:
    assert check(Path(__file__).parent / "golden/capture/manifest.json") == ""


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_anywhere_is_found(manifest: Path, name: str) -> None:
    size = (manifest.parent / name).stat().st_size
    for at in (0, size // 2, size - 1):
        edit(manifest.parent / name, lambda data, at=at: data.__setitem__(at, data[at] ^ 1))
        said = check(manifest)
        assert f"{name} has other bytes" in said
        assert "1 of 3 targets" in said
        edit(manifest.parent / name, lambda data, at=at: data.__setitem__(at, data[at] ^ 1))
        assert check(manifest) == ""


@pytest.mark.parametrize("name", FILES)
def test_a_missing_longer_or_shorter_file_is_found(manifest: Path, name: str) -> None:
    path = manifest.parent / name
    size = path.stat().st_size
    edit(path, lambda data: data.append(0))
    assert f"{name} has {size + 1} bytes, the manifest states {size}" in check(manifest)
    edit(path, lambda data: data.__delitem__(slice(-2, None)))
    assert f"{name} has {size - 1} bytes, the manifest states {size}" in check(manifest)
    path.unlink()
    assert f"{name} is not there" in check(manifest)


def test_every_bad_target_is_listed_with_its_rank(manifest: Path) -> None:
    (manifest.parent / FILES[0]).unlink()
    (manifest.parent / FILES[2]).unlink()
    said = check(manifest)
    assert "2 of 3 targets" in said
    assert "node-a/main/0 (rank 0): trace node-a/main/0/trace.json.gz is not there" in said
    assert "node-a/main/1 (rank 1): trace node-a/main/1/trace.json.gz is not there" in said
    assert [target.rank for target in inspect_capture(*locate(str(manifest))).failed] == [0, 1]


def test_an_edited_manifest_is_refused(manifest: Path) -> None:
    edited = manifest.read_text().replace('"PARTIAL"', '"SUCCEEDED"')
    manifest.write_text(edited)
    with pytest.raises(ManifestError, match="edited or damaged"):
        check(manifest)


def test_swapped_traces_are_found_although_each_is_whole(tmp_path: Path) -> None:
    manifest = write_capture(tmp_path, traces={0: trace_bytes(1), 1: trace_bytes(0)})
    said = check(manifest)
    assert "2 of 3 targets" in said
    assert said.count("identity") == 2
    assert make_identity(1).registration in said


def test_a_trace_that_states_another_rank_is_found(tmp_path: Path) -> None:
    foreign = trace_bytes(1, distributedInfo={"rank": 5, "world_size": 8})
    assert "identity" in check(write_capture(tmp_path, traces={1: foreign}))


def test_a_trace_that_only_its_path_binds_needs_no_uuid_in_its_bytes(tmp_path: Path) -> None:
    raw = trace_bytes(0, PT_PROFILER_JOB_NAME="the user's own")
    for bound_by, clean in ((BoundBy.BYTES, False), (BoundBy.PATH, True)):
        folder = tmp_path / bound_by
        target = archived_bytes(0, raw, raw, encoding=Encoding.IDENTITY, uri="trace.json")
        put(folder / "trace.json", raw)
        target = msgspec.structs.replace(target, identity=make_identity(0, bound_by=bound_by))
        assert (check(write_manifest(folder, [target])) == "") is clean


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"raw_sha256": "00" * 32}, "decodes to"),
        ({"raw_size": 5}, "decodes to"),
        ({"encoding": Encoding.IDENTITY}, "is stored as gzip"),
        ({"window_end_ns": START_NS + 9_000_000}, "was recorded from"),
    ],
)
def test_a_manifest_that_lies_about_sound_bytes_is_found(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    raw = trace_bytes(0)
    stored = gzip.compress(raw)
    put(tmp_path / "node-a/main/0/trace.json.gz", stored)
    assert check(write_manifest(tmp_path, [archived_bytes(0, raw, stored)])) == ""
    assert said in check(write_manifest(tmp_path, [archived_bytes(0, raw, stored, **wrong)]))


def test_bytes_that_are_no_trace_are_found_although_every_digest_is_right(tmp_path: Path) -> None:
    assert "no_events_key" in check(write_capture(tmp_path / "a", traces={1: b'{"a": 1}'}))
    assert "is not the trace it should be" in check(write_capture(tmp_path / "b", traces={1: b"not json"}))


def test_files_that_the_manifest_does_not_name_are_ignored(manifest: Path) -> None:
    put(manifest.parent / "node-a/main/1/trace_2.json.gz", b"left over")
    put(manifest.parent / "config.json", b"{}")
    assert check(manifest) == ""


def test_a_capture_may_be_moved_as_a_whole(manifest: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    shutil.move(manifest.parent, moved)
    assert check(moved / "manifest.json") == ""


def test_a_manifest_is_found_by_path_folder_and_uri(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(manifest.parent)
    expected = decode(manifest.read_bytes())
    for address in (
        str(manifest),
        str(manifest.parent),
        f"{manifest.parent}/",
        manifest.as_uri(),
        "manifest.json",
        ".",
    ):
        storage, key = locate(address)
        assert read_manifest(storage, key) == expected
        assert storage.url == manifest.parent.as_uri()
        assert storage.get_sync("raw/last.json")


def test_where_no_manifest_is_the_capture_is_unknown(tmp_path: Path) -> None:
    for address in (tmp_path, tmp_path / "manifest.json", tmp_path / "no/such/folder"):
        with pytest.raises(UnknownCapture, match=r"no manifest at file://.*manifest\.json"):
            read_manifest(*locate(str(address)))


def test_a_capture_inside_an_archive_is_checked_by_its_key(tmp_path: Path) -> None:
    write_capture(tmp_path / "ns/job/0/c1")
    assert inspect_capture(Storage.open(str(tmp_path)), "ns/job/0/c1/manifest.json").failed == []


def test_a_capture_on_s3_is_checked_there_and_a_store_that_fails_says_nothing_about_it(manifest: Path) -> None:
    with moto_server() as endpoint, FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        client = make_bucket(endpoint, "archive")
        for path in manifest.parent.rglob("*"):
            if path.is_file():
                key = f"a/c1/{path.relative_to(manifest.parent)}"
                client.put_object(Bucket="archive", Key=key, Body=path.read_bytes())
        assert read_manifest(*locate("s3://archive/a/c1/manifest.json")) == decode(manifest.read_bytes())
        assert inspect_capture(*locate("s3://archive/a/c1")).failed == []
        proxy.add(Fault.FLIP_ANSWER, method="GET", query="1/trace.json.gz")
        (bad,) = inspect_capture(*locate("s3://archive/a/c1")).failed
        assert bad.target_id == "node-a/main/1"
        assert "has other bytes" in bad.problems[0]
        proxy.add(Fault.UNAVAILABLE, query="1/trace.json.gz", times=10**6)
        with pytest.raises(StorageError, match="503"):
            inspect_capture(Storage.open("s3://archive/a/c1", deadline_s=1), "manifest.json")
