"""HTA's six tables: their columns, and how the ranks' parts become one table each."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

COMPUTATION, COMMUNICATION, MEMORY, OTHER = range(4)


class RankTables(msgspec.Struct, frozen=True):
    """One rank's part. Times are µs: whole ones under HTA's rules, exact ones with a fraction otherwise.

    Empty parts: the rank has nothing to say in that table.
    """

    rank: int
    temporal: dict[str, Any] = {}
    idle: dict[str, Any] = {}
    kernel_types: dict[str, Any] = {}
    kernels: dict[str, Any] = {}
    overlap: float | None = None
    launches: dict[str, Any] = {}
    queues: dict[str, Any] = {}


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
