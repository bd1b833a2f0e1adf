"""The shape of one decoded trace event, as the verifier hands it to a sink and analysis reads it.

Only the fields below are decoded: those that analysis reads and those that the columns are to hold (marked; nothing
reads them yet). Everything else is checked for well-formedness and skipped. Field types are as loose as real traces are
(`ts` arrives as int, float or string; pid and tid as int or string; any argument may be null), so a strange value is
never mistaken for a broken file.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from sameshot.trace.window import Window


class EventArgs(msgspec.Struct, gc=False):
    """Arguments of an event, under Kineto's own names (libkineto output_json.cpp)."""

    correlation: Any = None  # for columns
    external_id: Any = msgspec.field(default=None, name="External id")  # for columns
    stream: Any = None
    device: Any = None
    bytes: Any = None  # for columns
    sequence_number: Any = msgspec.field(default=None, name="Sequence number")  # for columns
    collective_name: Any = msgspec.field(default=None, name="Collective name")
    in_msg_nelems: Any = msgspec.field(default=None, name="In msg nelems")
    out_msg_nelems: Any = msgspec.field(default=None, name="Out msg nelems")  # for columns
    group_size: Any = msgspec.field(default=None, name="Group size")  # for columns
    dtype: Any = None
    process_group_name: Any = msgspec.field(default=None, name="Process Group Name")
    process_group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    process_group_description: Any = msgspec.field(default=None, name="Process Group Description")  # for columns
    collective_sequence: Any = msgspec.field(default=None, name="Seq")
    input_dims: Any = msgspec.field(default=None, name="Input Dims")  # for columns
    name: Any = None  # of metadata events: process_name, thread_name; for columns


class Event(msgspec.Struct, gc=False):
    """One element of `traceEvents`. `ts` and `dur` are microseconds after the trace's base time, as written."""

    ph: str = ""
    cat: str | None = ""
    name: Any = ""
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    id: Any = None  # for columns: what connects flow arrows
    args: EventArgs | None = None


class EventSink(Protocol):
    """Receives every decoded block of a trace while it is being verified.

    A sink must not assume that the trace is valid until verification returned: a later byte may prove it broken.
    """

    def block(self, events: list[Event]) -> None: ...


@runtime_checkable
class TextSink(Protocol):
    """Decodes the text of each block itself, and so decides which fields are worth it. `ColumnBuilder` is one."""

    window: Window
    """Of all that was taken, once `finish` was called."""

    def parse(self, block: bytes) -> Sized:
        """The events of one JSON array; must change nothing.

        Raises msgspec.DecodeError where it is none: this is the proof that the block is well-formed.
        """
        ...

    def take(self, parsed: Any) -> None:
        """What `parse` returned, once its place in the document is proven."""
        ...

    def finish(self) -> None:
        """There are no more events."""
        ...
