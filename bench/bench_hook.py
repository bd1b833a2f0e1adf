"""What the hook costs: at the start of a Python process, at `import torch`, and per step while nobody captures.

    python bench/bench_hook.py [--rounds N]

Everything is measured in one run, with the variants interleaved, and stated against the same process without the hook.
The import is timed with a stand-in for torch that imports the standard modules torch imports anyway (checked), because
the import of torch itself varies by more than the hook costs. Steps run on real torch; "plain again" beside "plain" is
the noise of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sameshot.hook import PAYLOAD
from sameshot.profiler.broker import Broker

SHARED_WITH_TORCH = (
    "__future__",
    "ast",
    "atexit",
    "contextlib",
    "dataclasses",
    "fcntl",
    "functools",
    "hashlib",
    "importlib.machinery",
    "json",
)
# What the first use of the compiler costs a process (about 1 ms) is no cost of ours where torch compiles anyway: it
# imports `ast`, and each of its dataclasses is generated code.
STANDIN = f"""
import {", ".join(SHARED_WITH_TORCH)}
@dataclasses.dataclass
class Config: one: int; two: str = ""; three: bool = False
"""
FIRST = "the same, first of its pod"  # makes the folders and kineto.conf
IMPORT = "import time, torch; print(time.process_time())"
STEPS = """
import statistics, sys, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.ones(16, 64)
def step():
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
for _ in range(200): step()
times = []
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    a = time.perf_counter(); step(); times.append(time.perf_counter() - a)
print(statistics.median(times))
"""


def environment(
    directory: Path, payload: Path | None, *path: Path, marked: bool = True, ranked: bool = True
) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    entries = [*([payload] if payload else []), *path]
    env = {**keep, "PYTHONPATH": os.pathsep.join(map(str, entries)), "PYTHONDONTWRITEBYTECODE": "1"}
    if marked:
        env |= {"SAMESHOT_ARMED": "1", "SAMESHOT_DIR": str(directory), "SAMESHOT_JOB_UID": "1", "SAMESHOT_NODE": "n"}
    if ranked:
        env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return env


def once(env: dict[str, str], code: str, *args: str) -> list[float]:
    """The numbers that the process printed."""
    done = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def bench_import(work: Path, rounds: int) -> None:
    check = f"import sys, torch; print(int(set({SHARED_WITH_TORCH!r}) <= set(sys.modules)))"
    assert once(environment(work, None, marked=False), check) == [1.0], "torch no longer imports these"
    standin = work / "standin"
    (standin / "torch").mkdir(parents=True)
    (standin / "torch" / "__init__.py").write_text(STANDIN)
    cached = shutil.copytree(PAYLOAD, work / "cached", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(cached)], check=True)
    uncached = shutil.copytree(PAYLOAD, work / "uncached", ignore=shutil.ignore_patterns("__pycache__"))
    variants = {
        "without": environment(work, None, standin, marked=False),
        "on the path, no marker": environment(work, uncached, standin, marked=False),
        "marker, not a rank": environment(work, uncached, standin, ranked=False),
        "armed rank": environment(work, cached, standin),
        "armed rank, no bytecode": environment(work, uncached, standin),
        FIRST: environment(work / "first", uncached, standin),
    }
    totals: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, env in variants.items():
            if name == FIRST:
                shutil.rmtree(work / "first", ignore_errors=True)
            totals[name].append(once(env, IMPORT)[0] * 1e3)
    base = statistics.median(totals["without"])
    print(f"CPU from process start until torch is imported (stand-in torch), ms; limit: + 5 ms; {rounds} rounds")
    for name, values in totals.items():
        # Against the process of the same round: what else the machine does changes from round to round.
        more = statistics.median(mine - bare for mine, bare in zip(values, totals["without"], strict=True))
        print(f"  {name:30} {base + more:7.2f}   +{more:5.2f}   x{(base + more) / base:.2f}")


async def bench_steps(work: Path, rounds: int) -> None:
    broker = Broker(work / "ipc")
    await broker.start()
    variants = {
        "plain": environment(work, None, marked=False),
        "armed, idle": environment(work, PAYLOAD),
        "plain again": environment(work, None, marked=False),
    }
    medians: dict[str, list[float]] = {name: [] for name in variants}
    try:
        for _ in range(rounds):
            for name, env in variants.items():
                (median,) = await asyncio.to_thread(once, env, STEPS, "4")
                medians[name].append(median * 1e6)
    finally:
        await broker.close()
    base = statistics.median(medians["plain"])
    print(f"training step (8 small layers, SGD, CPU), median of {rounds} runs of 4 s, µs; polled once a second")
    for name, values in medians.items():
        print(f"  {name:26} {statistics.median(values):7.1f}   x{statistics.median(values) / base:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of the step bench; the import bench does 6 x as many"
    )
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="hook", dir="/tmp") as name:
        bench_import(Path(name), 6 * rounds)
        asyncio.run(bench_steps(Path(name), rounds))


if __name__ == "__main__":
    main()
