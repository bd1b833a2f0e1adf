"""The rows of all series as a Parquet dataset below a results_uri: one small object per capture.

    <results_uri>/history/<namespace>/<series>/<capture id>.parquet

So writers never meet: whoever analyses a capture writes that capture's object and no other, whole or not at all, and
analysing it again replaces its row. No index has to be kept in step, and pyarrow, polars or DuckDB read the folder as
it is. A small object per capture is cheap at the rate at which jobs are captured (a year, every hour: 9,000 rows).
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import io
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sameshot.errors import NotFound, UsageError
from sameshot.model import Outcome
from sameshot.steps import places
from sameshot.steps.history.row import SCHEMA, HistoryRow, canonical
from sameshot.steps.results import Headline
from sameshot.steps.store import open_results, wait
from sameshot.storage import Storage

if TYPE_CHECKING:  # pyarrow and S3 clients cost whoever reads or writes, and nobody who only imports this
    import pyarrow as pa

_READS = 32  # at once: a listing of hundreds of rows takes a second on S3, and no store minds
_FOLDER = "history"
_LOG = logging.getLogger("sameshot.history")

_TEXT, _INT, _SHARE, _TIME, _FLAG = "string", "int64", "double", "timestamp", "bool"
COLUMNS: dict[str, str] = {
    "schema": _TEXT,
    "namespace": _TEXT,
    "series": _TEXT,
    "job": _TEXT,
    "job_uid": _TEXT,
    "attempt": _INT,
    "capture_id": _TEXT,
    "captured_at": _TIME,
    "manifest_uri": _TEXT,
    "manifest_sha256": _TEXT,
    "outcome": _TEXT,
    "expected_ranks": _INT,
    "analysed_ranks": _INT,
    "world_size": _INT,
    "image": _TEXT,
    "commit": _TEXT,
    "report_uri": _TEXT,
    "generator": _TEXT,
    "step_time_ns": _INT,
    "step_spread_ns": _INT,
    "steps": _INT,
    "gpu_busy_share": _SHARE,
    "communication_exposed_share": _SHARE,
    "data_wait_share": _SHARE,
    "host_bound_share": _SHARE,
    "waiting_ns": _INT,
    "late": _TEXT,
    "lateness": _TEXT,
    "activities": _TEXT,
    "with_stack": _FLAG,
    "record_shapes": _FLAG,
    "profile_memory": _FLAG,
    "with_flops": _FLAG,
    "duration_ms": _INT,
}
"""Every column of every object, in order. Columns are only ever added at the end; what was unknown to an older version
is null when it is read beside newer objects."""

_NUMBERS = frozenset(Headline.__struct_fields__)


class History(msgspec.Struct, frozen=True):
    """What was read: rows in the order of time, and in words what lay there and is no row."""

    rows: tuple[HistoryRow, ...]
    warnings: tuple[str, ...] = ()


class SeriesName(msgspec.Struct, frozen=True, order=True):
    namespace: str
    series: str


def append(results_uri: str, row: HistoryRow) -> str:
    """Add the row of a capture, or replace it where the capture was analysed before; returns the object's address.

    Raises UsageError for an address that is none, and StorageError (Denied where the store says so).
    """
    return wait(_append(results_uri, row))


def rows(results_uri: str, namespace: str, series: str) -> list[HistoryRow]:
    """The rows of one series in the order of time; none where there is no such series.

    What is no sound row is left out and named in a warning of the log (`read` returns it). Raises as `append`.
    """
    found = read(results_uri, namespace, series)
    for warning in found.warnings:
        _LOG.warning("%s", warning)
    return list(found.rows)


def read(results_uri: str, namespace: str | None = None, series: str | None = None) -> History:
    """The rows of one series, of all series of a namespace or of that name, or all of them. Raises as `append`."""
    return wait(_read(results_uri, namespace, series))


def series_of(results_uri: str) -> list[SeriesName]:
    """The series that have at least one sound row, sorted. Reads all rows: names of folders are no names of series."""
    return sorted({SeriesName(row.namespace, row.series) for row in read(results_uri).rows})


def previous(
    among: Iterable[HistoryRow], of: HistoryRow | tuple[str, str], *, accept_partial: bool = False
) -> HistoryRow | None:
    """The latest earlier capture that succeeded; None where there is none. It may have been recorded otherwise."""
    return next(iter(earlier(among, of, accept_partial=accept_partial)), None)


def earlier(
    among: Iterable[HistoryRow], of: HistoryRow | tuple[str, str], *, accept_partial: bool = False
) -> list[HistoryRow]:
    """The earlier captures that succeeded and were analysed as a whole, the latest first; with `accept_partial` also
    those that are partial, or of which not all ranks could be analysed.

    Earlier are rows that were captured before `of` (of the same moment: those with a smaller id). `of` is a row, and
    then only its own series counts, or `(captured_at, capture_id)` of a capture in the series of `among`. A capture is
    never its own predecessor.
    """
    usable = {Outcome.SUCCEEDED, Outcome.PARTIAL} if accept_partial else {Outcome.SUCCEEDED}
    key = of.key if isinstance(of, HistoryRow) else (canonical(of[0]), of[1])
    found = [row for row in among if row.key < key and row.outcome in usable and row.capture_id != key[1]]
    if not accept_partial:
        found = [row for row in found if row.analysed_ranks >= row.expected_ranks]
    if isinstance(of, HistoryRow):
        found = [row for row in found if (row.namespace, row.series) == (of.namespace, of.series)]
    return sorted(found, key=lambda row: row.key, reverse=True)


async def _append(results_uri: str, row: HistoryRow) -> str:
    storage = open_results(results_uri)
    key = places.history_key(row.namespace, row.series, row.capture_id)
    data = encode(row)
    with tempfile.TemporaryDirectory(prefix="sameshot-") as folder:
        path = Path(folder, "row.parquet")
        path.write_bytes(data)
        await storage.put_file(key, path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return storage.uri(key)


async def _read(results_uri: str, namespace: str | None = None, series: str | None = None) -> History:
    storage = open_results(results_uri)
    wanted = [_FOLDER, *(None if name is None else places.segment(name) for name in (namespace, series))]
    folder = "/".join(name for name in (wanted[:2] if series is None or namespace is None else wanted) if name)
    keys = [key for key in await storage.list(folder) if _lies_in(key, wanted)]
    limit = asyncio.Semaphore(_READS)

    async def one(key: str) -> HistoryRow | str | None:
        async with limit:
            try:
                data = await storage.get(key) if key.endswith(".parquet") else b""
            except NotFound:
                return None  # somebody has removed it since it was listed
            return await asyncio.to_thread(_row_at, storage, key, data)  # a ms each, and not in the way of the others

    found = await asyncio.gather(*(one(key) for key in keys))
    return History(
        tuple(sorted((each for each in found if isinstance(each, HistoryRow)), key=lambda row: row.key)),
        tuple(each for each in found if isinstance(each, str)),
    )


def encode(row: HistoryRow) -> bytes:
    """The row as one Parquet object: the same bytes for the same row and version of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = msgspec.to_builtins(row)
    flat |= flat.pop("headline")
    flat["captured_at"] = datetime.datetime.fromisoformat(row.captured_at)
    table = pa.Table.from_pylist([{name: flat[name] for name in COLUMNS}], schema=arrow_schema())
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return out.getvalue()


def decode(data: bytes) -> HistoryRow:
    """The inverse of `encode`, for objects of older and newer versions too: unknown columns are ignored, missing ones
    are unknown. Raises ValueError that says what is wrong with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"it can't be read as Parquet ({said})") from None
    names = table.column_names
    if table.num_rows != 1 or "schema" not in names or len(set(names)) != len(names):
        raise ValueError("it is no row of a history")
    known: dict[str, Any] = {
        name: value for name in COLUMNS if name in names and (value := table.column(name)[0].as_py()) is not None
    }
    if known.get("schema") != SCHEMA:
        raise ValueError(f"it is of schema {known.get('schema')}, this version reads {SCHEMA}")
    numbers = {name: known.pop(name) for name in list(known) if name in _NUMBERS}
    try:
        known["captured_at"] = known["captured_at"].isoformat()
        return msgspec.convert({**known, "headline": numbers}, HistoryRow)
    except KeyError:
        raise ValueError("it does not say when it was captured") from None
    except (msgspec.ValidationError, UsageError, AttributeError) as error:
        raise ValueError(f"it is no sound row: {error}") from None


def arrow_schema() -> pa.Schema:
    """What every object has: all columns nullable, `captured_at` in UTC to the microsecond."""
    import pyarrow as pa

    kinds = {
        _TEXT: pa.string(),
        _INT: pa.int64(),
        _SHARE: pa.float64(),
        _FLAG: pa.bool_(),
        _TIME: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _lies_in(key: str, wanted: list[str | None]) -> bool:
    """None stands for any folder; what lies higher up than a row can lie is looked at in any case."""
    return all(name in (None, segment) for name, segment in zip(wanted, key.split("/")[:-1], strict=False))


def _row_at(storage: Storage, key: str, data: bytes) -> HistoryRow | str:
    """The row, or why there is none. One that lies in another place than its own is a copy, and would count twice."""
    try:
        row = decode(data)
        if key != places.history_key(row.namespace, row.series, row.capture_id):
            raise ValueError(f"it is the row of capture {row.capture_id} of {row.namespace}/{row.series}, misplaced")
    except ValueError as error:
        return f"{storage.uri(key)} was left out of the history: {error}."
    return row
