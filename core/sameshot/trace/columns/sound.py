"""Is a file of columns one that a writer of ours can have made?

A digest proves that columns are those that somebody published, not that they are sound. What analysis relies on is
checked here, before anything is allocated for it: a type that is another one would be read as wrong numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from sameshot.errors import ColumnsError
from sameshot.trace.columns import schema
from sameshot.trace.columns.arrow import arrow_schema
from sameshot.trace.columns.chunk import MISSING, Codes, Ints
from sameshot.trace.columns.schema import Footer, Group
from sameshot.trace.window import FAR_NS

_LEAST_TEXT = 3  # bytes of an event in JSON: `{},`
_LONGEST_THREAD = 1 << 20
_MOST = 1 << 63


def check_types(found: Any) -> None:
    """`found` is the file's Arrow schema. More columns than ours are none of our business."""
    for field in arrow_schema():
        places = found.get_all_field_indices(field.name)
        if len(places) != 1:
            raise _error(f"column {field.name} is there {len(places)} times")
        if (kind := found.field(places[0]).type) != field.type:
            raise _error(f"column {field.name} holds {kind}, and not {field.type}")


def check_footer(footer: Footer, stored_rows: list[int]) -> None:
    """`stored_rows` are the sizes of the row groups as Parquet states them."""
    if [group.rows for group in footer.groups] != stored_rows:
        raise ColumnsError("The row groups are not those that the footer states: this file was changed.")
    for at, group in enumerate(footer.groups):
        _check_group(at, group)
    rows = sum(stored_rows)
    if footer.events != rows:
        raise _error(f"they state {footer.events} events and hold {rows}")
    if rows * _LEAST_TEXT > footer.raw_size + 1:
        raise _error(f"{rows} events don't fit into a trace of {footer.raw_size} bytes")
    if not (0 <= footer.recorded <= footer.events and footer.raw_size < _MOST and 0 <= footer.args_events < _MOST):
        raise _error("they state impossible numbers of events")
    counts = (footer.phases, footer.categories, footer.unknown_phases, footer.oddities, footer.args)
    if not all(0 <= times < _MOST for each in counts for times in each.values()):
        raise _error("they state impossible counts")
    base, first, last = footer.base_time_ns or 0, footer.window_start_ns, footer.window_end_ns
    if abs(base) >= _MOST or not -FAR_NS < first - base <= last - base < FAR_NS:
        raise _error("they state an impossible window")


def _check_group(at: int, group: Group) -> None:
    if not 0 < group.rows <= schema.MOST_GROUP_ROWS:
        raise _error(f"row group {at} has {group.rows} rows, and none has more than {schema.MOST_GROUP_ROWS}")
    if (group.phase is None) != (group.category is None):
        raise _error(f"row group {at} states a phase without a category, or the other way round")
    needed = ("name",) if group.phase is not None else ("name", "phase", "category")
    if any(name not in group.columns for name in needed):
        raise _error(f"row group {at} does not state {' and '.join(needed)}")


def check_numbers(name: str, column: Ints) -> None:
    """Of `event`, and of times: those that are far away don't add up."""
    low = int(column.min())
    if name == "event":
        if low < 0:
            raise _error("an event has no number")
    elif int(column.max()) >= FAR_NS or (low <= -FAR_NS and (column[column <= -FAR_NS] != MISSING).any()):
        raise _error(f"column {name} holds a time beyond all time")


def check_codes(name: str, column: Codes) -> None:
    """A phase, category or name is never left out: "" says that an event has none."""
    if int(np.min(column)) < 0:
        raise _error(f"column {name} leaves out values")


def check_threads(values: list[str]) -> None:
    """A pid or tid is a number or a string of JSON."""
    for text in values:
        try:
            value = json.loads(text) if len(text) < _LONGEST_THREAD and text[:1] not in ("[", "{") else None
        except ValueError:
            value = None
        if isinstance(value, bool) or not isinstance(value, int | float | str) or value != value or value in _ENDLESS:
            raise _error(f"{text[:60]!r} is no pid and no tid")


_ENDLESS = (math.inf, -math.inf)


def _error(what: str) -> ColumnsError:
    return ColumnsError(f"These columns can't be used: {what}. Make them again from the trace.")
