"""Communication: its kinds, the calls that issue it, the kernels and spans that do it."""

from __future__ import annotations

import enum
import re

# On the CPU side these issue or wait for communication; they are not useful work of the main thread.
# "backend:kind" are the spans of torch's process groups, each named after its backend.
_DEVICE_COLLECTIVES = ("c10d::", "nccl:", "xccl:", "hccl:", "ucc:", "record_param_comms")
_HOST_COMMUNICATION = (*_DEVICE_COLLECTIVES, "gloo:", "mpi:")


def is_host_communication(name: str) -> bool:
    return name.startswith(_HOST_COMMUNICATION)


def is_gloo_span(name: str) -> bool:
    return name.startswith("gloo:")


def is_collective_call(name: str) -> bool:
    """A host event around the launch of device communication."""
    return name.startswith(_DEVICE_COLLECTIVES)


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
