"""What sameshot costs an Airflow: parsing the shipped DAGs, importing the provider, and captures that wait.

    python bench/bench_airflow.py [--captures 200] [--window 60]

*Parsing*: each DAG file in fresh processes, as the DAG processor does it (BundleDagBag and serialization, with Airflow
imported before the clock starts), beside a DAG file with one empty task, in turns. CPU seconds, since a DAG processor
parses all day. *Importing*: all modules of the provider after Airflow's own, and that none of the heavy
libraries comes with them.

*Waiting*: one process stands for the triggerer and runs the real `SameshotCaptureTrigger.run()` of so many captures in
one event loop; a second runs as many triggers that only sleep, at the same time. Each capture is another job's, with a
coordinator of its own (all in a third process, with scripted agents that hold their traces back), so nothing is shared
that jobs of a cluster would not share. Memory is resident memory per trigger beyond the first, CPU that of the whole
process while all wait; then the traces are delivered, and the CPU until every trigger has fired is stated too.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
DAGS = sorted((REPO / "dags").glob("*.py"))
ROUNDS = 5
LIMIT_S = 0.3
EMPTY = """
from airflow.sdk import DAG, task

with DAG("empty", schedule=None):

    @task
    def nothing() -> None: ...

    nothing()
"""


# ---- parsing and importing: processes of their own


def parse(file: str) -> None:
    """Print the CPU seconds that parsing and serializing this file takes."""
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.serialization.serialized_objects import DagSerialization

    began = time.process_time()
    bag = BundleDagBag(dag_folder=file, bundle_path=Path(file).parent, bundle_name="dags", load_op_links=False)
    for dag in bag.dags.values():
        DagSerialization.to_dict(dag)
    took = time.process_time() - began
    assert not bag.import_errors, bag.import_errors
    assert len(bag.dags) == 1, bag.dags
    print(json.dumps(took))


def import_provider() -> None:
    """Print the CPU seconds that importing every module of the provider takes after Airflow's own, and what heavy
    libraries came with them."""
    from airflow.dag_processing.dagbag import BundleDagBag  # noqa: F401  what a DAG processor has imported
    from airflow.sdk import DAG, Asset, BaseHook, BaseOperator, BaseSensorOperator, task  # noqa: F401
    from airflow.triggers.base import BaseTrigger  # noqa: F401

    sys.path[:0] = [str(REPO / "tests" / "support")]
    from heavy import heavy_since

    folder = REPO / "plugins" / "airflow"
    paths = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
    before = set(sys.modules)
    began = time.process_time()
    for path in paths:
        importlib.import_module(".".join(path.relative_to(folder).with_suffix("").parts))
    took = time.process_time() - began
    print(json.dumps([took, len(paths), heavy_since(before)]))


def fresh(environment: dict[str, str], *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare_parsing(environment: dict[str, str], folder: Path) -> None:
    (empty := folder / "empty.py").write_text(EMPTY)
    files = [empty, *DAGS]
    taken: dict[Path, list[float]] = {file: [] for file in files}
    for _ in range(ROUNDS):
        for file in files:
            taken[file].append(fresh(environment, "--parse", str(file)))
    base = statistics.median(taken[empty])
    print(f"parse an empty DAG: {base * 1000:.0f} ms of CPU")
    for file in DAGS:
        whole = statistics.median(taken[file])
        print(
            f"parse {file.name}: {(whole - base) * 1000:.0f} ms of its own (limit {LIMIT_S * 1000:.0f}), "
            f"{whole / base:.1f} × the empty DAG"
        )


def measure_import(environment: dict[str, str]) -> None:
    found = [fresh(environment, "--import", "all") for _ in range(ROUNDS)]
    heavy = sorted({name for _, _, names in found for name in names})
    took = statistics.median(took for took, _, _ in found)
    print(f"import all {found[0][1]} modules of the provider: {took * 1000:.0f} ms of CPU, heavy: {heavy or 'none'}")
    assert not heavy, heavy


# ---- waiting captures: the jobs


async def hold(count: int, archive: str) -> None:
    """Serve so many jobs with a capture each; tell of them as JSON, and deliver the traces once a line comes in."""
    sys.path[:0] = [str(REPO / "tests" / "support")]
    import msgspec
    from fake_agent import FakeAgent, deliver, worker

    from sameshot.client import AsyncClient
    from sameshot.coordinator import CoordinatorConfig, CoordinatorServer, Timings
    from sameshot.model import CaptureSpec, JobRef, TargetState
    from sameshot.steps.request import CaptureRequest
    from sameshot.storage import Storage

    released = asyncio.Event()

    def script(agent: FakeAgent, target: Any, looks: int) -> Any:
        if released.is_set():
            return deliver(agent, target, looks)
        return msgspec.structs.replace(target, state=TargetState.QUEUED)

    storage, told, servers = Storage.open(archive), [], []
    spec = CaptureSpec(start_delay_ms=600_000)  # long enough to be watched for a while
    for index in range(count):
        job = JobRef("local", f"job-{index}", f"u-{index}", 0)
        agent = await FakeAgent(f"node-{index}", storage).start()
        agent.script = script
        agent.workers = [worker(rank=rank, world_size=8, node=agent.node, job=job) for rank in range(8)]
        server = CoordinatorServer(
            CoordinatorConfig(
                job=job,
                series=job.name,
                archive=archive,
                agents=(agent.address,),
                timings=Timings(poll_s=2.0, listing_s=60.0),  # it is not these that are measured
            )
        )
        address = await server.start()
        servers.append((agent, server))
        request = CaptureRequest(address=address, request_key=f"bench/{index}", spec=spec)
        async with AsyncClient(address) as client:
            view = await client.start_capture(spec, request_key=request.request_key)
        told.append([msgspec.to_builtins(request), view.capture_id, view.manifest_uri])
    print(json.dumps(told), flush=True)
    await line_in()
    released.set()
    await line_in()


async def line_in() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


# ---- waiting captures: the triggerer


class Counting(logging.Handler):
    """Counts triggers that have reported something since they said that they follow a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += " of " in record.getMessage()


async def wait_for_captures(told: list[list[Any]]) -> None:
    from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

    logger, counting = logging.getLogger("bench.trigger"), Counting()
    logger.addHandler(counting)
    logger.propagate = False
    logger.setLevel(logging.INFO)

    async def follow(request: dict[str, Any], capture_id: str, manifest_uri: str) -> None:
        trigger = SameshotCaptureTrigger(request, capture_id, manifest_uri, time.time() + 900)
        trigger._log = logger  # where a trigger's `log` looks first
        events = [event async for event in trigger.run()]
        assert [event.payload["kind"] for event in events] == ["done"], events

    async def attached(count: int) -> None:
        async with asyncio.timeout(120):
            while counting.seen < count:
                await asyncio.sleep(0.1)

    await measure([follow(*each) for each in told], attached)


async def only_sleep(count: int) -> None:
    from airflow.triggers.base import BaseTrigger, TriggerEvent

    class Sleeping(BaseTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "bench.Sleeping", {}

        async def run(self) -> Any:
            await woken.wait()
            yield TriggerEvent(True)

    woken = asyncio.Event()

    async def follow() -> None:
        async for _ in Sleeping().run():
            return

    async def attached(_: int) -> None:
        await asyncio.sleep(1)

    await measure([follow() for _ in range(count)], attached, woken)


async def measure(waiting: list[Coroutine[Any, Any, None]], attached: Any, woken: asyncio.Event | None = None) -> None:
    """Start the first, then the others; answer each line that comes in with the figures so far."""
    import psutil

    process = psutil.Process()
    idle = process.memory_info().rss
    running = [asyncio.create_task(waiting[0])]
    await attached(1)
    one = process.memory_info().rss
    began = time.process_time()
    running += [asyncio.create_task(each) for each in waiting[1:]]
    await attached(len(waiting))
    started = time.process_time() - began
    print("waiting", flush=True)
    await line_in()  # a window begins
    began = time.process_time()
    await line_in()  # … and ends
    spent = time.process_time() - began
    all_of_them = process.memory_info().rss
    assert not any(task.done() for task in running), [task.result() for task in running if task.done()]
    print(json.dumps({"idle": idle, "one": one, "all": all_of_them, "start_s": started, "window_s": spent}), flush=True)
    await line_in()  # the traces are delivered now
    began = time.process_time()
    if woken is not None:
        woken.set()
    async with asyncio.timeout(300):
        await asyncio.gather(*running)
    print(json.dumps({"end_s": time.process_time() - began, "peak": process.memory_info().rss}), flush=True)


class Child:
    """A process that answers lines with lines."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compare_waiting(environment: dict[str, str], folder: Path, captures: int, window_s: float) -> None:
    jobs = Child(environment, "--hold", str(captures), "--archive", str(folder))
    (told := folder / "captures.json").write_text(jobs.hear())
    kinds = {
        "a capture": Child(environment, "--wait", str(told)),
        "a sleep": Child(environment, "--sleep", str(captures)),
    }
    try:
        for child in kinds.values():
            while child.hear().strip() != "waiting":
                pass
        for child in kinds.values():
            child.tell()
        time.sleep(window_s)
        for child in kinds.values():
            child.tell()
        waited = {kind: json.loads(child.hear()) for kind, child in kinds.items()}
        jobs.tell()
        for child in kinds.values():
            child.tell()
        ended = {kind: json.loads(child.hear()) for kind, child in kinds.items()}
    finally:
        for child in (jobs, *kinds.values()):
            child.close()
    for kind, found in waited.items():
        each = (found["all"] - found["one"]) / (captures - 1) / 1024
        print(
            f"{captures} triggers that wait for {kind}: {found['idle'] / 2**20:.0f} MiB before, "
            f"+{(found['one'] - found['idle']) / 2**20:.1f} MiB with the first, +{each:.0f} KiB each, "
            f"{found['all'] / 2**20:.0f} MiB in all; {found['window_s'] * 60_000 / window_s:.0f} ms of CPU a minute; "
            f"{found['start_s'] * 1000 / captures:.1f} ms of CPU each to begin, "
            f"{ended[kind]['end_s'] * 1000 / captures:.1f} ms to end, {ended[kind]['peak'] / 2**20:.0f} MiB then"
        )
    ours, theirs = waited["a capture"], waited["a sleep"]
    print(f"resident memory of the whole process: {ours['all'] / theirs['all']:.2f} × that of the sleeping one")


def main(captures: int, window_s: float) -> None:
    sys.path[:0] = [str(REPO / "tests" / "support")]
    from airflow_home import hermetic_environment

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = hermetic_environment(folder) | {"AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        compare_parsing(environment, folder)
        measure_import(environment)
        compare_waiting(environment, folder, captures, window_s)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--captures", type=int, default=200)
    options.add_argument("--window", type=float, default=60.0)
    for hidden in ("--parse", "--import", "--hold", "--archive", "--wait", "--sleep"):
        options.add_argument(hidden, dest=hidden[2:].replace("import", "import_"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.parse:
        parse(chosen.parse)
    elif chosen.import_:
        import_provider()
    elif chosen.hold:
        asyncio.run(hold(int(chosen.hold), chosen.archive))
    elif chosen.wait:
        asyncio.run(wait_for_captures(json.loads(Path(chosen.wait).read_text())))
    elif chosen.sleep:
        asyncio.run(only_sleep(int(chosen.sleep)))
    else:
        main(chosen.captures, chosen.window)
