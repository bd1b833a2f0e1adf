"""What event names and categories mean: the one place that spells Kineto's and PyTorch's words.

Names as written by torch.profiler (torch/csrc/autograd/profiler_kineto.cpp, torch/optim/optimizer.py,
torch/utils/data/dataloader.py, ProcessGroupGloo.cpp) and by NCCL's kernels; older traces spell some categories
with a capital letter ("Operator", "Kernel", "Runtime").
"""

from __future__ import annotations

import enum
import re


class Cat(enum.IntEnum):
    """What kind of thing an event is. SKIPPED ones carry no time of their own (flows, marks, counters)."""

    OPERATOR = 0
    ANNOTATION = 1
    PYTHON = 2
    RUNTIME = 3
    KERNEL = 4
    MEMORY = 5
    SKIPPED = 6
    UNKNOWN = 7
    SYNC = 8  # a wait of a stream or a thread for a device (cuda_sync): never work


CATEGORIES: dict[str, Cat] = {
    "cpu_op": Cat.OPERATOR,
    "operator": Cat.OPERATOR,
    "user_annotation": Cat.ANNOTATION,
    "python_function": Cat.PYTHON,
    "cuda_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.RUNTIME,
    "runtime": Cat.RUNTIME,
    "xpu_runtime": Cat.RUNTIME,
    "mtia_runtime": Cat.RUNTIME,
    "privateuse1_runtime": Cat.RUNTIME,
    "kernel": Cat.KERNEL,
    "gpu_memcpy": Cat.MEMORY,
    "gpu_memset": Cat.MEMORY,
    "memcpy": Cat.MEMORY,
    "memset": Cat.MEMORY,
    "cuda_sync": Cat.SYNC,
    # No time of their own: gpu_user_annotation mirrors kernels.
    "gpu_user_annotation": Cat.SKIPPED,
    "cuda_event": Cat.SKIPPED,
    "cpu_instant_event": Cat.SKIPPED,
    "external_correlation": Cat.SKIPPED,
    "overhead": Cat.SKIPPED,
    "trace": Cat.SKIPPED,
    "ac2g": Cat.SKIPPED,
    "async": Cat.SKIPPED,
    "async_cpu_to_gpu": Cat.SKIPPED,
    "async_gpu": Cat.SKIPPED,
    "fwdbwd": Cat.SKIPPED,
    "": Cat.SKIPPED,
}


def category(raw: str | None) -> Cat:
    return CATEGORIES.get((raw or "").lower(), Cat.UNKNOWN)


PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(.+?)\.step$")
DATA_FETCH = re.compile(r"enumerate\(DataLoader\)#.*__next__$")
BACKWARD_PREFIX = "autograd::engine::evaluate_function"

# On the CPU side these issue or wait for communication; they are not useful work of the main thread.
_HOST_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms")


def is_host_communication(name: str) -> bool:
    return name.startswith(_HOST_COMMUNICATION)


class Collective(enum.StrEnum):
    """Kinds of communication. Only symmetric ones tell by their durations who came last."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BARRIER = "barrier"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND_RECV = "send_recv"
    OTHER = "other"


# all_to_all is left out: without sizes nobody knows that its parts are equal.
SYMMETRIC = frozenset({Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BARRIER})

_KINDS: tuple[tuple[str, Collective], ...] = (  # longest words first: "reducescatter" holds "reduce" and "scatter"
    ("reducescatter", Collective.REDUCE_SCATTER),
    ("allreduce", Collective.ALL_REDUCE),
    ("allgather", Collective.ALL_GATHER),
    ("alltoall", Collective.ALL_TO_ALL),
    ("sendrecv", Collective.SEND_RECV),
    ("broadcast", Collective.BROADCAST),
    ("barrier", Collective.BARRIER),
    ("gather", Collective.GATHER),
    ("scatter", Collective.SCATTER),
    ("reduce", Collective.REDUCE),
    ("send", Collective.SEND_RECV),
    ("recv", Collective.SEND_RECV),
)


def collective_kind(name: str) -> Collective:
    """The kind from a gloo span, an NCCL kernel's name or a recorded `Collective name`."""
    plain = re.sub(r"[^a-z]", "", name.lower().partition("(")[0])
    for word, kind in _KINDS:
        if word in plain:
            return kind
    return Collective.OTHER


_NCCL_KERNEL = re.compile(r"(?:void\s+)?[nr]ccl", re.IGNORECASE)


def is_nccl_kernel(name: str) -> bool:
    """`ncclDevKernel_…`, the older `ncclKernel_…`, AMD's RCCL."""
    return _NCCL_KERNEL.match(name) is not None


def short(name: str, limit: int = 96) -> str:
    """An event name that fits into a table; C++ kernels lose their argument lists first."""
    plain = name.partition("(")[0] if name.endswith(")") and "::" not in name else name.removeprefix("void ")
    plain = re.sub(r"[\x00-\x1f\x7f]", "�", plain)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
