"""The names that took most time: operators, kernels, and Python where nothing ran."""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame
from sameshot.analysis.intervals import EMPTY, Ints, Spans
from sameshot.analysis.names import Cat
from sameshot.analysis.nesting import nest, self_times, without_children
from sameshot.analysis.results import NamedTime
from sameshot.trace.columns.chunk import Codes

_TOP = 20
_TOP_PYTHON = 5


def top_operators(frame: Frame) -> tuple[NamedTime, ...]:
    """Operators of all threads by self time; marks that older traces record as operators are left out."""
    rows = frame.rows(Cat.OPERATOR)
    mine = self_times(rows.start, rows.end, rows.lane)
    return ranked(frame, rows.name, rows.dur, mine, _TOP, leave_out=frame.named(names.is_wrapper))


def top_kernels(frame: Frame) -> tuple[NamedTime, ...]:
    """Kernels by their summed duration."""
    rows = frame.rows(Cat.KERNEL)
    return ranked(frame, rows.name, rows.dur, rows.dur, _TOP)


def python_in(frame: Frame, main: int | None, spans: Spans) -> tuple[NamedTime, ...]:
    """Which Python functions the main thread was in during `spans` (only where stacks were recorded).

    `self_time` is the part of `spans` in which a function was the innermost.
    """
    rows = frame.rows(Cat.PYTHON)
    at = np.flatnonzero(rows.lane == main) if main is not None else EMPTY
    start, end = rows.start[at], rows.end[at]
    before, after = spans.before(start), spans.before(end)
    held = np.flatnonzero(after > before)  # what lies inside of the others counts neither
    if not len(held):
        return ()
    at, start, end, before, after = at[held], start[held], end[held], before[held], after[held]
    parent, cut = nest(start, end)
    short = np.flatnonzero(cut < end)
    after[short] = spans.before(cut[short])
    mine = without_children(after - before, parent)
    keep = np.flatnonzero(mine > 0)
    return ranked(frame, rows.name[at[keep]], (end - start)[keep], mine[keep], _TOP_PYTHON)


def ranked(
    frame: Frame, name: Codes, total: Ints, mine: Ints, top: int, leave_out: Bools | None = None
) -> tuple[NamedTime, ...]:
    """The `top` names, as they are shown, with the largest sum of self time (`mine`)."""
    size = len(frame.names)
    counts = np.bincount(name, minlength=size)
    there = np.flatnonzero(counts if leave_out is None else counts * ~leave_out)
    # Sums of integers in float64 are exact below 2^53 (of ns: 104 days).
    totals = np.bincount(name, weights=total, minlength=size)[there]
    selves = np.bincount(name, weights=mine, minlength=size)[there]
    # Python's builtins are recorded with the address of an object: the same function under many names.
    sums: dict[str, tuple[int, float, float]] = {}
    for code, *values in zip(there.tolist(), counts[there].tolist(), totals.tolist(), selves.tolist(), strict=True):
        label = names.short(frame.names[code])
        before = sums.get(label, (0, 0.0, 0.0))
        sums[label] = (before[0] + values[0], before[1] + values[1], before[2] + values[2])
    best = sorted(sums.items(), key=lambda pair: (-pair[1][2], -pair[1][1], pair[0]))[:top]
    return tuple(NamedTime(label, count, int(whole), int(own)) for label, (count, whole, own) in best)
