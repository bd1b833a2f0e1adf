"""What event names and categories mean: the one place that spells Kineto's and PyTorch's words.

Names as written by torch.profiler (torch/csrc/autograd/profiler_kineto.cpp, torch/optim/optimizer.py,
torch/utils/data/dataloader.py, ProcessGroupGloo.cpp) and by NCCL's kernels; older traces spell some categories
with a capital letter ("Operator", "Kernel", "Runtime").
"""

from __future__ import annotations

from sameshot.analysis.names.communication import (
    DTYPE_BYTES,
    SYMMETRIC,
    UNEVEN,
    Collective,
    collective_kind,
    has_uneven_parts,
    is_collective_call,
    is_communication_kernel,
    is_gloo_span,
    is_host_communication,
    is_nccl_kernel,
)
from sameshot.analysis.names.device import (
    copy_kind,
    is_asynchronous,
    is_backward_kernel,
    is_copy_to_device,
    is_graph_launch,
    is_launch,
    is_optimizer_kernel,
    is_pageable,
)
from sameshot.analysis.names.host import (
    DATA_FETCH,
    OPTIMIZER_STEP,
    PROFILER_STEP,
    is_backward,
    is_fetch,
    is_garbage_collection,
    is_loader_frame,
    is_lock_wait,
    is_optimizer_work,
    is_step_mark,
    is_wrapper,
    sounds_like_fetch,
)
from sameshot.analysis.names.kinds import BY_NAME, CATEGORIES, Cat, category, kind_by_name
from sameshot.analysis.names.shown import short

__all__ = [
    "BY_NAME",
    "CATEGORIES",
    "DATA_FETCH",
    "DTYPE_BYTES",
    "OPTIMIZER_STEP",
    "PROFILER_STEP",
    "SYMMETRIC",
    "UNEVEN",
    "Cat",
    "Collective",
    "category",
    "collective_kind",
    "copy_kind",
    "has_uneven_parts",
    "is_asynchronous",
    "is_backward",
    "is_backward_kernel",
    "is_collective_call",
    "is_communication_kernel",
    "is_copy_to_device",
    "is_fetch",
    "is_garbage_collection",
    "is_gloo_span",
    "is_graph_launch",
    "is_host_communication",
    "is_launch",
    "is_loader_frame",
    "is_lock_wait",
    "is_nccl_kernel",
    "is_optimizer_kernel",
    "is_optimizer_work",
    "is_pageable",
    "is_step_mark",
    "is_wrapper",
    "kind_by_name",
    "short",
    "sounds_like_fetch",
]
