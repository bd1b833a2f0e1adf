"""A small model of a gloo DDP job that writes the traces its ranks would record.

Each rank fetches, computes, issues an all_reduce per bucket, waits for all others, and steps its optimizer. Work times
jitter; a rank can be planted slow. The traces follow what was measured on real ones: gloo spans on worker threads
without group or number, no event for a sleeping main thread, windows that begin at different collectives.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sameshot.manifest import Capture, Job, Manifest, Target, build, encode
from sameshot.model import (
    Artifact,
    CaptureSpec,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    Outcome,
)

BASE_NS = 1_790_000_000_000_000_000
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#AdamW.step"


@dataclass
class GlooJob:
    """Times are milliseconds. `late` maps a rank to what it does longer in every step."""

    ranks: int = 4
    steps: int = 25
    seed: int = 0
    late: dict[int, float] = field(default_factory=dict)
    how: str = "sleep"  # or "operators", "data"
    compute: float = 6.0
    data: float = 1.5
    python: float = 1.0
    transfer: float = 2.0
    jitter: float = 3.0  # mean of an exponential delay that hits any piece of work now and then
    skew: float = 0.5  # of the ends of one collective on different ranks
    buckets: int = 1
    skip: dict[int, int] = field(default_factory=dict)  # rank → whole steps that its window begins later
    clock: dict[int, float] = field(default_factory=dict)  # rank → how far its clock is ahead
    shift: dict[int, float] = field(default_factory=dict)  # rank → its window lies this much later
    optimizer: bool = True

    def traces(self) -> dict[int, dict[str, Any]]:
        dice = random.Random(self.seed)
        events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(self.ranks)}
        clock = {rank: dice.uniform(0, 0.5) for rank in range(self.ranks)}
        first_of_step: list[dict[int, float]] = []

        def hiccup() -> float:
            return dice.expovariate(1 / self.jitter) if self.jitter and dice.random() < 0.4 else 0.0

        for step in range(self.steps):
            first_of_step.append(dict(clock))
            for rank in range(self.ranks):
                extra = self.late.get(rank, 0.0)
                fetch = self.data + hiccup() + (extra if self.how == "data" else 0.0)
                events[rank].append(span(FETCH, clock[rank], fetch, cat="user_annotation"))
                clock[rank] += fetch
                clock[rank] += self.python + hiccup() + (extra if self.how == "sleep" else 0.0)
                work = self.compute + hiccup() + (extra if self.how == "operators" else 0.0)
                forward = work * 0.4
                events[rank].append(span("aten::linear", clock[rank], forward))
                events[rank].append(span("aten::addmm", clock[rank] + forward * 0.1, forward * 0.7))
                clock[rank] += forward
                backward = "autograd::engine::evaluate_function: AddmmBackward0"
                events[rank].append(span(backward, clock[rank], work - forward))
                clock[rank] += work - forward
            # All buckets are issued before anybody waits: they are in flight together, on two worker threads.
            # The threads take them from one queue, so they begin in the order of issue.
            starts: list[dict[int, float]] = []
            for bucket in range(self.buckets):
                issued = {rank: clock[rank] + 0.1 + 0.3 * bucket + hiccup() * 0.2 for rank in range(self.ranks)}
                if bucket:
                    issued = {rank: max(at, starts[-1][rank] + 0.05) for rank, at in issued.items()}
                starts.append(issued)
            for bucket, began in enumerate(starts):
                done = max(began.values()) + self.transfer * (bucket + 1)
                for rank in range(self.ranks):
                    events[rank].append(span("c10d::allreduce_", clock[rank] + 0.3 * bucket, 0.2))
                    end = done + dice.uniform(0, self.skew)
                    lane = 100 + (step * self.buckets + bucket) % 2
                    length = end - began[rank]
                    events[rank].append(span("gloo:all_reduce", began[rank], length, cat="user_annotation", tid=lane))
                    if bucket == self.buckets - 1:
                        clock[rank] = end
            for rank in range(self.ranks):
                if self.optimizer:
                    events[rank].append(span(OPTIMIZER, clock[rank] + 0.1, 0.8, cat="user_annotation"))
                    events[rank].append(span("aten::addcdiv_", clock[rank] + 0.2, 0.5))
                clock[rank] += 1.0
        return {rank: self._recorded(rank, events[rank], first_of_step) for rank in range(self.ranks)}

    def _recorded(
        self, rank: int, events: list[dict[str, Any]], first_of_step: list[dict[int, float]]
    ) -> dict[str, Any]:
        begin = first_of_step[self.skip.get(rank, 0)][rank] + 0.01 if self.skip.get(rank) else -1.0
        moved = self.clock.get(rank, 0.0) + self.shift.get(rank, 0.0)
        kept = [dict(event) for event in events if event["ts"] >= begin * 1000]
        for event in kept:
            event["ts"] += moved * 1000
            event["pid"] = 1000 + rank
            event["tid"] = 1000 + rank if event["tid"] == 0 else event["tid"]
        return trace(kept)


def span(
    name: str, start_ms: float, length_ms: float, *, cat: str = "cpu_op", tid: Any = 0, **more: Any
) -> dict[str, Any]:
    """One complete event; ts and dur in microseconds, as Kineto writes them."""
    ts, dur = round(start_ms * 1000, 3), round(length_ms * 1000, 3)
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, **more}


def trace(events: list[dict[str, Any]], **top: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **top}


def identity(rank: int, *, host: str | None = "box") -> Identity:
    return Identity(rank=rank, local_rank=rank % 2, node=f"node-{rank // 2}", container="main", host=host)


def target_id(rank: int) -> str:
    return f"node-{rank // 2}/main/{rank % 2}"


def failed(rank: int, reason: FailureReason = FailureReason.WORKER_EXITED, detail: str = "it died") -> Target:
    return Target(target_id(rank), identity(rank), failure=Failure(reason, detail))


def archive(
    folder: Path,
    traces: dict[int, dict[str, Any] | bytes],
    *,
    failures: tuple[Target, ...] = (),
    window_ms: int = 1000,
    world_size: int | None = None,
    hosts: bool = True,
) -> Path:
    """Write a capture as an agent and a coordinator would; returns the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [
        _stored(folder, rank, found if isinstance(found, bytes) else json.dumps(found).encode(), hosts)
        for rank, found in traces.items()
    ]
    manifest = manifest_of([*targets, *failures], window_ms=window_ms, world_size=world_size)
    path = folder / "manifest.json"
    path.write_bytes(encode(manifest))
    return path


def manifest_of(targets: list[Target], *, window_ms: int = 1000, world_size: int | None = None) -> Manifest:
    archived = sum(target.artifact is not None for target in targets)
    everybody = max(len(targets), world_size or 0)
    outcome = Outcome.SUCCEEDED if archived == everybody else Outcome.PARTIAL if archived else Outcome.FAILED
    capture = Capture(
        capture_id="c-1",
        caller="somebody",
        n=1,
        job=Job("local", "demo", "uid-1", 0),
        world_size=world_size if world_size is not None else len(targets),
        backend="broker",
        spec=CaptureSpec(duration_ms=window_ms),
        frozen_at="2026-11-30T00:00:00.000000Z",
        converged_at="2026-11-30T00:00:09.000000Z",
        outcome=outcome,
    )
    return build(capture, targets)


def _stored(folder: Path, rank: int, raw: bytes, hosts: bool) -> Target:
    packed = gzip.compress(raw, 1, mtime=0)
    name = f"rank{rank}.json.gz"
    (folder / name).write_bytes(packed)
    start, end = _window(raw)
    return Target(
        target_id(rank),
        identity(rank, host="box" if hosts else f"box-{rank}"),
        artifact=Artifact(
            uri=name,
            size=len(packed),
            sha256=hashlib.sha256(packed).hexdigest(),
            encoding=Encoding.GZIP,
            raw_size=len(raw),
            raw_sha256=hashlib.sha256(raw).hexdigest(),
            window_start_ns=start,
            window_end_ns=end,
        ),
    )


def _window(raw: bytes) -> tuple[int, int]:
    try:
        events = [event for event in json.loads(raw)["traceEvents"] if event.get("ph") == "X"]
        starts = [event["ts"] for event in events]
        ends = [event["ts"] + event["dur"] for event in events]
        return BASE_NS + round(min(starts) * 1000), BASE_NS + round(max(ends) * 1000)
    except (ValueError, TypeError, KeyError):
        return BASE_NS, BASE_NS + 1_000_000_000
