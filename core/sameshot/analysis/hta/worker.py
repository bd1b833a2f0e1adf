"""The process that HTA runs in: `python -m sameshot.analysis.hta.worker TASK`. Nothing else of ours imports HTA.

HTA loads with a pool that hangs for ever once one of its processes is killed, and one bad rank aborts its whole load
(seen with 0.5.0). So ranks are loaded one after the other, by HTA's own `parse_single_rank`, each result is noted as
soon as it is there, and whoever started this process may kill it at any time and read what was noted.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class Task(msgspec.Struct, frozen=True):
    """What to do. `files` are whole JSON files by rank, `notes` is the file that progress is appended to."""

    files: dict[int, str]
    analyses: tuple[str, ...]
    out: str
    notes: str


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of progress. `what`: version, doing, loaded, done, failed or table."""

    what: str
    analysis: str = ""
    rank: int | None = None
    error: str = ""
    detail: str = ""
    name: str = ""


def main(path: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task = msgspec.json.decode(Path(path).read_bytes(), type=Task)
    with open(task.notes, "ab", buffering=0) as notes:
        _run(task, lambda note: notes.write(msgspec.json.encode(note) + b"\n"))


def _end_with_parent() -> None:
    """Whoever started this process holds the other end of its standard input."""
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


def _run(task: Task, note: Callable[[Note], object]) -> None:
    import hta
    from hta.common.trace import Trace

    note(Note("version", detail=hta.__version__))
    trace = Trace(dict(task.files), trace_dir="/")
    for rank in sorted(task.files):
        note(Note("doing", "load", rank))
        try:
            trace.parse_single_rank(rank)
        except Exception as error:
            trace.traces.pop(rank, None)
            note(_failed("load", rank, error))
        else:
            note(Note("loaded", rank=rank))
    if not trace.traces:
        return
    note(Note("doing", "load"))
    try:  # the rest of Trace.load_traces
        trace.align_and_filter_trace(include_last_profiler_step=False)
        for rank, events in trace.traces.items():
            trace.traces[rank] = events.set_index("index", drop=False).rename_axis(None)
        trace.is_parsed = True
    except Exception as error:
        note(_failed("load", None, error))
        return
    for analysis in task.analyses:
        _analyse(trace, analysis, Path(task.out), note)


def _analyse(trace: Any, analysis: str, out: Path, note: Callable[[Note], object]) -> None:
    """All ranks at once, as HTA does it; where that fails, without the ranks on which it fails alone."""
    note(Note("doing", analysis))
    try:
        tables = _ANALYSES[analysis](trace)
    except Exception as error:
        good = [rank for rank in sorted(trace.traces) if _works_alone(trace, analysis, rank, note)]
        if len(good) == len(trace.traces):
            note(_failed(analysis, None, error))
            good = []
        try:
            tables = _ANALYSES[analysis](_part(trace, good)) if good else {}
        except Exception as again:
            note(_failed(analysis, None, again))
            tables = {}
    for name, table in tables.items():
        if table is not None:
            _store(table, out / f"hta_{name}.parquet")
            note(Note("table", analysis, name=name))
    note(Note("done", analysis))


def _works_alone(trace: Any, analysis: str, rank: int, note: Callable[[Note], object]) -> bool:
    note(Note("doing", analysis, rank))
    try:
        _ANALYSES[analysis](_part(trace, [rank]))
    except Exception as error:
        note(_failed(analysis, rank, error))
        return False
    return True


def _part(trace: Any, ranks: list[int]) -> Any:
    part = copy.copy(trace)
    part.traces = {rank: trace.traces[rank] for rank in ranks}
    return part


def _failed(analysis: str, rank: int | None, error: Exception) -> Note:
    detail = " ".join(str(error).split())
    return Note("failed", analysis, rank, type(error).__name__, detail if len(detail) <= 300 else detail[:299] + "…")


def _face(trace: Any) -> Any:
    """HTA's `TraceAnalysis` of traces that are loaded already: its methods hold HTA's defaults."""
    from hta.trace_analysis import TraceAnalysis

    face = TraceAnalysis.__new__(TraceAnalysis)
    face.t = trace
    return face


def _temporal(trace: Any) -> dict[str, Any]:
    return {"temporal_breakdown": _face(trace).get_temporal_breakdown(visualize=False)}


def _idle(trace: Any) -> dict[str, Any]:
    ranks = sorted(trace.traces)
    return {"idle_time_breakdown": _face(trace).get_idle_time_breakdown(ranks=ranks, visualize=False)[0]}


def _kernels(trace: Any) -> dict[str, Any]:
    types, kernels = _face(trace).get_gpu_kernel_breakdown(visualize=False)
    return {"gpu_kernel_type_breakdown": types, "gpu_kernel_breakdown": kernels}


def _overlap(trace: Any) -> dict[str, Any]:
    return {"comm_comp_overlap": _face(trace).get_comm_comp_overlap(visualize=False)}


def _launches(trace: Any) -> dict[str, Any]:
    import pandas as pd

    found = _face(trace).get_cuda_kernel_launch_stats(ranks=sorted(trace.traces), visualize=False)
    tables = [table.assign(rank=rank) for rank, table in found.items()]
    table = pd.concat(tables, ignore_index=True)
    return {"cuda_kernel_launch_stats": table[["rank", *(name for name in table.columns if name != "rank")]]}


def _queue(trace: Any) -> dict[str, Any]:
    table = _face(trace).get_queue_length_summary(ranks=sorted(trace.traces))
    if table is not None:
        table.columns = [name[-1] for name in table.columns]
        table = table.reset_index()
    return {"queue_length_summary": table}


_ANALYSES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "temporal_breakdown": _temporal,
    "idle_time_breakdown": _idle,
    "gpu_kernel_breakdown": _kernels,
    "comm_comp_overlap": _overlap,
    "cuda_kernel_launch_stats": _launches,
    "queue_length_summary": _queue,
}


def _store(table: Any, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = path.with_name(f".{path.name}.part")
    columns = table.reset_index(drop=True)
    columns.columns = [str(name) for name in columns.columns]
    for name in columns.columns:  # an empty table of HTA has columns of Python objects, of which Arrow knows no type
        if columns[name].dtype == object and not columns[name].map(lambda value: isinstance(value, str)).all():
            columns[name] = columns[name].astype(float)
    pq.write_table(pa.Table.from_pandas(columns, preserve_index=False), part)
    part.replace(path)


if __name__ == "__main__":
    main(sys.argv[1])
