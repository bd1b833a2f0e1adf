"""A digest proves who made columns, not that they are sound: whatever a file claims, it is read right or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.names import Cat
from sameshot.errors import ColumnsError
from sameshot.trace.columns import schema
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.read import read_trace

ROWS = 100
EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": f"a{at % 5}", "pid": 1, "tid": 1, "ts": at, "dur": 2} for at in range(ROWS)
]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    source, path = tmp_path / "trace.json", tmp_path / "columns"
    source.write_text(json.dumps({"traceEvents": EVENTS}))
    writer = ColumnWriter(path)
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(read_trace(source, builder)))
    return path


Craft = Callable[[pa.Table, dict[str, Any]], pa.Table]


def crafted(path: Path, craft: Craft, row_group_size: int = ROWS) -> bytes:
    """The file after `craft` of its table and its footer."""
    footer = json.loads(pq.read_metadata(path).metadata[schema.METADATA_KEY])
    table = craft(pq.read_table(path), footer)
    target = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({schema.METADATA_KEY: json.dumps(footer)}), target, row_group_size=row_group_size
    )
    return target.getvalue().to_pybytes()


def column(name: str, values: Any) -> Craft:
    def craft(table: pa.Table, footer: dict[str, Any]) -> pa.Table:
        footer["groups"][0].update(columns=list(schema.COLUMNS))
        return table.set_column(table.column_names.index(name), name, values)

    return craft


def various(name: str, values: Any) -> Craft:
    def craft(table: pa.Table, footer: dict[str, Any]) -> pa.Table:
        footer["groups"][0].update(phase=None, category=None)
        return column(name, values)(table, footer)

    return craft


def footer(**fields: Any) -> Craft:
    def craft(table: pa.Table, stated: dict[str, Any]) -> pa.Table:
        stated.update(fields)
        return table

    return craft


def group(**fields: Any) -> Craft:
    def craft(table: pa.Table, stated: dict[str, Any]) -> pa.Table:
        stated["groups"][0].update(fields)
        return table

    return craft


def emptied(table: pa.Table, stated: dict[str, Any]) -> pa.Table:
    stated["groups"], stated["events"] = [{**stated["groups"][0], "rows": 0}], 0
    return table.slice(0, 0)


def without(name: str) -> Craft:
    return lambda table, _: table.drop_columns([name])


def doubled(table: pa.Table, _: dict[str, Any]) -> pa.Table:
    return table.append_column("ts", table.column("ts"))


def frame_of(data: bytes) -> Any:
    frames = FrameBuilder()
    return frames.frame(read_columns(data, frames, frames.wanted))


def test_what_is_written_again_as_it_was_is_read(stored: Path) -> None:
    frame = frame_of(crafted(stored, lambda table, _: table))
    rows = frame.rows(Cat.OPERATOR)
    assert (len(rows), int(rows.start[-1]), int(rows.end[-1])) == (ROWS, (ROWS - 1) * 1000, (ROWS + 1) * 1000)
    more = frame_of(crafted(stored, lambda table, _: table.append_column("of_tomorrow", pa.array([1.5] * ROWS))))
    assert len(more.rows(Cat.OPERATOR)) == ROWS


CRAFTED = {
    "times are doubles": column("ts", pa.array([0.5] * ROWS)),
    "times are 32 bits": column("ts", pa.array([1] * ROWS, pa.int32())),
    "times are unsigned": column("ts", pa.array([1] * ROWS, pa.uint64())),
    "times are dates": column("ts", pa.array([1] * ROWS, pa.timestamp("ns"))),
    "times are text": column("ts", pa.array(["1"] * ROWS)),
    "names are numbers": column("name", pa.array([1] * ROWS)),
    "no name at all": column("name", pa.array([None] * ROWS, pa.string())),
    "some names": column("name", pa.array(["a", None] * (ROWS // 2))),
    "some phases": various("phase", pa.array(["X", None] * (ROWS // 2))),
    "some categories": various("category", pa.array(["cpu_op", None] * (ROWS // 2))),
    "some event numbers": column("event", pa.array([1, None] * (ROWS // 2))),
    "a start beyond all time": column("ts", pa.array([(1 << 63) - 1] * ROWS)),
    "a length beyond all time": column("dur", pa.array([1 << 62] * ROWS)),
    "a start before all time": column("ts", pa.array([-(1 << 62)] * ROWS)),
    "a pid that is no JSON": column("pid", pa.array(["["] * ROWS)),
    "a pid that is a list": column("pid", pa.array(["[1]"] * ROWS)),
    "a pid that is an object": column("pid", pa.array(['{"a":1}'] * ROWS)),
    "a pid that is no number": column("pid", pa.array(["NaN"] * ROWS)),
    "a pid that is endless": column("pid", pa.array(["Infinity"] * ROWS)),
    "a pid of many digits": column("pid", pa.array(["1" * 5000] * ROWS)),
    "a deep pid": column("tid", pa.array(["[" * 100_000] * ROWS)),
    "no column of starts": without("ts"),
    "two columns of starts": doubled,
    "a base beyond all time": footer(base_time_ns=1 << 70),
    "a window beyond all time": footer(window_end_ns=1 << 70),
    "a window far from the base": footer(window_end_ns=1 << 62),
    "a window that ends before it begins": footer(window_start_ns=10, window_end_ns=0),
    "more recorded than there are": footer(recorded=ROWS + 1),
    "fewer than none recorded": footer(recorded=-1),
    "other numbers of events": footer(events=7),
    "a trace too small for its events": footer(raw_size=2 * ROWS),
    "categories less than never": footer(categories={"cpu_op": -1}),
    "a phase without a category": group(category=None),
    "various rows that state no phase": group(phase=None, category=None, columns=["name", "category"]),
    "a group that states no names": group(columns=["ts", "dur"]),
    "a group of other rows": group(rows=1 << 40),
    "a group of no rows": emptied,
}


@pytest.mark.parametrize("how", CRAFTED)
def test_unsound_columns_are_a_typed_error(stored: Path, how: str) -> None:
    with pytest.raises(ColumnsError):
        frame_of(crafted(stored, CRAFTED[how]))


def test_a_group_of_more_rows_than_any_writer_makes_is_refused_before_anything_is_expected(stored: Path) -> None:
    rows = schema.MOST_GROUP_ROWS + 1

    def grow(table: pa.Table, stated: dict[str, Any]) -> pa.Table:
        stated.update(events=rows, raw_size=100 * rows)
        stated["groups"][0].update(rows=rows)
        return pa.concat_tables([table] * (rows // ROWS + 1)).slice(0, rows)

    asked = []
    data = crafted(stored, grow, row_group_size=rows)
    with pytest.raises(ColumnsError, match="none has more"):
        read_columns(data, FrameBuilder(), lambda each: asked.append(each) or ())  # type: ignore[func-returns-value]
    assert not asked
