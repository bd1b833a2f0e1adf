"""What kind of thing an event is, by its category."""

from __future__ import annotations

import enum


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
