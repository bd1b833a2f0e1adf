"""Columns of real traces and of each oddity, in memory and in Parquet, and the frame that analysis makes of them."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columns_oracle import Rows, expected_rows, live_rows, store, stored_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from make_trace import make_trace

from sameshot.analysis.frame import FrameBuilder, Messages
from sameshot.analysis.frame import Rows as Table
from sameshot.analysis.names import Cat
from sameshot.errors import ColumnsError, TraceError
from sameshot.trace.columns import build, schema, write
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import MISSING, Chunk, Dictionaries, event_order
from sameshot.trace.columns.read import read_columns, read_footer
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.verify import verify

SPAN = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5}


def trace(*events: dict[str, Any]) -> bytes:
    return json.dumps({"traceEvents": events}).encode()


def frame_of(data: bytes) -> tuple[Any, FrameBuilder]:
    builder = FrameBuilder()
    columns = ColumnBuilder(builder)
    verify(io.BytesIO(data), sink=columns)
    builder.oddities.update(columns.oddities)
    return builder.frame(), builder


def stored_frame(path: Path) -> Any:
    builder = FrameBuilder()
    footer = read_columns(path, builder, builder.wanted)
    return builder.frame(footer)


def contents(frame: Any) -> dict[str, Any]:
    """All of a frame, in a form that can be compared."""
    found: dict[str, Any] = {
        name: getattr(frame, name)
        for name in ("names", "lanes", "thread_names", "events", "by_category", "by_phase", "unknown", "oddities")
    }
    for cat in Cat:
        for column in Table.__slots__:
            values = getattr(frame.rows(cat), column)
            found[f"{cat.name}.{column}"] = (str(values.dtype), values.tolist())
    return found | {f"messages.{name}": list(getattr(frame.messages, name)) for name in Messages.__slots__}


def real_traces(folder: Path) -> list[Path]:
    traces = folder / "traces"
    found = [path for name in ("dlrm8_v100", "single", "resnet50_dataloader") for path in (traces / name).iterdir()]
    found += [path for path in (traces / "oddities").glob("*/*") if "05b" not in path.parent.name]
    return [*found, *(traces / "broken" / name for name in ("ok.json", "list_form.json", "cpu_only.json"))]


def decoded(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


@pytest.mark.full
@pytest.mark.timeout(600)
def test_real_traces_and_oddities_hold_what_json_says_and_give_the_same_frame_again(
    shared_data: Path, tmp_path: Path
) -> None:
    paths = real_traces(shared_data)
    assert len(paths) > 40
    for path in paths:
        data = decoded(path)
        document = json.loads(data)
        expected = expected_rows(document if isinstance(document, list) else document["traceEvents"])
        rows, found, _ = live_rows(data)
        assert rows == expected, path
        assert found == verify(io.BytesIO(data)), path
        stored = tmp_path / "columns.parquet"
        store(data, stored)
        assert stored_rows(stored)[0] == expected, path
        assert contents(stored_frame(stored)) == contents(frame_of(data)[0]), path


# -- oddities, the right answer worked out by hand -------------------------------------------------------------------


def oddity(shared_data: Path, name: str) -> list[dict[str, Any]]:
    (folder,) = (shared_data / "traces/oddities").glob(f"{name}_*")
    return live_rows((folder / "rank0.json").read_bytes())[0]


def test_a_missing_duration_is_null_and_not_zero(shared_data: Path) -> None:
    clean, odd = oddity(shared_data, "00"), oddity(shared_data, "11")
    assert clean[2]["dur"] == 40_000
    assert odd[2] == clean[2] | {"dur": None}
    assert live_rows(trace(SPAN | {"dur": 0}, SPAN | {"dur": None}))[0][0]["dur"] == 0


def test_a_negative_duration_is_kept_as_written(shared_data: Path) -> None:
    assert oddity(shared_data, "12")[2] == oddity(shared_data, "00")[2] | {"dur": -40_000}


def test_times_written_as_text_are_the_same_times(shared_data: Path) -> None:
    assert oddity(shared_data, "13") == oddity(shared_data, "00")


def test_no_stream_is_null_and_stream_zero_is_zero(shared_data: Path) -> None:
    assert next(row["stream"] for row in oddity(shared_data, "16b") if row["category"] == "kernel") is None
    streams = {row["stream"] for row in oddity(shared_data, "17") if row["name"] == "gemm_kernel"}
    assert streams == {0}
    assert {row["stream"] for row in oddity(shared_data, "00") if row["name"] == "gemm_kernel"} == {7}


def test_several_events_of_one_correlation_are_all_kept(shared_data: Path) -> None:
    found = [row["name"] for row in oddity(shared_data, "30") if row["correlation"] == 1]
    assert sorted(found) == ["cudaEventRecord"] * 3 + ["cudaLaunchKernel", "gemm_kernel"]


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("1694128201545123", 1_694_128_201_545_123_000),
        ("5140131373156.354", 5_140_131_373_156_354),
        ("8796093022207.999", 8_796_093_022_207_999),
        ('"1694128201545123.4567"', 1_694_128_201_545_123_457),
        ("-0.0014", -1),
        ("0", 0),
        ("1e3", 1_000_000),
        ("4611686018427387", 4_611_686_018_427_387_000),
        ("4611686018427388", None),
        ("9223372036854775807", None),
        ("1e300", None),
        ("null", None),
        ('"soon"', None),
        ("true", None),
        ("[1]", None),
    ],
)
def test_a_time_is_exact_or_null(written: str, ns: int | None) -> None:
    for beside in ("7", "7.5", '"7"', "null"):
        data = trace(SPAN, SPAN | {"ts": "HERE"}, SPAN | {"ts": "BESIDE"}).replace(b'"HERE"', written.encode())
        rows = live_rows(data.replace(b'"BESIDE"', beside.encode()))[0]
        assert rows[1]["ts"] == ns
        assert rows[2]["ts"] in (7_000, 7_500, None)


def test_how_times_are_written_is_counted(tmp_path: Path) -> None:
    data = trace(
        SPAN | {"ts": 1694128201431930.25},
        SPAN | {"ts": 1694128201431930},
        SPAN | {"ts": "12", "dur": "3.5"},
        SPAN | {"ts": 7.5, "dur": 1e13},
        SPAN | {"ts": None},
    )
    _, found, builder = live_rows(data)
    assert builder.oddities == {
        "timestamp written as text": 1,
        "duration written as text": 1,
        "fractional timestamp beyond 2^43 µs, no longer exact to 1 ns": 1,
        "fractional duration beyond 2^43 µs, no longer exact to 1 ns": 1,
    }
    store(data, tmp_path / "c")
    footer = read_footer(tmp_path / "c")
    assert (footer.clock, footer.clock.unit) == (schema.Clock(whole=1, fractions=2, texts=1), "ns")
    assert (footer.oddities, footer.warnings) == (builder.oddities, found.warnings)


def test_large_fractions_alone_are_flagged_too() -> None:
    data = trace(*(SPAN | {"ts": 1694128201431930.25 + at, "dur": 0.5} for at in range(3)))
    rows, found, builder = live_rows(data)
    assert [row["ts"] for row in rows] == [1_694_128_201_431_930_250 + at * 1000 for at in range(3)]
    assert builder.oddities == {"fractional timestamp beyond 2^43 µs, no longer exact to 1 ns": 3}
    assert found == verify(io.BytesIO(data))
    assert "too large" in found.warnings[0]


def test_what_the_profiler_adds_moves_no_border_of_the_window() -> None:
    added = [
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1, "s": "g"},
        {"ph": "I", "name": "Record Window End", "ts": 99, "cat": None},
        {"ph": "X", "name": "PyTorch Profiler (0)", "cat": "Trace", "ts": 2, "dur": 90},
        {"ph": "X", "name": "Buffer Flush", "cat": "overhead", "ts": 2, "dur": 90},
        {"ph": "s", "cat": "ac2g", "id": 1, "ts": 3},
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    data = trace(*added, SPAN)
    _, found, _ = live_rows(data)
    assert (found.window_start_ns, found.window_end_ns, found.events) == (10_000, 15_000, 1)
    assert live_rows(trace(added[0] | {"cat": "cpu_op"}, SPAN))[1].window_start_ns == 1_000


def test_old_spellings_are_read_where_their_meaning_is_certain() -> None:
    events = [
        SPAN | {"args": {"external id": 7, "Device": 25738}},
        SPAN | {"args": {"external id": 7, "External id": 8}},
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": -512, "Device Id": 0}},
        SPAN | {"name": "hipMalloc", "args": {"size": "4096", "cid": 9}},
        SPAN | {"name": "cudaMalloc", "args": {"size": "4096"}},
        SPAN | {"cat": "kernel", "args": {"graph id": 3, "graph node id": 4}},
    ]
    rows = live_rows(trace(*events))[0]
    assert [row["external_id"] for row in rows[:2]] == [7, 8]
    assert [row["bytes"] for row in rows] == [None, None, -512, 4096, None, None]
    assert [row["device"] for row in rows] == [None] * 6
    assert rows[5]["graph_id"] == 3
    assert [row["correlation"] for row in rows] == [None] * 6


# -- begin and end ---------------------------------------------------------------------------------------------------


def half(ph: str, ts: Any, name: str = "", tid: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts} | more


def test_begins_and_ends_become_spans_of_their_thread() -> None:
    events = [
        half("E", 90, cat=""),  # of outer, written first
        half("B", 10, "outer"),
        half("B", 20, "inner"),
        half("B", 15, "other thread", tid=2),
        half("E", 30),
        half("E", 35, tid=2),
        half("B", 40, "second inner"),
        half("E", 50),
        SPAN,
    ]
    frame, _ = frame_of(trace(*events))
    rows = frame.rows(Cat.OPERATOR)
    found = [
        (frame.names[name], start, end, frame.lanes[lane])
        for name, start, end, lane in zip(rows.name, rows.start, rows.end, rows.lane, strict=True)
    ]
    assert found == [
        ("outer", 10_000, 90_000, (1, 1)),
        ("aten::mm", 10_000, 15_000, (1, 1)),
        ("other thread", 15_000, 35_000, (1, 2)),
        ("inner", 20_000, 30_000, (1, 1)),
        ("second inner", 40_000, 50_000, (1, 1)),
    ]
    assert not frame.oddities


def test_halves_without_the_other_are_counted() -> None:
    frame, _ = frame_of(trace(half("E", 1), half("B", 2, "open"), half("B", 3, "a"), half("E", 4), SPAN))
    assert [frame.names[name] for name in frame.rows(Cat.OPERATOR).name] == ["a", "aten::mm"]
    assert frame.oddities == {"begin without an end, left out": 1, "end without a begin, left out": 1}


HALVES = st.lists(st.tuples(st.sampled_from("BE"), st.integers(0, 4), st.integers(1, 2)), max_size=14)


@settings(max_examples=200, deadline=None)
@given(HALVES)
def test_pairs_are_those_of_a_stack(halves: list[tuple[str, int, int]]) -> None:
    events = [half(ph, ts, str(at), tid) for at, (ph, ts, tid) in enumerate(halves)]
    expected, lonely = [], 0
    for thread in (1, 2):
        stack: list[dict[str, Any]] = []
        for event in sorted((e for e in events if e["tid"] == thread), key=lambda e: e["ts"]):
            if event["ph"] == "B":
                stack.append(event)
            elif stack:
                begin = stack.pop()
                expected.append((begin["name"], begin["ts"] * 1000, event["ts"] * 1000))
            else:
                lonely += 1
        lonely += len(stack)
    frame, _ = frame_of(trace(*events, SPAN))
    rows = frame.rows(Cat.OPERATOR)
    found = [
        (frame.names[name], start, end)
        for name, start, end in zip(rows.name, rows.start.tolist(), rows.end.tolist(), strict=True)
    ]
    assert sorted(found) == sorted([*expected, ("aten::mm", 10_000, 15_000)])
    assert sum(frame.oddities.values()) == lonely


# -- frames ----------------------------------------------------------------------------------------------------------

ANY = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXMBEsi"),
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation", "ac2g", "odd"]),
        "name": st.sampled_from(["a", "b", "c", "thread_name"]),
        "ts": st.integers(0, 5) | st.just("soon"),
        "pid": st.sampled_from([1, "1", 1.5, None]),
        "tid": st.integers(1, 3),
    },
    optional={
        "dur": st.integers(-1, 5),
        "id": st.integers(0, 2),
        "args": st.fixed_dictionaries(
            {},
            optional={
                **{key: st.integers(0, 2) for key in ("External id", "correlation", "stream", "device", "bytes")},
                "Collective name": st.sampled_from(["allreduce", "broadcast"]),
                "name": st.sampled_from(["main", "worker"]),
            },
        ),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY, max_size=25), st.integers(1, 6), st.sampled_from([2, 64]), st.sampled_from([6, 1 << 17]))
def test_a_frame_from_parquet_is_the_frame_from_the_trace(events: list[Any], rows: int, kinds: int, words: int) -> None:
    data = trace(*events, SPAN)
    expected = contents(frame_of(data)[0])
    target = pa.BufferOutputStream()
    with (
        mock.patch.object(build, "_ROWS", rows),
        mock.patch.object(build, "_WORDS", words),
        mock.patch.object(write, "GROUP_ROWS", rows),
        mock.patch.object(write, "_PENDING_ROWS", 2 * rows),
        mock.patch.object(write, "_KINDS", kinds),
        mock.patch.object(write, "_Hashed", return_value=InMemory(target)),
        mock.patch.object(ColumnWriter, "_check"),
    ):
        assert contents(frame_of(data)[0]) == expected
        store_in_memory(data)
    builder = FrameBuilder()
    footer = read_columns(target.getvalue().to_pybytes(), builder, builder.wanted)
    assert contents(builder.frame(footer)) == expected


class InMemory:
    size, sha256, closed = 0, "", False

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def close(self) -> None:
        pass


def store_in_memory(data: bytes) -> None:
    writer = ColumnWriter(Path("unused"))
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(verify(io.BytesIO(data), sink=builder, block_size=64)))


@pytest.mark.parametrize("far", [1, 1 << 25, 1 << 62])
def test_lanes_are_device_and_stream_however_large_their_numbers(far: int) -> None:
    kernels = [(0, 0), (0, far), (far, 0), (-far, -1), (0, 0), (far, far)]
    events = [
        SPAN | {"cat": "kernel", "ts": at, "args": {"device": device, "stream": stream}}
        for at, (device, stream) in enumerate(kernels)
    ]
    half_stated = [SPAN | {"cat": "kernel", "ts": 90 + at, "args": {"device": 5}, "tid": f"s{at}"} for at in range(2)]
    frame, _ = frame_of(trace(*events, *half_stated))
    found = [frame.lanes[lane] for lane in frame.rows(Cat.KERNEL).lane]
    assert found == [*kernels, (5, "s0"), (5, "s1")]
    assert len(set(found)) == len(frame.lanes)


def test_arguments_of_communication_that_say_nothing_are_none(tmp_path: Path) -> None:
    data = trace(*(SPAN | {"args": {"In msg nelems": value, "dtype": "Float"}} for value in ("", None, [1], 0, "7")))
    frame, _ = frame_of(data)
    assert (frame.messages.event.tolist(), frame.messages.in_nelems.tolist()) == ([3, 4], [0, 7])
    store(data, tmp_path / "c")
    assert contents(stored_frame(tmp_path / "c")) == contents(frame)


def test_of_several_labels_of_a_thread_the_last_in_the_file_holds(tmp_path: Path) -> None:
    label = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1}
    names = [label | {"ts": ts, "args": {"name": name}} for ts, name in ((5, "first"), (9, "second"), (1, "last"))]
    data = trace(*names, SPAN, label | {"tid": 2, "args": {"name": "no span is here"}})
    frame, _ = frame_of(data)
    assert frame.thread_names == {0: "last"}
    store(data, tmp_path / "c")
    assert contents(stored_frame(tmp_path / "c")) == contents(frame)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4) | st.just(MISSING), st.integers(0, 3) | st.just(MISSING)), max_size=30))
def test_rows_are_ordered_by_start_and_longer_first(spans: list[tuple[int, int]]) -> None:
    start, length = (np.array([span[at] for span in spans], dtype=np.int64) for at in (0, 1))
    order = event_order(start, length)
    found = list(range(len(spans))) if order is None else order.tolist()
    assert found == sorted(range(len(spans)), key=lambda at: (spans[at][0], -spans[at][1], at))


def test_a_copy_without_bytes_takes_those_of_the_call_that_issued_it(shared_data: Path, tmp_path: Path) -> None:
    call = SPAN | {"cat": "cuda_runtime", "name": "hipMemcpyWithStream"}
    copy = SPAN | {"cat": "gpu_memcpy", "name": "Memcpy HtoD"}
    data = trace(
        call | {"args": {"correlation": 1, "size": "2560", "stream": "0x0"}},
        call | {"args": {"correlation": 2, "size": "10"}},
        call | {"args": {"correlation": 3, "size": "10"}},
        call | {"args": {"correlation": 3, "size": "20"}},
        SPAN | {"cat": "cuda_runtime", "name": "cudaMemcpy", "args": {"correlation": 4, "size": "10"}},
        *(copy | {"ts": at, "args": {"correlation": at, "device": 0, "stream": 0}} for at in range(1, 6)),
        copy | {"ts": 6, "args": {"correlation": 2, "bytes": 7}},
    )
    frame, _ = frame_of(data)
    assert frame.rows(Cat.MEMORY).bytes.tolist() == [2560, 10, MISSING, MISSING, MISSING, 7]
    store(data, tmp_path / "c")
    assert contents(stored_frame(tmp_path / "c")) == contents(frame)
    amd, _ = frame_of(decoded(shared_data / "traces/single/mi250_minitoy.json.gz"))
    assert amd.rows(Cat.MEMORY).bytes.tolist() == [2560, 2560]


# -- the file --------------------------------------------------------------------------------------------------------


def test_the_footer_says_what_stands_beside_the_columns(tmp_path: Path) -> None:
    data = make_trace(
        rank=3,
        traceEvents=[
            *(SPAN | {"args": {"External id": at, "Input Dims": [[at]], "Ev Idx": at}} for at in range(5)),
            {"ph": "?", "name": "odd", "ts": 3, "cat": "brand_new"},
            {"ph": "s", "id": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
        ],
    )
    found = store(data, tmp_path / "c")
    footer = read_footer(tmp_path / "c")
    assert footer == read_columns(tmp_path / "c", Rows()) == read_footer((tmp_path / "c").read_bytes())
    assert (footer.raw_sha256, footer.raw_size, footer.base_time_ns) == (
        found.raw_sha256,
        len(data),
        found.base_time_ns,
    )
    assert (footer.events, footer.recorded, footer.rank) == (7, found.events, 3)
    assert footer.phases == {"X": 5, "?": 1, "s": 1}
    assert footer.categories == {"cpu_op": 5, "brand_new": 1, "ac2g": 1}
    assert footer.unknown_phases == {"?": 1}
    assert footer.args == {"Input Dims": 5, "Ev Idx": 5}
    assert (footer.args_events, footer.clock.unit) == (7, "us")
    assert (footer.window_start_ns, footer.window_end_ns) == (found.window_start_ns, found.window_end_ns)


def test_anybody_can_read_the_file_as_plain_parquet(tmp_path: Path) -> None:
    store(trace(SPAN, SPAN | {"tid": "stream 7", "ts": 3}, {"ph": "s", "id": 4, "ts": 1}), tmp_path / "c")
    table = pq.read_table(tmp_path / "c").to_pylist()
    assert set(table[0]) == set(schema.COLUMNS)
    assert [(row["event"], row["ts"], row["name"], row["tid"], row["flow"]) for row in table] == [
        (1, 3_000, "aten::mm", '"stream 7"', None),
        (0, 10_000, "aten::mm", "1", None),
        (2, 1_000, "", None, 4),
    ]


def test_only_wanted_columns_and_groups_are_read(tmp_path: Path) -> None:
    store(trace(SPAN | {"args": {"External id": 4}}, {"ph": "s", "id": 4, "ts": 1}), tmp_path / "c")
    rows = Rows()
    footer = read_columns(tmp_path / "c", rows, lambda group: ("ts",) if group.phase == "X" else ())
    assert [group.rows for group in footer.groups] == [1, 1]
    (row,) = rows.rows.values()
    assert {name: value for name, value in row.items() if value is not None} == {
        "ts": 10_000,
        "phase": "X",
        "category": "cpu_op",
    }


@pytest.mark.parametrize("version", ["sameshot.dev/columns/v2", "sameshot.dev/columns/v10", "else", ""])
def test_another_major_version_is_refused(tmp_path: Path, version: str) -> None:
    store(trace(SPAN), tmp_path / "c")
    table = pq.read_table(tmp_path / "c")
    text = pq.read_metadata(tmp_path / "c").metadata[schema.METADATA_KEY].decode()
    assert schema.SCHEMA in text
    other = table.replace_schema_metadata({schema.METADATA_KEY: text.replace(schema.SCHEMA, version)})
    pq.write_table(other, tmp_path / "other")
    with pytest.raises(ColumnsError, match="version"):
        read_columns(tmp_path / "other", Rows())
    with pytest.raises(ColumnsError, match="version"):
        read_footer(tmp_path / "other")


def test_what_is_no_file_of_columns_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "good"
    store(trace(*[SPAN | {"ts": at * 7 % 13, "name": f"n{at}"} for at in range(300)]), good)
    whole = good.read_bytes()
    foreign = tmp_path / "foreign"
    pq.write_table(pa.table({"a": [1]}), foreign)
    for data in (b"", b"PAR1", b"{}", foreign.read_bytes(), whole[:-1], whole[: len(whole) // 2], whole[100:]):
        with pytest.raises(ColumnsError):
            read_columns(data, Rows())
        if data != whole[100:]:  # where only the footer is whole, only it can be read
            with pytest.raises(ColumnsError):
                read_footer(data)
    rows, _ = stored_rows(good)
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(0, len(whole), 11):
        hit = bytearray(whole)
        hit[at] ^= 0x55
        found = Rows()
        try:
            read_columns(bytes(hit), found)
        except ColumnsError:
            continue
        # Pages carry checksums. The footer does not: there only the digest in the manifest tells.
        assert at >= pages or found.in_order == rows, at
    with pytest.raises(FileNotFoundError):
        read_columns(tmp_path / "missing", Rows())


def test_a_writer_follows_no_link_and_leaves_nothing_behind_when_discarded(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        ColumnWriter(tmp_path / "link")
    writer = ColumnWriter(tmp_path / "c")
    with pytest.raises(TraceError):
        verify(io.BytesIO(trace(SPAN) + b"x"), sink=ColumnBuilder(writer))
    writer.discard()
    writer.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store(make_trace(events=50), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nobody_pays_for_pyarrow_or_pandas_who_does_not_store_columns() -> None:
    code = (
        "import sys, io, sameshot, sameshot.client, sameshot.trace.columns.build, sameshot.trace.columns.read;"
        "import sameshot.trace.columns.write;"
        "assert 'pyarrow' not in sys.modules;"
        "from sameshot.trace.columns.write import ColumnWriter; from sameshot.trace.columns.build import ColumnBuilder;"
        "from sameshot.trace.columns.read import read_columns; from sameshot.analysis.frame import FrameBuilder;"
        "from sameshot.trace.verify import verify; from pathlib import Path;"
        "path = Path(sys.argv[1]); writer = ColumnWriter(path); builder = ColumnBuilder(writer);"
        "found = verify(io.BytesIO(sys.stdin.buffer.read()), sink=builder); writer.close(builder.facts(found));"
        "frame = FrameBuilder(); frame.frame(read_columns(path, frame, frame.wanted));"
        "assert 'pyarrow' in sys.modules; assert 'pandas' not in sys.modules; path.unlink()"
    )
    path = f"/tmp/columns-{id(code)}.parquet"
    done = subprocess.run([sys.executable, "-c", code, path], input=make_trace(events=20), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


# -- memory ----------------------------------------------------------------------------------------------------------


def peak_mib(code: str, *arguments: str) -> float:
    """MiB that a process of its own needs above what it has after its imports."""
    whole = (
        "import sys, resource, io, json\n"
        "from pathlib import Path\n"
        "import numpy, pyarrow, pyarrow.parquet\n"
        "from sameshot.trace.columns.build import ColumnBuilder\n"
        "from sameshot.trace.columns.write import ColumnWriter\n"
        "from sameshot.trace.verify import verify\n"
        "def status(key):\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return int(next(line for line in lines if line.startswith(key)).split()[1])\n"
        "idle = status('VmRSS')\n" + code + "\nprint((status('VmHWM') - idle) / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", whole, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


LOAD = (
    "path = Path(sys.argv[2]); writer = ColumnWriter(path); builder = ColumnBuilder(writer)\n"
    "found = verify(Path(sys.argv[1]), sink=builder); writer.close(builder.facts(found))"
)


def test_a_hostile_argument_is_proven_but_never_built(tmp_path: Path) -> None:
    source = tmp_path / "hostile.json"
    dims = b'"Input Dims": [' + b"[1],[]," * 1_100_000 + b"[]]"
    for key in (b'"Input Dims"', b'"stream"', b'"Collective name"'):
        data = trace(SPAN, SPAN | {"args": {"HERE": 1}}).replace(b'"HERE": 1', dims.replace(b'"Input Dims"', key))
        source.write_bytes(data)
        assert peak_mib(LOAD, str(source), str(tmp_path / "c")) < 96, key


def test_millions_of_different_names_need_no_more_memory(tmp_path: Path) -> None:
    source = tmp_path / "names.json"
    with source.open("wb") as out:
        out.write(b"[")
        for at in range(400_000):
            name = b"span number %d of a trace where no two have the same name" % at
            out.write(b'{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":%d,"dur":1},' % (name, at))
        out.write(json.dumps(SPAN).encode() + b"]")
    assert peak_mib(LOAD, str(source), str(tmp_path / "c")) < 128
    largest = 0

    class Largest:
        def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
            nonlocal largest
            largest = max(largest, len(words.name))

    verify(source, sink=ColumnBuilder(Largest()))
    assert largest < 200_000
    footer = read_footer(tmp_path / "c")
    assert footer.events == 400_001
    seen: set[str] = set()

    class Names:
        def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
            assert len(words.name) < 1 << 20
            seen.update(words.name.values[code] for code in chunk.name.tolist())

    read_columns(tmp_path / "c", Names())
    assert len(seen) == 400_001
