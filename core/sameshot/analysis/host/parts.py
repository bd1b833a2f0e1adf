"""The main thread, and what each moment of it was spent on."""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import Ints, Spans, union
from sameshot.analysis.names import Cat
from sameshot.analysis.results import Part, PartTimes, Timeline

_BUCKETS = 480


def main_thread(frame: Frame) -> int | None:
    """The lane that runs the training loop: it has the marks of steps, else those of fetches; else it is the process's
    first thread, else the busiest. Only threads of the host are looked at."""
    tables = [frame.rows(cat) for cat in (Cat.ANNOTATION, Cat.OPERATOR)]
    for marks in (frame.named(names.is_step_mark), frame.named(names.is_fetch)):
        votes = np.bincount(np.concatenate([rows.lane[marks[rows.name]] for rows in tables]))
        if len(votes):
            return int(votes.argmax())
    annotations, operators = tables
    for rows, more in ((operators, annotations), (frame.rows(Cat.RUNTIME), Rows()), (frame.rows(Cat.PYTHON), Rows())):
        lanes: list[int] = np.unique(np.concatenate((rows.lane, more.lane))).tolist()
        firsts = [lane for lane in lanes if str(frame.lanes[lane][0]) == str(frame.lanes[lane][1])]
        if lanes:
            return _busiest(rows, firsts or lanes)
    return None


def _busiest(rows: Rows, lanes: list[int]) -> int:
    """The lane on which most time was spent, whatever overlaps; of several the first."""
    # No lane is busy for longer than its spans last together, so few of a thousand lanes need a closer look.
    most = np.bincount(rows.lane, weights=rows.dur, minlength=max(lanes) + 1)[lanes]
    best: tuple[int, int] | None = None
    for at in np.argsort(-most, kind="stable").tolist():
        if best is not None and (int(most[at]), -lanes[at]) < best:  # float64 is exact below 2^53
            break
        found = (on(rows, lanes[at]).spans.total, -lanes[at])
        best = found if best is None else max(best, found)
    assert best is not None
    return -best[1]


def part_spans(frame: Frame, main: int | None, first: int, last: int, fetching: Spans) -> dict[Part, Spans]:
    """Give each moment of the window to one part. Earlier parts win: a fetch is data wait, whatever runs inside."""
    operators, annotations = frame.rows(Cat.OPERATOR), frame.rows(Cat.ANNOTATION)
    communicates, wrapper = frame.named(names.is_host_communication), frame.named(names.is_wrapper)
    mine = operators.lane == main if main is not None else np.zeros(len(operators), dtype=np.bool_)
    issuing = mine & communicates[operators.name]
    annotated = communicates[annotations.name] & (annotations.lane == (-1 if main is None else main))
    gloo = frame.named(names.is_gloo_span)[annotations.name]
    free = Spans.single(first, last)
    spans: dict[Part, Spans] = {}

    def take(part: Part, covered: Spans) -> None:
        nonlocal free
        spans[part] = union((spans.get(part, Spans()), free & covered))
        free = free - covered

    take(Part.DATA_WAIT, fetching)
    take(Part.COMMUNICATION, union((_spans(operators, issuing), _spans(annotations, annotated))))
    take(Part.OPERATORS, _spans(operators, mine & ~issuing & ~wrapper[operators.name]))
    runtime = frame.rows(Cat.RUNTIME)
    take(Part.RUNTIME, _spans(runtime, runtime.lane == (-1 if main is None else main)))
    take(Part.BACKWARD_THREAD, _spans(operators, _backward_elsewhere(frame, operators, main)))
    take(Part.COMMUNICATION, _spans(annotations, gloo))  # exposed: no operator runs on the main thread meanwhile
    spans[Part.UNTRACED] = free
    return spans


def on(rows: Rows, lane: int | None) -> Rows:
    """The rows of one lane; None has none."""
    return rows[:0] if lane is None else rows[rows.lane == lane]


def _spans(rows: Rows, mask: Bools) -> Spans:
    at = np.flatnonzero(mask)
    return Spans.of(rows.start[at], rows.end[at])


def _backward_elsewhere(frame: Frame, operators: Rows, main: int | None) -> Bools:
    """All operators of the threads, other than the main one, on which autograd runs backward passes."""
    runs = np.bincount(operators.lane[frame.named(names.is_backward)[operators.name]], minlength=len(frame.lanes)) > 0
    if main is None:
        runs[:] = False
    else:
        runs[main] = False
    found: Bools = runs[operators.lane]
    return found


def times(spans: dict[Part, Spans], edges: Ints) -> list[PartTimes]:
    """Time per part between neighbouring edges."""
    columns = {part.value: spans[part].within(edges).tolist() for part in Part}
    return [PartTimes(**{part: values[i] for part, values in columns.items()}) for i in range(len(edges) - 1)]


def timeline(spans: dict[Part, Spans], first: int, last: int) -> Timeline | None:
    """What filled most of each of a few hundred slices of the window."""
    if last - first < _BUCKETS:
        return None
    edges = np.linspace(first, last, _BUCKETS + 1).astype(np.int64)
    parts = list(Part)
    largest = np.argmax([spans[part].within(edges) for part in parts], axis=0)
    changes = np.flatnonzero(np.diff(largest, prepend=-1))
    lengths = np.diff(changes, append=_BUCKETS)
    runs = tuple((parts[largest[at]], length) for at, length in zip(changes.tolist(), lengths.tolist(), strict=True))
    return Timeline(buckets=_BUCKETS, runs=runs)
