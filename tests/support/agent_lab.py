"""Helpers of the agent's tests: worker processes that hold a real lock, traces, a scripted daemon, an agent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec
import psutil
import pytest

from sameshot.agent.agent import Agent
from sameshot.agent.capturebook import CaptureBook
from sameshot.agent.config import AgentConfig
from sameshot.agent.discovery import FixedDirs
from sameshot.agent.registrations import start_ticks
from sameshot.agent.server import listening
from sameshot.api import sameshot_pb2 as pb
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.convert import from_proto, to_proto
from sameshot.model import CaptureSpec, JobRef, Registration, TargetFact, TargetState
from sameshot.profiler.daemon import BackendName, TriggerFact, TriggerRequest, TriggerStatus

JOB = JobRef("local", "train", "uid-1", 0)
PATIENCE_S = 60.0  # the machine may be loaded; a test that passes never waits this long
SPEC = CaptureSpec(duration_ms=100, warmup_ms=0)
T = TypeVar("T")

# Holds its lock as the hook does, says so, and lives until its input ends (or it is killed).
_WORKER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
if sys.argv[2] == "forks" and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test written as a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 110))

    return run


def give_away(path: Path) -> None:
    """Make it another user's; skips the test where that is not allowed (without CAP_CHOWN, or in a user namespace)."""
    try:
        os.chown(path, 12345, 12345)
    except OSError as error:
        pytest.skip(f"a file can't be given away here: {error}")


async def until(look: Callable[[], T | Awaitable[T]], what: str, patience_s: float = PATIENCE_S) -> T:
    """Wait until `look` gives something true."""
    deadline = time.monotonic() + patience_s
    while True:
        found = look()
        seen: Any = await found if isinstance(found, Awaitable) else found
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true in {patience_s} s")
        await asyncio.sleep(0.02)


class AWorker:
    """A live process with a registration, and the trace that Kineto would write for it."""

    def __init__(self, folder: Path, *, forks: bool = False, **fields: Any) -> None:
        self.folder = folder
        workers = folder / "workers"
        workers.mkdir(parents=True, exist_ok=True)
        one = str(uuid.uuid4())
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WORKER, str(workers / f"{one}.lock"), "forks" if forks else ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"
        pid = self.process.pid
        given: dict[str, Any] = {
            "uuid": one,
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "job": JOB,
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
            "node": "node-a",
            "host": "host-a",
            "kineto_job_id": 7,
            "job_name": f"sameshot/{one}",
            "registered_at_ns": time.time_ns(),
            "torch_version": "2.13.0",
        }
        self.registration = Registration(**(given | fields))
        self.register()

    def register(self, **changes: Any) -> None:
        """Write (again) what the hook writes."""
        self.registration = msgspec.structs.replace(self.registration, **changes)
        path = self.folder / "workers" / f"{self.registration.uuid}.json"
        scratch = path.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(self.registration))
        scratch.rename(path)

    @property
    def target_id(self) -> str:
        return self.registration.target_id

    def output_folder(self, capture_id: str) -> Path:
        one = self.registration
        return self.folder / "captures" / capture_id / one.container / str(one.local_rank)

    def final_name(self, capture_id: str) -> Path:
        return self.output_folder(capture_id) / f"trace_{self.registration.pid}.json"

    def write_trace(self, capture_id: str, data: bytes | None = None, *, elsewhere: bool = False) -> Path:
        """In Kineto's order: an empty `.tmp`, the bytes, the final name (`elsewhere`: by another process)."""
        final = self.final_name(capture_id)
        scratch = final.with_name(f"{final.name}.tmp")
        scratch.write_bytes(b"")
        scratch.write_bytes(trace_of(self.registration) if data is None else data)
        if elsewhere:
            subprocess.run(["mv", str(scratch), str(final)], check=True)
        else:
            scratch.rename(final)
        return final

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def trace_of(registration: Registration, *, start_ns: int | None = None, **changes: Any) -> bytes:
    """A small valid trace that says whose it is. `start_ns`: CLOCK_REALTIME of its first event."""
    base = 1_700_000_000_000_000_000
    begin = ((start_ns or time.time_ns()) - base) / 1000
    body: dict[str, Any] = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": base,
        "PT_PROFILER_JOB_NAME": f"sameshot/{registration.uuid}",
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i}", "pid": 1, "tid": 1, "ts": begin + i, "dur": 0.5}
            for i in range(5)
        ],
    }
    return json.dumps(body | changes).encode()


def write_large_trace(path: Path, registration: Registration, size: int) -> None:
    """A valid trace of about `size` bytes, written in blocks."""
    event = (
        b'{"ph":"X","cat":"cpu_op","name":"aten::some_operator_of_usual_length","pid":1,"tid":1,"ts":%d.5,"dur":0.25}'
    )
    block = b",\n".join(event % n for n in range(10_000))
    head = (
        b'{"schemaVersion":1,"baseTimeNanoseconds":1700000000000000000,"PT_PROFILER_JOB_NAME":"sameshot/%s","traceEvents":['
        % registration.uuid.encode()
    )
    with path.open("wb") as file:
        file.write(head + block)
        while file.tell() < size:
            file.write(b",\n" + block)
        file.write(b"]}")


class ScriptedDaemon:
    """A profiler daemon in memory: answers each target with `statuses` (default QUEUED) and remembers requests."""

    def __init__(self, name: BackendName = BackendName.BROKER) -> None:
        self.name = name
        self.statuses: dict[str, TriggerStatus] = {}
        self.late: dict[str, bool] = {}
        self.asked: list[TriggerRequest] = []
        self.withdrawn: list[tuple[str, str]] = []
        self.held: dict[tuple[str, str], TriggerFact] = {}
        self.silent: Exception | None = None

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def _fact(self, capture_id: str, target_id: str) -> TriggerFact:
        status = self.statuses.get(target_id, TriggerStatus.QUEUED)
        return TriggerFact(capture_id, target_id, status, late_start=self.late.get(target_id))

    async def trigger(self, requests: Sequence[TriggerRequest]) -> list[TriggerFact]:
        if self.silent is not None:
            raise self.silent
        self.asked.extend(requests)
        facts = [self._fact(each.capture_id, each.target_id) for each in requests]
        self.held.update({(fact.capture_id, fact.target_id): fact for fact in facts})
        return facts

    async def facts(self, capture_id: str) -> list[TriggerFact]:
        if self.silent is not None:
            raise self.silent
        return [self._fact(*key) for key in self.held if key[0] == capture_id]

    async def withdraw(self, capture_id: str, target_ids: Sequence[str]) -> list[TriggerFact]:
        if self.silent is not None:
            raise self.silent
        self.withdrawn.extend((capture_id, each) for each in target_ids)
        facts = [self._fact(capture_id, each) for each in target_ids]
        return [
            fact
            if fact.status is TriggerStatus.CONSUMED or self.name is BackendName.DYNOLOG
            else msgspec.structs.replace(fact, status=TriggerStatus.WITHDRAWN)
            for fact in facts
        ]

    async def registered(self) -> dict[tuple[int, int], float | None]:
        return {}


class Lab:
    """One node: a short directory for its workers, a spool and an archive beside it, and agents to run on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dir = root / "n0"
        self.dir.mkdir()
        self.spool = root / "spool"
        self.archive = root / "archive"
        self.daemon = ScriptedDaemon()
        self.workers: list[AWorker] = []
        self.next_id = 0

    def worker(self, **fields: Any) -> AWorker:
        worker = AWorker(self.dir, **fields)
        self.workers.append(worker)
        return worker

    def config(self, **changes: Any) -> AgentConfig:
        given: dict[str, Any] = {
            "node": "node-a",
            "worker_dirs": FixedDirs(self.dir, node="node-a"),
            "spool": self.spool,
            "archive": str(self.archive),
            "listen": f"unix:{self.root / 'agent.sock'}",
            "announce_period_s": 0.05,
            "retry_s": 0.05,
            "keep_free_bytes": 0,
            "late_look_s": 0.0,
            "niceness": 0,
        }
        return AgentConfig(**(given | changes))

    @contextlib.asynccontextmanager
    async def agent(self, *, free: Callable[[Path], int] | None = None, **changes: Any) -> AsyncIterator[Caller]:
        """An agent in this process with the scripted daemon, spoken to over a real gRPC socket."""
        extra: dict[str, Any] = {} if free is None else {"free": free}
        agent = Agent(self.config(**changes), make_daemon=lambda where: self.daemon, **extra)
        await agent.start()
        try:
            async with listening(agent) as address, Caller.to(address, self) as caller:
                caller.agent = agent
                yield caller
        finally:
            await agent.close()

    @contextlib.asynccontextmanager
    async def process(self, *, prelude: str = "", **changes: Any) -> AsyncIterator[AgentProcess]:
        """An agent in a process of its own, with the real broker. `prelude` is Python that is run there first."""
        one = AgentProcess(self, changes, prelude)
        try:
            await one.start()
            yield one
        finally:
            one.kill()

    def capture_id(self) -> str:
        self.next_id += 1
        return f"{self.next_id:032x}"

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        shutil.rmtree(self.root, ignore_errors=True)


_AGENT = """
import asyncio, logging, sys
from pathlib import Path
from sameshot.agent.config import AgentConfig
from sameshot.agent.discovery import FixedDirs
from sameshot.agent.server import serve

logging.basicConfig(level=logging.INFO)
root, changes = Path(sys.argv[1]), eval(sys.argv[2])
exec(sys.argv[3])
asyncio.run(serve(AgentConfig(**{
    "node": "node-a", "worker_dirs": FixedDirs(root / "n0", node="node-a"), "spool": root / "spool",
    "archive": str(root / "archive"), "address_file": root / "address", "announce_period_s": 0.05, "retry_s": 0.05,
    "keep_free_bytes": 0, "late_look_s": 0.0, **changes,
})))
"""


class AgentProcess:
    """A whole agent that can be killed and started again on the same spool."""

    def __init__(self, lab: Lab, changes: dict[str, Any], prelude: str = "") -> None:
        self.lab = lab
        self.log = lab.root / "agent.log"
        self._prelude = prelude
        self._changes = changes
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    async def start(self) -> None:
        address = self.lab.root / "address"
        address.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _AGENT, str(self.lab.root), repr(self._changes), self._prelude],
                stderr=log,
                stdout=log,
            )
        await until(lambda: self.ended or address.exists(), "an address, or the end")
        assert not self.ended, self.log.read_text()
        self.address = address.read_text().strip()

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def caller(self) -> contextlib.AbstractAsyncContextManager[Caller]:
        return Caller.to(self.address, self.lab)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def verifiers(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)


class Caller:
    """A coordinator's view of one agent."""

    agent: Agent

    def __init__(self, stub: Any, lab: Lab) -> None:
        self.stub = stub
        self.lab = lab

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, address: str, lab: Lab) -> AsyncIterator[Caller]:
        async with grpc.aio.insecure_channel(address) as channel:
            yield cls(sameshot_pb2_grpc.AgentStub(channel), lab)

    async def dispatch(
        self,
        *workers: AWorker,
        capture_id: str | None = None,
        spec: CaptureSpec = SPEC,
        job: JobRef = JOB,
        announce_timeout_ms: int = 100_000,
        start_at_ns: int | None = None,
        deadline_s: float | None = None,
    ) -> str:
        """Returns the capture id; the facts of the answer are in `self.answer`."""
        capture_id = capture_id or self.lab.capture_id()
        request = pb.DispatchRequest(
            job=to_proto(job, pb.JobRef()),
            capture_id=capture_id,
            spec=to_proto(spec, pb.CaptureSpec()),
            start_at_ns=time.time_ns() if start_at_ns is None else start_at_ns,
            announce_timeout_ms=announce_timeout_ms,
            targets=[
                pb.DispatchTarget(target_id=worker.target_id, registration=worker.registration.uuid)
                for worker in workers
            ],
        )
        self.answer = _facts(await self.stub.Dispatch(request, timeout=deadline_s))
        return capture_id

    async def withdraw(
        self, capture_id: str, deadline_s: float | None = None, only: Sequence[str] = ()
    ) -> dict[str, TargetFact]:
        request = pb.WithdrawRequest(
            job=to_proto(JOB, pb.JobRef()), capture_id=capture_id, reason="no need", target_ids=only
        )
        return _facts(await self.stub.Withdraw(request, timeout=deadline_s))

    async def facts(self, capture_id: str, job: JobRef = JOB) -> dict[str, TargetFact]:
        request = pb.FactsRequest(job=to_proto(job, pb.JobRef()), capture_id=capture_id)
        return _facts(await self.stub.GetFacts(request))

    async def fact(self, capture_id: str, worker: AWorker) -> TargetFact:
        return (await self.facts(capture_id))[worker.target_id]

    async def until_state(self, capture_id: str, worker: AWorker, *states: TargetState) -> TargetFact:
        async def look() -> TargetFact | None:
            fact = await self.fact(capture_id, worker)
            if fact.state.terminal and fact.state not in states:
                raise AssertionError(f"{worker.target_id} ended as {fact}")
            return fact if fact.state in states else None

        found = await until(look, f"{worker.target_id} in {[state.name for state in states]}")
        assert found is not None
        return found

    async def until_archived(self, capture_id: str, worker: AWorker) -> TargetFact:
        return await self.until_state(capture_id, worker, TargetState.ARCHIVED)

    async def until_failed(self, capture_id: str, worker: AWorker) -> TargetFact:
        fact = await self.until_state(capture_id, worker, TargetState.FAILED)
        assert fact.failure is not None
        return fact

    async def workers(self, job: JobRef = JOB) -> dict[str, Any]:
        answer = await self.stub.ListWorkers(pb.ListWorkersRequest(job=to_proto(job, pb.JobRef())))
        return {worker.registration.uuid: worker for worker in answer.workers}


class SlowDisk:
    """Writing a capture down waits until it may `go_on`."""

    def __init__(self, book: CaptureBook) -> None:
        self.waiting = self.writes = self.most_at_once = 0
        self._accept = book.accept
        self._open = threading.Event()
        self._lock = threading.Lock()

    def accept(self, *args: Any) -> Any:
        with self._lock:
            self.writes += 1
            self.waiting += 1
            self.most_at_once = max(self.most_at_once, self.waiting)
        self._open.wait(PATIENCE_S)
        try:
            return self._accept(*args)
        finally:
            with self._lock:
                self.waiting -= 1

    def go_on(self) -> None:
        self._open.set()


@contextlib.contextmanager
def slow_disk(agent: Agent) -> Iterator[SlowDisk]:
    disk = SlowDisk(agent.book)
    agent.book.accept = disk.accept  # type: ignore[method-assign]
    try:
        yield disk
    finally:
        disk.go_on()
        del agent.book.accept  # type: ignore[method-assign]


def _facts(answer: pb.CaptureFacts) -> dict[str, TargetFact]:
    return {target.target_id: from_proto(target, TargetFact) for target in answer.targets}


@contextlib.contextmanager
def a_lab() -> Iterator[Lab]:
    """Under a short path, so that sockets fit into their addresses."""
    lab = Lab(Path(tempfile.mkdtemp(prefix="sal", dir=os.environ.get("SAMESHOT_TEST_TMP", "/tmp"))))
    try:
        yield lab
    finally:
        lab.close()
