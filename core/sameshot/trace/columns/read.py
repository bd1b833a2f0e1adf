"""Parquet → columns, row group by row group: what `write` stored, for a `ChunkSink`.

    footer = read_columns(path, sink, wanted)

`wanted` says for each row group which columns are worth reading; a group of which none is wanted is skipped, its rows
are still counted in the footer. Chunks come in the order of the file: see `Chunk.event`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from sameshot.errors import ColumnsError
from sameshot.trace.columns import schema, sound
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, ChunkSink, Codes, Dictionaries, Dictionary, Messages
from sameshot.trace.columns.schema import Footer, Group

if TYPE_CHECKING:
    import pyarrow as pa

Wanted = Callable[[Group], Collection[str]]

_footer = msgspec.json.Decoder(Footer)
_WORDS = 1 << 20  # strings in the dictionaries, before fresh ones are taken


class _Version(msgspec.Struct):
    schema: str


def everything(group: Group) -> Collection[str]:
    """All columns that state anything."""
    return group.columns


def read_columns(
    source: Path | bytes | BinaryIO,
    sink: ChunkSink,
    wanted: Wanted | None = None,
    accept: Callable[[Footer], None] | None = None,
) -> Footer:
    """Hand the wanted columns of a stored trace to `sink`, one row group at a time, and return the footer.

    Columns that are not wanted, or that no row of a group states, come as MISSING or NO_CODE. `accept` sees the footer
    before anything is read or expected, and may raise. Raises ColumnsError for a file that is no such Parquet, damaged,
    not as `sound` demands, or of a major version that is not known here; OSError for I/O.
    """
    with _typed_errors():
        footer, file = _open(source)
    if accept is not None:
        accept(footer)
    with _typed_errors():
        plan = [(at, group, set((wanted or everything)(group))) for at, group in enumerate(footer.groups)]
    reader = _Reader(file)
    for at, group, names in plan:
        if names:
            with _typed_errors():
                chunk = reader.read(at, group, names)
            sink.chunk(chunk, reader.words)
    return footer


def read_footer(source: Path | bytes | BinaryIO) -> Footer:
    """Only the footer; errors as in `read_columns`."""
    with _typed_errors():
        return _open(source)[0]


def _open(source: Path | bytes | BinaryIO) -> tuple[Footer, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pa.BufferReader(source) if isinstance(source, bytes) else source
    metadata = pq.read_metadata(file)
    footer = _read_footer(metadata)
    if not isinstance(file, Path):
        file.seek(0)
    dictionaries = [*schema.TEXTS, *schema.MESSAGE_TEXTS]
    found = pq.ParquetFile(file, metadata=metadata, read_dictionary=dictionaries, page_checksum_verification=True)
    sound.check_types(found.schema_arrow)
    return footer, found


_DAMAGE = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError, RuntimeError, MemoryError, OSError)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Whatever a decoder says about damage becomes a ColumnsError; errors of the system stay what they are."""
    try:
        yield
    except ColumnsError:
        raise
    except (
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        TypeError,
        RuntimeError,
        MemoryError,
        OSError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ColumnsError(f"These columns can't be read: {error}. Make them again from the trace.") from error


def _read_footer(metadata: Any) -> Footer:
    raw = (metadata.metadata or {}).get(schema.METADATA_KEY)
    if raw is None:
        raise ColumnsError("A Parquet file, but not one of a trace's columns: it has no footer of ours.")
    version = msgspec.json.decode(raw, type=_Version).schema
    if not schema.is_known(version):
        raise ColumnsError(
            f"These columns are of version {version}, and this version of sameshot reads {schema.SCHEMA}: update it, "
            "or make columns again from the trace."
        )
    footer = _footer.decode(raw)
    sound.check_footer(footer, [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)])
    return footer


class _Reader:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._first = 0
        self._threads = 0  # so many are known to be sound
        self.words = Dictionaries()

    def read(self, at: int, group: Group, names: set[str]) -> Chunk:
        stored = [name for name in schema.COLUMNS if name in names and name in group.columns]
        table = self._file.read_row_group(at, columns=["event", *stored], use_threads=False)
        if table.num_rows != group.rows:
            raise ValueError(f"row group {at} has {table.num_rows} rows, and not {group.rows}")
        if sum(len(getattr(self.words, name)) for name in Dictionaries.__struct_fields__) > _WORDS:
            self.words, self._threads = Dictionaries(), 0
        words, rows = self.words, group.rows
        columns: dict[str, Any] = {}
        for name in ("event", *schema.TIMES, *schema.INTEGERS, *schema.MESSAGE_INTEGERS):
            columns[name] = (
                _numbers(table.column(name))
                if name == "event" or name in stored
                else _constant(rows, MISSING, np.int64)
            )
            if name == "event" or (name in stored and name in schema.TIMES):
                sound.check_numbers(name, columns[name])
        for name in (*schema.TEXTS, *schema.MESSAGE_TEXTS):
            dictionary: Dictionary = getattr(words, schema.TEXTS.get(name, "text"))
            if name == "phase" and group.phase is not None:
                columns[name] = _constant(rows, dictionary.code(group.phase), np.int32)
            elif name == "category" and group.category is not None:
                columns[name] = _constant(rows, dictionary.code(group.category), np.int32)
            elif name in stored:
                columns[name] = _codes(table.column(name), dictionary)
                if name in ("phase", "category", "name"):
                    sound.check_codes(name, columns[name])
            else:
                columns[name] = _constant(rows, NO_CODE, np.int32)
        sound.check_threads(words.thread.values[self._threads :])
        self._threads = len(words.thread)
        messages = {name: columns.pop(name) for name in schema.MESSAGES}
        stated = np.zeros(rows, np.bool_)
        for name in ("collective", "group_name", "in_nelems"):
            if name in stored:
                stated |= messages[name] != (MISSING if name == "in_nelems" else NO_CODE)
        where = np.flatnonzero(stated)
        self._first += rows
        return Chunk(
            first=self._first - rows,
            messages=Messages(row=where, **{name: column[where] for name, column in messages.items()}),
            is_uniform=group.phase is not None,
            **columns,
        )


def _constant(rows: int, value: int, dtype: Any) -> Any:
    return np.broadcast_to(np.asarray(value, dtype), (rows,))


# Plain buffers, because pyarrow's own conversions import pandas where it is installed (0.2 s of CPU).


def _flat(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _filled(array: Any, dtype: Any, null: int) -> Any:
    """The numbers of an arrow array, `null` where it has none."""
    validity, data = array.buffers()
    start, stop = array.offset, array.offset + len(array)
    found = np.frombuffer(data, dtype)[start:stop] if data is not None else _constant(len(array), null, dtype)
    if validity is None or not array.null_count:
        return found
    valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=stop, bitorder="little")[start:].view(np.bool_)
    return np.where(valid, found, np.asarray(null, dtype))


def _numbers(column: pa.ChunkedArray) -> Any:
    return _filled(_flat(column), np.int64, MISSING)


def _codes(column: pa.ChunkedArray, dictionary: Dictionary) -> Codes:
    array = _flat(column.unify_dictionaries() if column.num_chunks > 1 else column)
    new: Codes = np.array([dictionary.code(value) for value in array.dictionary.to_pylist()] + [NO_CODE], np.int32)
    found: Codes = _filled(array.indices, np.int32, len(new) - 1)
    as_they_are = not array.null_count and bool((new[:-1] == np.arange(len(new) - 1)).all())
    return found if as_they_are else new[found]
