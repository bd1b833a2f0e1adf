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
    MIRROR = 9  # repeats a host annotation on the device that it launched work on: no work of its own


# Lower case. Kineto's own (libkineto include/ActivityType.h, `_activityTypeNames`), for every vendor; the capitalised
# ones of older traces are the same words ("Kernel", "Memcpy"), or stand here as well ("Operator", "Runtime"); phases
# other than X have categories, too, which stand here so that nobody takes them for unknown.
CATEGORIES: dict[str, Cat] = {
    "cpu_op": Cat.OPERATOR,
    "operator": Cat.OPERATOR,
    "user_annotation": Cat.ANNOTATION,
    "python_function": Cat.PYTHON,
    # Calls into a vendor's runtime or driver, on the host. AMD's are written as cuda_runtime.
    "cuda_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.RUNTIME,
    "runtime": Cat.RUNTIME,
    "xpu_runtime": Cat.RUNTIME,
    "xpu_driver": Cat.RUNTIME,
    "mtia_runtime": Cat.RUNTIME,
    "glow_runtime": Cat.RUNTIME,
    "hpu_op": Cat.RUNTIME,
    "privateuse1_runtime": Cat.RUNTIME,
    "privateuse1_driver": Cat.RUNTIME,
    # Work on a device. AMD's, Intel's and privateuse1 backends' kernels and copies are called as NVIDIA's.
    "kernel": Cat.KERNEL,
    "mtia_ccp_events": Cat.KERNEL,
    "gpu_memcpy": Cat.MEMORY,
    "gpu_memset": Cat.MEMORY,
    "memcpy": Cat.MEMORY,
    "memset": Cat.MEMORY,
    "cuda_sync": Cat.SYNC,
    "xpu_sync": Cat.SYNC,
    # No time of their own: they mirror kernels or calls, or are samples, marks and arrows.
    "gpu_user_annotation": Cat.MIRROR,
    "collective_comm": Cat.SKIPPED,
    "cuda_event": Cat.SKIPPED,
    "cuda_profiler_range": Cat.SKIPPED,
    "cpu_instant_event": Cat.SKIPPED,
    "external_correlation": Cat.SKIPPED,
    "hardware_counters": Cat.SKIPPED,
    "mtia_counters": Cat.SKIPPED,
    "mtia_insight": Cat.SKIPPED,
    "xpu_scope_profiler": Cat.SKIPPED,
    "overhead": Cat.SKIPPED,
    "trace": Cat.SKIPPED,
    "ac2g": Cat.SKIPPED,
    "async": Cat.SKIPPED,
    "async_cpu_to_gpu": Cat.SKIPPED,
    "async_gpu": Cat.SKIPPED,
    "async_npu": Cat.SKIPPED,
    "fwdbwd": Cat.SKIPPED,
    "": Cat.SKIPPED,
}


# MTIA writes all that its command processors do in one category, so that only names tell (seen in public traces):
# waiting for an event of another stream and marking one are no work, a DMA request is a copy.
BY_NAME = "mtia_ccp_events"
_BY_NAME: dict[str, Cat] = {"event_wait": Cat.SYNC, "event_record": Cat.SYNC, "dma_request": Cat.MEMORY}


def kind_by_name(name: str) -> Cat:
    """What an event of the category `BY_NAME` is."""
    return _BY_NAME.get(name, Cat.KERNEL)


def category(raw: str | None) -> Cat:
    return CATEGORIES.get((raw or "").lower(), Cat.UNKNOWN)


PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(.+?)\.step$")
DATA_FETCH = re.compile(r"enumerate\(DataLoader\)#.*__next__$")
# Nodes of autograd's graph; torch before 1.9 records them without the engine's own span around each.
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$")

# On the CPU side these issue or wait for communication; they are not useful work of the main thread.
# "backend:kind" are the spans of torch's process groups, each named after its backend.
_DEVICE_COLLECTIVES = ("c10d::", "nccl:", "xccl:", "hccl:", "ucc:", "record_param_comms")
_HOST_COMMUNICATION = (*_DEVICE_COLLECTIVES, "gloo:", "mpi:")


def is_host_communication(name: str) -> bool:
    return name.startswith(_HOST_COMMUNICATION)


def is_gloo_span(name: str) -> bool:
    return name.startswith("gloo:")


def is_fetch(name: str) -> bool:
    """The DataLoader's `__next__`."""
    return DATA_FETCH.match(name) is not None


# Where nothing marks the fetch: frames of the loader (recorded as "file(line): function"), and what people call the
# range around it in their loops (seen in public traces: "## data_load ##", "## wait_for_batch ##").
_LOADER_FRAME = re.compile(r".*dataloader\.py\(\d+\): __next__$")
_SOUNDS_LIKE_FETCH = re.compile(
    r"[\W_]*(?:(?:get|next|fetch|load|wait)_?(?:for_)?(?:next_)?(?:batch|data)"
    r"|data_?(?:load(?:ing|er)?|fetch(?:ing)?|wait))[\W_]*$",
    re.IGNORECASE,
)


def is_loader_frame(name: str) -> bool:
    """The Python frame of the DataLoader's `__next__`."""
    return _LOADER_FRAME.match(name) is not None


def sounds_like_fetch(name: str) -> bool:
    """An annotation whose name says that it fetches a batch."""
    return _SOUNDS_LIKE_FETCH.match(name.replace(" ", "_")) is not None


def is_step_mark(name: str) -> bool:
    return bool(PROFILER_STEP.match(name) or OPTIMIZER_STEP.match(name))


def is_wrapper(name: str) -> bool:
    """Older traces record marks and fetches as operators: they wrap work, they are none."""
    return is_step_mark(name) or is_fetch(name)


def is_backward(name: str) -> bool:
    """An operator that autograd runs in a backward pass."""
    return _BACKWARD.match(name) is not None


# Kernels of cuDNN, CUTLASS, PyTorch and others by what they call themselves.
_BACKWARD_KERNEL = re.compile(r"backward|[_:]bw[_d]|wgrad|dgrad", re.IGNORECASE)
_OPTIMIZER_KERNEL = re.compile(r"multi_tensor_apply|addcdiv|addcmul|adam|lamb_|sgd", re.IGNORECASE)


def is_backward_kernel(name: str) -> bool:
    return _BACKWARD_KERNEL.search(name) is not None


def is_optimizer_kernel(name: str) -> bool:
    return _OPTIMIZER_KERNEL.search(name) is not None


# What optimizers do to parameters and hardly anything else does (torch/optim/adam.py and others): operators of their
# foreach and fused forms, and of Adam's single-tensor form.
_OPTIMIZER_WORK = re.compile(r"aten::(?:_foreach_|_fused_|addcdiv|addcmul|lerp)|Optimizer\.(?:step|zero_grad)#")


def is_optimizer_work(name: str) -> bool:
    return _OPTIMIZER_WORK.match(name) is not None


def is_collective_call(name: str) -> bool:
    """A host event around the launch of device communication."""
    return name.startswith(_DEVICE_COLLECTIVES)


_GARBAGE_COLLECTION = frozenset({"Python GC", "<built-in function collect>"})
_LOCK_WAIT = re.compile(
    r"<built-in method (?:acquire|__enter__) of (?:_thread\.(?:lock|RLock)|_multiprocessing\.SemLock) object"
)


def is_garbage_collection(name: str) -> bool:
    """What torch 2.13 records of Python's collector (torch/csrc/autograd/profiler_python.cpp), or `gc.collect()`."""
    return name in _GARBAGE_COLLECTION


def is_lock_wait(name: str) -> bool:
    """Taking one of Python's own locks; the methods of `threading` and `queue` come down to these."""
    return _LOCK_WAIT.match(name) is not None


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
    ("crossdevicereduce", Collective.ALL_REDUCE),  # vLLM's name for its all-reduce
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
    plain = re.sub(r"[^a-z]", "", name.replace(_ANONYMOUS, "").lower().partition("(")[0])
    for word, kind in _KINDS:
        if word in plain:
            return kind
    return Collective.OTHER


UNEVEN = "v"
"""Marks a kind in a signature whose parts have sizes of their own: `all_to_allv`."""

_UNEVEN = re.compile(r"(?:nccl:)?_?(?:all_?to_?all|all_?gather|reduce_?scatter)_?v$", re.IGNORECASE)


def has_uneven_parts(name: str) -> bool:
    """ProcessGroupNCCL records an all-to-all with split sizes as `all_to_allv`, with equal parts as `all_to_all`."""
    return _UNEVEN.match(name) is not None


# Names of types as c10 prints them (c10/core/ScalarType.h, toString), and the bytes of one element.
DTYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(
        ("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu", "Bits8"), 1
    ),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16", "Bits16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


_NCCL_KERNEL = re.compile(r"(?:void\s+)?[nr]ccl", re.IGNORECASE)


def is_nccl_kernel(name: str) -> bool:
    """`ncclDevKernel_…`, the older `ncclKernel_…`, AMD's RCCL."""
    return _NCCL_KERNEL.match(name) is not None


# DeepEP (csrc/kernels, namespace deep_ep; its `layout` kernels only count) and NVSHMEM's own kernels, Meta's HCCL on
# MTIA (libkineto src/output_json.cpp), Huawei's HCCL (mstt's profiler tools) and oneCCL's SYCL kernels.
_OTHER_COMMUNICATION = re.compile(
    r"(?:void\s+)?(?:deep_ep::(?:intranode|internode|internode_ll)::|nvshmem|hccl::|hcom_|oneccl_)"
)

# Collectives that read their peers' memory themselves: torch's symmetric memory (torch/csrc/distributed/c10d/symm_mem/
# CUDASymmetricMemoryOps.cu), vLLM's custom all-reduce (csrc/custom_all_reduce.cuh; SGLang's and aiter's are called
# alike) and QuickReduce, TensorRT-LLM's (customAllReduceKernels.cu) and FlashInfer's copy of it.
_PEER_MEMORY = re.compile(
    r"(?:void\s+)?(?:[\w:]+::)?_?"
    r"(?:multimem_(?:one_shot_)?(?:all_reduce|all_gather|reduce_scatter)\w*_kernel|(?:one|two)_shot_all_reduce_kernel"
    r"|cross_device_(?:reduce|all_gather)_|allreduce_prototype_(?:one|two)shot|allreduce_fusion_kernel_"
    r"|(?:one|two)ShotAllReduceKernel)"
)
_ANONYMOUS = "(anonymous namespace)::"


def is_communication_kernel(name: str) -> bool:
    """Device work that moves data between ranks and may wait for them, whoever's library it is."""
    if is_nccl_kernel(name) or _OTHER_COMMUNICATION.match(name) is not None:
        return True
    return _PEER_MEMORY.match(name.replace(_ANONYMOUS, "")) is not None


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


def short(name: str, limit: int = 96) -> str:
    """An event name that fits into a table; C++ kernels lose their argument lists first, copies never ("Pageable").

    Addresses of Python objects go as well: the same function has another one in each process.
    """
    plain = name.removeprefix("void ")
    if name.endswith(")") and "::" not in name and not name.startswith(("Memcpy", "Memset")):
        plain = name.partition("(")[0]
    if plain.endswith(">"):
        plain = re.sub(r" at 0x[0-9a-f]+>$", ">", plain)
    plain = re.sub(r"[\x00-\x1f\x7f]", "�", plain)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
