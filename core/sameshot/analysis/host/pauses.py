"""Pauses of the main thread that a trace shows: garbage collection, and waiting for locks.

Both are Python's, so they are visible only where stacks were recorded, automatic collections only with the profiler's
`record_python_gc_info` as well (torch 2.13 writes a span "Python GC"). No pause here does not mean that there was none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Frame, Rows
from sameshot.analysis.intervals import Spans
from sameshot.analysis.names import Cat
from sameshot.analysis.results import Pause

_LEAST_LOCK_NS = 100_000  # taking a free lock costs about 0.1 µs and is no pause


def pauses(frame: Frame, main: int | None, fetching: Spans) -> tuple[Pause, ...]:
    """By kind. A wait for a lock inside a fetch is data wait (the loader's queue), so it is not counted here."""
    rows = frame.rows(Cat.PYTHON)
    if main is None or not len(rows):
        return ()
    collections = _chosen(frame, rows, main, names.is_garbage_collection)
    locks = _chosen(frame, rows, main, names.is_lock_wait)
    locks = locks[(locks.dur >= _LEAST_LOCK_NS) & ~fetching.contains(locks.start)]
    return tuple(_pause(kind, found) for kind, found in (("gc", collections), ("lock", locks)) if len(found))


def _chosen(frame: Frame, rows: Rows, main: int, predicate: Callable[[str], bool]) -> Rows:
    mask = frame.named(predicate)
    return rows[np.flatnonzero(mask[rows.name] & (rows.lane == main))] if mask.any() else rows[:0]


def _pause(kind: str, rows: Rows) -> Pause:
    """A collection may be called and recorded by itself: the outermost span of each is what counts."""
    rows = rows[np.concatenate(([True], rows.start[1:] >= np.maximum.accumulate(rows.end)[:-1]))]
    longest = int(rows.dur.argmax())
    return Pause(kind, len(rows), int(rows.dur.sum()), int(rows.dur[longest]), int(rows.event[longest]))
