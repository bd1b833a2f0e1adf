"""HTA's six tables: their columns, and how the ranks' parts become one table each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

COMPUTATION, COMMUNICATION, MEMORY, OTHER = range(4)
KINDS = ("COMPUTATION", "COMMUNICATION", "MEMORY")

Columns = dict[str, Any]
"""Name → list or array, all of one length."""


class RankTables(msgspec.Struct, frozen=True):
    """One rank's part. Times are µs: whole ones under HTA's rules, exact ones with a fraction otherwise.

    Empty parts: the rank has nothing to say in that table.
    """

    rank: int | None
    temporal: dict[str, Any] = {}  # idle, compute, non_compute, kernel
    idle: Columns = {}
    kernel_types: dict[str, Any] = {}  # what ran at once → time
    kernels: Columns = {}
    overlap: float | None = None  # share
    launches: Columns = {}
    queues: Columns = {}


def types_name(bits: int) -> str:
    return " overlapping ".join(name for kind, name in enumerate(KINDS) if bits >> kind & 1)


def describe(values: npt.NDArray[Any]) -> dict[str, Any]:
    """What pandas' `describe` says about a column of numbers."""
    low, half, high = np.percentile(values, (25, 50, 75)).tolist()
    return {
        "count": float(len(values)),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min": float(values.min()),
        "25%": low,
        "50%": half,
        "75%": high,
        "max": float(values.max()),
    }


def joined(ranks: Sequence[RankTables]) -> dict[str, Columns]:
    """The six tables (seven: kernels by type and by name) of all ranks, under HTA's names, with HTA's columns."""
    return {
        "temporal_breakdown": _temporal(ranks),
        "idle_time_breakdown": _stacked((part.rank, part.idle) for part in ranks),
        "gpu_kernel_type_breakdown": _types(ranks),
        "gpu_kernel_breakdown": _kernels(ranks),
        "comm_comp_overlap": {
            "rank": [part.rank for part in ranks],
            "comp_comm_overlap_pctg": [None if p.overlap is None else rounded(100 * p.overlap, 2) for p in ranks],
        },
        "cuda_kernel_launch_stats": _stacked((part.rank, part.launches) for part in ranks),
        "queue_length_summary": _stacked((part.rank, part.queues) for part in ranks),
    }


def rounded(value: float, digits: int) -> float:
    """As pandas does it, which is not always as Python's `round` does."""
    return float(np.round(value, digits))


def _stacked(parts: Iterable[tuple[int | None, Columns]]) -> Columns:
    sized = [(rank, part, len(next(iter(part.values())))) for rank, part in parts if part]
    filled = [each for each in sized if each[2]]
    if not filled:
        return {"rank": []}
    ranks = [rank for rank, _, _ in filled]
    lengths = [length for _, _, length in filled]
    if None in ranks:
        table: Columns = {"rank": [rank for rank, length in zip(ranks, lengths, strict=True) for _ in range(length)]}
    else:
        table = {"rank": np.repeat(np.array(ranks, dtype=np.int64), lengths)}
    for name in filled[0][1]:
        columns = [part[name] for _, part, _ in filled]
        arrays = all(isinstance(column, np.ndarray) for column in columns)
        table[name] = np.concatenate(columns) if arrays else [value for column in columns for value in column]
    return table


def _temporal(ranks: Sequence[RankTables]) -> Columns:
    known = [part for part in ranks if part.temporal]
    parts = ("idle", "compute", "non_compute")
    table: Columns = {"rank": [part.rank for part in known]}
    for name in (*parts, "kernel"):
        table[f"{name}_time(us)"] = [part.temporal[name] for part in known]
    for name in parts:
        table[f"{name}_time_pctg"] = [
            rounded(100 * (part.temporal[name] / part.temporal["kernel"]), 2) if part.temporal["kernel"] else None
            for part in known
        ]
    return table


def _types(ranks: Sequence[RankTables]) -> Columns:
    sums: dict[str, Any] = {}
    for part in ranks:
        for name, time in part.kernel_types.items():
            sums[name] = sums.get(name, 0) + time
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda each: (-each[1], each[0]))
    return {
        "kernel_type": [name for name, _ in ordered],
        "sum": [time for _, time in ordered],
        "percentage": [rounded(time / whole * 100, 1) if whole else None for _, time in ordered],
    }


def _kernels(ranks: Sequence[RankTables]) -> Columns:
    names = {"sum": "sum (us)", "max": "max (us)", "min": "min (us)", "mean": "mean (us)"}
    rows = [(part.rank, row) for part in ranks for row in zip(*part.kernels.values(), strict=True)]
    columns = ("name", "sum", "max", "min", "stddev", "mean", "kernel_type")
    at = columns.index("kernel_type")
    rows.sort(key=lambda each: (each[1][at], each[1][0], -1 if each[0] is None else each[0]))
    table: Columns = {names.get(c, c): [row[i] for _, row in rows] for i, c in enumerate(columns)}
    table["rank"] = [rank for rank, _ in rows]
    return table
