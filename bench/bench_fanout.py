"""How fast a coordinator reaches a large job, and what nodes that never answer cost the others.

    python bench/bench_fanout.py [--agents 512] [--targets 8] [--rounds 3]

Three processes on loopback: the simulated agents (one gRPC server each, answers made beforehand), the coordinator under
test, and this one, which starts captures and reads the moments at which each agent got its Dispatch (CLOCK_MONOTONIC is
the same for all). "Black-holed" agents take TCP connections and never answer. Both kinds of round alternate in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.client import AsyncClient
from sameshot.model import CaptureSpec, JobRef, Registration, Worker

JOB = JobRef("local", "bench", "u-bench", 0)
SERVICE = "sameshot.v1.Agent"


# ---- the simulated agents: a process of their own


class Node:
    """One agent. Its answers are bytes that were made beforehand, so that it costs as little as possible."""

    def __init__(self, index: int, agents: int, targets: int) -> None:
        listing = pb.ListWorkersResponse(node=f"node-{index}", backend="broker", poll_interval_s=1.0)
        self.facts = pb.CaptureFacts(known=True)
        for local in range(targets):
            rank = index * targets + local
            registration = Registration(
                uuid=f"{rank:032x}",
                pid=1000 + local,
                start_ticks=1,
                job=JOB,
                rank=rank,
                local_rank=local,
                world_size=agents * targets,
                local_world_size=targets,
                node=f"node-{index}",
                registered_at_ns=1,
                job_name=f"sameshot/{rank:032x}",
                torch_version="2.13.0",
                host=f"host-{index}",
                ancestors=(1, 2, 3),
            )
            to_proto(Worker(registration, alive=True, current=True, last_poll_age_s=0.5), listing.workers.add())
            fact = self.facts.targets.add(target_id=registration.target_id, state=pb.QUEUED)
            to_proto(registration.identity, fact.identity)
        self.listing = listing.SerializeToString()
        self.queued = self.facts.SerializeToString()
        self.dispatched: dict[str, float] = {}
        self.server: Any = None

    async def start(self) -> int:
        def handler(answer: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(answer)

        async def dispatch(request: bytes, context: Any) -> bytes:
            now = time.monotonic()
            self.dispatched.setdefault(pb.DispatchRequest.FromString(request).capture_id, now)
            return self.queued

        async def list_workers(request: bytes, context: Any) -> bytes:
            return self.listing

        async def facts(request: bytes, context: Any) -> bytes:
            return self.queued

        async def nothing(request: bytes, context: Any) -> bytes:
            return b""

        handlers = {
            "ListWorkers": handler(list_workers),
            "Dispatch": handler(dispatch),
            "GetFacts": handler(facts),
            "Withdraw": handler(facts),
            "KnownCaptures": handler(nothing),
            "PublishManifest": handler(nothing),
        }
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return int(port)


async def simulate(agents: int, targets: int) -> None:
    """Serve; one line of JSON out (ports), then for each capture id in: the moments of its dispatches out."""
    nodes = [Node(index, agents, targets) for index in range(agents)]
    print(json.dumps([await node.start() for node in nodes]), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        capture_id = line.decode().strip()
        print(json.dumps([node.dispatched.get(capture_id) for node in nodes]), flush=True)


class Simulation:
    def __init__(self, agents: int, targets: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--simulate", "--agents", str(agents), "--targets", str(targets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.addresses = [f"127.0.0.1:{port}" for port in json.loads(self._process.stdout.readline())]

    def dispatched(self, capture_id: str) -> list[float | None]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(capture_id + "\n")
        self._process.stdin.flush()
        found: list[float | None] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


# ---- one round


class Round(msgspec.Struct):
    first_s: list[float]  # request → Dispatch at each healthy agent, coordinator just started: no connection yet
    again_s: list[float]  # the same, coordinator warm
    memory_mib: float
    idle_mib: float


async def measure(addresses: list[str], healthy: list[int], simulation: Simulation, folder: Path) -> Round:
    ready = folder / "address"
    ready.unlink(missing_ok=True)
    (folder / "agents").write_text("\n".join(addresses))
    coordinator = subprocess.Popen(
        [
            *(sys.executable, "-m", "sameshot.cli.main", "coordinator", "--name", JOB.name, "--uid", JOB.uid),
            *("--archive", str(folder / "archive"), "--agents-file", str(folder / "agents")),
            *("--address-file", str(ready)),
        ]
    )
    process = psutil.Process(coordinator.pid)
    try:
        while not ready.exists():
            await asyncio.sleep(0.01)
        idle = process.memory_info().rss / 2**20
        async with AsyncClient(ready.read_text().strip()) as client:
            first = await capture(client, healthy, simulation)
            await asyncio.sleep(6)  # its own regular listing comes round
            again = await capture(client, healthy, simulation)
        return Round(first, again, process.memory_info().rss / 2**20, idle)
    finally:
        coordinator.terminate()
        coordinator.wait()


async def capture(client: AsyncClient, healthy: list[int], simulation: Simulation) -> list[float]:
    began = time.monotonic()
    started = await client.start_capture(CaptureSpec(duration_ms=500), request_key=os.urandom(8).hex())
    while True:
        moments = simulation.dispatched(started.capture_id)
        if all(moments[index] is not None for index in healthy):
            break
        assert time.monotonic() < began + 60, "not every healthy agent was dispatched within a minute"
        await asyncio.sleep(0.2)
    await client.cancel(started.capture_id)
    await client.wait(started.capture_id)
    return sorted(moment - began for index in healthy if (moment := moments[index]) is not None)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def report(name: str, rounds: list[Round]) -> None:
    for what, pick in (("just started", lambda r: r.first_s), ("warm", lambda r: r.again_s)):
        last = statistics.median(max(pick(each)) for each in rounds)
        tail = statistics.median(p99(pick(each)) for each in rounds)
        print(f"{name:22} {what:13} all dispatched {last:5.2f} s, p99 {tail:5.2f} s  (median of {len(rounds)})")


async def compare(agents: int, targets: int, rounds: int) -> None:
    simulation = Simulation(agents, targets)
    holes = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(agents // 10)]
    dark = list(range(0, agents, 10))[: len(holes)]
    with_holes = list(simulation.addresses)
    for index, hole in zip(dark, holes, strict=True):
        with_holes[index] = f"127.0.0.1:{hole.getsockname()[1]}"
    everyone = list(range(agents))
    living = [index for index in everyone if index not in set(dark)]
    healthy, holed = [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                healthy.append(await measure(simulation.addresses, everyone, simulation, Path(folder)))
                holed.append(await measure(with_holes, living, simulation, Path(folder)))
    finally:
        simulation.close()
        for hole in holes:
            hole.close()
    print(f"{agents} agents × {targets} targets on loopback, {os.cpu_count()} cores, {len(dark)} black-holed")
    report("all agents answer", healthy)
    report("10 % are black-holed", holed)
    for what, pick in (("just started", lambda r: r.first_s), ("warm", lambda r: r.again_s)):
        base = statistics.median(p99(pick(each)) for each in healthy)
        ratio = statistics.median(p99(pick(each)) for each in holed) / base
        print(f"p99 of the others, {what}: {ratio:.2f} × (limit 1.2)")
    print(
        f"coordinator: {statistics.median(each.idle_mib for each in healthy):.0f} MiB at its start, "
        f"{statistics.median(each.memory_mib for each in healthy):.0f} MiB after two captures of "
        f"{agents * targets} targets"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--agents", type=int, default=512)
    options.add_argument("--targets", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.simulate:
        asyncio.run(simulate(chosen.agents, chosen.targets))
    else:
        asyncio.run(compare(chosen.agents, chosen.targets, chosen.rounds))
