"""The streaming verdict equals that of a slow whole-document judge, for any bytes and wherever blocks begin."""

from __future__ import annotations

import io
import json
from typing import Any
from unittest import mock

import pytest
from columns_oracle import Rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import is_trace

from sameshot.errors import TraceError
from sameshot.trace import bounds, outline, scan
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.verify import VerifiedTrace, verify

TEXT = st.text(st.sampled_from('ab}{][,":\\ \t\n\x01é∑\U0001f600e1') | st.characters(), max_size=8)
NUMBER = (
    st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**308, -0.0])
)
SCALAR = st.none() | st.booleans() | NUMBER | TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
TIME = st.integers(0, 10**12) | st.floats(0, 1e12) | st.none() | st.booleans() | st.just(10**40)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "i", "M", "s", "B", "Z", None, 5])},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "Trace", "overhead", "", None, 3]),
        "name": TEXT | st.sampled_from(["Iteration Start: x", "Record Window End", "},{", '"},{"']) | st.just(7),
        "ts": TIME,
        "dur": TIME,
        "pid": SCALAR,
        "args": st.none() | TEXT | st.dictionaries(TEXT | st.sampled_from(["name", "stream"]), VALUE, max_size=3),
        "traceEvents": VALUE,
    },
)
KEY = TEXT.filter(lambda key: key != "traceEvents")
MEMBERS = st.dictionaries(
    KEY | st.sampled_from(["distributedInfo", "WARNING", "PT_PROFILER_JOB_NAME"]), VALUE, max_size=3
)
LAYOUT = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (1, None), (4, (" ,", " : "))])


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    events = draw(st.lists(EVENT, max_size=6))
    document: Any = events
    if draw(st.booleans()):
        document = draw(MEMBERS) | {"traceEvents": events} | draw(MEMBERS)
    indent, separators = draw(LAYOUT)
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "surrogatepass")


PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b"\"\\{}[],: \n\x00\x0c\xff\xc3\xa9-.05'"),
        *(b"", b"},{", b"]}", b"{}", b"//", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u00"),
        *(b"1e400", b"NaN", b"1" * 320, b"E+999", b"null", b"tru", b'"traceEvents":[]'),
        *(b"[" * 66, b"[" * 66 + b"]" * 66, b'{"a":' * 63 + b"1" + b"}" * 63),
    ]
)
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 4), PIECES)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = draw(traces())
    for where, cut, piece in draw(st.lists(EDIT, min_size=1, max_size=3)):
        at = int(where * len(data))
        data = data[:at] + piece + data[at + cut :]
    return data


def verdict(data: bytes, size: int, some: int, *, sink: bool) -> VerifiedTrace | tuple[Any, ...]:
    collected = Rows() if sink else None
    try:
        slices = 1 << 18 if some == 1 << 20 else 64
        with (
            mock.patch.object(scan, "_SOME", some),
            mock.patch.object(outline, "_SLICE", slices),
            mock.patch.object(bounds, "_SLICE", slices),
            mock.patch.object(outline, "_MANY", size),
        ):
            found = verify(
                io.BytesIO(data), block_size=size, sink=None if collected is None else ColumnBuilder(collected)
            )
    except TraceError as error:
        return error.kind, error.byte_offset, error.event_index
    assert collected is None or len(collected.in_order) == found.elements
    return found


def agree(data: bytes) -> None:
    whole = verdict(data, 1 << 20, 1 << 20, sink=False)
    assert isinstance(whole, VerifiedTrace) == is_trace(data), whole
    for size, some, sink in (
        (1, 1, False),
        (2, 1 << 20, False),
        (3, 8, True),
        (7, 20, False),
        (40, 10, False),
        (64, 1, True),
    ):
        assert verdict(data, size, some, sink=sink) == whole, (size, some)


RELAXED = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


@RELAXED
@given(traces())
def test_any_trace_gets_the_verdict_of_the_slow_judge(data: bytes) -> None:
    agree(data)


@RELAXED
@given(damaged())
def test_any_damaged_trace_gets_the_verdict_of_the_slow_judge(data: bytes) -> None:
    agree(data)


@pytest.mark.full
@pytest.mark.timeout(1800)
@settings(RELAXED, max_examples=6000)
@given(st.one_of(traces(), damaged(), damaged()))
def test_many_traces_get_the_verdict_of_the_slow_judge(data: bytes) -> None:
    agree(data)


@RELAXED
@given(
    st.lists(st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b'"a":', b"1", b"\n"]), max_size=40).map(
        b"".join
    )
)
def test_any_soup_of_brackets_gets_the_verdict_of_the_slow_judge(soup: bytes) -> None:
    agree(b'[{"ph":"X","ts":1,"args":' + soup)
    agree(b'[{"ph":"X","ts":1},' + soup + b"]")
