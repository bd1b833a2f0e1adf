"""`sameshot gc`: what goes, what stays, and what an interruption leaves; on a folder and on S3 over real HTTP."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot.cli.main import invoke
from sameshot.errors import UsageError
from sameshot.gc.choose import DAY_S, Receipt, Rule, Why, choose
from sameshot.gc.layout import Folder, Place, place_of
from sameshot.gc.sweep import Report, sweep
from sameshot.manifest import Job, build, encode
from sameshot.model import Outcome
from sameshot.storage import Storage, Stored
from support.manifests import archived, failed, make_capture
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_client, s3_environment

NOW = datetime.datetime.now(datetime.UTC).timestamp() + 100 * DAY_S
"""By this clock everything that a test writes is a hundred days old; how old a capture is its manifest says."""
MONTH = Rule(older_than_s=30 * DAY_S)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield Storage.open(str(tmp_path / "archive"))
        return
    endpoint = request.getfixturevalue("endpoint")
    make_bucket(endpoint, bucket := f"bucket-{abs(hash(request.node.name)) % 10**9}")
    with s3_environment(endpoint):
        yield Storage.open(f"s3://{bucket}/some/prefix")


def capture_id(number: int) -> str:
    return f"{number:032x}"


def files_of(
    number: int, *, days: float, job: str = "llama", series: str | None = None, **fields: Any
) -> dict[str, bytes]:
    """One capture of two ranks, by key; `days` ago by its manifest."""
    converged = datetime.datetime.fromtimestamp(NOW - days * DAY_S, datetime.UTC).isoformat()
    targets = [archived(0), archived(1)]
    if fields.get("outcome") is Outcome.FAILED:
        targets = [failed(0), failed(1)]
    capture = make_capture(
        capture_id=capture_id(number),
        job=Job("ml", job, "u", 0, series),
        converged_at=converged,
        frozen_at=None,
        **fields,
    )
    folder = f"ml/{job}/0/{capture_id(number)}"
    return {
        f"{folder}/manifest.json": encode(build(capture, targets)),
        f"{folder}/node-a/main/0/trace.json.gz": b"0" * 100,
        f"{folder}/node-a/main/1/trace.json.gz": b"1" * 100,
    }


def put(storage: Storage, *captures: dict[str, bytes]) -> None:
    for key, data in {key: data for each in captures for key, data in each.items()}.items():
        asyncio.run(storage.put(key, data))


def left(storage: Storage) -> set[str]:
    """The captures of which anything is left, by number."""
    keys = asyncio.run(storage.list())
    return {str(int(place.capture_id, 16)) for key in keys if (place := place_of(key))}


def swept(storage: Storage, rule: Rule = MONTH, **options: Any) -> Report:
    return asyncio.run(sweep(storage, rule, now_s=NOW, **options))


# ---- what goes


def test_captures_older_than_asked_for_go_with_all_their_files(archive: Storage) -> None:
    put(archive, files_of(1, days=31), files_of(2, days=29), files_of(3, days=60, job="other"))
    report = swept(archive)
    assert left(archive) == {"2"}
    assert asyncio.run(archive.list()) == sorted(files_of(2, days=29))
    assert {(each.job, each.files, each.why) for each in report.removed} == {
        ("llama", 3, Why.EXPIRED), ("other", 3, Why.EXPIRED)
    }  # fmt: skip
    manifests = [files_of(1, days=31), files_of(3, days=60, job="other")]
    assert report.size == sum(len(data) for files in manifests for data in files.values())
    assert report.kept == {Why.YOUNG: 1}
    assert (report.troubles, report.unreadable) == ((), ())


def test_the_newest_of_each_series_stay_however_old_they_are(archive: Storage) -> None:
    put(
        archive,
        *(files_of(n, days=40 + n, job=f"run-{n}", series="nightly") for n in (1, 2, 3)),
        files_of(4, days=90, job="alone"),
    )
    report = swept(archive, Rule(older_than_s=30 * DAY_S, keep=2))
    assert left(archive) == {"1", "2", "4"}
    assert report.kept == {Why.NEWEST: 3}


def test_a_count_alone_lets_everything_else_go_but_what_ended_today(archive: Storage) -> None:
    put(archive, files_of(1, days=2), files_of(2, days=3), files_of(3, days=4))
    swept(archive, Rule(keep=1))
    assert left(archive) == {"1"}


def test_captures_without_a_trace_do_not_count_as_the_newest(archive: Storage) -> None:
    lost = {"outcome": Outcome.FAILED}
    put(archive, files_of(1, days=50), *(files_of(n, days=40 - n, **lost) for n in (2, 3, 4)))
    swept(archive, Rule(older_than_s=30 * DAY_S, keep=1))
    assert left(archive) == {"1"}


def test_a_dry_run_says_the_same_and_touches_nothing(archive: Storage) -> None:
    put(archive, files_of(1, days=31), files_of(2, days=29))
    before = asyncio.run(archive.list())
    planned = swept(archive, dry_run=True)
    assert asyncio.run(archive.list()) == before
    assert planned.removed == swept(archive).removed
    assert len(planned.removed) == 1


def test_one_namespace_alone(archive: Storage) -> None:
    there = {key.replace("ml/", "mlops/", 1): b"x" for key in files_of(2, days=99) if "manifest" not in key}
    put(archive, files_of(1, days=31), there)
    swept(archive, namespace="ml")
    assert left(archive) == {"2"}


# ---- what must stay


def test_nothing_goes_that_is_not_called_as_a_captures_file(archive: Storage) -> None:
    foreign = [
        "README", "ml/notes.txt", f"ml/llama/{capture_id(1)}/trace.json", f"ml/llama/0/{capture_id(1)}",
        f"ml/llama/0/{capture_id(1)[:-1]}/trace.json", f"ml/llama/00/{capture_id(1)}/trace.json",
        f"captures/ml/llama/0/{capture_id(1)}/summary.json", f"history/ml/llama/{capture_id(1)}.parquet",
        f"ml/llama/0/{'A' * 32}/trace.json", f"-ml/llama/0/{capture_id(1)}/manifest.json",
    ]  # fmt: skip
    for key in foreign:
        if key != f"ml/llama/0/{capture_id(1)}" or archive.url.startswith("s3"):  # a folder has no such two names
            asyncio.run(archive.put(key, b"x"))
    before = asyncio.run(archive.list())
    report = swept(archive, Rule(keep=0))
    assert asyncio.run(archive.list()) == before
    assert report.foreign == len(before)
    assert report.removed == ()


def test_files_of_a_capture_that_runs_stay_and_those_of_a_lost_one_go_after_a_week(archive: Storage) -> None:
    lost = {key: data for key, data in files_of(1, days=0).items() if "manifest" not in key}
    put(archive, lost)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    for days, there in ((6.9, {"1"}), (7.1, set())):
        asyncio.run(sweep(archive, Rule(keep=0), now_s=now + days * DAY_S))
        assert left(archive) == there


def test_a_capture_that_was_copied_here_today_stays_whatever_its_manifest_says(archive: Storage) -> None:
    put(archive, files_of(1, days=99))
    asyncio.run(sweep(archive, Rule(keep=0), now_s=NOW - 99.5 * DAY_S))
    assert left(archive) == {"1"}


@pytest.mark.parametrize("damage", ["cut off", "another capture's", "of a later version"])
def test_a_manifest_that_is_not_understood_is_left_and_named(archive: Storage, damage: str) -> None:
    files = files_of(1, days=99)
    key = next(key for key in files if "manifest" in key)
    files[key] = {
        "cut off": files[key][:-20],
        "another capture's": files_of(2, days=99)[key.replace(capture_id(1), capture_id(2))],
        "of a later version": files[key].replace(b"manifest/v1", b"manifest/v2"),
    }[damage]
    put(archive, files, files_of(3, days=99))
    report = swept(archive)
    assert left(archive) == {"1"}
    assert len(asyncio.run(archive.list())) == 3
    assert [key in each for each in report.unreadable] == [True]
    assert report.troubles == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 100), st.integers(0, 2), st.booleans(), st.booleans()), max_size=12
    ),
    st.one_of(st.none(), st.floats(1, 90)),
    st.integers(0, 3),
)
def test_nothing_young_unread_or_among_the_newest_ever_goes(
    captures: list[tuple[int, float, int, bool, bool]], days: float | None, keep: int
) -> None:
    folders, receipts = [], {}
    for number, (series, age, traces, published, readable) in enumerate(captures):
        place = Place("ml", f"job-{number}", 0, capture_id(number))
        folders.append(Folder(place, 1, 1, NOW - age * DAY_S, published))
        if published and readable:
            receipts[place] = Receipt(f"s{series}", NOW - age * DAY_S, traces)
    rule = Rule(older_than_s=None if days is None else days * DAY_S, keep=keep)
    verdicts = choose(folders, receipts, rule, NOW)
    assert [folder for folder, _ in verdicts] == folders
    for folder, why in verdicts:
        age_s, receipt = NOW - folder.newest_s, receipts.get(folder.place)
        if not why.goes:
            continue
        assert age_s > DAY_S
        if not folder.published:
            assert age_s > 7 * DAY_S
            continue
        assert receipt is not None
        assert rule.older_than_s is None or age_s > rule.older_than_s
        if receipt.traces:
            alike = {place: each for place, each in receipts.items() if each.series == receipt.series and each.traces}
            newer = [
                place
                for place, each in alike.items()
                if (each.converged_s, place) > (receipt.converged_s, folder.place)
            ]
            assert len(newer) >= keep


# ---- interruptions and failures


class Killed:
    """Deletes so often and no more: the process was killed."""

    def __init__(self, delete: Callable[[str], Awaitable[None]], after: int) -> None:
        self._delete, self._left = delete, after

    async def delete(self, key: str) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        await self._delete(key)


def test_killed_after_any_deletion_nothing_looks_whole_that_is_not_and_the_next_run_ends_it(tmp_path: Path) -> None:
    captures = [files_of(1, days=31), files_of(2, days=32)]
    for after in range(7):
        storage = Storage.open(str(tmp_path / str(after)))
        put(storage, *captures)
        delete = storage.delete
        storage.delete = Killed(delete, after).delete  # type: ignore[method-assign]
        if after < 6:
            with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
                swept(storage)
        there = set(asyncio.run(storage.list()))
        for files in captures:
            manifest = next(key for key in files if "manifest" in key)
            assert manifest not in there or there >= set(files)
        storage.delete = delete  # type: ignore[method-assign]
        swept(storage)
        assert asyncio.run(storage.list()) == []
        assert not list((tmp_path / str(after)).iterdir())  # nor an empty folder


def test_a_failed_deletion_costs_its_own_capture_only(endpoint: str) -> None:
    make_bucket(endpoint, "refusing")
    with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        storage = Storage.open("s3://refusing")
        put(storage, files_of(1, days=31), files_of(2, days=32))
        proxy.add(Fault.DENIED, method="POST", query="delete")
        report = swept(storage)
        assert left(storage) == {"1"}
        assert len(asyncio.run(storage.list())) == 3  # without its manifest's going, none of its files went
        assert [each.capture_id for each in report.removed] == [capture_id(2)]
        assert len(report.troubles) == 1
        assert capture_id(1) in report.troubles[0]
        swept(storage)
        assert left(storage) == set()


def test_a_listing_of_many_pages_goes_on_where_a_fault_cut_it(endpoint: str) -> None:
    make_bucket(endpoint, "large")
    client = s3_client(endpoint)
    keys = [f"p/ml/llama/0/{capture_id(1)}/{number:04}" for number in range(1_100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: client.put_object(Bucket="large", Key=key, Body=b"x"), keys))
    with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        proxy.add(Fault.UNAVAILABLE, method="GET", query="start-after")
        proxy.add(Fault.UNAVAILABLE, method="GET", query="continuation-token")

        async def listed() -> list[str]:
            return [each.key async for each in Storage.open("s3://large/p").scan()]

        assert asyncio.run(listed()) == [key.removeprefix("p/") for key in keys]
        assert any(seen.fault for seen in proxy.seen)


def test_a_capture_that_is_published_while_gc_runs_stays(archive: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing of a large archive takes minutes."""
    files = files_of(1, days=0)
    manifest = next(key for key in files if "manifest" in key)
    put(archive, {key: data for key, data in files.items() if key != manifest})
    scan, published = archive.scan, []

    async def late(prefix: str = "") -> AsyncGenerator[Stored]:
        async for each in scan(prefix):
            yield each
        if not published:
            published.append(manifest)
            await archive.put(manifest, files[manifest])

    monkeypatch.setattr(archive, "scan", late)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    report = asyncio.run(sweep(archive, Rule(keep=0), now_s=now + 8 * DAY_S))
    assert published
    assert report.removed == ()
    assert asyncio.run(archive.list()) == sorted(files)


# ---- uploads that never ended


def test_uploads_that_never_ended_are_aborted_after_a_week_and_only_ours(endpoint: str) -> None:
    client = make_bucket(endpoint, "parts")
    ours, others = f"p/ml/llama/0/{capture_id(1)}/node-a/main/0/trace.json.gz", "p/backup.tar"
    for key in (ours, others):
        client.create_multipart_upload(Bucket="parts", Key=key)

    def unfinished() -> dict[str, float]:
        found = client.list_multipart_uploads(Bucket="parts").get("Uploads", [])
        return {each["Key"]: each["Initiated"].timestamp() for each in found}

    now = unfinished()[ours]  # moto says the same of all uploads
    with s3_environment(endpoint):
        for days, aborted, there in ((6.9, 0, [ours, others]), (7.1, 1, [others])):
            report = asyncio.run(sweep(Storage.open("s3://parts/p"), MONTH, now_s=now + days * DAY_S))
            assert report.uploads == aborted
            assert sorted(unfinished()) == sorted(there)


def test_a_folder_s_unfinished_files_go_after_a_week_and_only_ours(tmp_path: Path) -> None:
    ours = tmp_path / f"ml/llama/0/{capture_id(1)}/node-a/.sameshot-00.tmp"
    others = tmp_path / "ml/.sameshot-00.tmp"
    for path in (ours, others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (NOW - 8 * DAY_S, NOW - 8 * DAY_S))
    assert swept(Storage.open(str(tmp_path))).uploads == 1
    assert not ours.exists()
    assert others.exists()


def test_a_writer_makes_the_folder_again_that_was_removed_as_empty(tmp_path: Path) -> None:
    """Whoever deletes takes empty folders along, at any moment between a writer's two steps."""
    import sameshot.storage.local as local

    storage, made = Storage.open(str(tmp_path / "archive")), local._make_folders
    removed = []

    def make(folder: Path) -> None:
        made(folder)
        if not removed:
            removed.append(folder)
            folder.rmdir()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "_make_folders", make)
        asyncio.run(storage.put("ml/llama/0/new", b"x"))
    assert removed
    assert asyncio.run(storage.get("ml/llama/0/new")) == b"x"


# ---- the command


def test_the_command_says_what_went_and_how_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = Storage.open(str(tmp_path / "archive"))
    put(storage, files_of(1, days=200))
    old = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    for path in old:
        os.utime(path, (NOW - 200 * DAY_S, NOW - 200 * DAY_S))
    arguments = ["gc", str(tmp_path / "archive"), "--older-than", "30d", "-o", "json"]
    assert invoke([*arguments, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [each["capture_id"] for each in planned["removed"]] == [capture_id(1)]
    assert all(path.exists() for path in old)
    assert invoke(arguments[:-2]) == 0
    assert "1 captures removed" in capsys.readouterr().out
    assert not any(path.exists() for path in old)


@pytest.mark.parametrize(
    "options",
    [[], ["--older-than", "30"], ["--older-than", "23h"], ["--keep", "-1"], ["--keep", "1", "--namespace", "a/b"]],
    ids=["nothing", "no unit", "too young", "negative", "no name"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(tmp_path: Path, options: list[str]) -> None:
    assert invoke(["gc", str(tmp_path), *options]) == 2


def test_a_damaged_manifest_and_a_failing_store_have_their_own_exit_codes(endpoint: str, tmp_path: Path) -> None:
    damaged = tmp_path / f"ml/llama/0/{capture_id(1)}/manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"{")
    assert invoke(["gc", str(tmp_path), "--keep", "1"]) == 1
    with s3_environment(endpoint):
        assert invoke(["gc", "s3://nowhere-at-all", "--keep", "1"]) == 75


def test_a_rule_that_says_nothing_is_none() -> None:
    with pytest.raises(UsageError):
        Rule()
