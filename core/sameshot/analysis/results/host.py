"""What one rank's main thread did: parts, steps, data wait, pauses."""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.results.common import Confidence, Spread, ns
from sameshot.analysis.results.device import (
    DeviceParts,
)


class Part(enum.StrEnum):
    """Where the main thread's time went. Each moment of the window belongs to exactly one part."""

    OPERATORS = "operators"
    COMMUNICATION = "communication"  # issuing collectives, or a gloo collective runs and the thread records nothing
    DATA_WAIT = "data_wait"  # inside the DataLoader's __next__
    RUNTIME = "runtime"  # CUDA calls outside any operator, such as a device synchronisation
    BACKWARD_THREAD = "backward_thread"  # waiting while autograd's own thread runs operators
    UNTRACED = "untraced"  # no event: Python, sleep, or blocked


class PartTimes(
    msgspec.Struct,
    frozen=True,
    rename=ns("operators", "communication", "data_wait", "runtime", "backward_thread", "untraced"),
):
    """Time per part, in ns. The sum is the length of the window (or of the step)."""

    operators: int = 0
    communication: int = 0
    data_wait: int = 0
    runtime: int = 0
    backward_thread: int = 0
    untraced: int = 0

    @property
    def total(self) -> int:
        return sum(self.get(part) for part in Part)

    def get(self, part: Part) -> int:
        value: int = getattr(self, part.value)
        return value


class StepMethod(enum.StrEnum):
    PROFILER_STEP = "profiler_step"
    OPTIMIZER = "optimizer"
    REPEATING = "repeating"  # nothing marks steps: the main thread's calls repeat
    UNKNOWN = "unknown"


class Steps(msgspec.Struct, frozen=True, rename=ns("edges")):
    """Training steps inside the window. `edges` has one moment more than there are whole steps."""

    method: StepMethod
    confidence: Confidence
    note: str
    edges: tuple[int, ...] = ()
    parts: tuple[PartTimes, ...] = ()  # the main thread in each step
    device: tuple[DeviceParts, ...] = ()  # the devices in each step; empty without any

    @property
    def count(self) -> int:
        return max(len(self.edges) - 1, 0)


class Timeline(msgspec.Struct, frozen=True):
    """A thread or the device at the resolution of a screen: runs of (what filled most of it, number of buckets)."""

    buckets: int  # how many the window was cut into
    runs: tuple[tuple[str, int], ...]


class DataWait(msgspec.Struct, frozen=True, rename=ns("raw", "felt", "hidden", "copies")):
    """Waiting for the next batch on the main thread. `felt` lasts until the GPU works again, so it may exceed `raw`."""

    method: str  # "dataloader", "annotation" or "inferred"
    fetches: int
    raw: int  # time inside the fetch
    felt: int | None  # of it, the GPU really felt; None without a GPU
    hidden: int | None  # raw - felt, never below 0
    copies: int  # host-to-device copies that blocked: synchronous, pageable or on the critical stream
    share: float  # of the window: felt, or raw without a GPU
    felt_per_step: Spread | None
    raw_per_step: Spread | None
    bound: bool | None  # does data wait determine the step time? None: can't be said
    sentence: str


class Pause(msgspec.Struct, frozen=True, rename=ns("total", "longest")):
    """Visible pauses of the main thread: garbage collection, locks."""

    kind: str  # "gc" or "lock"
    count: int
    total: int
    longest: int
    longest_event: int
