"""The six tables that users of HTA know, from our numbers: exact, or as HTA would have rounded and chosen them.

    parts = [part_of(frame, rank, Rounding.EXACT) for …]      # per rank, where its frame is
    write(tables_of(parts), out / "tables")                    # for all of them

Under HTA's rules, what HTA drops depends on all ranks together (see `compat.step_names`), so a rank whose own trace
does not decide it carries both answers until the parts are joined.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sameshot.analysis.device.work import Work
from sameshot.analysis.frame import Frame
from sameshot.analysis.hta import compat, exact
from sameshot.analysis.hta.shape import Columns, RankTables, joined


class Rounding(enum.StrEnum):
    """How the six tables are computed."""

    EXACT = "exact"  # whole nanoseconds, all events
    HTA = "hta"  # HTA 0.5.0's: start up, end down to whole µs, and its choice of events


class TablePart(msgspec.Struct, frozen=True):
    """What one rank contributes to the tables. One of `whole` and `without_last_step` may be None where it is clear
    that nobody will ask for it."""

    steps: tuple[str, ...]
    whole: RankTables | None
    without_last_step: RankTables | None = None


def part_of(frame: Frame, rank: int | None, rounding: Rounding = Rounding.EXACT, work: Work | None = None) -> TablePart:
    """One rank's part. `work` is what `device.work.gather` made of the frame, where it is known."""
    if rounding is Rounding.EXACT:
        return TablePart((), exact.rank_tables(frame, rank, work))
    steps = compat.step_names(frame)
    decided = len(steps) > 1
    return TablePart(
        steps,
        None if decided else compat.rank_tables(frame, rank, drop_last_step=False),
        compat.rank_tables(frame, rank, drop_last_step=True),
    )


def tables_of(parts: Sequence[TablePart]) -> dict[str, pa.Table]:
    """The tables of all ranks, in order of rank."""
    drop = len({name for part in parts for name in part.steps}) > 1
    chosen = [part.without_last_step if drop else part.whole for part in parts]
    known = sorted((c for c in chosen if c is not None), key=lambda c: (c.rank is None, c.rank or 0))
    return {name: _arrow(name, columns) for name, columns in joined(known).items()}


def write(tables: Mapping[str, pa.Table], folder: Path, prefix: str = "") -> list[Path]:
    """One Parquet file per table; whoever looks sees the old file or the new one, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables.items():
        path = folder / f"{prefix}{name}.parquet"
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            pq.write_table(table, part, compression="zstd")
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        written.append(path)
    return written


_FLOATS = {
    "temporal_breakdown": ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)",
                           "idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg"),
    "idle_time_breakdown": ("idle_time", "idle_time_ratio"),
    "gpu_kernel_type_breakdown": ("sum", "percentage"),
    "gpu_kernel_breakdown": ("sum (us)", "max (us)", "min (us)", "stddev", "mean (us)"),
    "comm_comp_overlap": ("comp_comm_overlap_pctg",),
    "cuda_kernel_launch_stats": ("cpu_duration", "gpu_duration", "launch_delay"),
    "queue_length_summary": ("count", "mean", "std", "min", "25%", "50%", "75%", "max"),
}  # fmt: skip
_OTHERS: dict[str, dict[str, pa.DataType]] = {
    "temporal_breakdown": {"rank": pa.int64()},
    "idle_time_breakdown": {"rank": pa.int64(), "stream": pa.int64(), "idle_category": pa.string()},
    "gpu_kernel_type_breakdown": {"kernel_type": pa.string()},
    "gpu_kernel_breakdown": {"name": pa.string(), "kernel_type": pa.string(), "rank": pa.int64()},
    "comm_comp_overlap": {"rank": pa.int64()},
    "cuda_kernel_launch_stats": {"rank": pa.int64(), "correlation": pa.int64()},
    "queue_length_summary": {"rank": pa.int64(), "stream": pa.int64()},
}


def _arrow(name: str, columns: Columns) -> pa.Table:
    """With fixed types, also where nothing is known; what is no number where one belongs (a stream's name) is null."""
    types = {**_OTHERS[name], **dict.fromkeys(_FLOATS[name], pa.float64())}
    order = [column for column in columns if column in types or column == "device"]
    order += [column for column in types if column not in columns]
    return pa.table({c: _array(columns.get(c, []), types.get(c, pa.int64())) for c in order})


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, list) and pa.types.is_int64(kind):
        values = [value if isinstance(value, int) else None for value in values]
    return pa.array(values, type=kind)
