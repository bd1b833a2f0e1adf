"""Invented ranks with all that real ones seldom have at once: HTA itself must say what we say under its rules.

Ties, kernels shorter than a microsecond, several devices, graphs, shared correlations, waits, events out of order:
HTA's results depend on the order in which pandas happens to leave equal times, so this also holds our repetition of it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hta", reason="HTA is an extra: pip install 'sameshot[hta]'")

from hta_lab import Tables, by_hta, by_us, differences

from sameshot.analysis.hta.tables import Rounding

RANKS = 10
NAMES = [
    "gemm", "relu", "softmax", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "SyncBatchNorm_kernel", "void ncclX",
    "ncclDevKernel_AllReduce_Sum_f32", "ncclKernel_AllGather", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)",
]  # fmt: skip
CALLS = [
    "cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync",
    "cudaMemsetAsync", "hipLaunchKernel", "hipMemcpyWithStream", "cudaGraphLaunch", "cudaStreamSynchronize",
]  # fmt: skip
CATEGORY = {"Memcpy HtoD (Pageable -> Device)": "gpu_memcpy", "Memset (Device)": "gpu_memset"}


class Invented:
    """One rank. `steps`: how many ProfilerStep marks it has. All ranks of a job count from about the same time: where
    they do not, HTA sums floats that it can't add exactly."""

    def __init__(self, seed: int, steps: int, base: float) -> None:
        dice = self.dice = random.Random(seed)
        self.fraction = dice.random() < 0.7
        self.events: list[dict[str, Any]] = []
        self.correlation = 100
        self.streams = dice.choice([[7], [7, 20], [0], [0, 7, 20, 22]])
        self.devices = dice.choice([[0], [0], [0, 1]])
        self.tiny, self.waits, self.shared = (dice.random() < share for share in (0.3, 0.4, 0.3))
        self.triton = dice.random() < 0.3
        self.busy: dict[tuple[int, int], float] = {}
        self.now = base + dice.uniform(0, 100)
        mirrored = dice.random() < 0.5
        for step in range(max(steps, 1)):
            began = self.now
            for _ in range(dice.choice([5, 20, 60])):
                self.call()
            if steps:
                self.span("user_annotation", f"ProfilerStep#{step}", began, self.now - began)
                if mirrored:
                    self.span("gpu_user_annotation", f"ProfilerStep#{step}", began + 30, self.now - began)
        if dice.random() < 0.3:
            dice.shuffle(self.events)

    def span(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        ts, dur = (round(value, 3) if self.fraction else int(value) for value in (start, length))
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": args}
        self.events.append(event)

    def call(self) -> None:
        dice = self.dice
        self.now += dice.uniform(0, 40)
        self.correlation += 1
        correlation = self.correlation - (2 if self.shared and dice.random() < 0.1 else 0)
        name = dice.choice(CALLS)
        if dice.random() < 0.95:
            category = dice.choice(["cuda_runtime", "cuda_driver"])
            self.span(category, name, self.now, dice.uniform(0.1, 9), correlation=correlation)
        if dice.random() < 0.3:
            placed = {"stream": dice.choice(self.streams)} if self.triton else {}
            self.span("cpu_op", "aten::x", self.now - 1, 8, **placed)
        for _ in range(dice.choice([0, 1, 3] if name == "cudaGraphLaunch" else [0, 1, 1, 1, 1])):
            lane = dice.choice(self.devices), dice.choice(self.streams)
            after = self.busy.get(lane, 0) if dice.random() < 0.9 else 0
            start = max(self.now + dice.uniform(-1, 60), after)
            length = dice.uniform(0, 1.5) if self.tiny else dice.choice([dice.uniform(0, 2), dice.uniform(1, 80)])
            self.busy[lane] = start + length
            kernel = dice.choice(NAMES)
            where = {"device": lane[0], "stream": lane[1], "correlation": correlation}
            self.span(CATEGORY.get(kernel, "kernel"), kernel, start, length, **where)
        if self.waits and dice.random() < 0.2:
            self.correlation += 1
            name, stream = (
                dice.choice(["Stream Wait Event", "Event Sync", "Stream Sync"]),
                dice.choice([-1, *self.streams]),
            )
            where = {"stream": stream, "correlation": dice.choice([correlation, self.correlation]), "device": 0}
            self.span("cuda_sync", name, self.now, dice.uniform(0, 50), **where)


@pytest.mark.full
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("base", [1000.25, 4458676569036.363])
def test_invented_ranks_agree(tmp_path: Path, steps: int, base: float) -> None:
    files = {}
    for rank in range(RANKS):
        invented = Invented(int(base) + steps * 100 + rank, steps, base)
        arrow = {"ph": "s", "id": 1, "pid": 1, "tid": 2, "ts": 1, "cat": "ac2g", "name": "ac2g"}
        files[rank] = tmp_path / f"{rank}.json"
        files[rank].write_text(json.dumps({"traceEvents": [arrow, *invented.events]}))
    result, theirs = by_hta(tmp_path, files)
    # HTA refuses queues where one correlation has several launches or kernels, and times that rounding made negative.
    lost = {(f.analysis, f.rank) for f in result.failures}
    assert {f.error for f in result.failures} <= {"AssertionError"}
    assert {analysis for analysis, _ in lost} <= {"queue_length_summary", "temporal_breakdown"}
    assert len(lost) < RANKS
    ours: Tables = by_us(files, Rounding.HTA)
    for analysis, rank in lost:
        ours[analysis] = [row for row in ours[analysis] if row["rank"] != rank]
    assert differences(ours, theirs) == []
