"""Verify a trace, store it, and keep its columns: one pass over the bytes.

Columns are a convenience, the trace is the evidence: whatever goes wrong with columns (a full disk, a strange event, a
bug, no time left) ends the columns and nothing else. That includes the room they take: where the trace itself finds
the disk full, its columns make way for it. Once they are given up, the rest is read as if nobody had wanted them.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any

import msgspec

from sameshot.errors import TraceError
from sameshot.model import Encoding
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.chunk import Chunk, Dictionaries
from sameshot.trace.columns.parse import Block
from sameshot.trace.columns.schema import Facts
from sameshot.trace.columns.write import ColumnWriter, Written
from sameshot.trace.decode import decode_lean
from sameshot.trace.verify import Expectation, VerifiedTrace, verify

COLUMNS_NAME = "columns.parquet"

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a smaller file elsewhere on the disk would have prevented."""


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
    what `verify` raises; then, and where columns failed, there is no file at `columns_as`. Where the disk is full for
    the trace, its columns are removed and it is tried once more without.
    """
    trouble = ""
    if columns_as is not None:
        sink = MaybeColumns(columns_as, columns_by)
        try:
            events = _WhileWanted(sink)
            trace = verify(source, expect, store_as=store_as, encoding=encoding, sink=events)
            return StoredTrace(trace, events.close(trace), sink.trouble)
        except TraceError:
            raise
        except OSError as error:  # the trace itself, or where it is stored
            if error.errno not in DISK_FULL or not sink.discard():
                raise
            trouble = f"the trace itself needed their room ({error.strerror})"
        except Exception as error:  # the builder failed, whose own doing the verdict is: once more, without it
            trouble = _said(error)
        finally:
            sink.discard()
    return StoredTrace(verify(source, expect, store_as=store_as, encoding=encoding), None, trouble)


class _WhileWanted:
    """An `EventSink`: a `ColumnBuilder` for as long as its columns are wanted; then only what the verdict needs."""

    def __init__(self, sink: MaybeColumns) -> None:
        self._sink = sink
        self._builder: ColumnBuilder | None = ColumnBuilder(sink)
        self.window = self._builder.window

    def parse(self, block: bytes) -> Sized:
        """The events of one block; raises msgspec.DecodeError."""
        if self._builder is not None and self._sink.is_over:
            self._builder.finish()  # what it holds still belongs to the window
            self._builder = None
        return decode_lean(block) if self._builder is None else self._builder.parse(block)

    def take(self, parsed: Any) -> None:
        """The block that was parsed last comes next."""
        if self._builder is not None:
            assert isinstance(parsed, Block)
            self._builder.take(parsed)
        else:
            self.window.add(parsed)

    def finish(self) -> None:
        """There are no more events."""
        if self._builder is not None:
            self._builder.finish()

    def close(self, found: VerifiedTrace) -> Written | None:
        """The complete file; None where columns were given up, or fail now."""
        return None if self._builder is None else self._sink.close(self._builder.facts(found))


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

    @property
    def is_over(self) -> bool:
        """Whether columns were given up, or must be by now."""
        if self._writer is not None and self._by is not None and time.monotonic() > self._by:
            self._fail("there was no time for them")
        return self._writer is None

    def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
        """Take the next chunk."""
        if self.is_over:
            return
        assert self._writer is not None
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

    def discard(self) -> bool:
        """Remove what is not complete; False: there was nothing."""
        writer, self._writer = self._writer, None
        if writer is None:
            return False
        with contextlib.suppress(OSError):
            writer.discard()
        return True

    def _fail(self, why: str) -> None:
        self.trouble = why
        self.discard()


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
