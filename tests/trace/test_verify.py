"""What the verifier says about whole files: each fault with its kind and place, each oddity let through."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from columns_oracle import Rows
from make_trace import BASE_TIME_NS, make_document, make_events, make_trace, window_of

from sameshot.errors import TraceError
from sameshot.model import BoundBy, Encoding, InvalidKind
from sameshot.trace import outline, scan
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.read import read_trace
from sameshot.trace.verify import Expectation, VerifiedTrace, verify

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UUID = "0199c0de-0000-7000-8000-000000000001"
OTHER = "0199c0de-0000-7000-8000-000000000002"
NOTHING = Expectation()
BY_PATH = Expectation(UUID, 0, BoundBy.PATH)
BY_BYTES = Expectation(UUID, 0)
BLOCKS = (7, 300, 1 << 20)


def check(data: bytes, expect: Expectation = NOTHING, **options: Any) -> VerifiedTrace:
    return verify(io.BytesIO(data), expect, **options)


def fault(data: bytes, expect: Expectation = NOTHING, **options: Any) -> TraceError:
    with pytest.raises(TraceError) as caught:
        check(data, expect, **options)
    return caught.value


def event(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5.5, "dur": 1.25} | fields


def trace_of(*events: Any, **more: Any) -> bytes:
    return make_trace(traceEvents=list(events), **more)


class Collected(ColumnBuilder):
    """A sink that keeps every event as a dict."""

    def __init__(self) -> None:
        self.rows = Rows()
        super().__init__(self.rows)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows.in_order]


# -- the files that are really met ----------------------------------------------------------------------------------

BROKEN = {
    "bare_quote.json": (InvalidKind.JSON, 62725, 201),
    "bitflip.json.gz": (InvalidKind.COMPRESSION, None, None),
    "brace_only.json": (InvalidKind.NO_EVENTS_KEY, None, None),
    "ctrl_char.json": (InvalidKind.JSON, 62731, 201),
    "empty.json": (InvalidKind.EMPTY, 0, None),
    "invalid_utf8.json": (InvalidKind.UTF8, 62729, 201),
    "metadata_only.json": (InvalidKind.EMPTY, None, None),
    "nan.json": (InvalidKind.NON_FINITE, 3588, 0),
    "no_events.json": (InvalidKind.EMPTY, None, None),
    "truncated.json.gz": (InvalidKind.COMPRESSION, 153317, None),
    "truncated_tail.json": (InvalidKind.TRUNCATED, 151269, 400),
    "two_members.json.gz": (InvalidKind.COMPRESSION, 153317, None),
}
SOUND = ("ok.json", "ok.json.gz", "cpu_only.json", "no_distinfo.json", "list_form.json", "rank5_claims_rank0.json")


def with_job_name(data: bytes, registration: str) -> bytes:
    """The same file as if its worker had been armed: one more key, right behind the opening brace."""
    packed = data.startswith(b"\x1f\x8b")
    if packed:
        return data  # a damaged stream stays as it is
    return data.replace(b"{", b'{"PT_PROFILER_JOB_NAME": "sameshot/%s",' % registration.encode(), 1)


def test_every_broken_and_sound_file_is_accounted_for(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "traces/broken").iterdir()} == {*BROKEN, *SOUND}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_file_gets_its_kind_and_place(shared_data: Path, name: str) -> None:
    kind, offset, index = BROKEN[name]
    data = (shared_data / "traces/broken" / name).read_bytes()
    found = fault(data, BY_PATH)
    assert found.kind is kind
    assert found.event_index == index
    if offset is not None:
        assert found.byte_offset == offset


@pytest.mark.parametrize("name", [name for name in BROKEN if not name.endswith(".gz")])
def test_each_broken_file_with_our_name_in_its_bytes_is_as_broken(shared_data: Path, name: str) -> None:
    kind, offset, index = BROKEN[name]
    data = (shared_data / "traces/broken" / name).read_bytes()
    if name == "brace_only.json":
        named = b'{"PT_PROFILER_JOB_NAME": "sameshot/%s"}' % UUID.encode()
    else:
        named = with_job_name(data, UUID)
    found = fault(named, BY_BYTES)
    assert (found.kind, found.event_index) == (kind, index)
    if offset:
        assert found.byte_offset == offset + len(named) - len(data)


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_pass_when_bound_by_path(shared_data: Path, name: str) -> None:
    check((shared_data / "traces/broken" / name).read_bytes(), BY_PATH)


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_of_unarmed_workers_do_not_pass_when_bound_by_bytes(shared_data: Path, name: str) -> None:
    assert fault((shared_data / "traces/broken" / name).read_bytes(), BY_BYTES).kind is InvalidKind.IDENTITY


def test_a_trace_that_states_another_rank_is_refused_however_it_is_bound(shared_data: Path) -> None:
    data = (shared_data / "traces/broken/rank5_claims_rank0.json").read_bytes()
    assert fault(data, Expectation(UUID, 5, BoundBy.PATH)).kind is InvalidKind.IDENTITY
    assert fault(with_job_name(data, UUID), Expectation(UUID, 5)).kind is InvalidKind.IDENTITY
    check(with_job_name(data, UUID), Expectation(UUID, 0))


def test_every_real_trace_and_every_oddity_passes(shared_data: Path) -> None:
    traces = shared_data / "traces"
    files = [path for folder in ("dlrm8_v100", "single", "resnet50_dataloader") for path in (traces / folder).iterdir()]
    files += [path for path in (traces / "oddities").glob("*/*") if "05b" not in path.parent.name]
    assert len(files) > 40
    for path in files:
        found = verify(path)
        assert found.events > 0, path
        assert found.window_end_ns > found.window_start_ns, path
    assert fault((traces / "oddities/05b_no_traceEvents_key/rank1.json").read_bytes()).kind is InvalidKind.NO_EVENTS_KEY


def test_a_plain_file_with_a_gz_name_is_told_by_its_content(shared_data: Path) -> None:
    folder = shared_data / "traces/oddities/27_uncompressed_named_gz"
    assert verify(folder / "rank0.json.gz").encoding is Encoding.IDENTITY
    assert verify(folder / "rank1.json.gz").encoding is Encoding.GZIP


# -- faults, one by one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"NaN", InvalidKind.NON_FINITE),
        (b"-Infinity", InvalidKind.NON_FINITE),
        (b"inf", InvalidKind.NON_FINITE),
        (b"-nan", InvalidKind.NON_FINITE),
        (b"1e400", InvalidKind.NON_FINITE),
        (b"-1E+400", InvalidKind.NON_FINITE),
        (b"1" * 310, InvalidKind.NON_FINITE),
        (b"1" * 250 + b"e70", InvalidKind.NON_FINITE),
        (b"[" * 60 + b"1e309" + b"]" * 60, InvalidKind.NON_FINITE),
        (b"[" * 64 + b"]" * 64, InvalidKind.DEPTH),
        (b"[" * 100_000 + b"]" * 100_000, InvalidKind.DEPTH),
        (b'["]",' * 70 + b"1" + b',"["]' * 70, InvalidKind.DEPTH),
        (b'["\\"",' + b"[" * 64 + b"]" * 64 + b',"\\""]', InvalidKind.DEPTH),
        (b'{"\\"}":' * 70 + b"1" + b"}" * 70, InvalidKind.DEPTH),
        (b"01", InvalidKind.JSON),
        (b"1.", InvalidKind.JSON),
        (b"+1", InvalidKind.JSON),
        (b"truth", InvalidKind.JSON),
        (b"nil", InvalidKind.JSON),
        (b"'a'", InvalidKind.JSON),
        (b"[1,]", InvalidKind.JSON),
        (b'{"a":1,}', InvalidKind.JSON),
        (b"{1:2}", InvalidKind.JSON),
        (b"[1}", InvalidKind.JSON),
        (b'"a\tb"', InvalidKind.JSON),
        (b'"a\nb"', InvalidKind.JSON),
        (b'"\\x41"', InvalidKind.JSON),
        (b'"\\u12g4"', InvalidKind.JSON),
        (b'"\\ud800"', InvalidKind.JSON),
        (b'"\\ud800\\u0041"', InvalidKind.JSON),
        (b'"\\udc00"', InvalidKind.JSON),
        (b"\x00", InvalidKind.JSON),
        (b"/**/1", InvalidKind.JSON),
        (b'"\xff"', InvalidKind.UTF8),
        (b'"\xed\xa0\x80"', InvalidKind.UTF8),
        (b'"\xc0\xaf"', InvalidKind.UTF8),
        (b'"\xf0\x9f\x98"', InvalidKind.UTF8),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("where", ["args", "ts", "name", "head", "tail"])
def test_a_faulty_value_is_named_wherever_it_stands(value: bytes, kind: InvalidKind, where: str) -> None:
    if where in ("head", "tail"):
        marked = make_trace(events=5, displayTimeUnit="HERE" if where == "head" else "ms")
        if where == "tail":
            marked = marked.replace(b'"/tmp/trace.json"', b'"HERE"')
        index = None
    else:
        odd = {"args": event(args={"x": "HERE"}), "ts": event(ts="HERE"), "name": event(name="HERE")}[where]
        marked = trace_of(*[event()] * 6, odd, *[event()] * 6)
        index = 6
    data = marked.replace(b'"HERE"', value)
    begins = marked.index(b'"HERE"')
    ends = begins + len(value)
    places = set()
    for size in BLOCKS if len(value) < 1000 else (1 << 20,):
        found = fault(data, block_size=size)
        assert found.kind is kind, size
        assert found.event_index == index
        assert found.byte_offset is not None
        assert begins <= found.byte_offset <= ends
        places.add(found.byte_offset)
    assert len(places) == 1, "the verdict depends on where blocks begin"


@pytest.mark.parametrize("sink", [False, True])
def test_deep_but_legal_nesting_and_large_but_finite_numbers_pass(sink: bool) -> None:
    nested: Any = 1e308
    for _ in range(60):  # in the document, the list, the event and its arguments: 64 in all
        nested = [nested]
    assert fault(trace_of(event(args={"x": [nested]}))).kind is InvalidKind.DEPTH
    assert fault(json.dumps([event(args={"x": [[nested]]})]).encode()).kind is InvalidKind.DEPTH
    check(json.dumps([event(args={"x": [nested]})]).encode())
    check(make_trace(head=[[[nested]]]))
    assert fault(make_trace(head=[[[[nested]]]])).kind is InvalidKind.DEPTH
    data = trace_of(event(args={"x": nested, "name": "0x7f3e4567 and 1e999 in a text", "y": 9 * 10**200}), event())
    assert check(data, sink=Collected() if sink else None).events == 2


def test_a_byte_order_mark_is_named() -> None:
    assert fault(b"\xef\xbb\xbf" + make_trace()).kind is InvalidKind.BOM
    assert fault(b"\xef\xbb\xbf" + make_trace(), block_size=1).kind is InvalidKind.BOM
    assert fault(make_trace().decode().encode("utf-16")).kind is InvalidKind.UTF8


@pytest.mark.parametrize("size", BLOCKS)
def test_two_lists_of_events_are_refused_at_the_second(size: int) -> None:
    data = make_trace(events=3)
    twice = data[:-1] + b',"trace\\u0045vents": []}'
    found = fault(twice, block_size=size)
    assert found.kind is InvalidKind.DUPLICATE_EVENTS
    assert found.byte_offset == twice.index(b'"trace\\u0045')


def test_a_nested_list_of_that_name_is_not_a_second_list() -> None:
    check(trace_of(event(args={"traceEvents": []}), head={"traceEvents": [1], "x": {"traceEvents": [{}]}}))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", InvalidKind.EMPTY),
        (b" \n", InvalidKind.EMPTY),
        (b"[]", InvalidKind.EMPTY),
        (b'{"traceEvents": []}', InvalidKind.EMPTY),
        (b"{}", InvalidKind.NO_EVENTS_KEY),
        (b"17", InvalidKind.NOT_A_TRACE),
        (b"null", InvalidKind.NOT_A_TRACE),
        (b'"text"', InvalidKind.NOT_A_TRACE),
        (b"hello", InvalidKind.JSON),
        (b"nan ", InvalidKind.NON_FINITE),
        (b"<html>", InvalidKind.JSON),
        (b"tru", InvalidKind.TRUNCATED),
        (b'"tex', InvalidKind.TRUNCATED),
        (b"[1]", InvalidKind.NOT_A_TRACE),
        (b"[[{}]]", InvalidKind.NOT_A_TRACE),
        (b"[null]", InvalidKind.NOT_A_TRACE),
        (b'{"traceEvents": {}}', InvalidKind.NOT_A_TRACE),
        (b'{"traceEvents": null}', InvalidKind.NOT_A_TRACE),
        (b'{"traceEvents": [{"ph": "X"}, 5]}', InvalidKind.NOT_A_TRACE),
        (b'[{"ph": "X", "name": "no time"}]', InvalidKind.NOT_A_TRACE),
        (b'[{"ph": "X", "ts": 1},]', InvalidKind.JSON),
        (b'[,{"ph": "X", "ts": 1}]', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1} {}]', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1},,{}]', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1}]]', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1}}', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1}]\x00', InvalidKind.JSON),
        (b'[{"ph": "X", "ts": 1}', InvalidKind.TRUNCATED),
        (b'[{"ph": "X", "ts": 1},', InvalidKind.TRUNCATED),
        (b'{"traceEvents": [{"ph": "X", "ts": 1}]', InvalidKind.TRUNCATED),
        (b'{"traceEvents": [{"ph": "X", "ts": 1}],}', InvalidKind.JSON),
        (b'{,"traceEvents": [{"ph": "X", "ts": 1}]}', InvalidKind.JSON),
        (b'{"traceEvents": [{"ph": "X", "ts": 1}]} {}', InvalidKind.JSON),
        (b'{"traceEvents" [{"ph": "X", "ts": 1}]}', InvalidKind.JSON),
        (b'{"n": 1x, "traceEvents": [{"ph": "X", "ts": 1}]}', InvalidKind.JSON),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_small_documents_get_the_right_kind(data: bytes, kind: InvalidKind, size: int) -> None:
    assert fault(data, block_size=size).kind is kind


def test_a_border_inside_a_text_or_a_nested_list_is_no_border() -> None:
    text = 'x"},{"ph": "X"}, {"\\'
    odd = event(name=text, args={"list": [{"a": 1}, {"b": "},{"}], "name": "}, {"})
    plain = event()
    for indent in (None, 1):
        data = make_trace(traceEvents=[odd, plain] * 10, indent=indent)
        for size in (1, 5, 17, 100, 1001):
            found = check(data, block_size=size)
            assert (found.events, found.elements) == (20, 20)


def test_a_border_inside_a_text_does_not_save_a_broken_file() -> None:
    # The bare quote ends the name; what follows looks like a border and like a good event.
    bad = trace_of(event(), event(name="HERE"), event()).replace(b"HERE", b'a"},{"ph": "X')
    good = trace_of(event(), event(name='a"},{"ph": "X'), event())
    assert check(good).elements == 3
    assert check(bad).elements == 4  # well-formed all the same: nobody can tell
    worse = trace_of(event(), event(name="HERE"), event()).replace(b"HERE", b'a"},{"ph"')
    for size in BLOCKS:
        assert fault(worse, block_size=size).kind is InvalidKind.JSON


def test_a_value_larger_than_the_limit_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_PIECE", 20_000)
    monkeypatch.setattr(scan, "_SOME", 1_000)
    huge = event(args={"x": "y" * 100_000})
    assert fault(trace_of(event(), huge, event()), block_size=1000).kind is InvalidKind.LIMIT
    found = fault(trace_of(event(), huge, event()), block_size=1000)
    assert found.event_index == 1
    assert fault(trace_of(event(), head="y" * 100_000), block_size=1000).kind is InvalidKind.LIMIT
    assert fault(trace_of(event(), head="y" * 90_000 + "\x01"), block_size=1000).kind is InvalidKind.LIMIT
    other = b'{"another-tool": {"x": "' + b"y" * 100_000 + b'"}}'
    assert "the value of 'another-tool' (no traceEvents so far" in str(fault(other, block_size=1000))
    after = b'{"traceEvents": [], "more": "' + b"y" * 100_000 + b'"}'
    assert "the value of 'more' is larger" in str(fault(after, block_size=1000))
    broken = trace_of(event(), event(name="HERE"), *[event()] * 300).replace(b"HERE", b'a"b')
    assert fault(broken, block_size=1000).kind is InvalidKind.JSON
    check(trace_of(event(), event(args={"x": "y" * 15_000}), event()), block_size=1000)


def test_the_end_of_the_list_is_found_wherever_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_SOME", 50)
    monkeypatch.setattr(outline, "_SLICE", 64)
    for pad in range(200):
        data = json.dumps([event(), event(args={"x": [{}, {}], "y": "y" * pad})]).encode()
        assert check(data, block_size=pad + 1).elements == 2, pad


# -- oddities -------------------------------------------------------------------------------------------------------

ODD_EVENTS: dict[str, dict[str, Any]] = {
    "time as int": event(ts=7, dur=2),
    "time as text": event(ts="7.5", dur="2"),
    "no duration": {"ph": "X", "ts": 1},
    "null category": event(cat=None),
    "null duration": event(dur=None),
    "begin": event(ph="B"),
    "end": {"ph": "E", "ts": 6, "pid": 1, "tid": 1},
    "counter": event(ph="C"),
    "unknown phase": event(ph="Z"),
    "long phase": event(ph="something"),
    "no phase": {"name": "x", "ts": 5},
    "null phase": event(ph=None),
    "numeric phase": event(ph=5),
    "bool time beside a good one": event(ts=True),
    "list as name": event(name=["a"]),
    "number as name": event(name=5),
    "object as category": event(cat={}),
    "text as arguments": event(args="text"),
    "list as arguments": event(args=[1]),
    "null arguments": event(args=None),
    "object as pid": event(pid={"a": 1}, tid=[1]),
    "text as pid": event(pid="p", tid="t"),
    "empty": {},
    "key twice": event(args={"a": 1}),
    "pair of surrogates": event(name="\U0001f600"),
    "not ascii": event(name="größe ∑"),
}


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("name", ODD_EVENTS)
def test_an_odd_event_is_not_a_broken_file(name: str, sink: bool) -> None:
    data = trace_of(event(), ODD_EVENTS[name], event())
    for size in (7, 1 << 20):
        collected = Collected()
        found = check(data, sink=collected if sink else None, block_size=size)
        assert found.elements == 3
        if sink:
            assert collected.column("ts")[::2] == [5500, 5500]


def test_a_bare_array_is_a_trace_but_cannot_say_whose() -> None:
    data = json.dumps(make_events(4)).encode()
    found = check(data, BY_PATH)
    assert (found.events, found.job_name, found.base_time_ns) == (4, None, None)
    assert fault(data, BY_BYTES).kind is InvalidKind.IDENTITY


def test_what_kineto_warns_about_is_handed_on() -> None:
    assert check(make_trace(WARNING=["CPU trace is partial"])).warnings == ("CPU trace is partial",)
    assert "negative" in check(trace_of(event(dur=-3), event())).warnings[0]
    assert "without a usable time" in check(trace_of(event(ts="soon"), event())).warnings[0]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_function_that_never_returned_does_not_stretch_the_window_to_the_end_of_time(sink: bool, first: bool) -> None:
    """Kineto then writes the largest int64 as its end, which no longer fits into a message or a manifest."""
    base = 1_790_857_026_000_000_000
    endless = event(cat="python_function", name="train.py(43): main", dur=((1 << 63) - 1 - base) / 1000 - 5.5)
    others = [event(), event(ts=9.5)]
    data = trace_of(*([endless, *others] if first else [*others, endless]), baseTimeNanoseconds=base)
    found = check(data, sink=Collected() if sink else None)
    assert (found.window_start_ns, found.window_end_ns) == (base + 5_500, base + 10_750)
    assert found.events == 3
    assert found.warnings == ("1 events without an end, counted as instants",)


def test_an_absurd_base_time_is_none() -> None:
    assert check(trace_of(event(), baseTimeNanoseconds=(1 << 63) - 1)).base_time_ns is None


# -- identity -------------------------------------------------------------------------------------------------------


def test_the_bytes_must_carry_the_registration() -> None:
    found = check(make_trace(UUID, rank=0), BY_BYTES)
    assert (found.job_name, found.rank, found.world_size, found.host_name) == (f"sameshot/{UUID}", 0, 4, "node-a")
    wrong = fault(make_trace(OTHER), BY_BYTES)
    assert wrong.kind is InvalidKind.IDENTITY
    assert OTHER in wrong.detail
    assert UUID in wrong.detail
    assert wrong.byte_offset == make_trace(OTHER).index(b'"sameshot/')
    assert fault(make_trace(None), BY_BYTES).kind is InvalidKind.IDENTITY
    for other in ("my-job", None, 5, [f"sameshot/{UUID}"], f"sameshot/{UUID}x", f"sameshot/{UUID.upper()}"):
        assert fault(make_trace(PT_PROFILER_JOB_NAME=other), BY_BYTES).kind is InvalidKind.IDENTITY


def test_the_name_counts_at_the_top_level_only_and_on_both_sides_of_the_events() -> None:
    document = make_document(None, events=3)
    name = {"PT_PROFILER_JOB_NAME": f"sameshot/{UUID}"}
    check(json.dumps(document | name).encode(), BY_BYTES, block_size=11)
    check(json.dumps(name | document).encode(), BY_BYTES, block_size=11)
    nested = document | {"metadata": name}
    nested["traceEvents"][2]["args"] |= name
    nested["traceEvents"][2] |= name
    assert fault(json.dumps(nested).encode(), BY_BYTES).kind is InvalidKind.IDENTITY


def test_of_two_names_both_must_be_right() -> None:
    data = make_trace(UUID)
    for other in (make_trace(UUID)[:-1] + b',"PT_PROFILER_JOB_NAME":"sameshot/%s"}' % OTHER.encode(),):
        assert fault(other, BY_BYTES).kind is InvalidKind.IDENTITY
    check(data[:-1] + b',"PT_PROFILER_JOB_NAME":"sameshot/%s"}' % UUID.encode(), BY_BYTES)


def test_bound_by_path_only_a_contradiction_counts() -> None:
    check(make_trace(None), BY_PATH)
    check(make_trace(PT_PROFILER_JOB_NAME="my-job"), BY_PATH)
    check(make_trace(UUID, rank=0), BY_PATH)
    assert fault(make_trace(OTHER), BY_PATH).kind is InvalidKind.IDENTITY
    assert fault(make_trace(rank=3), BY_PATH).kind is InvalidKind.IDENTITY


def test_a_wrong_trace_is_told_by_its_identity_before_its_emptiness() -> None:
    assert fault(make_trace(OTHER, events=0), BY_BYTES).kind is InvalidKind.IDENTITY
    assert fault(make_trace(UUID, events=0), BY_BYTES).kind is InvalidKind.EMPTY


# -- the window -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("size", [50, 1 << 20])
def test_the_window_is_that_of_recorded_events_to_the_nanosecond(size: int, sink: bool) -> None:
    found = check(make_trace(events=500), block_size=size, sink=Collected() if sink else None)
    assert (found.window_start_ns, found.window_end_ns) == window_of(500)
    assert (found.events, found.elements, found.base_time_ns) == (500, 505, BASE_TIME_NS)


def test_unordered_events_of_all_kinds_have_an_exact_window() -> None:
    events = [
        event(ts=5_140_056_930_963.196, dur=0.001),
        event(ts=5_140_056_930_970.001, dur=13.26),
        event(ts=5_140_056_930_960.004, dur=3.0),
        event(ts=5_140_056_930_970.003, dur=13.259),
        event(ts="5140056930983.2625", dur=None),
        event(ph="s", cat="ac2g", ts=1.0),
        event(ph="f", cat="ac2g", ts=9e12),
        event(ph="X", cat="overhead", ts=2.0, dur=9e12),
    ]
    for rotation in range(len(events)):
        found = check(trace_of(*events[rotation:], *events[:rotation], baseTimeNanoseconds=1000))
        assert found.window_start_ns == 1000 + 5_140_056_930_960_004
        assert (
            found.window_end_ns == 1000 + 5_140_056_930_983_262
        )  # 983.2625 µs to the even ns, same as 970.003 + 13.259
        assert found.events == 5


def test_whole_microseconds_since_the_epoch_stay_exact() -> None:
    first = 1_694_128_201_426_556
    document = make_document(traceEvents=[event(ts=first, dur=3), event(ts=first + 7, dur=1)])
    del document["baseTimeNanoseconds"]
    found = check(json.dumps(document).encode())
    assert (found.window_start_ns, found.window_end_ns) == (first * 1000, (first + 8) * 1000)
    assert found.base_time_ns is None
    assert not found.warnings
    assert "float" in check(trace_of(event(ts=first + 0.25))).warnings[0]


# -- what is stored, and what is left behind ------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_the_stored_bytes_are_what_the_result_says(tmp_path: Path, encoding: Encoding, packed: bool) -> None:
    data = make_trace(UUID, events=300)
    source, stored = tmp_path / "x.json", tmp_path / "stored"
    source.write_bytes(gzip.compress(data) if packed else data)
    found = verify(source, BY_BYTES, store_as=stored, encoding=encoding, block_size=1000)
    content = stored.read_bytes()
    assert (found.size, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (found.raw_size, found.raw_sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert found.encoding is encoding
    assert (gzip.decompress(content) if encoding is Encoding.GZIP else content) == data
    again = verify(stored, BY_BYTES)
    assert (again.size, again.sha256, again.encoding) == (found.size, found.sha256, encoding)
    if packed and encoding is Encoding.GZIP:
        assert content == source.read_bytes()


def test_nothing_is_left_of_a_trace_that_failed(tmp_path: Path) -> None:
    source, stored = tmp_path / "x.json", tmp_path / "stored"
    for data in (make_trace(OTHER), make_trace(UUID)[:-1], make_trace(UUID, events=0), b"", make_trace(UUID) + b"x"):
        source.write_bytes(data)
        with pytest.raises(TraceError):
            verify(source, BY_BYTES, store_as=stored)
        assert not stored.exists()
        assert source.read_bytes() == data, "the evidence was touched"


def test_a_sink_that_fails_leaves_no_file_and_its_error_is_not_hidden(tmp_path: Path) -> None:
    class Full:
        def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
            raise OSError("no space left")

    source = tmp_path / "x.json"
    source.write_bytes(make_trace(UUID))
    with pytest.raises(OSError, match="no space"):
        verify(source, store_as=tmp_path / "stored", sink=ColumnBuilder(Full()))
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_io_errors_are_not_trace_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "missing.json")
    source = tmp_path / "x.json"
    source.write_bytes(make_trace(UUID))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        verify(source, store_as=tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


# -- compressed sources ---------------------------------------------------------------------------------------------


def test_damage_to_a_gzip_stream_is_named_whatever_it_decodes_to() -> None:
    packed = gzip.compress(make_trace(UUID, events=200))
    for size in (100, 1 << 20):
        for at in range(20, len(packed), 97):
            hit = bytearray(packed)
            hit[at] ^= 0x10
            found = fault(bytes(hit), BY_BYTES, block_size=size)
            assert found.kind is InvalidKind.COMPRESSION, at
    for cut in (3, 12, 500, len(packed) - 9, len(packed) - 1):
        assert fault(packed[:cut]).kind is InvalidKind.COMPRESSION


def test_anything_after_a_gzip_member_is_refused() -> None:
    packed = gzip.compress(make_trace())
    for rest in (packed, b"\0", b"text"):
        for size in (64, len(packed), 1 << 20):
            assert fault(packed + rest, block_size=size).kind is InvalidKind.COMPRESSION
    check(packed)


def test_a_fault_inside_a_sound_gzip_stream_is_told_in_decoded_bytes() -> None:
    data = trace_of(event(), event(name="HERE"), event()).replace(b"HERE", b"\x01")
    found = fault(gzip.compress(data))
    assert (found.kind, found.byte_offset, found.event_index) == (InvalidKind.JSON, data.index(b"\x01"), 1)


def zst(data: bytes, **parameters: int) -> bytes:
    """As the zstd program packs: with a checksum."""
    options = {zstd.CompressionParameter.checksum_flag: 1}
    return zstd.compress(data, options=options | {zstd.CompressionParameter[k]: v for k, v in parameters.items()})


def test_a_zstd_source_is_read_like_a_plain_one_and_stored_as_gzip(tmp_path: Path) -> None:
    data = make_trace(UUID, events=3000)
    source, stored = tmp_path / "x.json", tmp_path / "stored"  # the content decides, not the name
    source.write_bytes(zst(data))
    for size in (64, 1000, 1 << 20):
        read = verify(source, BY_BYTES, block_size=size)
        assert read.encoding is None
        assert (read.size, read.sha256) == (len(zst(data)), hashlib.sha256(zst(data)).hexdigest())
        found = verify(source, BY_BYTES, store_as=stored, block_size=size)
        assert found.encoding is Encoding.GZIP
        assert gzip.decompress(stored.read_bytes()) == data
        assert (found.size, found.sha256) == (stored.stat().st_size, hashlib.sha256(stored.read_bytes()).hexdigest())
        assert found.raw_sha256 == read.raw_sha256 == hashlib.sha256(data).hexdigest()


def test_damage_to_a_zstd_stream_is_named_whatever_it_decodes_to() -> None:
    packed = zst(make_trace(UUID, events=200))
    for size in (100, 1 << 20):
        for at in range(20, len(packed), 97):
            hit = bytearray(packed)
            hit[at] ^= 0x10
            found = fault(bytes(hit), BY_BYTES, block_size=size)
            assert found.kind is InvalidKind.COMPRESSION, at
            assert found.byte_offset is not None
    for cut in (5, 12, 500, len(packed) - 5, len(packed) - 1):
        found = fault(packed[:cut])
        assert found.kind is InvalidKind.COMPRESSION
        assert "zstd" in found.detail
    garbage = fault(b"\x28\xb5\x2f\xfd" + b"x" * 100)
    assert (garbage.kind, garbage.byte_offset) == (InvalidKind.COMPRESSION, 0)


def test_anything_after_a_zstd_frame_is_refused() -> None:
    data = make_trace()
    packed = zst(data)
    for rest in (packed, b"\0", b"text"):
        for size in (64, len(packed), 1 << 20):
            found = fault(packed + rest, block_size=size)
            assert (found.kind, found.byte_offset) == (InvalidKind.COMPRESSION, len(data))
    check(packed)


def test_a_zstd_file_that_wants_more_memory_than_we_give_is_refused() -> None:
    def frame(window_log: int) -> bytes:
        packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
        return packer.compress(make_trace()[:-1], packer.FLUSH_BLOCK) + packer.compress(b"}", packer.FLUSH_FRAME)

    check(frame(27))  # zstd --long
    found = fault(frame(28))
    assert (found.kind, found.byte_offset) == (InvalidKind.COMPRESSION, 0)
    bomb = zst(b"[" + b" " * (64 << 20) + b"]")
    tracemalloc.start()
    try:
        assert fault(bomb).kind is InvalidKind.EMPTY
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# -- seams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [13, 200, 1 << 20])
def test_a_sink_gets_every_event_once_and_in_order(size: int) -> None:
    collected = Collected()
    data = make_trace(events=100)
    found = check(data, sink=collected, block_size=size)
    assert collected.column("name") == [e["name"] for e in json.loads(data)["traceEvents"]]
    assert [i for i in collected.column("external_id") if i is not None] == list(range(1, 101))
    assert found.elements == len(collected.rows.in_order)


def test_reading_for_analysis_is_the_same_pass(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(make_trace(UUID))
    collected = Collected()
    assert read_trace(path, collected) == verify(path)
    path.write_bytes(make_trace(UUID) + b"x")
    with pytest.raises(TraceError):
        read_trace(path, Collected())


def test_a_worker_process_can_send_the_result_and_the_error(tmp_path: Path) -> None:
    source, stored = tmp_path / "x.json", tmp_path / "stored"
    source.write_bytes(make_trace(UUID, rank=2))
    found = verify(source, Expectation(UUID, 2), store_as=stored)
    assert pickle.loads(pickle.dumps(found)) == found
    assert stored.exists()
    with pytest.raises(TraceError) as caught:
        verify(source, Expectation(UUID, 3, BoundBy.PATH), store_as=stored, encoding=Encoding.IDENTITY)
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.detail, again.byte_offset, str(again)) == (
        error.kind,
        error.detail,
        error.byte_offset,
        str(error),
    )
