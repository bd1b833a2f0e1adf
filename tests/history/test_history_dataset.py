"""The rows of many writers as one dataset: whole, idempotent, readable by anybody, and honest about what is damaged."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from history_lab import row
from history_lab import rows as any_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.errors import StorageError, UsageError
from sameshot.model import Outcome
from sameshot.steps import places
from sameshot.steps.history import HistoryRow, SeriesName, append, dataset, previous, read, rows, series_of
from sameshot.steps.history.dataset import COLUMNS, decode, encode
from support.s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_environment

# -- one row


@given(any_rows)
def test_a_row_comes_back_as_it_was(one: HistoryRow) -> None:
    assert decode(encode(one)) == one


@settings(max_examples=25, deadline=None)
@given(any_rows, any_rows)
def test_rows_of_any_names_are_found_again_and_never_mixed_up(one: HistoryRow, other: HistoryRow) -> None:
    with tempfile.TemporaryDirectory() as folder:
        append(folder, one)
        append(folder, other)
        inside = Path(folder, "history").resolve()
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        assert all(path.resolve().is_relative_to(inside) and len(path.relative_to(inside).parts) == 3 for path in files)
        same_place = (one.namespace, one.series, one.capture_id) == (other.namespace, other.series, other.capture_id)
        assert len(files) == (1 if same_place else 2)
        found = read(folder)
        assert found.warnings == ()
        assert set(map(msgspec.json.encode, found.rows)) == set(
            map(msgspec.json.encode, (other,) if same_place else (one, other))
        )
        mine = rows(folder, other.namespace, other.series)
        assert other in mine
        assert {(each.namespace, each.series) for each in mine} == {(other.namespace, other.series)}


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=400), unique=True, max_size=6))
def test_each_text_has_a_segment_of_its_own_that_every_store_takes(texts: list[str]) -> None:
    segments = [places.segment(text) for text in texts]
    assert len(set(segments)) == len(texts)
    for segment in segments:
        assert 0 < len(segment) <= 200
        assert segment.isascii()
        assert segment[0] not in "._", "readers of datasets skip those"
        assert not set(segment) & set("/\\*?[]={} \"'")


# -- many


def test_rows_come_in_the_order_of_time_whatever_their_names(tmp_path: Path) -> None:
    for number, name in ((2, "a"), (0, "z"), (1, "m")):
        append(str(tmp_path), row(number, capture_id=name))
    assert [each.capture_id for each in rows(str(tmp_path), "team", "bert")] == ["z", "m", "a"]


def test_an_analysis_done_again_replaces_its_own_row_and_no_other(tmp_path: Path) -> None:
    uri = str(tmp_path)
    first = append(uri, row(0, 100))
    append(uri, row(1, 100))
    assert append(uri, row(0, 130)) == first
    assert rows(uri, "team", "bert") == [row(0, 130), row(1, 100)]


def test_the_same_row_gives_the_same_bytes() -> None:
    assert encode(row(1)) == encode(row(1))
    assert encode(row(1)) != encode(row(2))
    assert len(encode(row(1))) < 16_384, "small, as there is one a capture"


def test_an_empty_place_has_no_rows_and_no_series(tmp_path: Path) -> None:
    assert rows(str(tmp_path / "nothing"), "team", "bert") == []
    assert series_of(str(tmp_path)) == []


def test_series_are_told_apart_by_namespace_and_name(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    for namespace, series in (("a", "x"), ("a", "x/y"), ("b", "x"), ("a", "..")):
        append(uri, row(0, namespace=namespace, series=series))
    assert series_of(uri) == [SeriesName(*pair) for pair in (("a", ".."), ("a", "x"), ("a", "x/y"), ("b", "x"))]
    assert [each.series for each in read(uri, "a").rows] == ["x", "x/y", ".."] or len(read(uri, "a").rows) == 3
    assert {each.namespace for each in read(uri, None, "x").rows} == {"a", "b"}
    assert {(each.namespace, each.series) for each in read(uri, "a", "x").rows} == {("a", "x")}


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        append("ftp://somewhere", row())
    with pytest.raises(UsageError):
        rows("", "team", "bert")


def _append_some(uri: str, numbers: list[int]) -> None:
    for number in numbers:
        append(uri, row(number, 100 + number))


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Four of them, with captures of their own and one that all of them analyse."""
    shared = 99
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_append_some, str(tmp_path), [*range(part, 40, 4), shared]) for part in range(4)]:
            done.result(timeout=100)
    found = read(str(tmp_path), "team", "bert")
    assert found.warnings == ()
    assert list(found.rows) == [row(number, 100 + number) for number in (*range(40), shared)]


# -- what others read


def test_pyarrow_reads_the_folder_as_one_dataset_with_every_column(tmp_path: Path) -> None:
    written = [
        row(0),
        row(1, None, image="img", outcome=Outcome.PARTIAL),
        row(2, series="_a/b=c"),
        row(3, namespace=".n"),
    ]
    for each in written:
        append(str(tmp_path), each)
    table = pyarrow.dataset.dataset(tmp_path / "history").to_table().sort_by("capture_id")
    assert table.column_names == list(COLUMNS)
    assert table["series"].to_pylist() == ["bert", "bert", "_a/b=c", "bert"]
    assert table["step_time_ns"].to_pylist() == [100_000_000, None, 100_000_000, 100_000_000]
    assert table["image"].to_pylist() == [None, "img", None, None]
    assert table.schema.field("captured_at").type == pa.timestamp("us", tz="UTC")
    assert table["captured_at"][1].as_py().isoformat() == "2026-01-01T01:00:00+00:00"
    assert all(field.nullable for field in table.schema)


def test_columns_have_fixed_types_also_where_nothing_is_known() -> None:
    known, unknown = (pq.read_schema(io.BytesIO(encode(each))) for each in (row(0, image="i"), row(1, None)))
    assert known == unknown


def test_every_number_and_fact_of_a_row_is_a_column() -> None:
    flat: dict[str, Any] = msgspec.to_builtins(row())
    assert set(COLUMNS) == (set(flat) | set(flat["headline"])) - {"headline"}


def _with_columns(one: HistoryRow, *, less: tuple[str, ...] = (), **more: Any) -> bytes:
    """As another version would have written it."""
    table = pq.read_table(io.BytesIO(encode(one))).drop_columns(list(less))
    for name, value in more.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array([value]))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def test_unknown_columns_of_newer_versions_are_ignored_and_missing_ones_of_older_are_unknown() -> None:
    newer = _with_columns(row(1), energy_j=5.0, notes="x")
    assert decode(newer) == row(1)
    newest = row(1, image="img", activities="cpu", with_stack=True, with_flops=False, duration_ms=2000)
    assert decode(encode(newest)) == newest
    older = _with_columns(newest, less=("image", "waiting_ns", "steps", "lateness", *list(COLUMNS)[-6:]))
    found = decode(older)
    assert (found.activities, found.with_stack, found.with_flops, found.duration_ms) == (None, None, None, None)
    assert (found.image, found.headline.waiting_ns, found.headline.lateness) == (None, None, "unknown")
    assert found.headline.step_time_ns == 100_000_000


def test_rows_are_decoded_beside_the_event_loop_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet takes a ms of CPU for each row: one after the other it would hold up all requests of a long history."""
    for number in range(4):
        append(str(tmp_path), row(number))
    within_a_loop = []
    real = dataset.decode

    def watched(data: bytes) -> HistoryRow:
        try:
            asyncio.get_running_loop()
            within_a_loop.append(True)
        except RuntimeError:
            within_a_loop.append(False)
        return real(data)

    monkeypatch.setattr(dataset, "decode", watched)
    assert len(rows(str(tmp_path), "team", "bert")) == 4
    assert within_a_loop == [False] * 4


# -- what is none


def place(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / places.history_folder("team", "bert") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("cut.parquet", encode(row(5))[:-100], "can't be read as Parquet"),
        ("empty.parquet", b"", "can't be read as Parquet"),
        ("notes.txt", b"hello", "can't be read as Parquet"),
        ("c005.parquet", _with_columns(row(5), schema="sameshot.dev/history/v9"), "schema sameshot.dev/history/v9"),
        ("c005.parquet", _with_columns(row(5), less=("schema",)), "no row of a history"),
        ("c005.parquet", _with_columns(row(5), less=("captured_at",)), "when it was captured"),
        ("c005.parquet", _with_columns(row(5), less=("manifest_uri",)), "missing required field `manifest_uri`"),
        ("c005.parquet", _with_columns(row(5), outcome="MAYBE"), "MAYBE"),
        ("c005.parquet", _with_columns(row(5), step_time_ns="fast"), "step_time_ns"),
        ("c005.parquet", _with_columns(row(5), captured_at="noon"), "no sound row"),
        ("copy.parquet", encode(row(0)), "the row of capture c000 of team/bert, misplaced"),
        ("c005.parquet", encode(row(5, series="other")), "of team/other, misplaced"),
    ],
)  # fmt: skip
def test_what_is_no_row_is_named_and_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, data: bytes, why: str
) -> None:
    for number in (0, 1):
        append(str(tmp_path), row(number))
    path = place(tmp_path, name, data)
    found = read(str(tmp_path), "team", "bert")
    assert list(found.rows) == [row(0), row(1)]
    (warning,) = found.warnings
    assert path.as_uri() in warning
    assert why in warning
    with caplog.at_level(logging.WARNING, "sameshot.history"):
        assert rows(str(tmp_path), "team", "bert") == [row(0), row(1)]
    assert warning in caplog.text


def test_two_rows_in_one_object_are_no_row() -> None:
    table = pa.concat_tables([pq.read_table(io.BytesIO(encode(row(number)))) for number in (0, 1)])
    out = io.BytesIO()
    pq.write_table(table, out)
    with pytest.raises(ValueError, match="no row"):
        decode(out.getvalue())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flipped_bytes_give_the_row_or_a_refusal_never_other_numbers(data: st.DataObject) -> None:
    """Values are under checksums; only what describes them (the footer) is not."""
    whole = encode(row(3))
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    at = data.draw(st.integers(0, len(whole) - footer - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(damaged))
    except ValueError:
        return
    assert found == row(3)


# -- the row before


def test_the_previous_capture_is_the_latest_earlier_success() -> None:
    among = [row(0), row(1), row(2, outcome=Outcome.PARTIAL), row(3, outcome=Outcome.FAILED), row(5)]
    assert previous(among, row(4)) == row(1)
    assert previous(among, row(4), accept_partial=True) == row(2, outcome=Outcome.PARTIAL)
    assert previous(among, row(0)) is None
    assert previous(reversed(among), row(4)) == row(1), "their order does not matter"
    assert previous([], row(4)) is None


def test_a_capture_is_not_its_own_predecessor() -> None:
    again = row(1, captured_at="2026-01-01T00:30:00Z")
    assert previous([row(0), again], row(1)) == row(0)


def test_only_the_own_series_counts() -> None:
    among = [row(0), row(1, series="other"), row(2, namespace="other")]
    assert previous(among, row(3)) == row(0)


def test_captures_of_the_same_moment_have_an_order() -> None:
    moment = row(1).captured_at
    among = [row(1, capture_id=name, captured_at=moment) for name in ("b", "d", "a")]
    assert [getattr(previous(among, (moment, name)), "capture_id", None) for name in ("a", "b", "c", "d")] == [
        None, "a", "b", "b",
    ]  # fmt: skip


def test_a_moment_may_be_written_in_any_form() -> None:
    assert previous([row(0), row(1)], ("2026-01-01T02:30:00+01:00", "x")) == row(1)


# -- S3


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        make_bucket(url, "results")
        yield url


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(endpoint, checks_digests=True) as proxy, s3_environment(proxy.url):
        yield proxy


ODD = "a/b%2F ü=.."


def test_s3_holds_what_a_folder_holds(proxy: FaultyProxy) -> None:
    uri = "s3://results/one"
    for number in range(3):
        written = append(uri, row(number, series=ODD))
    append(uri, row(7))
    append(uri, row(1, 130, series=ODD))
    assert written == f"s3://results/one/{places.history_key('team', ODD, 'c002')}"
    assert rows(uri, "team", ODD) == [row(0, series=ODD), row(1, 130, series=ODD), row(2, series=ODD)]
    assert series_of(uri) == [SeriesName("team", ODD), SeriesName("team", "bert")]
    assert rows("s3://results/elsewhere", "team", ODD) == []


def test_rows_are_read_side_by_side_and_not_all_at_once(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "s3://results/many"
    for number in range(12):
        append(uri, row(number))
    running, most = 0, 0
    whole = dataset._row_at
    original = dataset.Storage.get

    async def counted(self: Any, key: str) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await original(self, key)
        finally:
            running -= 1

    monkeypatch.setattr(dataset.Storage, "get", counted)
    monkeypatch.setattr(dataset, "_READS", 5)
    assert len(rows(uri, "team", "bert")) == 12
    assert most == 5
    assert whole is dataset._row_at


def test_a_passing_fault_costs_no_row_and_a_lasting_one_is_an_error_not_a_shorter_history(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "s3://results/faults"
    for number in range(3):
        append(uri, row(number))
    proxy.add(Fault.UNAVAILABLE, times=2, method="GET", query="c001")
    assert len(rows(uri, "team", "bert")) == 3
    proxy.add(Fault.DENIED, times=99, method="GET", query="c001")
    with pytest.raises(StorageError, match="c001"):
        rows(uri, "team", "bert")


# -- cost


def test_importing_the_history_brings_no_numpy_and_no_pyarrow() -> None:
    code = (
        "import sys, json, sameshot.steps.history; "
        "print(json.dumps([m for m in ('numpy', 'pyarrow', 'grpc', 'obstore', 'jinja2') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


def test_the_documented_columns_are_those_of_the_files_with_their_types() -> None:
    text = (Path(__file__).parents[2] / "docs" / "history.md").read_text()
    table = text.partition("| column | type | meaning |")[2].partition("\n\n")[0]
    documented: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        names, kinds, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        columns = [name.strip(" `") for name in names.split(",")]
        types = ["timestamp[us, tz=UTC]"] if kinds.startswith("timestamp") else kinds.split(", ")
        documented |= zip(columns, types * (len(columns) if len(types) == 1 else 1), strict=True)
    assert list(documented.items()) == [(field.name, str(field.type)) for field in dataset.arrow_schema()]
