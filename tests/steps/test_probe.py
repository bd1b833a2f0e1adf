"""Whether results can be kept somewhere is found out without writing anything there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sameshot.errors import SameshotError, StorageError, UsageError
from sameshot.steps.probe import probe_results
from support.s3 import make_bucket, moto_server, s3_client, s3_environment


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_is_not_there_yet_may_be_made_later_and_is_not_made_now(tmp_path: Path, scheme: str) -> None:
    place = tmp_path / "a b" / "results"
    uri = f"{scheme}{place}".replace(" ", "%20") if scheme else str(place)
    assert probe_results(uri) == f"{place} can be written (it will be made in {tmp_path})."
    assert list(tmp_path.iterdir()) == []
    place.mkdir(parents=True)
    assert probe_results(uri) == f"{place} can be written."
    assert list(place.iterdir()) == []


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """Root may write everywhere; as somebody else it may not."""
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    for place in (tmp_path / "shut" / "results", tmp_path / "shut"):
        with somebody_else(), pytest.raises(StorageError, match=f"can't be kept in {place}: .* may not write to /"):
            probe_results(str(place))


@pytest.mark.parametrize(
    ("uri", "kind", "says"),
    [
        ("results", UsageError, "is a relative path"),
        ("./results", UsageError, "is a relative path"),
        ("", UsageError, "No place for results"),
        ("ftp://x", UsageError, "ftp://x"),
        ("s3://", UsageError, "no S3 location"),
        ("file://elsewhere/x", UsageError, "another host"),
        ("/dev/null/x", StorageError, "/dev/null is not a folder"),
    ],
)
def test_what_is_no_place_is_named(uri: str, kind: type[SameshotError], says: str) -> None:
    with pytest.raises(kind, match=says):
        probe_results(uri)


def test_a_bucket_answers_and_stays_empty() -> None:
    with moto_server() as endpoint, s3_environment(endpoint):
        make_bucket(endpoint, "results-asked-for")
        assert "s3://results-asked-for/a answers" in probe_results("s3://results-asked-for/a")
        assert s3_client(endpoint).list_objects_v2(Bucket="results-asked-for")["KeyCount"] == 0


def test_an_endpoint_that_is_silent_is_given_up_soon() -> None:
    """It accepts connections and never answers; a person waits in front of a button."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with s3_environment(f"http://{host}:{port}"), pytest.raises(StorageError, match=r"does not answer within 1 s"):
            probe_results("s3://results/a", patience_s=1.0)
