"""HTA run for real on some traces, and our tables of the same bytes, to be compared cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from device_traces import frame_of

from sameshot.analysis.hta import HtaResult
from sameshot.analysis.hta.engine import run_hta
from sameshot.analysis.hta.tables import Rounding, part_of, tables_of
from sameshot.manifest import Manifest, decode
from sameshot.storage import Storage
from sameshot.trace.imported import Import, import_traces

Tables = dict[str, list[dict[str, Any]]]


def capture_of(folder: Path, files: Mapping[int, Path]) -> tuple[Manifest, Storage]:
    """The files as an imported capture below `folder`."""
    import_traces(Import(files=dict(files), out=folder / "capture", columns=False))
    storage = Storage.open(str(folder / "capture"))
    return decode(storage.get_sync("manifest.json")), storage


def by_hta(folder: Path, files: Mapping[int, Path]) -> tuple[HtaResult, Tables]:
    """What HTA itself says of these ranks."""
    manifest, storage = capture_of(folder, files)
    result = run_hta(manifest, storage, folder / "tables")
    return result, {t.name: pq.read_table(folder / "tables" / t.file).to_pylist() for t in result.tables}


def by_us(files: Mapping[int, Path], rounding: Rounding) -> Tables:
    parts = [part_of(frame_of(path), rank, rounding) for rank, path in files.items()]
    return {name: table.to_pylist() for name, table in tables_of(parts).items()}


# HTA leaves the order of equal sums, and of pairs of a call and a kernel, to chance.
_ORDER = {
    "gpu_kernel_type_breakdown": ("kernel_type",),
    "cuda_kernel_launch_stats": ("rank", "correlation", "cpu_duration", "gpu_duration", "launch_delay"),
}


def differences(ours: Tables, theirs: Tables) -> list[str]:
    """What differs between the tables that both have: rows, columns, order, any printed digit."""
    return [f"{name}: {text}" for name in theirs for text in _table(name, ours[name], theirs[name])]


def _table(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Sequence[str]:
    if name in _ORDER:
        ours, theirs = (
            sorted(rows, key=lambda row: [row[column] for column in _ORDER[name]]) for rows in (ours, theirs)
        )
    if len(ours) != len(theirs):
        return [f"{len(ours)} rows, HTA has {len(theirs)}"]
    return [
        f"row {i}: {column} is {mine[column]}, HTA says {value} ({other})"
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        for column, value in other.items()
        if not _same(mine[column], value)
    ]


def _same(mine: Any, other: Any) -> bool:
    if isinstance(mine, str) or isinstance(other, str):
        return bool(mine == other)
    known = [value is not None and math.isfinite(value) for value in (mine, other)]
    return math.isclose(mine, other, rel_tol=1e-12, abs_tol=1e-9) if all(known) else not any(known)
