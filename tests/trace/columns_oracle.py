"""What the columns of a trace must hold, worked out one event at a time from `json.loads`; shares no code with them."""

from __future__ import annotations

import io
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.schema import Footer
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.verify import VerifiedTrace, verify

NULL = -(2**63)
INTEGERS = ("ts", "dur", "correlation", "external_id", "stream", "device", "bytes", "graph_id", "flow")
CODES = {"phase": "phase", "category": "category", "name": "name", "pid": "thread", "tid": "thread", "label": "text"}
MESSAGE_TEXTS = {
    "collective": "Collective name",
    "dtype": "dtype",
    "group_name": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "group_description": "Process Group Description",
}
MESSAGE_INTEGERS = {
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "group_size": "Group size",
    "seq": "Seq",
}

Row = dict[str, Any]


class Rows:
    """A `ChunkSink` that turns columns back into one dict per event, by index in traceEvents."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.chunks = 0
        self.words: list[Dictionaries] = []

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        self.chunks += 1
        if not self.words or self.words[-1] is not words:
            self.words.append(words)
        events = range(chunk.first, chunk.first + len(chunk)) if chunk.event is None else chunk.event.tolist()
        table = {name: [None if v == NULL else v for v in getattr(chunk, name).tolist()] for name in INTEGERS}
        for name, dictionary in CODES.items():
            values = getattr(words, dictionary).values
            table[name] = [None if code < 0 else values[code] for code in getattr(chunk, name).tolist()]
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        for place, at in enumerate(chunk.messages.row.tolist()):
            for name in MESSAGE_TEXTS:
                code = getattr(chunk.messages, name)[place]
                rows[at][name] = None if code < 0 else words.text.values[code]
            for name in MESSAGE_INTEGERS:
                value = int(getattr(chunk.messages, name)[place])
                rows[at][name] = None if value == NULL else value
        for event, row in zip(events, rows, strict=True):
            assert event not in self.rows
            self.rows[event] = row

    @property
    def in_order(self) -> list[Row]:
        assert sorted(self.rows) == list(range(len(self.rows)))
        return [self.rows[event] for event in range(len(self.rows))]


def live_rows(data: bytes, **options: Any) -> tuple[list[Row], VerifiedTrace, ColumnBuilder]:
    rows = Rows()
    builder = ColumnBuilder(rows)
    found = verify(io.BytesIO(data), sink=builder, **options)
    return rows.in_order, found, builder


def store(data: bytes, path: Path, **options: Any) -> VerifiedTrace:
    writer = ColumnWriter(path)
    builder = ColumnBuilder(writer)
    found = verify(io.BytesIO(data), sink=builder, **options)
    written = writer.close(builder.facts(found))
    assert written.size == path.stat().st_size
    return found


def stored_rows(path: Path) -> tuple[list[Row], Footer]:
    rows = Rows()
    footer = read_columns(path, rows)
    return rows.in_order, footer


def expected_rows(events: list[Any]) -> list[Row]:
    return [_expected(event) for event in events]


def _expected(event: dict[str, Any]) -> Row:
    args = event["args"] if isinstance(event.get("args"), dict) else {}
    phase, name, category = (event.get(key) for key in ("ph", "name", "cat"))
    phase = phase if isinstance(phase, str) else ""
    row = {
        "ts": nanoseconds(event.get("ts")),
        "dur": nanoseconds(event.get("dur")),
        "correlation": integer(args.get("correlation")),
        "external_id": integer(args.get("External id")),
        "stream": integer(args.get("stream")),
        "device": integer(args.get("device")),
        "bytes": integer(args.get("bytes")),
        "graph_id": integer(args.get("graph id")),
        "flow": None if phase == "X" else integer(event.get("id")),
        "phase": phase,
        "category": category if isinstance(category, str) else "",
        "name": "" if name is None else name if isinstance(name, str) else Verbatim(name),
        "pid": thread(event.get("pid")),
        "tid": thread(event.get("tid")),
        "label": text(args.get("name")) if phase == "M" else None,
    }
    if row["external_id"] is None:
        row["external_id"] = integer(args.get("external id"))
    if row["bytes"] is None and "Bytes" in args:
        row["bytes"] = integer(args["Bytes"])
    elif row["bytes"] is None and isinstance(name, str) and name.startswith("hip"):
        row["bytes"] = integer(args.get("size"))
    named = any(is_scalar(args.get(key)) for key in ("Collective name", "Process Group Name"))
    if named or integer(args.get("In msg nelems")) is not None:
        row |= {column: text(args.get(key)) for column, key in MESSAGE_TEXTS.items()}
        row |= {column: integer(args.get(key)) for column, key in MESSAGE_INTEGERS.items()}
    return row


class Verbatim:
    """A name that is no string: the JSON text as written, which says the same value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self.value

    def __hash__(self) -> int:
        return 0


def is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def integer(value: Any) -> int | None:
    if not is_scalar(value):
        return None
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if len(value) < 20 and digits.isascii() and digits.isdigit() else None
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 2**53):
        return None
    return int(value) if -(2**63) < value < 2**63 else None


def nanoseconds(value: Any) -> int | None:
    if not is_scalar(value):
        return None
    if isinstance(value, str):
        try:
            exact = Fraction(value.strip()) * 1000
        except (ValueError, ZeroDivisionError):
            return None
        ns = round(exact)
    elif isinstance(value, int):
        ns = value * 1000
    else:
        whole = math.floor(value)  # value * 1000 would be rounded twice
        ns = whole * 1000 + round((value - whole) * 1000.0)
    return ns if abs(ns) < 2**62 else None


def thread(value: Any) -> str | None:
    return None if value is None or not is_scalar(value) else json.dumps(value, ensure_ascii=False)


def text(value: Any) -> str | None:
    return None if not is_scalar(value) else value if isinstance(value, str) else str(value)
