"""What runs on a device, and the calls that put it there: launches, kernels, copies."""

from __future__ import annotations

import re

from sameshot.analysis.names.shown import short

# Kernels of cuDNN, CUTLASS, PyTorch and others by what they call themselves.
_BACKWARD_KERNEL = re.compile(r"backward|[_:]bw[_d]|wgrad|dgrad", re.IGNORECASE)
_OPTIMIZER_KERNEL = re.compile(r"multi_tensor_apply|addcdiv|addcmul|adam|lamb_|sgd", re.IGNORECASE)


def is_backward_kernel(name: str) -> bool:
    return _BACKWARD_KERNEL.search(name) is not None


def is_optimizer_kernel(name: str) -> bool:
    return _OPTIMIZER_KERNEL.search(name) is not None


# Calls that put work on a device. CUDA's as CUPTI names them (libkineto src/CuptiCbidRegistry.cpp, cupti_strings.cpp),
# HIP's as rocprofiler does (src/RocprofLogger.cpp), Intel's as PTI does (test/xpupti/XpuptiProfilerTest.cpp), MTIA's as
# HTA knows it (hta/common/trace_symbol_table.py).
_LAUNCH = re.compile(
    r"(?:cu|cuda|hip)(?:Ext|Module|ExtModule|HccModule)?(?:Launch|GraphLaunch|Memcpy|Memset)"
    r"|urEnqueue(?:KernelLaunch|MemBuffer|MemImage|USM)"
    r"|zeCommandListAppend(?:Launch|Memory)"
    r"|runFunction - job_prep_and_submit_for_execution$"
)
_GRAPH_LAUNCH = re.compile(r"(?:cu|cuda|hip)GraphLaunch")


def is_launch(name: str) -> bool:
    """A runtime call that launches kernels, copies or memsets."""
    return _LAUNCH.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """A runtime call that launches a whole graph: one call, many kernels."""
    return _GRAPH_LAUNCH.match(name) is not None


def is_copy_to_device(name: str) -> bool:
    """A copy from host memory to a device: "Memcpy HtoD (Pageable -> Device)", ROCm's "CopyHostToDevice"."""
    return name.startswith(("Memcpy HtoD", "CopyHostToDevice", "Memcpy M2D"))


def is_pageable(name: str) -> bool:
    """A copy from or to pageable memory: the driver stages it, and the call returns only then (CUDA's API notes)."""
    return "Pageable" in name


def is_asynchronous(name: str) -> bool:
    """A copy call that returns before the copy is done. ROCm's `hipMemcpyWithStream` does not."""
    return "Async" in name


_COPY = re.compile(r"Memcpy\s+(\w+)\s*(?:\((.+?)\s*->\s*(.+?)\))?")
_HOST_MEMORY = {"Pageable": "pageable", "Pinned": "pinned", "Managed": "managed"}


def copy_kind(name: str) -> str:
    """The direction as written, and what host memory it used: "HtoD pageable", "DtoD", "Memset".

    Names as in libkineto src/cupti_strings.cpp; AMD and Intel say "Host", which tells nothing about the memory.
    """
    if name.startswith("Memset"):
        return "Memset"
    found = _COPY.match(name)
    if not found:
        return short(name, 40)
    memory = [_HOST_MEMORY[side] for side in found.group(2, 3) if side in _HOST_MEMORY]
    return " ".join((found.group(1), *memory))
