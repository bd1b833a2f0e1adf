"""Columns as they are stored: one Parquet file for one trace, `sameshot.dev/columns/v1`.

One row for each element of `traceEvents`. A row group holds rows of one phase and category (`Group` in the footer says
which), sorted by start, longer first, so that a reader fetches what it needs and skips arrows, marks and whatever else
carries no time; rows with arguments of communication are in groups of their own. `event` is the index in traceEvents.
A row group has 1 to 131,072 rows.

    event                                        int64
    ts, dur                                      int64, ns after the base time; null: not stated or no usable time
    phase, category, name                        text as written ("" where not stated)
    pid, tid                                     text: the JSON value as given (7040, "stream 7"); null: not stated
    correlation, external_id, stream, device,
    bytes, graph_id, flow                        int64, null: not stated (flow: `id` of arrows)
    label                                        text: `args.name` of metadata events
    collective, dtype, group_name, group_ranks,
    group_description                            text, arguments of communication
    in_nelems, out_nelems, group_size, seq       int64

The key-value metadata `sameshot` holds the `Footer` as JSON. Fields and columns may be added within a version; readers
ignore those that they don't know and refuse another major version.
"""

from __future__ import annotations

import msgspec

SCHEMA = "sameshot.dev/columns/v1"
METADATA_KEY = b"sameshot"
MOST_GROUP_ROWS = 1 << 17
"""No row group has more rows."""


def is_known(version: str) -> bool:
    """Can this version of the schema be read here?"""
    return version == SCHEMA


TIMES = ("ts", "dur")
INTEGERS = ("correlation", "external_id", "stream", "device", "bytes", "graph_id", "flow")
TEXTS = {"phase": "phase", "category": "category", "name": "name", "pid": "thread", "tid": "thread", "label": "text"}
"""Columns of text, and which of the `Dictionaries` holds their values."""
MESSAGE_TEXTS = ("collective", "dtype", "group_name", "group_ranks", "group_description")
MESSAGE_INTEGERS = ("in_nelems", "out_nelems", "group_size", "seq")
MESSAGES = (*MESSAGE_TEXTS, *MESSAGE_INTEGERS)
COLUMNS = ("event", *TIMES, *INTEGERS, *TEXTS, *MESSAGES)


class Group(msgspec.Struct, frozen=True):
    """A row group: its rows' phase and category (both null: various), and the columns that state anything."""

    rows: int
    phase: str | None
    category: str | None
    columns: tuple[str, ...]


class Clock(msgspec.Struct, frozen=True):
    """How many starts are written as whole µs, as fractions of a µs, and as text: what resolution they can have."""

    whole: int = 0
    fractions: int = 0
    texts: int = 0

    @property
    def unit(self) -> str:
        """`ns`, `us`, or `unknown` where nothing numeric is stated."""
        return "ns" if self.fractions else "us" if self.whole else "unknown"


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the columns.

    `raw_sha256` and `raw_size` are those of the decoded JSON that they were made from; `window_*_ns`, `base_time_ns`,
    `recorded`, `host_name`, `rank`, `world_size` and `warnings` what the verifier found (see `VerifiedTrace`). `events`
    is the number of rows. `unknown_phases` are those that the trace event format does not define. `args` counts the
    keys of arguments that no column holds, among `args_events` events (a sample of a large trace).
    """

    schema: str = SCHEMA
    raw_sha256: str
    raw_size: int
    base_time_ns: int | None
    window_start_ns: int
    window_end_ns: int
    recorded: int
    events: int
    clock: Clock
    phases: dict[str, int]
    categories: dict[str, int]
    unknown_phases: dict[str, int]
    oddities: dict[str, int]
    args: dict[str, int]
    args_events: int
    host_name: str | None = None
    job_name: str | None = None
    rank: int | None = None
    world_size: int | None = None
    warnings: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of a `Footer` that the writer does not know by itself."""

    raw_sha256: str
    raw_size: int
    base_time_ns: int | None
    window_start_ns: int
    window_end_ns: int
    recorded: int
    clock: Clock
    oddities: dict[str, int]
    args: dict[str, int]
    args_events: int
    host_name: str | None = None
    job_name: str | None = None
    rank: int | None = None
    world_size: int | None = None
    warnings: tuple[str, ...] = ()
