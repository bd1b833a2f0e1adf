"""The six tables that users of HTA know, from our numbers: exact, or as HTA would have rounded and chosen them.

    parts = [part_of(frame, rank, Rounding.EXACT) for …]      # per rank, where its frame is
    write_tables(tables_of(parts), out / "tables")                    # for all of them

Under HTA's rules, what HTA drops depends on all ranks together (see `compat.step_names`), so a rank whose own trace
does not decide it carries both answers until the parts are joined.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sameshot.analysis.device.work import Work
from sameshot.analysis.files import replacing
from sameshot.analysis.frame import Frame
from sameshot.analysis.hta import compat, exact
from sameshot.analysis.hta.shape import Columns, RankTables, joined

if TYPE_CHECKING:  # imported where tables are made: the parts of ranks are made in processes that need no pyarrow
    import pyarrow as pa


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


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> list[Path]:
    """One Parquet file per table; whoever looks sees the old file or the new one, never a part."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        with replacing(path) as part:
            pq.write_table(table, part, compression="zstd")
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
_INTS = frozenset({"rank", "device", "stream", "correlation"})
_TEXTS = {
    "idle_time_breakdown": ("idle_category",),
    "gpu_kernel_type_breakdown": ("kernel_type",),
    "gpu_kernel_breakdown": ("name", "kernel_type"),
}
_KEYS = {
    "idle_time_breakdown": ("rank", "stream"),
    "gpu_kernel_type_breakdown": (),
    "cuda_kernel_launch_stats": ("rank", "correlation"),
    "queue_length_summary": ("rank", "stream"),
}


def _arrow(name: str, columns: Columns) -> pa.Table:
    """With fixed types, also where nothing is known; what is no number where one belongs (a stream's name) is null."""
    import pyarrow as pa

    order = list(columns)
    order += [c for c in (*_KEYS.get(name, ("rank",)), *_TEXTS.get(name, ()), *_FLOATS[name]) if c not in columns]
    arrays = [_array(column, columns.get(column, []), _FLOATS[name]) for column in order]
    return pa.Table.from_arrays(arrays, names=order)


def _array(name: str, values: Any, floats: Sequence[str]) -> pa.Array:
    if name in floats:
        return _numbers(values, np.float64)
    return _numbers(values, np.int64) if name in _INTS else _strings(values)


# Plain buffers, because pyarrow's own conversions import pandas where it is installed (0.2 s of CPU).


def _numbers(values: Any, dtype: type[np.generic]) -> pa.Array:
    """What is no number of that kind is null."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(dtype)
    if isinstance(values, np.ndarray):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.astype(dtype))])
    wanted = (int, float) if dtype is np.float64 else int
    known = np.array([isinstance(value, wanted) for value in values], dtype=np.bool_)
    filled = np.array([value if ok else 0 for value, ok in zip(values, known.tolist(), strict=True)], dtype=dtype)
    validity = np.packbits(known, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(validity), pa.py_buffer(filled)])


def _strings(values: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    encoded = [value.encode("utf-8", "replace") for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)
