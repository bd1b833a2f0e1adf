"""Columns equal what `json.loads` says, for any trace, however it is written and wherever blocks begin."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from columns_oracle import NULL, Rows, expected_rows, live_rows, store, stored_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sameshot.trace.columns import build, census, write
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.verify import verify

RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

TEXT = st.text(st.sampled_from('ab}{][,":\\ /\t\né∑\U0001f600') | st.characters(exclude_categories=["Cs"]), max_size=6)
INTEGER = st.integers(-(2**70), 2**70).filter(lambda value: value != NULL)
NUMBER = INTEGER | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 9) | st.sampled_from([1.0, 1e300])
SCALAR = st.none() | st.booleans() | NUMBER | TEXT | st.sampled_from(["12", "-7", "0x0", "007", "1.5"])
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
DEEP = st.integers(1, 60).map(lambda depth: json.loads("[" * depth + "]" * depth))
KEYS = (
    *("External id", "external id", "correlation", "stream", "device", "bytes", "Bytes", "size", "graph id", "name"),
    *("Collective name", "dtype", "Process Group Name", "Process Group Ranks", "Process Group Description"),
    *("In msg nelems", "Out msg nelems", "Group size", "Seq", "Input Dims", "graph node id"),
)
USUAL = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 40) | TEXT, max_size=6)
ODD = st.dictionaries(st.sampled_from(KEYS) | TEXT, VALUE | DEEP, max_size=4)
TIME = (
    st.integers(0, 10**6)
    | st.floats(0, 1e12).map(lambda value: round(value, 3))
    | st.integers(1.6 * 10**15, 1.7 * 10**15).map(int)
    | st.floats(2**43, 2**51)
    | st.sampled_from(["12", "3.0005", "1e3", "soon", "", -5, -0.25, 0, 10**40, 1e300, 2**62, None, True])
)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXsftMBEiZ"), "ts": TIME},
    optional={
        "dur": TIME,
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "overhead", "Trace", "new", ""]) | SCALAR,
        "name": st.sampled_from(["aten::mm", "hipMemcpy", "thread_name", "Record Window End"]) | TEXT | VALUE,
        "pid": st.integers(0, 2) | SCALAR,
        "tid": st.integers(0, 2) | SCALAR | st.just([1]),
        "id": st.integers(0, 3) | SCALAR,
        "args": USUAL | USUAL | ODD | SCALAR,
        "bp": VALUE,
    },
)
PLAIN = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5.5, "dur": 1.25}
SPACE = ("", "", "", " ", "\n  ", "\t", "\r\n")


def written(value: Any, luck: random.Random) -> str:
    """JSON in any of the ways that the grammar allows."""
    space = lambda: luck.choice(SPACE)  # noqa: E731
    if isinstance(value, dict):
        items = list(value.items())
        luck.shuffle(items)
        inner = ",".join(
            f"{space()}{written(key, luck)}{space()}:{space()}{written(item, luck)}{space()}" for key, item in items
        )
        return "{" + (inner or space()) + "}"
    if isinstance(value, list):
        return "[" + (",".join(space() + written(item, luck) + space() for item in value) or space()) + "]"
    if isinstance(value, str):
        return '"' + "".join(_character(character, luck) for character in value) + '"'
    if isinstance(value, float) and luck.random() < 0.3:
        return f"{value!r}e0" if "e" not in repr(value) else repr(value).upper()
    return json.dumps(value)


def _character(character: str, luck: random.Random) -> str:
    plain = json.dumps(character, ensure_ascii=False)[1:-1]
    return luck.choice(
        (plain, plain, json.dumps(character)[1:-1], "".join(f"\\u{unit:04x}" for unit in _units(character)))
    )


def _units(character: str) -> Iterator[int]:
    encoded = character.encode("utf-16-be")
    return (int.from_bytes(encoded[at : at + 2]) for at in range(0, len(encoded), 2))


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    events = [PLAIN, *draw(st.lists(EVENT, max_size=7))]
    luck = random.Random(draw(st.integers(0, 2**32)))
    luck.shuffle(events)
    document: Any = events if luck.random() < 0.3 else {"schemaVersion": 1, "traceEvents": events, "traceName": "t"}
    return written(document, luck).encode()


@contextmanager
def small_parts(rows: int, words: int, kinds: int) -> Iterator[None]:
    """Everything that is cut by size is cut after a few rows."""
    with ExitStack() as stack:
        for module, name, value in (
            (build, "_ROWS", rows),
            (build, "_WORDS", words),
            (write, "GROUP_ROWS", 2 * rows),
            (write, "_PENDING_ROWS", 3 * rows),
            (write, "_KINDS", kinds),
            (census, "_ALL", 1),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def events_of(data: bytes) -> list[Any]:
    document = json.loads(data)
    return document if isinstance(document, list) else document["traceEvents"]


@RELAXED
@given(documents(), st.sampled_from([1, 2, 3, 7, 40, 1 << 20]), st.sampled_from([1, 3, 1 << 15]))
def test_columns_say_what_json_says(data: bytes, size: int, rows: int) -> None:
    expected = expected_rows(events_of(data))
    plain = verify(io.BytesIO(data))
    with small_parts(rows, 1 << 17 if rows > 1 else 12, 64 if rows > 1 else 2), tempfile.TemporaryDirectory() as folder:
        found, verified, builder = live_rows(data, block_size=size)
        assert found == expected
        assert verified == plain
        assert builder.events == plain.elements
        path = Path(folder) / "columns.parquet"
        assert store(data, path, block_size=size) == plain
        again, footer = stored_rows(path)
    assert again == expected
    assert (footer.events, footer.raw_sha256, footer.window_start_ns) == (
        plain.elements,
        plain.raw_sha256,
        plain.window_start_ns,
    )


def test_a_block_may_begin_at_every_byte() -> None:
    luck = random.Random(5)
    odd = {"ph": "M", "name": "thread_name", "pid": "a,{", "tid": 1.5, "args": {"name": '},{"x":', "deep": [[[{}]]]}}
    kernel = {"correlation": 7, "stream": 0, "Collective name": "allreduce", "dtype": "Größe", "In msg nelems": 4}
    events = [PLAIN, odd, PLAIN | {"cat": "kernel", "ts": "7.25", "args": kernel}, {"ph": "s", "id": 3, "ts": 6}]
    data = written({"traceEvents": events}, luck).encode()
    expected = expected_rows(events)
    for size in range(1, len(data) + 1):
        assert live_rows(data, block_size=size)[0] == expected, size


@RELAXED
@given(st.lists(EVENT, min_size=1, max_size=8), st.integers(1, 5))
def test_the_window_from_columns_is_the_window_from_events(events: list[Any], rows: int) -> None:
    """Also what was odd about it: times that no float carries to the ns, negative and endless ones."""
    data = json.dumps([*events, PLAIN]).encode()
    with mock.patch.object(build, "_ROWS", rows):
        assert verify(io.BytesIO(data), sink=ColumnBuilder(Rows()), block_size=64) == verify(io.BytesIO(data))


@pytest.mark.full
@pytest.mark.timeout(1200)
@settings(RELAXED, max_examples=3000)
@given(documents(), st.integers(1, 90), st.integers(1, 6))
def test_columns_say_what_json_says_for_many_traces(data: bytes, size: int, rows: int) -> None:
    with small_parts(rows, 12, 3):
        found, verified, _ = live_rows(data, block_size=size)
    assert found == expected_rows(events_of(data))
    assert verified == verify(io.BytesIO(data))
