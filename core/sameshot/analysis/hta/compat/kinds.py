"""What HTA takes a name for."""

from __future__ import annotations

import re

from sameshot.analysis import names
from sameshot.analysis.hta.shape import (
    COMMUNICATION,
    COMPUTATION,
    MEMORY,
    OTHER,
)
from sameshot.analysis.names import Cat

# hta/common/trace_symbol_table.py get_runtime_launch_events_query
_QUEUED = frozenset({
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution", "hipLaunchKernel", "hipExtModuleLaunchKernel",
    "hipMemsetAsync", "hipMemcpyAsync", "hipMemcpyWithStream",
})  # fmt: skip
# hta/analyzers/cuda_kernel_analysis.py cuda_kernel_launch_stats
_LAUNCHES = frozenset({
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemsetAsync", "cudaMemcpyAsync",
    "runFunction - job_prep_and_submit_for_execution",
})  # fmt: skip
_SYNCS = frozenset({"Event Sync", "Context Sync"})

_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NO_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")


def kernel_type(name: str) -> int:
    if _COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NO_COMPUTE.match(name) else COMPUTATION


def is_step(name: str) -> bool:
    return "ProfilerStep" in name


def is_queued(name: str) -> bool:
    return name in _QUEUED


def is_launch(name: str) -> bool:
    return name in _LAUNCHES


def is_sync(name: str) -> bool:
    return name in _SYNCS


def is_mtia_mark(name: str) -> bool:
    return names.kind_by_name(name) is Cat.SYNC
