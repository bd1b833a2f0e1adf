"""Training steps inside a wall-clock window, from the marks that PyTorch leaves by itself.

An on-demand window has no `ProfilerStep` marks (nobody calls `profiler.step()`), so the ends of `Optimizer.step#…step`
spans mark the steps. That is an inference: with two optimizers, or one called twice in a row, counting events is
wrong, so each answer carries a confidence, and a doubtful one never says *high*.
"""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.intervals import Ints
from sameshot.analysis.measures import Confidence
from sameshot.analysis.summary import StepMethod, Steps

_LEAST_TO_PAIR = 8  # gaps; uneven steps look like pairs by chance in fewer
_CLEARLY_LONGER = 1.5

Mark = tuple[int, int, str]  # start, end, name


def infer_steps(marks: list[Mark], backward: Ints) -> Steps:
    """Find the steps of one rank.

    `marks` are the spans of its main thread (any names), `backward` the sorted start times of autograd's operators on
    any thread: two optimizer calls without a backward pass between them belong to the same step.
    """
    ordered = sorted(marks)
    profiler = [(start, end) for start, end, name in ordered if names.PROFILER_STEP.match(name)]
    if len(profiler) == 1:
        return _unknown("The window holds one ProfilerStep: fewer than two whole training steps.")
    if profiler:
        edges = [start for start, _ in profiler] + [max(end for _, end in profiler)]
        return Steps(
            StepMethod.PROFILER_STEP, Confidence.HIGH, "Steps are the job's own ProfilerStep marks.", tuple(edges)
        )
    optimizers: dict[str, list[int]] = {}
    for _, end, name in ordered:
        if found := names.OPTIMIZER_STEP.match(name):
            optimizers.setdefault(found[1], []).append(end)
    if not optimizers:
        return _unknown("No step marks: neither ProfilerStep nor Optimizer.step occurs on the main thread.")
    return _from_optimizers(optimizers, backward)


def _from_optimizers(optimizers: dict[str, list[int]], backward: Ints) -> Steps:
    confidence, remarks = Confidence.HIGH, []
    merged = {name: _merge(ends, backward) for name, ends in optimizers.items()}
    name = max(merged, key=lambda n: (len(merged[n]), n))
    edges = merged[name]
    if len(edges) != len(optimizers[name]):
        confidence = Confidence.MEDIUM
        remarks.append(f"{len(optimizers[name])} optimizer calls were taken for {len(edges)} steps")
    if len(merged) > 1:
        confidence = Confidence.MEDIUM
        remarks.append(f"{len(merged)} optimizers ({', '.join(sorted(merged))}): {name} was counted")
    moments = np.asarray(edges, dtype=np.int64)
    gaps: Ints = moments[1:] - moments[:-1]
    if len(gaps) < 2:
        return _unknown(f"The window holds {len(edges)} optimizer step(s): fewer than two whole training steps.")
    if len(gaps) < 4:
        confidence = min(confidence, Confidence.MEDIUM, key=_RANKING.index)
        remarks.append("only a few steps fit into the window")
    if _take_turns(gaps):
        confidence = Confidence.LOW
        if len(gaps) >= _LEAST_TO_PAIR:
            edges = edges[::2]
            remarks.append("long and short gaps take turns, so two optimizer calls were counted as one step")
        else:
            remarks.append("long and short gaps take turns: these may be two optimizers")
    if len(edges) < 3:
        return _unknown("The window holds fewer than two whole training steps.")
    note = "Steps are inferred from the ends of Optimizer.step"
    return Steps(
        StepMethod.OPTIMIZER, confidence, f"{note} ({'; '.join(remarks)})." if remarks else f"{note}.", tuple(edges)
    )


def _take_turns(gaps: Ints) -> bool:
    """Is every second gap clearly longer than all others? So few steps as fit into a window do that by chance, too."""
    if len(gaps) < 3:
        return False
    even, odd = gaps[::2], gaps[1::2]
    return bool(even.min() > _CLEARLY_LONGER * odd.max() or odd.min() > _CLEARLY_LONGER * even.max())


def _merge(ends: list[int], backward: Ints) -> list[int]:
    """Keep the last of the optimizer calls that no backward pass separates; without any backward keep all."""
    if not len(backward):
        return ends
    passed = np.searchsorted(backward, np.asarray(ends, dtype=np.int64))
    return [end for end, this, after in zip(ends, passed, [*passed[1:], -1], strict=True) if this != after]


_RANKING = [Confidence.NONE, Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH]


def _unknown(note: str) -> Steps:
    return Steps(StepMethod.UNKNOWN, Confidence.NONE, note)
