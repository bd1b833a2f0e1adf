"""Results below a local folder or in S3: replaced file by file, read back, with a credential of their own."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from gloo_job import GlooJob, archive
from s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_client, s3_environment

from sameshot.errors import StorageError, UsageError
from sameshot.steps.analyze import analyze, analyze_rank, reduce
from sameshot.steps.compare import compare
from sameshot.steps.history import rows
from sameshot.steps.places import shards
from sameshot.steps.results import CompareVerdict
from sameshot.steps.store import Folder, open_results, wait

CAPTURE = "captures/local/demo/0/c-1"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(params=["local", "s3"])
def results_uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "results")
        return
    endpoint = request.getfixturevalue("endpoint")
    bucket = f"results-{abs(hash(request.node.name)) % 10**9}"
    make_bucket(endpoint, bucket)
    with s3_environment(endpoint):
        yield f"s3://{bucket}/some/prefix"


def folder_of(results_uri: str) -> Folder:
    return Folder(open_results(results_uri), "captures/ns/job/0/id")


def test_a_file_is_written_replaced_and_read_back(results_uri: str) -> None:
    folder = folder_of(results_uri)
    assert folder.get("report.html") is None
    uri = folder.put("report.html", b"old")
    assert uri == folder.uri("report.html")
    assert uri.endswith("/captures/ns/job/0/id/report.html")
    folder.put("report.html", b"newer")
    assert folder.get("report.html") == b"newer"
    assert folder.get_all(["none", "report.html"]) == [None, b"newer"]


def test_a_folder_is_written_with_all_that_is_in_it_and_nothing_else_changes(results_uri: str, tmp_path: Path) -> None:
    folder = folder_of(results_uri)
    folder.put("kept", b"of before")
    folder.put("tables/a.parquet", b"old")
    local = tmp_path / "local"
    (local / "tables").mkdir(parents=True)
    (local / "tables" / "a.parquet").write_bytes(os.urandom(9 << 20))  # in S3: two parts
    (local / "summary.json").write_bytes(b"{}")
    folder.put_all(local)
    assert folder.get("tables/a.parquet") == (local / "tables" / "a.parquet").read_bytes()
    assert (folder.get("summary.json"), folder.get("kept")) == (b"{}", b"of before")
    assert asyncio.run(open_results(results_uri).list()) == [
        f"captures/ns/job/0/id/{name}" for name in ("kept", "summary.json", "tables/a.parquet")
    ]


def test_waiting_works_where_a_loop_runs_already(results_uri: str) -> None:
    async def engine() -> bytes | None:
        folder_of(results_uri).put("file", b"data")
        return folder_of(results_uri).get_all(["file"])[0]

    assert asyncio.run(engine()) == b"data"


def test_of_errors_that_come_together_one_is_raised_as_itself(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    for name in ("a", "b"):
        (tmp_path / "local" / name).write_text("data")
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(StorageError, match="results"):
        folder_of(str(tmp_path / "results")).put_all(tmp_path / "local")

    async def fails() -> None:
        async with asyncio.TaskGroup() as group:
            for problem in ("one", "two"):
                group.create_task(_raise(StorageError(problem)))

    with pytest.raises(StorageError, match="one"):
        wait(fails())


async def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("results_uri", ["", "gs://bucket/results", "s3://"])
def test_what_is_no_place_for_results_is_refused(results_uri: str) -> None:
    with pytest.raises(UsageError):
        open_results(results_uri)


# -- everything over S3


def upload(endpoint: str, bucket: str, folder: Path, prefix: str) -> str:
    client = make_bucket(endpoint, bucket)
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(
                Bucket=bucket, Key=f"{prefix}/{path.relative_to(folder).as_posix()}", Body=path.read_bytes()
            )
    return f"s3://{bucket}/{prefix}/manifest.json"


def without_times(data: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(data)
    capture = found["capture"]
    assert isinstance(capture, dict)
    del found["generated_at"], capture["manifest"]
    return found


def test_a_capture_in_s3_is_analysed_in_shards_into_s3_as_on_disk(endpoint: str, tmp_path: Path) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1, late={2: 30.0}).traces())
    manifest = upload(endpoint, "archive-a", local.parent, "ns/job")
    make_bucket(endpoint, "results-a")
    with s3_environment(endpoint):
        for shard in shards(4):
            found = analyze_rank(manifest, shard, "s3://results-a/all")
        whole = reduce(manifest, "s3://results-a/all")
        again = compare(manifest, "s3://results-a/all")
        assert [row.capture_id for row in rows("s3://results-a/all", "local", "demo")] == ["c-1"]
    assert found.summaries_uri.startswith(f"s3://results-a/all/{CAPTURE}/ranks/")
    assert whole.report_uri == f"s3://results-a/all/{CAPTURE}/report.html"
    assert (whole.exit_code, whole.headline.late, again.verdict) == (0, "2", CompareVerdict.FIRST)
    on_disk = analyze(str(local), str(tmp_path / "results"))
    client = s3_client(endpoint)

    def stored(name: str) -> bytes:
        data: bytes = client.get_object(Bucket="results-a", Key=f"all/{CAPTURE}/{name}")["Body"].read()
        return data

    beside = Path(on_disk.summary_uri.removeprefix("file://"))
    assert without_times(stored("summary.json")) == without_times(beside.read_bytes())
    assert stored("report.html").startswith(b"<!doctype html>")
    table = "comm_comp_overlap.parquet"
    assert pq.read_table(io.BytesIO(stored(f"tables/{table}"))) == pq.read_table(beside.parent / "tables" / table)


def test_results_have_a_credential_of_their_own_and_the_archive_never_sees_it(endpoint: str, tmp_path: Path) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1, ranks=2).traces())
    manifest = upload(endpoint, "archive-b", local.parent, "ns/job")
    make_bucket(endpoint, "results-b")
    own = {
        "SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID": "RESULTSKEY",
        "SAMESHOT_RESULTS_AWS_SECRET_ACCESS_KEY": "results-secret",
    }
    with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        session = {"AWS_SESSION_TOKEN": "a token of the archive's key"}
        with mock.patch.dict(os.environ, {**own, **session, "AWS_ACCESS_KEY_ID": "ARCHIVEKEY"}):
            analyze_rank(manifest, "0/1", "s3://results-b/all")
            reduce(manifest, "s3://results-b/all")
        used = {"archive-b": set(), "results-b": set()}
        tokens = {"archive-b": set(), "results-b": set()}
        for seen in proxy.seen:
            bucket = "archive-b" if "archive-b" in seen.path else "results-b"
            used[bucket].add(seen.headers["authorization"].split("Credential=")[1].split("/")[0])
            tokens[bucket].add(seen.headers.get("x-amz-security-token"))
    assert used == {"archive-b": {"ARCHIVEKEY"}, "results-b": {"RESULTSKEY"}}
    assert tokens == {"archive-b": {"a token of the archive's key"}, "results-b": {None}}


def test_results_may_lie_at_another_endpoint_than_the_archive(endpoint: str, tmp_path: Path) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1, ranks=2).traces())
    manifest = upload(endpoint, "archive-c", local.parent, "ns/job")
    make_bucket(endpoint, "results-c")
    with FaultyProxy(endpoint) as first, FaultyProxy(endpoint) as second, s3_environment(first.url):
        with mock.patch.dict(os.environ, {"SAMESHOT_RESULTS_AWS_ENDPOINT_URL": second.url}):
            analyze(manifest, "s3://results-c/all")
        assert first.count(query="archive-c")
        assert second.count(query="results-c")
        assert not first.count(query="results-c")
        assert not second.count(query="archive-c")


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_a_credential_is_refused_and_not_completed_from_the_environment(name: str) -> None:
    with pytest.raises(UsageError, match="only one was given"):
        open_results("s3://bucket/results", {f"SAMESHOT_RESULTS_{name}": "half"})


def test_a_setting_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(UsageError, match="AWS_PROFILE"):
        open_results("s3://bucket/results", {"SAMESHOT_RESULTS_AWS_PROFILE": "other"})


def test_a_store_that_refuses_results_is_a_reason_to_try_again_and_says_which(endpoint: str, tmp_path: Path) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1, ranks=2).traces())
    make_bucket(endpoint, "results-d")
    with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        proxy.add(Fault.DENIED, method="PUT")
        with pytest.raises(StorageError, match=r"rank 0 .*results-d") as caught:
            analyze_rank(str(local), "0/1", "s3://results-d/all")
        assert caught.value.exit_code == 75
        analyze_rank(str(local), "0/1", "s3://results-d/all")


def test_a_history_that_can_not_be_read_is_an_error_and_the_report_is_there_all_the_same(
    endpoint: str, tmp_path: Path
) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1, ranks=2).traces())
    make_bucket(endpoint, "results-e")
    with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        proxy.add(Fault.DENIED, method="GET", query="list-type")
        with pytest.raises(StorageError, match="history"):
            analyze(str(local), "s3://results-e/all")
        assert proxy.count(fault=Fault.DENIED) == 1
    names = [each["Key"] for each in s3_client(endpoint).list_objects_v2(Bucket="results-e")["Contents"]]
    assert f"all/{CAPTURE}/report.html" in names
    assert not [name for name in names if "/history/" in name]  # a row points at a report that shows it
