"""Training steps inside a window, from the marks that PyTorch leaves by itself, or from what repeats.

An on-demand window has no `ProfilerStep` marks (nobody calls `profiler.step()`), so the ends of `Optimizer.step#…step`
spans mark the steps. That is an inference: with two optimizers, or one called twice in a row, counting events is
wrong. What lies between two ends is compared with what usually does, so each answer carries a confidence, and a
doubtful one never says *high*.

Edges are moments of the main thread, also where work goes on on a GPU: that is still busy with a step when the next one
begins on the host.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame
from sameshot.analysis.host.parts import on
from sameshot.analysis.host.repeats import find_repeats
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat
from sameshot.analysis.results import Confidence, StepMethod, Steps

_LEAST_TO_PAIR = 8  # gaps; uneven steps look like pairs by chance in fewer
_CLEARLY_LONGER = 1.5
_ALIKE = 0.05  # steps may differ by this share of their operators
_EXACTLY = 0.02  # of operators, or of the time of a step
_MOST_NAMES = 256
_FEW = 0.3  # of the steps

Mark = tuple[int, int, str]  # start, end, name


class MainThread(msgspec.Struct, frozen=True):
    """What steps are inferred from: all of the main thread, but backward passes of any thread.

    `start` and `name` are its operators without marks, `fetch` the sorted starts of its fetches, `backward` those of
    autograd's operators.
    """

    marks: list[Mark]
    start: Ints
    name: Ints
    backward: Ints
    first: int
    """When the window begins."""
    fetch: Ints


def find_steps(frame: Frame, main: int | None, first: int, fetch: Ints) -> Steps:
    """The steps of one rank, in a window that begins at `first`; edges in the time of the frame.

    `fetch` is when the main thread began to fetch data. Marks of other threads or of the device don't count.
    """
    found = infer_steps(_main_thread(frame, main, first, fetch))
    if found.method is StepMethod.UNKNOWN and not _has_marks(frame, main):
        return find_repeats(frame, main) or found
    return found


def _main_thread(frame: Frame, main: int | None, first: int, fetch: Ints) -> MainThread:
    """The part of a frame that steps are inferred from."""
    marks: list[Mark] = []
    for cat in (Cat.ANNOTATION, Cat.OPERATOR):
        rows = on(frame.rows(cat), main)
        rows = rows[frame.named(names.is_step_mark)[rows.name]]
        columns = (rows.start.tolist(), rows.end.tolist(), rows.name.tolist())
        marks += [(start, end, frame.names[name]) for start, end, name in zip(*columns, strict=True)]
    every = frame.rows(Cat.OPERATOR)
    operators = on(every, main)
    operators = operators[~frame.named(names.is_wrapper)[operators.name]]
    backward = every.start[frame.named(names.is_backward)[every.name]]
    return MainThread(sorted(marks), operators.start, operators.name.astype(np.int64), backward, first, fetch)


def _has_marks(frame: Frame, main: int | None) -> bool:
    is_mark = frame.named(names.is_step_mark)
    return any(is_mark[on(frame.rows(cat), main).name].any() for cat in (Cat.ANNOTATION, Cat.OPERATOR))


def infer_steps(thread: MainThread) -> Steps:
    """From marks alone: ProfilerStep's if there are any, else the ends of optimizer calls."""
    profiler: dict[str, tuple[int, int]] = {}
    optimizer: list[Mark] = []
    for start, end, name in thread.marks:
        if found := names.PROFILER_STEP.match(name):
            profiler.setdefault(found[1], (start, end))
        elif found := names.OPTIMIZER_STEP.match(name):
            optimizer.append((start, end, found[1]))
    if profiler:
        return _from_profiler(thread, [int(number) for number in profiler], list(profiler.values()))
    if optimizer:
        return _from_optimizers(thread, optimizer)
    return _unknown(
        "No step marks (neither ProfilerStep nor Optimizer.step is on the main thread), and nothing repeats clearly."
    )


def _from_profiler(thread: MainThread, numbers: list[int], spans: list[tuple[int, int]]) -> Steps:
    """The job's own marks; one that recording cut short at the end is no step."""
    edges = [start for start, _ in spans] + [max(end for _, end in spans)]
    held = np.diff(np.searchsorted(thread.start, edges))
    # Nor is one whose own end was not recorded.
    cut = len(spans) > 1 and (edges[-1] <= edges[-2] or 2 * held[-1] < np.median(held[:-1]))
    if cut:
        edges.pop()
    if len(edges) < 3:
        return _unknown("The window holds one ProfilerStep: fewer than two whole training steps.")
    note = "Steps are the job's own ProfilerStep marks"
    remarks = ["the last one is cut off"] if cut else []
    confidence = Confidence.HIGH
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        confidence = Confidence.MEDIUM
        remarks.append("their numbers leave some out")
    return Steps(StepMethod.PROFILER_STEP, confidence, _with(note, remarks), tuple(edges))


def _from_optimizers(thread: MainThread, calls: list[Mark]) -> Steps:
    doubts = _Doubts()
    edges = _merge(thread, calls, doubts)
    if len(edges) < 2:
        return _unknown(f"The window holds {len(edges)} optimizer step(s): fewer than two whole training steps.")
    edges = _by_fetch(thread, edges, doubts)
    if len(edges) > 1:
        edges = _pair(thread, edges, doubts)
    if (begin := _whole_before(thread, edges)) is not None:
        edges = np.concatenate(([begin], edges))
    if len(edges) < 3:
        return _unknown("The window holds fewer than two whole training steps.")
    if len(edges) < 5:
        doubts.add(Confidence.MEDIUM, "only a few steps fit into the window")
    note = "Steps are inferred from the ends of Optimizer.step"
    return Steps(StepMethod.OPTIMIZER, doubts.confidence, _with(note, doubts.remarks), tuple(edges.tolist()))


class _Doubts:
    """What speaks against *high*."""

    def __init__(self) -> None:
        self.confidence = Confidence.HIGH
        self.remarks: list[str] = []

    def add(self, at_most: Confidence, remark: str) -> None:
        self.confidence = min(self.confidence, at_most, key=lambda one: one.degree)
        self.remarks.append(remark)


# ---- optimizer calls


def _merge(thread: MainThread, calls: list[Mark], doubts: _Doubts) -> Ints:
    """The end of each optimizer call that ends a step: calls with no backward pass between them are of one step."""
    ends = np.asarray([end for _, end, _ in calls], dtype=np.int64)
    who = [name for _, _, name in calls]
    if not len(thread.backward):
        usual, _ = max(Counter(who).items(), key=lambda pair: (pair[1], pair[0]))
        if len(set(who)) > 1:
            doubts.add(Confidence.MEDIUM, f"{len(set(who))} optimizers ({', '.join(sorted(set(who)))}): {usual} counts")
        return _where(ends, [name == usual for name in who])
    passed = np.searchsorted(thread.backward, ends)
    last = np.append(passed[1:] != passed[:-1], True)
    owner = np.cumsum(np.append(0, last[:-1]))
    of_step: list[tuple[str, ...]] = [() for _ in range(int(owner[-1]) + 1)]
    for index, name in zip(owner.tolist(), who, strict=True):
        of_step[index] = (*of_step[index], name)
    edges = _where(ends, last.tolist())
    if len(edges) != len(ends):
        doubts.add(Confidence.MEDIUM, f"{len(ends)} optimizer calls were taken for {len(edges)} steps")
    kinds = Counter(tuple(sorted(set(group))) for group in of_step)
    if len(kinds) == 1:
        return edges
    # Different optimizers, each after a backward pass of its own: the rarest closes a round.
    rarest = min(kinds, key=lambda kind: (kinds[kind], kind))
    even = max(kinds.values()) - min(kinds.values()) <= 1
    doubts.add(
        Confidence.MEDIUM if even else Confidence.LOW,
        f"optimizers with backward passes of their own ({', '.join(' and '.join(kind) for kind in sorted(kinds))}): "
        f"{' and '.join(rarest)} was counted",
    )
    return _where(edges, [tuple(sorted(set(group))) == rarest for group in of_step])


def _where(values: Ints, keep: list[bool]) -> Ints:
    return values[np.asarray(keep, dtype=np.bool_)]


def _by_fetch(thread: MainThread, edges: Ints, doubts: _Doubts) -> Ints:
    """Optimizer calls after the same fetch are of one step; without fetches nobody knows that they are not."""
    if not len(thread.fetch):
        doubts.add(Confidence.MEDIUM, "no fetch of data is seen, so several calls might belong to one step")
        return edges
    passed = np.searchsorted(thread.fetch, edges)
    last = np.append(passed[1:] != passed[:-1], True)
    if last.all():
        return edges
    sizes = np.diff(np.concatenate(([-1], np.flatnonzero(last))))
    usual = int(np.median(sizes))
    regular = bool((sizes[1:-1] == usual).all())
    doubts.add(
        Confidence.MEDIUM if regular else Confidence.LOW,
        f"{len(edges)} optimizer calls come after {int(last.sum())} fetches, so these were counted",
    )
    kept = _where(edges, last.tolist())
    return kept[:-1] if sizes[-1] < usual else kept  # the window may end inside a step


def _pair(thread: MainThread, edges: Ints, doubts: _Doubts) -> Ints:
    """Compare what lies between the ends: two kinds that take turns are two optimizers of one step."""
    gaps = np.diff(edges)
    held = _held(thread, edges)
    if held is None:
        doubts.add(Confidence.MEDIUM, "no operators were recorded that could be compared between steps")
    elif len(gaps) >= 4:
        even, odd = held[::2], held[1::2]
        if not _alike(held).all() and _alike(even).all() and _alike(odd).all() and not _same(even, odd):
            doubts.add(
                Confidence.MEDIUM if len(gaps) >= _LEAST_TO_PAIR else Confidence.LOW,
                "two kinds of steps take turns, so two optimizer calls were counted as one step",
            )
            return edges[::2]
    if _take_turns(gaps):
        if len(gaps) >= _LEAST_TO_PAIR:
            doubts.add(
                Confidence.LOW, "long and short gaps take turns, so two optimizer calls were counted as one step"
            )
            return edges[::2]
        doubts.add(Confidence.LOW, "long and short gaps take turns: these may be two optimizers")
    if held is not None and (different := int((~_alike(held)).sum())):
        few = different <= _FEW * len(gaps)
        doubts.add(
            Confidence.MEDIUM if few else Confidence.LOW,
            f"{different} of {len(gaps)} do clearly more or less than the others (an evaluation?)",
        )
    return edges


def _take_turns(gaps: Ints) -> bool:
    """Is every second gap clearly longer than all others? So few steps as fit into a window do that by chance, too."""
    if len(gaps) < 3:
        return False
    even, odd = gaps[::2], gaps[1::2]
    return bool(even.min() > _CLEARLY_LONGER * odd.max() or odd.min() > _CLEARLY_LONGER * even.max())


def _held(thread: MainThread, edges: Ints) -> Ints | None:
    """How often each operator began between neighbouring edges (a row each); None where hardly any did."""
    borders = np.searchsorted(thread.start, edges)
    lengths = np.diff(borders)
    if np.median(lengths) < 2:
        return None
    _, code = np.unique(thread.name[borders[0] : borders[-1]], return_inverse=True)
    code = code % _MOST_NAMES  # few traces have more names, and then some are counted together
    segment = np.repeat(np.arange(len(lengths)), lengths)
    size = int(code.max()) + 1
    held: Ints = np.bincount(segment * size + code, minlength=len(lengths) * size).reshape(len(lengths), size)
    return held


def _alike(held: Ints) -> Bools:
    """Which rows are close to the usual one."""
    usual = np.median(held, axis=0)
    close: Bools = np.abs(held - usual).sum(axis=1) <= _ALIKE * max(float(usual.sum()), 1.0)
    return close


def _same(one: Ints, other: Ints) -> bool:
    a, b = np.median(one, axis=0), np.median(other, axis=0)
    return bool(np.abs(a - b).sum() <= _ALIKE * max(float(a.sum()), float(b.sum()), 1.0))


def _whole_before(thread: MainThread, edges: Ints) -> int | None:
    """Where the step that the first edge ends began, if the window holds all of it.

    Its operators must be those of a usual step from the first on, and the window must not begin later after the step's
    beginning than operators usually do.
    """
    borders = np.searchsorted(thread.start, np.concatenate(([thread.first], edges)))
    lengths = np.diff(borders)
    if len(edges) < 2 or lengths[0] < 2:
        return None
    usual = borders[1 + int(np.argsort(lengths[1:], kind="stable")[(len(lengths) - 1) // 2])]
    size = int(np.median(lengths[1:]))
    mine, theirs = thread.name[borders[0] : borders[1]], thread.name[usual : usual + size]
    if abs(len(mine) - size) > _EXACTLY * size or not len(theirs) or mine[0] != theirs[0]:
        return None
    names_ = max(int(mine.max()), int(theirs.max())) + 1
    differ = np.abs(np.bincount(mine, minlength=names_) - np.bincount(theirs, minlength=names_)).sum()
    if differ > _EXACTLY * size:
        return None
    begins_after = int(np.median(thread.start[np.minimum(borders[1:-1], len(thread.start) - 1)] - edges[:-1]))
    begin = int(thread.start[borders[0]]) - begins_after
    return max(begin, thread.first) if begin >= thread.first - _EXACTLY * float(np.median(np.diff(edges))) else None


def _with(note: str, remarks: list[str]) -> str:
    return f"{note} ({'; '.join(remarks)})." if remarks else f"{note}."


def _unknown(note: str) -> Steps:
    return Steps(StepMethod.UNKNOWN, Confidence.NONE, note)
