"""How unevenly ranks are loaded: one row per measure, with the rank that has most of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sameshot.analysis.results import Imbalance, Part, RankSummary

_LEAST_SHARE = 0.001  # of the window; what differs by less is not worth a row

Measure = Callable[[RankSummary], int | None]


def _part(part: Part) -> Measure:
    return lambda rank: rank.parts.get(part)


def _step_time(rank: RankSummary) -> int | None:
    return int(np.median(np.diff(rank.steps.edges))) if rank.steps.count else None


def _data_wait(rank: RankSummary) -> int | None:
    if rank.data_wait is None:
        return None
    return rank.data_wait.raw if rank.data_wait.felt is None else rank.data_wait.felt


_WHOLE: dict[str, Measure] = {
    "GPU computing": lambda rank: None if rank.device is None else rank.device.compute,
    "GPU only communicating": lambda rank: None if rank.device is None else rank.device.communication,
    "GPU only copying": lambda rank: None if rank.device is None else rank.device.memory,
    "GPU idle": lambda rank: None if rank.device is None else rank.device.idle,
    "GPU waiting for the host": lambda rank: None if rank.host_bound is None else rank.host_bound.total,
    "data wait": _data_wait,
    "main thread in operators": _part(Part.OPERATORS),
    "main thread in communication": _part(Part.COMMUNICATION),
    "main thread in the DataLoader": _part(Part.DATA_WAIT),
    "main thread in CUDA calls": _part(Part.RUNTIME),
    "main thread waiting for the backward thread": _part(Part.BACKWARD_THREAD),
    "main thread untraced": _part(Part.UNTRACED),
}


def imbalance(ranks: Sequence[RankSummary], labels: Sequence[str]) -> list[Imbalance]:
    """Measures that at least two ranks have and that differ, the largest difference first.

    Times over whole windows are scaled to the median window, so that a longer recording is not taken for more work.
    """
    if len(ranks) < 2:
        return []
    window = float(np.median([rank.window for rank in ranks]))
    rows = [_row("step time", [_step_time(rank) for rank in ranks], labels, window)]
    for name, measure in _WHOLE.items():
        values = [measure(rank) for rank in ranks]
        scaled = [
            None if value is None or not rank.window else round(value * window / rank.window)
            for value, rank in zip(values, ranks, strict=True)
        ]
        rows.append(_row(name, scaled, labels, window))
    return sorted((row for row in rows if row is not None), key=lambda row: row.median - row.maximum)


def _row(measure: str, values: Sequence[int | None], labels: Sequence[str], window: float) -> Imbalance | None:
    known = [(value, index) for index, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return None
    middle = int(np.median([value for value, _ in known]))
    most, index = max(known, key=lambda pair: (pair[0], -pair[1]))
    if most - middle <= _LEAST_SHARE * window and measure != "step time":
        return None
    return Imbalance(
        measure=measure,
        ranks=len(known),
        median=middle,
        maximum=most,
        excess=round((most - middle) / middle, 4) if middle > 0 else None,
        label=labels[index],
    )
