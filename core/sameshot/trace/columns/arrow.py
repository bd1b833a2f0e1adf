"""The schema of stored columns as Arrow has it: for whoever writes them, and for whoever checks what is read."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sameshot.trace.columns import schema

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def arrow_schema() -> pa.Schema:
    """Text comes as a dictionary, also when it is read."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    fields = [pa.field("event", pa.int64(), nullable=False)]
    fields += [pa.field(name, pa.int64()) for name in (*schema.TIMES, *schema.INTEGERS)]
    fields += [pa.field(name, text) for name in (*schema.TEXTS, *schema.MESSAGE_TEXTS)]
    fields += [pa.field(name, pa.int64()) for name in schema.MESSAGE_INTEGERS]
    return pa.schema(fields)
