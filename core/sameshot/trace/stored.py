"""Verify a trace, store it, and keep its columns: one pass over the bytes.

Columns are a convenience, the trace is the evidence: whatever goes wrong with columns (a full disk, a strange event, a
bug, no time left) ends the columns and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from sameshot.errors import TraceError
from sameshot.model import Encoding
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.columns.schema import Facts
from sameshot.trace.columns.write import ColumnWriter, Written
from sameshot.trace.verify import Expectation, VerifiedTrace, verify

COLUMNS_NAME = "columns.parquet"


class StoredTrace(msgspec.Struct, frozen=True):
    """A verified and stored trace. Without `columns`, `trouble` says why, where they were wanted."""

    trace: VerifiedTrace
    columns: Written | None = None
    trouble: str = ""


def verify_and_store(
    source: Path,
    expect: Expectation,
    *,
    store_as: Path,
    encoding: Encoding,
    columns_as: Path | None,
    columns_by: float | None = None,
) -> StoredTrace:
    """`verify(…, store_as=…)`, with the columns of a sound trace at `columns_as` (None: they are not wanted).

    At `columns_by` (of the monotonic clock) columns are given up, so that they can't cost a trace its allowance. Raises
    what `verify` raises; then, and where columns failed, there is no file at `columns_as`.
    """
    trouble = ""
    if columns_as is not None:
        sink = MaybeColumns(columns_as, columns_by)
        try:
            builder = ColumnBuilder(sink)
            trace = verify(source, expect, store_as=store_as, encoding=encoding, sink=builder)
            return StoredTrace(trace, sink.close(builder.facts(trace)), sink.trouble)
        except (TraceError, OSError):  # the trace itself, or where it is stored
            raise
        except Exception as error:  # the builder failed, whose own doing the verdict is: once more, without it
            trouble = _said(error)
        finally:
            sink.discard()
    return StoredTrace(verify(source, expect, store_as=store_as, encoding=encoding), None, trouble)


class MaybeColumns:
    """A `ChunkSink` that writes columns and never fails: `trouble` says what went wrong, then nothing is left."""

    def __init__(self, path: Path, by: float | None = None) -> None:
        self.trouble = ""
        self._by = by
        self._writer: ColumnWriter | None = None
        try:
            self._writer = ColumnWriter(path)
        except Exception as error:
            self._fail(_said(error))

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        """Take the next chunk."""
        if self._writer is None:
            return
        if self._by is not None and time.monotonic() > self._by:
            self._fail("there was no time for them")
            return
        try:
            self._writer.chunk(chunk, words)
        except Exception as error:
            self._fail(_said(error))

    def close(self, facts: Facts) -> Written | None:
        """The complete file; None with `trouble`."""
        if self._writer is None:
            return None
        try:
            written = self._writer.close(facts)
        except Exception as error:
            self._fail(_said(error))
            return None
        self._writer = None
        return written

    def discard(self) -> None:
        """Remove what is not complete."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.discard()

    def _fail(self, why: str) -> None:
        self.trouble = why
        self.discard()


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
