"""Which kernels, and copies, took the time: the largest by name, with their distributions."""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.device.work import Work
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import KernelRow
from sameshot.analysis.stats import Groups, grouped
from sameshot.trace.columns.chunk import Codes

TOP = 15  # of each kind
OTHERS = "others"  # all further ones of a kind in one row: the rows of a kind add up to all of it
_NAME_LIMIT = 160


def kernel_rows(work: Work, words: list[str]) -> tuple[KernelRow, ...]:
    """By kind, and the largest first. A communication kernel's time includes its waiting for late ranks."""
    kinds = (
        ("compute", ~(work.communication | work.memory)),
        ("communication", work.communication),
        ("memory", work.memory),
    )
    duration = work.rows.dur
    rows: list[KernelRow] = []
    for kind, chosen in kinds:
        rows += kernel_breakdown(kind, work.rows.name[chosen], duration[chosen], words)
    return tuple(rows)


def kernel_breakdown(kind: str, name: Codes, duration: Ints, words: list[str], top: int = TOP) -> list[KernelRow]:
    """The `top` names with the longest total, and one row for all others."""
    found = grouped(name, duration)
    order = np.lexsort((found.code, -found.total))
    whole = int(found.total.sum())
    rows = _rows(kind, found, order[:top].tolist(), [names.short(words[c], _NAME_LIMIT) for c in found.code], whole)
    if len(order) > top:
        rest = np.zeros(len(words), dtype=np.bool_)
        rest[found.code[order[top:]]] = True
        left = duration[rest[name]]
        rows += _rows(kind, grouped(np.zeros(len(left), dtype=np.int64), left), [0], [OTHERS], whole)
    return rows


def _rows(kind: str, found: Groups, chosen: list[int], labels: list[str], whole: int) -> list[KernelRow]:
    p50, p90, p99 = (found.quantile(percent) for percent in (50, 90, 99))
    return [
        KernelRow(
            name=labels[i],
            kind=kind,
            count=int(found.count[i]),
            total=int(found.total[i]),
            share=int(found.total[i]) / whole if whole else 0.0,
            mean=int(found.total[i]) // int(found.count[i]),
            deviation=int(found.deviation[i]),
            minimum=int(found.minimum[i]),
            p50=int(p50[i]),
            p90=int(p90[i]),
            p99=int(p99[i]),
            maximum=int(found.maximum[i]),
        )
        for i in chosen
    ]
