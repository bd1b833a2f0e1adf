"""What captures under way cost a connector of Flyte, which is asked for each of them again and again.

    python bench/bench_flyte.py [--captures 200] [--window 60]

*One look*: `Polled.get` of a running capture beside the client's own `get` over a channel that stays open, and beside
one that dials for it, in turns in one process. A look dials, as a connector keeps nothing between calls.

*Many*: flytekit's connector service in a process of its own, with so many captures that are each asked for every second
over gRPC (Flyte's back end asks every half minute). Beside it, at the same time, the same service with a connector that
answers at once. Each capture is another job's with a coordinator of its own (all in a third process, as in
`bench_airflow`). Memory is resident memory of the process, CPU that of the process over the window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from bench_airflow import Child

REPO = Path(__file__).resolve().parent.parent
LOOKS, ROUNDS = 200, 5


# ---- the connector: a process of its own


async def serve() -> None:
    """Serve flytekit's connectors on loopback: ours, and one that answers at once. Tells its port."""
    import grpc
    from flyteidl.core.execution_pb2 import TaskExecution
    from flyteidl.service.agent_pb2_grpc import add_AsyncAgentServiceServicer_to_server
    from flytekit.extend.backend.base_connector import AsyncConnectorBase, ConnectorRegistry, Resource, ResourceMeta
    from flytekit.extend.backend.connector_service import AsyncConnectorService

    import sameshot_flyte.flyte1  # noqa: F401  it registers the connector, if the entry point has not yet

    class Kept(ResourceMeta):
        @classmethod
        def decode(cls, data: bytes) -> Kept:
            return cls()

    class AtOnce(AsyncConnectorBase):
        name = "answers at once"

        def __init__(self) -> None:
            super().__init__(metadata_type=Kept, task_type_name="at_once")

        async def create(self, **_: Any) -> ResourceMeta:
            raise NotImplementedError

        async def get(self, resource_meta: ResourceMeta, **_: Any) -> Resource:
            return Resource(phase=TaskExecution.RUNNING, message="running")

        async def delete(self, resource_meta: ResourceMeta, **_: Any) -> None:
            raise NotImplementedError

    ConnectorRegistry.register(AtOnce())
    server = grpc.aio.server()
    add_AsyncAgentServiceServicer_to_server(AsyncConnectorService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps(port), flush=True)
    await server.wait_for_termination()


class Connector:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "FLYTE_SDK_LOGGING_LEVEL": "50"},
        )
        assert self._process.stdout is not None
        self.port = json.loads(self._process.stdout.readline())
        self._seen = psutil.Process(self._process.pid)

    def memory(self) -> int:
        return int(self._seen.memory_info().rss)

    def cpu_s(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


# ---- one look


async def compare_one(asked: Any) -> None:
    from sameshot.client import AsyncClient
    from sameshot_flyte.polled import Polled

    polled, address, capture_id = Polled(), asked.request.address, asked.capture_id
    async with AsyncClient(address) as client:

        async def dialled() -> None:
            async with AsyncClient(address) as other:
                await other.get(capture_id)

        async def look() -> None:
            assert (await polled.get(asked)).phase == "RUNNING"

        async def bare() -> None:
            await client.get(capture_id)

        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "a get of the client": bare,
            "the same, dialled for": dialled,
            "a look of the connector": look,
        }
        took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for call in kinds.values():
            await call()
        for _ in range(ROUNDS):
            for kind, call in kinds.items():
                cpu, wall = time.process_time(), time.perf_counter()
                for _ in range(LOOKS):
                    await call()
                took[kind].append(
                    ((time.process_time() - cpu) / LOOKS * 1000, (time.perf_counter() - wall) / LOOKS * 1000)
                )
    medians = {kind: [statistics.median(each) for each in zip(*found, strict=True)] for kind, found in took.items()}
    base = medians["a get of the client"]
    for kind, (cpu, wall) in medians.items():
        print(f"{kind}: {cpu:.2f} ms of CPU ({cpu / base[0]:.1f} ×), {wall:.2f} ms ({wall / base[1]:.1f} ×)")


# ---- many captures


async def compare_many(captures: list[bytes], window_s: float) -> None:
    import grpc
    from flyteidl.admin import agent_pb2
    from flyteidl.core.execution_pb2 import TaskExecution
    from flyteidl.service.agent_pb2_grpc import AsyncAgentServiceStub

    kinds = {"captures": ("sameshot_capture", Connector()), "at once": ("at_once", Connector())}
    waits: list[float] = []

    async def poll(kind: str, seconds: float, metas: list[bytes]) -> None:
        """Each of them once a second, evenly over it."""
        task_type, connector = kinds[kind]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{connector.port}") as channel:
            stub = AsyncAgentServiceStub(channel)

            async def ask(at: int, meta: bytes) -> None:
                await asyncio.sleep(at / len(metas))
                category = agent_pb2.TaskCategory(name=task_type)
                for _ in range(max(round(seconds), 1)):
                    began = time.perf_counter()
                    answer = await stub.GetTask(
                        agent_pb2.GetTaskRequest(task_category=category, resource_meta=meta), timeout=10
                    )
                    assert answer.resource.phase == TaskExecution.RUNNING, answer
                    took = time.perf_counter() - began
                    if kind == "captures":
                        waits.append(took)
                    await asyncio.sleep(max(1.0 - took, 0.0))

            await asyncio.gather(*(ask(*each) for each in enumerate(metas)))

    try:
        figures: dict[str, dict[str, float]] = {kind: {"idle": kinds[kind][1].memory()} for kind in kinds}
        for seconds, metas, name in ((1.0, captures[:1], "one"), (5.0, captures, "warm")):
            await asyncio.gather(*(poll(kind, seconds, metas) for kind in kinds))
            for kind, (_, connector) in kinds.items():
                figures[kind][name] = connector.memory()
        waits.clear()
        began, cpu = time.perf_counter(), {kind: connector.cpu_s() for kind, (_, connector) in kinds.items()}
        await asyncio.gather(*(poll(kind, window_s, captures) for kind in kinds))
        lasted = time.perf_counter() - began
        for kind, (_, connector) in kinds.items():
            figures[kind] |= {"all": connector.memory(), "cpu": connector.cpu_s() - cpu[kind]}
    finally:
        for _, connector in kinds.values():
            connector.close()
    calls = len(captures) * max(round(window_s), 1)
    for kind, found in figures.items():
        print(
            f"{len(captures)} polled each second, {kind}: {found['cpu'] / lasted:.1%} of a core, "
            f"{found['cpu'] / calls * 1000:.2f} ms of CPU a call; {found['idle'] / 2**20:.0f} MiB before, "
            f"{found['one'] / 2**20:.0f} with the first, {found['warm'] / 2**20:.0f} after 5 s, "
            f"{found['all'] / 2**20:.0f} at the end"
        )
    ours, theirs = figures["captures"], figures["at once"]
    print(f"CPU {ours['cpu'] / theirs['cpu']:.1f} ×, memory {ours['all'] / theirs['all']:.2f} × those of the other")
    p99 = sorted(waits)[int(len(waits) * 0.99)]
    print(f"an answer takes {statistics.median(waits) * 1000:.1f} ms (median), {p99 * 1000:.0f} ms (p99)")


def main(captures: int, window_s: float) -> None:
    from sameshot.steps.request import CaptureRequest
    from sameshot_flyte.asked import Asked

    with tempfile.TemporaryDirectory() as scratch:
        jobs = Child(dict(os.environ), "--hold", str(captures), "--archive", scratch)
        try:
            asked = [
                Asked(
                    request=CaptureRequest.of(request),
                    since=time.time(),
                    deadline=time.time() + 900,
                    capture_id=capture_id,
                    manifest_uri=manifest_uri,
                )
                for request, capture_id, manifest_uri in json.loads(jobs.hear())
            ]
            asyncio.run(compare_one(asked[0]))
            asyncio.run(compare_many([each.encode() for each in asked], window_s))
        finally:
            jobs.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--captures", type=int, default=200)
    options.add_argument("--window", type=float, default=60.0)
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.serve:
        asyncio.run(serve())
    else:
        main(chosen.captures, chosen.window)
