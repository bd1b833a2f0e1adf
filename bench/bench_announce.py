"""Announce latency: from a trace's final name to the moment at which the agent serves the fact, idle and under load.

    python bench/bench_announce.py [--files 200] [--megabytes 600]

One agent in a process of its own, with its default period (0.2 s), the real broker and two verifying processes. First
nothing else is going on; then two large traces are being read all the time, while as many small ones appear at random
moments. The target is p99 ≤ 0.5 s under load; an unhindered announcer needs one period and one look at worst.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "support")]

from agent_lab import Caller, Lab, a_lab, trace_of, write_large_trace  # noqa: E402

from sameshot.model import CaptureSpec  # noqa: E402

SPEC = CaptureSpec(duration_ms=1)


async def small_traces(lab: Lab, caller: Caller, count: int) -> list[float]:
    """Seconds from the final name of each file until a caller of the agent could know of it."""
    worker = lab.worker(rank=0)
    latencies = []
    for _ in range(count):
        capture = await caller.dispatch(worker, spec=SPEC)
        final = worker.final_name(capture)
        scratch = final.with_name("x.tmp")
        scratch.write_bytes(trace_of(worker.registration))
        await asyncio.sleep(random.uniform(0, 0.2))
        scratch.rename(final)
        placed = time.monotonic()
        while (await caller.fact(capture, worker)).announced_bytes is None:
            await asyncio.sleep(0.002)
        latencies.append(time.monotonic() - placed)
        await caller.until_archived(capture, worker)
    worker.close()
    return latencies


async def keep_reading(lab: Lab, caller: Caller, size: int, rank: int, amount: list[int]) -> None:
    """Have large traces verified one after the other; `amount` grows by the bytes of each."""
    worker = lab.worker(rank=rank, local_rank=rank)
    original, copy = lab.root / f"large{rank}", lab.root / f"copy{rank}"
    write_large_trace(original, worker.registration, size)
    while True:
        capture = await caller.dispatch(worker, spec=SPEC)
        await (await asyncio.create_subprocess_exec("cp", str(original), str(copy))).wait()
        copy.rename(worker.final_name(capture))
        await caller.until_archived(capture, worker)
        amount.append(size)


def show(what: str, seconds: list[float]) -> float:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(f"{what:32} p50 {statistics.median(ordered):.3f} s   p99 {p99:.3f} s   max {ordered[-1]:.3f} s")
    return p99


async def main(files: int, megabytes: int) -> None:
    amount: list[int] = []
    with a_lab() as lab:
        changes = {"announce_period_s": 0.2, "retry_s": 0.5, "verify_workers": 2}
        async with lab.process(**changes) as agent, agent.caller() as caller, agent.caller() as other:
            idle = show("idle", await small_traces(lab, caller, files))
            reading = [asyncio.create_task(keep_reading(lab, other, megabytes << 20, rank, amount)) for rank in (1, 2)]
            while len(list(lab.spool.rglob("stored.*"))) < 2:
                await asyncio.sleep(0.05)
            began = time.monotonic()
            busy = show("two large verifications", await small_traces(lab, caller, files))
            took = time.monotonic() - began
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    print(f"read meanwhile: {sum(amount) / 1e6:.0f} MB in whole files of {megabytes} MiB, within {took:.0f} s")
    print(
        f"p99 under load / p99 idle = {busy / idle:.2f}   (target: p99 ≤ 0.5 s: {'met' if busy <= 0.5 else 'MISSED'})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=600)
    options = parser.parse_args()
    asyncio.run(main(options.files, options.megabytes))
