"""HTA's own reading of a trace, operation by operation: for comparing with HTA 0.5.0, not for answers.

It loses up to 1 µs of each event, mixes up devices that use the same stream number, takes waits of a stream
(`cuda_sync`) and host operators that state a stream for computation, and drops the last `ProfilerStep`;
docs/analysis.md has the events that show it. Here each of these is repeated faithfully, because a difference that
remains is then one that matters. Even the order of events at equal times is HTA's: pandas sorts with numpy's unstable
sort, and queue lengths and idle categories depend on it, so the same call sorts the same numbers in the same order
here.

Sources (HTA 0.5.0): common/trace_parser.py `round_down_time_stamps`; common/trace.py `transform_correlation_to_index`,
`_filter_irrelevant_gpu_kernels`; utils/utils.py `get_kernel_type`, `merge_kernel_intervals`; and per table below.
"""

from __future__ import annotations

from sameshot.analysis.hta.compat.read import step_names
from sameshot.analysis.hta.compat.tables import rank_tables

__all__ = ["rank_tables", "step_names"]
