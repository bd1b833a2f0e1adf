"""What a run of HTA left: its tables, and by name what it could not do."""

from __future__ import annotations

from typing import Any

import msgspec

ANALYSES: dict[str, str] = {
    "temporal_breakdown": "temporal breakdown",
    "idle_time_breakdown": "idle time breakdown",
    "gpu_kernel_breakdown": "kernel breakdown",
    "comm_comp_overlap": "overlap of communication and computation",
    "cuda_kernel_launch_stats": "kernel launch statistics",
    "queue_length_summary": "queue length summary",
}
"""HTA's method (without `get_`) → what it is called in sentences. Each gives one table of the same name, except the
kernel breakdown, which gives `gpu_kernel_type_breakdown` as well."""

LOADING = "load"

SHOWN_ROWS = 1000


class HtaTable(msgspec.Struct, frozen=True):
    """One of HTA's results. `rows` holds at most `SHOWN_ROWS` of the `row_count` rows that `file` has, in its order.

    Numbers are as HTA gives them (µs, percent); NaN and infinity are None.
    """

    name: str
    file: str  # Parquet, relative to the output folder
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    row_count: int


class HtaFailure(msgspec.Struct, frozen=True):
    """What HTA could not do. `rank` None: not due to one rank alone, or unknown to which."""

    analysis: str  # a key of ANALYSES, or LOADING
    rank: int | None
    error: str  # the exception's type, "killed" or "timeout"
    detail: str

    @property
    def sentence(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        what = (
            f"HTA could not load the trace of rank {self.rank}"
            if self.analysis == LOADING and self.rank is not None
            else "HTA could not be run"
            if self.analysis == LOADING
            else f"The {ANALYSES.get(self.analysis, self.analysis)} of HTA failed{where}"
        )
        return f"{what}: {self.error}{': ' if self.detail else ''}{self.detail}"


class HtaResult(msgspec.Struct, frozen=True):
    """All of one run of HTA on the traces of one manifest.

    `ranks` were loaded by HTA; its job-wide numbers rest on these. Which ranks it lost, and where, is in `failures`.
    """

    version: str | None
    ranks: tuple[int, ...]
    tables: tuple[HtaTable, ...]
    failures: tuple[HtaFailure, ...]
    seconds: float

    def table(self, name: str) -> HtaTable | None:
        return next((table for table in self.tables if table.name == name), None)
