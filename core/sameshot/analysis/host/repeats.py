"""The repeating sequence: training steps of a trace in which nothing marks them.

A loop does the same in every turn, so what the main thread calls (operators, annotations) is a sequence that repeats.
An *anchor* is something that happens once per turn; cut at its occurrences, the sequence falls into segments that hold
the same calls equally often. Rare anchors are tried first: a layer repeats as well, but what lies between layers then
differs at the borders of a step.

Nothing in such a sequence proves that a turn is a training step, rather than a layer, a micro-batch, or several steps;
only what is known about its parts makes that likely. A turn without a backward pass is not called a step at all (it may
be a layer), one without an optimizer's operators or without a fetch only with low confidence (it may be a micro-batch,
or one of several networks that are trained in turn), and no answer says more than medium.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.host.parts import on
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.analysis.results import Confidence, StepMethod, Steps

_ALIKE = 0.05  # segments may differ by this share of their calls
_MOST_ALIKE = 0.8  # of all segments; the others may hold an evaluation, a checkpoint
_MOST_STEPS = 0.9  # of all segments look like a training step
_EXACTLY = 0.01  # of the calls and of the time of a turn
_LEAST_ANCHORS = 3
_TRIED = 40  # anchors; a sequence that needs more is not clear
_TRIED_EACH = 3  # of the same number of occurrences
_MOST_SEGMENTS = 4096


class Sequence(msgspec.Struct, frozen=True):
    """Calls in order of start. `code` are dense numbers of what was called; the masks are over these numbers."""

    what: str  # for people: "operators of the main thread"
    code: Ints
    start: Ints
    end: Ints
    words: list[str]
    fetch: Bools
    optimizer: Bools
    forward: Bools
    backward: Ints  # when anything of a backward pass began, on whatever thread


class Turns(msgspec.Struct, frozen=True):
    """One way of cutting the sequence: at `at`, the indices of an anchor."""

    anchor: int
    at: Ints
    alike: Bools  # per whole segment: it holds the usual calls
    usual: Ints  # of each call, how often


def find_repeats(frame: Frame, main: int | None) -> Steps | None:
    """Steps from the first kind of sequence that repeats clearly; None where none does."""
    for sequence in _sequences(frame, main):
        turns = _best(sequence)
        if turns is not None and _looks_like_step(sequence, turns):
            return _steps(sequence, turns)
    return None


# ---- what repeats


def _sequences(frame: Frame, main: int | None) -> Iterator[Sequence]:
    every = frame.rows(Cat.OPERATOR)
    passes = every.start[frame.named(names.is_backward)[every.name]]
    operators = on(every, main)
    operators = operators[~frame.named(names.is_step_mark)[operators.name]]  # in older traces marks are operators
    calls = (_outermost(operators), on(frame.rows(Cat.ANNOTATION), main))
    yield _sequence(frame, "what the main thread calls", names.is_backward, names.is_optimizer_work, passes, *calls)
    kernels = frame.rows(Cat.KERNEL)
    passes = kernels.start[frame.named(names.is_backward_kernel)[kernels.name]]
    yield _sequence(
        frame,
        "kernels on the device, so that edges are times of the device",
        names.is_backward_kernel,
        names.is_optimizer_kernel,
        passes,
        kernels,
    )


def _outermost(rows: Rows) -> Rows:
    """Without what lies inside of another row of the same thread (sorted by start, longer first)."""
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(rows.end)
    return rows[np.concatenate(([True], rows.start[1:] >= reach[:-1]))]


def _sequence(
    frame: Frame,
    what: str,
    is_backward: Callable[[str], bool],
    is_optimizer: Callable[[str], bool],
    backward: Ints,
    *tables: Rows,
) -> Sequence:
    name = np.concatenate([rows.name for rows in tables])
    start = np.concatenate([rows.start for rows in tables])
    end = np.concatenate([rows.end for rows in tables])
    keep = ~frame.named(names.is_step_mark)[name]
    order = np.argsort(start[keep], kind="stable")
    name, start, end = name[keep][order], start[keep][order], end[keep][order]
    used = np.flatnonzero(np.bincount(name, minlength=len(frame.names)))
    dense = np.zeros(len(frame.names), dtype=np.int64)
    dense[used] = np.arange(len(used))
    return Sequence(
        what=what,
        code=dense[name],
        start=start,
        end=end,
        words=[frame.names[code] for code in used.tolist()],
        fetch=(frame.named(names.is_fetch) | frame.named(names.sounds_like_fetch))[used],
        optimizer=frame.named(is_optimizer)[used],
        forward=~frame.named(is_backward)[used],
        backward=backward,
    )


# ---- where to cut


def _best(sequence: Sequence) -> Turns | None:
    """The rarest anchor that cuts into segments alike; a more frequent one if its segments are whole steps, too."""
    best: Turns | None = None
    tried = 0
    for anchors in _anchors(sequence):
        for anchor, at in anchors:
            tried += 1
            turns = _cut(sequence, anchor, at)
            if turns is None:
                continue
            if best is None or (len(turns.at) > 1.8 * len(best.at) and _is_step(sequence, turns)):
                best = turns
            break
        if tried >= _TRIED:
            break
    return best


def _anchors(sequence: Sequence) -> Iterator[list[tuple[int, Ints]]]:
    """Calls by how often they occur, the rarest first; of those that occur equally often a fetch, then the first."""
    code = sequence.code
    if not len(code):
        return
    counts = np.bincount(code, minlength=len(sequence.words))
    order = np.argsort(code, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(counts)))
    enough = (counts >= _LEAST_ANCHORS) & (counts <= _MOST_SEGMENTS) & (counts <= len(code) // 2)
    for count in np.unique(counts[enough]).tolist():
        same = np.flatnonzero(enough & (counts == count))
        firsts = order[bounds[same]]
        same = same[np.lexsort((firsts, ~sequence.fetch[same]))][:_TRIED_EACH]
        yield [(anchor, order[bounds[anchor] : bounds[anchor + 1]]) for anchor in same.tolist()]


def _cut(sequence: Sequence, anchor: int, at: Ints) -> Turns | None:
    """The segments between these indices, if they hold the same calls and fill the window."""
    size, segments = len(sequence.words), len(at) - 1
    lengths = np.diff(at)
    usual_length = int(np.median(lengths))
    # A turn that goes on to the window's borders has at most one more, cut, on each side.
    if max(int(at[0]), len(sequence.code) - int(at[-1])) > 1.2 * usual_length + 2:
        return None
    inside = sequence.code[at[0] : at[-1]]
    segment = np.repeat(np.arange(segments), lengths)
    held = np.bincount(segment * size + inside, minlength=segments * size).reshape(segments, size)
    usual = np.median(held, axis=0)
    differ = np.abs(held - usual).sum(axis=1) / max(usual.sum(), 1)
    alike = differ <= (_ALIKE if segments > 2 else _ALIKE / 2)  # of two, each is half of the difference from the middle
    if alike.sum() < 2 or alike.mean() < _MOST_ALIKE:
        return None
    return Turns(anchor, at, alike, usual.astype(np.int64))


def _is_step(sequence: Sequence, turns: Turns) -> bool:
    """Do nearly all segments look like a training step, and is none of them only a part of one?"""
    return _looks_like_step(sequence, turns) and (
        bool(turns.alike.all()) or bool(_holds(sequence, turns, sequence.optimizer).all())
    )


def _looks_like_step(sequence: Sequence, turns: Turns) -> bool:
    """Nearly every turn has forward work and a backward pass, and the optimizer's if any turn has that."""
    passes = np.diff(np.searchsorted(sequence.backward, sequence.start[turns.at])) > 0
    whole = passes & _holds(sequence, turns, sequence.forward)
    if sequence.optimizer[sequence.code].any():
        whole &= _holds(sequence, turns, sequence.optimizer)  # else these are micro-batches
    return bool(whole.mean() >= _MOST_STEPS)


def _holds(sequence: Sequence, turns: Turns, mask: Bools) -> Bools:
    """For each segment, whether it holds any of these calls."""
    before = np.concatenate(([0], np.cumsum(mask[sequence.code])))
    found: Bools = np.diff(before[turns.at]) > 0
    return found


# ---- the answer


def _steps(sequence: Sequence, turns: Turns) -> Steps:
    edges = sequence.start[turns.at].tolist()
    if _last_is_whole(sequence, turns):
        edges.append(int(sequence.end.max()))
    remarks = []
    if (different := int((~turns.alike).sum())) > 0:
        remarks.append(f"{different} of {len(turns.alike)} turns do clearly more or less than the others")
    confidence = Confidence.MEDIUM
    if not _holds(sequence, turns, sequence.optimizer).all():
        confidence = Confidence.LOW
        remarks.append("no optimizer is seen in them, so these may be micro-batches")
    if not _holds(sequence, turns, sequence.fetch).all():
        confidence = Confidence.LOW
        remarks.append("not each of them fetches data, so a step may have several")
    if len(edges) < 5:
        confidence = Confidence.LOW
        remarks.append("only a few fit into the window")
    note = (
        f"Nothing marks steps; taken for steps are the turns of the repeating sequence of {sequence.what}, each from "
        f"one {names.short(sequence.words[turns.anchor], 60)!r} to the next"
    )
    return Steps(
        StepMethod.REPEATING, confidence, f"{note} ({'; '.join(remarks)})." if remarks else f"{note}.", tuple(edges)
    )


def _last_is_whole(sequence: Sequence, turns: Turns) -> bool:
    """What follows the last anchor is one more turn if it holds what a turn holds, to (nearly) its last call."""
    at, count = turns.at, len(sequence.code) - int(turns.at[-1])
    rest = np.bincount(sequence.code[at[-1] :], minlength=len(sequence.words))
    if np.abs(rest - turns.usual).sum() > _EXACTLY * max(int(turns.usual.sum()), 1):
        return False
    lengths = np.diff(at)
    model = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    begin, end = int(at[model]), int(at[model + 1])
    same = min(begin + count, end) - 1
    if sequence.code[same] != sequence.code[-1]:
        return False
    lacks = int(sequence.start[end] - sequence.end[same])
    return lacks <= _EXACTLY * int(sequence.start[end] - sequence.start[begin])
