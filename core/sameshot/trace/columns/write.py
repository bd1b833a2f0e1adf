"""Columns → Parquet, in bounded memory: a `ChunkSink`.

writer = ColumnWriter(path)
builder = ColumnBuilder(writer)
try:
    found = verify(source, sink=builder)
    stored = writer.close(builder.facts(found))
except BaseException:
    writer.discard()
    raise
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sameshot.errors import ColumnsError
from sameshot.trace.columns import schema
from sameshot.trace.columns.arrow import arrow_schema
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, Codes, Dictionaries, Dictionary, Ints, event_order
from sameshot.trace.columns.read import read_footer
from sameshot.trace.columns.schema import Facts, Footer, Group
from sameshot.trace.columns.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = schema.MOST_GROUP_ROWS // 2  # a row group has at most twice as many
_PENDING_ROWS = 1 << 17
_KINDS = 64  # kinds of rows kept apart; what comes later goes into groups of various rows
_KNOWN_PHASES = frozenset("XstfMiIBECbneNDOPRcSTpFvV()")
_LONGEST = 200  # characters of a phase or category whose rows are kept apart

_Piece = dict[str, Any]
_Kind = tuple[int, int, bool]
_FEW_VALUES = ("stream", "device", "bytes", "graph_id")
_NULLS = np.zeros(2 * GROUP_ROWS // 8, np.uint8)
_ZEROS = np.zeros(2 * GROUP_ROWS, np.int64)
_VARIOUS: _Kind = (NO_CODE, NO_CODE, True)


class Written(msgspec.Struct, frozen=True):
    """A complete file of columns."""

    size: int
    sha256: str
    schema: str


class ColumnWriter:
    """Writes the file at `path` (never through a symbolic link); it counts only once `close` has returned.

    Raises OSError for I/O, and ColumnsError for a file that no reader would take, whatever made it so.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq  # heavy: only whoever writes columns pays for it

        self._path = path
        self._out = _Hashed(path)
        self._parquet = pq.ParquetWriter(
            self._out,
            arrow_schema(),
            compression="zstd",
            compression_level=1,
            use_dictionary=[*schema.TEXTS, *schema.MESSAGE_TEXTS, *_FEW_VALUES],
            column_encoding=dict.fromkeys(("event", "ts", "correlation", "external_id", "flow"), "DELTA_BINARY_PACKED"),
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        )
        self._pending: dict[_Kind, list[_Piece]] = {}
        self._rows: Counter[_Kind] = Counter()
        self._words: Dictionaries | None = None
        self._groups: list[Group] = []
        self._phases, self._categories = Tally(), Tally()
        self._events = 0

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        """Take the next chunk."""
        if words is not self._words:
            # Each row group costs memory until the end, so that small ones are worth it only once.
            self._merge_small()
            self._flush_all()
            self._words = words
            self._kinds: set[_Kind] = set()
        self._events += len(chunk)
        self._phases.codes(chunk.phase, words.phase.values)
        self._categories.codes(chunk.category, words.category.values)
        for kind, rows in self._by_kind(chunk):
            for start in range(0, len(rows), GROUP_ROWS):
                part = rows[start : start + GROUP_ROWS]
                self._pending.setdefault(kind, []).append(_piece(chunk, part))
                self._rows[kind] += len(part)
                if self._rows[kind] >= GROUP_ROWS:
                    self._flush(kind)
        if self._rows.total() >= _PENDING_ROWS:
            self._merge_small()
        while self._rows.total() >= _PENDING_ROWS:
            self._flush(self._rows.most_common(1)[0][0])

    def close(self, facts: Facts) -> Written:
        """Write what is left and the footer."""
        self._flush_all()
        phases = self._phases.result()
        footer = Footer(
            **msgspec.structs.asdict(facts),
            events=self._events,
            phases=dict(phases),
            categories=dict(self._categories.result()),
            unknown_phases={phase: n for phase, n in phases.items() if phase not in _KNOWN_PHASES},
            groups=tuple(self._groups),
        )
        self._parquet.add_key_value_metadata({schema.METADATA_KEY.decode(): msgspec.json.encode(footer).decode()})
        self._parquet.close()
        self._out.close()
        self._check(footer)
        return Written(self._out.size, self._out.sha256, schema.SCHEMA)

    def _check(self, footer: Footer) -> None:
        if read_footer(self._path) != footer:
            raise ColumnsError("The columns that were written are not read as they were meant.")

    def discard(self) -> None:
        """Close and remove; never raises for a file that is already gone."""
        self._pending.clear()
        self._out.discard()
        self._path.unlink(missing_ok=True)

    def _by_kind(self, chunk: Chunk) -> list[tuple[_Kind, Ints]]:
        """Rows that belong into one row group, in their order."""
        has_message = np.zeros(len(chunk), np.bool_)
        has_message[chunk.messages.row] = True
        keys = (chunk.category.astype(np.int64) << 32) | (chunk.phase.astype(np.int64) << 1) | has_message
        # Few kinds: a small number for each lets numpy sort by radix.
        numbers = np.empty(len(keys), np.uint8)
        left = np.ones(len(keys), np.bool_)
        kinds: list[_Kind] = []
        while len(kinds) < _KINDS and left.any():
            key = keys[left.argmax()]
            same = keys == key
            numbers[same] = len(kinds)
            left &= ~same
            kinds.append(self._known((int(key >> 1) & 0x7FFFFFFF, int(key >> 32), bool(key & 1))))
        if left.any():
            numbers[left] = len(kinds)
            kinds.append(_VARIOUS)
        order = np.argsort(numbers, kind="stable")
        borders = np.searchsorted(numbers[order], np.arange(len(kinds) + 1))
        return [(kind, order[borders[at] : borders[at + 1]]) for at, kind in enumerate(kinds)]

    def _known(self, kind: _Kind) -> _Kind:
        if kind in self._kinds:
            return kind
        words = self._words
        assert words is not None
        longest = max(len(words.phase.values[kind[0]]), len(words.category.values[kind[1]]))
        if len(self._kinds) >= _KINDS or longest > _LONGEST:
            return _VARIOUS
        self._kinds.add(kind)
        return kind

    def _merge_small(self) -> None:
        """Put kinds with few rows together."""
        few = [kind for kind, rows in self._rows.items() if rows < GROUP_ROWS // 16 and kind != _VARIOUS]
        for kind in few if len(few) > 1 else ():
            self._pending.setdefault(_VARIOUS, []).extend(self._pending.pop(kind))
            self._rows[_VARIOUS] += self._rows.pop(kind)
            if self._rows[_VARIOUS] >= GROUP_ROWS:
                self._flush(_VARIOUS)

    def _flush_all(self) -> None:
        for kind in list(self._pending):
            self._flush(kind)

    def _flush(self, kind: _Kind) -> None:
        import pyarrow as pa

        pieces = self._pending.pop(kind)
        rows = self._rows.pop(kind)
        words = self._words
        assert words is not None
        columns = {}
        for name in {name: None for piece in pieces for name in piece}:
            # Only kinds of various rows have pieces with and pieces without arguments of communication.
            columns[name] = np.concatenate(
                [piece[name] if name in piece else _absent(name, len(piece["event"])) for piece in pieces]
            )
        pieces.clear()
        order = event_order(columns["ts"], columns["dur"])
        if order is not None:
            columns = {name: column[order] for name, column in columns.items()}
        arrays, stated = [], []
        for field in arrow_schema():
            array = None
            if (column := columns.pop(field.name, None)) is None:
                pass
            elif column.dtype == np.int32:
                array = _text(column, getattr(words, schema.TEXTS.get(field.name, "text")))
            else:
                array = _numbers(column)
            if array is None:
                array = _nothing(field.type, rows)
            else:
                stated.append(field.name)
            arrays.append(array)
        self._parquet.write_table(pa.Table.from_arrays(arrays, schema=arrow_schema()), row_group_size=rows)
        phase, category, _ = kind
        various = kind == _VARIOUS
        self._groups.append(
            Group(
                rows,
                None if various else words.phase.values[phase],
                None if various else words.category.values[category],
                tuple(stated),
            )
        )


def _absent(name: str, rows: int) -> Any:
    is_text = name in schema.MESSAGE_TEXTS
    return np.broadcast_to(np.int32(NO_CODE) if is_text else np.int64(MISSING), (rows,))


def _piece(chunk: Chunk, rows: Ints) -> _Piece:
    piece: _Piece = {"event": rows + chunk.first if chunk.event is None else chunk.event[rows]}
    for name in (*schema.TIMES, *schema.INTEGERS, *schema.TEXTS):
        column = getattr(chunk, name)
        if column is not None:
            piece[name] = column[rows]
    messages = chunk.messages
    if len(messages.row):
        place = np.full(len(chunk), -1, np.int64)
        place[messages.row] = np.arange(len(messages.row))
        at = place[rows]
        for name in schema.MESSAGES:
            column = getattr(messages, name)
            missing = NO_CODE if column.dtype == np.int32 else MISSING
            piece[name] = np.where(at >= 0, column[at], column.dtype.type(missing))
    return piece


def _numbers(column: Ints) -> pa.Array | None:
    import pyarrow as pa

    missing = column == MISSING
    some = bool(missing.any())
    return None if some and missing.all() else _array(pa.int64(), column, missing if some else None)


def _text(codes: Codes, dictionary: Dictionary) -> pa.Array | None:
    """Only the values that these rows use: each row group stands for itself."""
    import pyarrow as pa

    missing = codes == NO_CODE
    some = bool(missing.any())
    if some and missing.all():
        return None
    used = np.zeros(len(dictionary) + 1, np.bool_)
    used[codes] = True
    used[NO_CODE] = False
    values = np.flatnonzero(used)
    new: Codes = np.zeros(len(used), np.int32)
    new[values] = np.arange(len(values), dtype=np.int32)
    indices = _array(pa.int32(), new[codes], missing if some else None)
    return pa.DictionaryArray.from_arrays(indices, _strings([dictionary.values[value] for value in values.tolist()]))


# Plain buffers, because pyarrow's own conversions import pandas where it is installed (0.2 s of CPU).


def _array(kind: Any, values: Any, missing: Any) -> pa.Array:
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    if missing is None:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)
    validity = np.packbits(~missing, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(validity), pa.py_buffer(values)])


def _strings(values: list[str]) -> pa.Array:
    import pyarrow as pa

    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))], null_count=0
    )


def _nothing(kind: Any, rows: int) -> pa.Array:
    """A column of nulls, which share one piece of memory."""
    import pyarrow as pa

    if kind == pa.int64():
        return pa.Array.from_buffers(kind, rows, [pa.py_buffer(_NULLS), pa.py_buffer(_ZEROS)], null_count=rows)
    indices = pa.Array.from_buffers(pa.int32(), rows, [pa.py_buffer(_NULLS), pa.py_buffer(_ZEROS)], null_count=rows)
    return pa.DictionaryArray.from_arrays(indices, _strings([]))


class _Hashed:
    """The file that Parquet is written to: front to back, so its digest needs no second reading."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o640), "wb", buffering=1 << 20)
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False
        self._dropped = False

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        if self._dropped:  # Parquet writes a footer when it is collected, whatever became of the file
            return len(data)
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._dropped:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        self.closed = True

    def discard(self) -> None:
        self._dropped = True
        with contextlib.suppress(OSError):
            self._file.close()
