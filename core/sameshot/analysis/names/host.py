"""What runs on threads: marks of steps, fetches of data, backward passes, optimizers, pauses."""

from __future__ import annotations

import re

PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(.+?)\.step$")
DATA_FETCH = re.compile(r"enumerate\(DataLoader\)#.*__next__$")
# Nodes of autograd's graph; torch before 1.9 records them without the engine's own span around each.
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$")


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


# What optimizers do to parameters and hardly anything else does (torch/optim/adam.py and others): operators of their
# foreach and fused forms, and of Adam's single-tensor form.
_OPTIMIZER_WORK = re.compile(r"aten::(?:_foreach_|_fused_|addcdiv|addcmul|lerp)|Optimizer\.(?:step|zero_grad)#")


def is_optimizer_work(name: str) -> bool:
    return _OPTIMIZER_WORK.match(name) is not None


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
