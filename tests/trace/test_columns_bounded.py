"""What a trace calls things costs bounded memory, and its columns can always be read again."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from sameshot.analysis.frame import FrameBuilder
from sameshot.errors import ColumnsError
from sameshot.trace.columns import build, census, schema, tally
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.census import Census
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.tally import LONGEST, MOST, OTHERS
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.read import read_trace
from sameshot.trace.verify import verify

SPAN: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 2}


def both(events: list[dict[str, Any]], path: Path) -> tuple[Any, Any, schema.Footer]:
    """The frame from the trace, from its columns, and their footer."""
    data = json.dumps({"traceEvents": events}).encode()
    frames, writer = FrameBuilder(), ColumnWriter(path)
    read_trace(io.BytesIO(data), ColumnBuilder(frames))
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(read_trace(io.BytesIO(data), builder)))
    stored = FrameBuilder()
    footer = read_columns(path, stored, stored.wanted)
    return frames.frame(), stored.frame(footer), footer


def test_rows_of_endlessly_long_categories_share_a_group_and_the_footer_stays_small(tmp_path: Path) -> None:
    long = [SPAN | {"cat": f"{at}" + "c" * 100_000} for at in range(20)]
    phases = [SPAN | {"ph": f"{at}" + "p" * 100_000} for at in range(20)]
    raw, stored, footer = both([*long, *phases, SPAN, SPAN], tmp_path / "c")
    assert sorted((group.rows, group.category or "") for group in footer.groups) == [(2, "cpu_op"), (40, "")]
    assert all(len(name) <= LONGEST for name in (*footer.categories, *footer.phases, *footer.unknown_phases))
    assert raw.by_category == stored.by_category
    assert raw.by_category["cpu_op"] == 22


def test_categories_beyond_a_thousand_are_counted_in_one_sum_from_the_trace_as_from_columns(tmp_path: Path) -> None:
    many = [SPAN | {"cat": f"c{at}"} for at in range(3 * MOST)]
    raw, stored, footer = both([*many, SPAN, SPAN], tmp_path / "c")
    assert raw.by_category == stored.by_category == footer.categories
    assert raw.unknown == stored.unknown
    assert (len(raw.by_category), raw.by_category["cpu_op"]) == (MOST + 1, 2)
    assert raw.by_category[OTHERS] == 3 * MOST + 1 - MOST
    assert raw.by_category.total() == len(many) + 2
    few, _, _ = both(many[:MOST], tmp_path / "d")
    assert OTHERS not in few.by_category


def test_a_tally_is_the_same_whoever_counted_first() -> None:
    one = tally.cut({f"c{at}": at for at in range(5 * MOST)})
    assert tally.cut(one) == one
    assert one.total() == sum(range(5 * MOST))


def test_after_fresh_dictionaries_kinds_of_few_rows_share_a_row_group(tmp_path: Path) -> None:
    kinds, events = 30, 6000
    many = [SPAN | {"cat": f"c{at % kinds}", "name": f"n{at}", "ts": at} for at in range(events)]
    data = json.dumps({"traceEvents": many}).encode()
    writer = ColumnWriter(tmp_path / "c")
    builder = ColumnBuilder(writer)
    with mock.patch.object(build, "_ROWS", 100), mock.patch.object(build, "_WORDS", 500):
        writer.close(builder.facts(verify(io.BytesIO(data), sink=builder, block_size=4096)))
    frames = FrameBuilder()
    footer = read_columns(tmp_path / "c", frames, frames.wanted)
    fresh = events // 500
    assert fresh <= len(footer.groups) <= 2 * fresh + kinds  # and not `kinds` for each
    assert sum(group.rows for group in footer.groups) == events
    raw, _, plain = both(many, tmp_path / "d")  # where dictionaries last, each kind has a group of its own
    assert frames.frame(footer).by_category == raw.by_category
    assert sorted(group.category or "" for group in plain.groups) == sorted(raw.by_category)


def test_arguments_of_absurd_size_are_not_taken_apart() -> None:
    counted = Census()
    huge = {f"{at:x}": 0 for at in range(20_000)}
    text = json.dumps([SPAN | {"args": {"few": 1}}, SPAN | {"args": huge}, SPAN | {"args": []}, SPAN]).encode()
    counted.block(text, 4)
    assert dict(counted.args) == {"few": 1, "(too long to be counted)": 1, "(not an object)": 1}
    assert len(json.dumps(huge)) > census._LARGEST


def test_a_file_that_no_reader_would_take_is_not_published(tmp_path: Path) -> None:
    writer = ColumnWriter(tmp_path / "c")
    builder = ColumnBuilder(writer)
    found = read_trace(io.BytesIO(json.dumps({"traceEvents": [SPAN]}).encode()), builder)
    facts = msgspec.structs.replace(builder.facts(found), raw_size=1)  # no trace of one byte has an event
    with pytest.raises(ColumnsError):
        writer.close(facts)
