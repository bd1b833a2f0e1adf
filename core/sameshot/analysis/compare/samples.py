"""The numbers that a comparison rests on, taken out of the summaries of one capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from sameshot.analysis.compare.noise import LEAST, Floats
from sameshot.analysis.device.kernels import OTHERS
from sameshot.analysis.results import KernelRow, NamedTime, Part, RankSummary, Summary

DEVICE_PARTS = ("compute", "communication", "memory", "idle")


class Side(msgspec.Struct, frozen=True):
    """One capture: its job-wide summary and the ranks it was made of."""

    summary: Summary
    ranks: tuple[RankSummary, ...]

    @property
    def stepped(self) -> list[RankSummary]:
        """Ranks with known steps."""
        return [rank for rank in self.ranks if rank.steps.count]

    def steps_done(self, ranks: Iterable[RankSummary] | None = None) -> float:
        """How many steps fit into the windows of these ranks: time divided by the average step of each."""
        return sum(
            rank.window * rank.steps.count / (rank.steps.edges[-1] - rank.steps.edges[0])
            for rank in (self.stepped if ranks is None else ranks)
            if rank.steps.count
        )


def step_times(side: Side) -> Floats:
    """Step times of the rank with most steps: ranks that train together make the same steps, so others add nothing."""
    ranks = side.stepped
    if not ranks:
        return np.empty(0)
    longest = max(ranks, key=lambda rank: rank.steps.count)
    return np.diff(np.asarray(longest.steps.edges, dtype=np.float64))


def over_steps(ranks: Sequence[RankSummary], value: Callable[[RankSummary], Sequence[int]]) -> Floats:
    """A value per step, averaged over the ranks that have it; as many steps as all of them have."""
    rows = [values for rank in ranks if (values := value(rank))]
    if not rows:
        return np.empty(0)
    steps = min(len(row) for row in rows)
    means: Floats = np.mean([row[:steps] for row in rows], axis=0, dtype=np.float64)
    return means


def part_per_step(part: Part) -> Callable[[RankSummary], list[int]]:
    return lambda rank: [step.get(part) for step in rank.steps.parts]


def device_per_step(name: str) -> Callable[[RankSummary], list[int]]:
    return lambda rank: [getattr(step, name) for step in rank.steps.device]


class Named(msgspec.Struct, frozen=True):
    """One kernel or operator over all ranks with steps of a capture, in ns."""

    count: int
    total: float
    variance: float | None  # of single durations; None: not known


OfSide = Callable[[Side], dict[str, Named]]


def kernels(side: Side) -> dict[str, Named]:
    """Kernels by name, summed over ranks. Only each rank's largest are known: what is not here may be among its others,
    and those of two captures are not the same kernels."""
    rows: defaultdict[str, list[KernelRow]] = defaultdict(list)
    for rank in side.stepped:
        for row in rank.kernel_rows:
            if row.name != OTHERS:
                rows[row.name].append(row)
    found = {}
    for name, group in rows.items():
        count = sum(row.count for row in group)
        total = float(sum(row.total for row in group))
        square = sum(row.count * (float(row.deviation) ** 2 + float(row.mean) ** 2) for row in group)
        spread = max(square / count - (total / count) ** 2, 0.0)
        found[name] = Named(count, total, spread if count >= LEAST else None)
    return found


def operators(side: Side) -> dict[str, Named]:
    """Operators by name, self time, summed over ranks. Only each rank's largest are known."""
    rows: defaultdict[str, list[NamedTime]] = defaultdict(list)
    for rank in side.stepped:
        for row in rank.operators:
            rows[row.name].append(row)
    return {
        name: Named(sum(row.count for row in group), float(sum(row.self_time for row in group)), None)
        for name, group in rows.items()
    }
