"""Builders and helpers of the profiler tests: requests, a real torch worker, a Kineto client without torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kineto_client import decode_reply, encode_poll

from sameshot.model import CaptureSpec
from sameshot.profiler.config import traced_file
from sameshot.profiler.daemon import ProfilerDaemon, TriggerFact, TriggerRequest, TriggerStatus
from sameshot.profiler.kineto_ipc import Poll, Wants

JOB = 4711
NS = 1_000_000_000
PATIENCE_S = 60.0  # the machine may be loaded; a test that passes never waits this long

TRAINING = """
import sys, time, torch
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(16, 32)

def one_step():
    with torch.profiler.record_function("lab_step"):
        optimizer.zero_grad()
        model(data).pow(2).sum().backward()
        optimizer.step()

print("training", flush=True)
end = time.time() + 180
while time.time() < end:
    one_step()
    time.sleep(0.01)
"""

T = TypeVar("T")


def a_request(**changes: Any) -> TriggerRequest:
    given: dict[str, Any] = {
        "capture_id": "c1",
        "target_id": "node/main/0",
        "pid": 100,
        "kineto_job_id": JOB,
        "spec": CaptureSpec(duration_ms=500, warmup_ms=0),
        "start_at_ns": 0,
        "output_path": "/sameshot/captures/c1/main/0/trace.json",
    }
    return TriggerRequest(**(given | changes))


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Socket names must fit into 107 bytes, which pytest's tmp_path does not promise."""
    folder = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def until(what: str, ask: Callable[[], Awaitable[T | None]], patience_s: float = PATIENCE_S) -> T:
    """Ask until the answer is true; AssertionError with `what` when patience ends."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if answer := await ask():
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {patience_s:g} s: {what}")


async def until_status(
    daemon: ProfilerDaemon, request: TriggerRequest, *wanted: TriggerStatus, patience_s: float = PATIENCE_S
) -> TriggerFact:
    """Repeat the request, as an agent does, until its fact has one of these states."""

    async def ask() -> TriggerFact | None:
        (fact,) = await daemon.trigger([request])
        return fact if fact.status in wanted else None

    return await until(f"{request.capture_id} is {wanted}", ask, patience_s)


class Worker:
    """A real, unmodified training process; armed the way the facts page describes."""

    def __init__(self, ipc_dir: str, home: Path, *, job: int = JOB, script: str = TRAINING) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "kineto.conf").write_text("ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        (home / "train.py").write_text(script)
        self.home = home
        self.log = home / "log"
        environment = {
            **os.environ,
            "KINETO_USE_DAEMON": "1",
            "KINETO_CONFIG": str(home / "kineto.conf"),
            "KINETO_ONDEMAND_TRACE_DIR": str(home),
            "SLURM_JOB_ID": str(job),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("KINETO_IPC_SOCKET_DIR", None)
        if ipc_dir:
            environment["KINETO_IPC_SOCKET_DIR"] = ipc_dir
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, home / "train.py"], env=environment, stdout=log, stderr=log
            )
        self.pid = self.process.pid

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def request(self, name: str, **changes: Any) -> TriggerRequest:
        path = self.home / name / "trace.json"
        path.parent.mkdir(exist_ok=True)
        return a_request(**({"capture_id": name, "pid": self.pid, "output_path": str(path)} | changes))

    def file_of(self, request: TriggerRequest) -> Path:
        return Path(traced_file(request.output_path, self.pid))

    async def trace(self, request: TriggerRequest) -> Trace:
        """The trace, as soon as Kineto has given the file its final name."""
        file = self.file_of(request)

        async def there() -> bool:
            assert self.process.poll() is None, f"the worker died: {self.log.read_text()}"
            return file.exists()

        await until(f"{file} appears; the worker said {self.log.read_text()[-500:]}", there)
        return Trace(file)

    async def training(self) -> None:
        async def there() -> bool:
            assert self.process.poll() is None, f"the worker died: {self.log.read_text()}"
            return "training" in self.log.read_text()

        await until("training begins", there)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Trace:
    def __init__(self, file: Path) -> None:
        whole = json.loads(file.read_text())
        self.base_ns = int(whole["baseTimeNanoseconds"])
        self.events = whole["traceEvents"]
        self.categories = Counter(event["cat"] for event in self.events if "cat" in event)

    def window_ns(self) -> tuple[int, int]:
        stamps = [self.base_ns + int(event["ts"] * 1000) for event in self.events if event.get("cat") == "cpu_op"]
        return min(stamps), max(stamps)


class Client:
    """Speaks Kineto's side of the protocol from the test's own process."""

    def __init__(
        self,
        ipc_dir: str,
        *,
        name: str | None = None,
        job: int = JOB,
        pid: int | None = None,
        ancestors: tuple[int, ...] = (1,),
    ) -> None:
        self.ipc_dir, self.job, self.ancestors = ipc_dir, job, ancestors
        self.pid = os.getpid() if pid is None else pid
        self.name = name or f"dynoconfigclient{uuid.uuid4()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"{ipc_dir}/{self.name}")
        self.socket.settimeout(PATIENCE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendto(data, f"{self.ipc_dir}/dynolog")

    def ask(self, wants: Wants = Wants.EVENTS | Wants.ACTIVITIES) -> None:
        self.send(encode_poll(Poll(wants, self.job, (self.pid, *self.ancestors))))

    def read(self) -> str:
        """The answer and the name it came from must be what Kineto accepts."""
        data, sender = self.socket.recvfrom(65536)
        assert sender == f"{self.ipc_dir}/dynolog"
        return decode_reply(data)

    def poll(self, wants: Wants = Wants.EVENTS | Wants.ACTIVITIES) -> str:
        self.ask(wants)
        return self.read()


class Dynolog:
    """A running daemon: the real one or the stand-in, started with the same command line."""

    def __init__(self, command: list[str | Path], ipc_dir: str, **knobs: float) -> None:
        self.ipc_dir = ipc_dir
        self._command = command
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._environment = {**os.environ, **{f"STANDIN_{name.upper()}": str(value) for name, value in knobs.items()}}
        self._environment.pop("KINETO_IPC_SOCKET_DIR", None)
        if ipc_dir:
            self._environment["KINETO_IPC_SOCKET_DIR"] = ipc_dir
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [*self._command, f"--port={self.port}", "--enable_ipc_monitor"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                if self.rpc({"fn": "getVersion"}):
                    break
            assert self.process.poll() is None, "the daemon did not start"
            assert time.monotonic() < deadline, "the daemon does not answer"
            time.sleep(0.05)
        while self.ipc_dir and not Path(f"{self.ipc_dir}/dynolog").exists():
            assert time.monotonic() < deadline, "the daemon does not serve workers"
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill it and start it again where it was; what it knew is gone."""
        self.process.kill()
        self.process.wait()
        if self.ipc_dir:
            os.unlink(f"{self.ipc_dir}/dynolog")
        self._start()

    def __enter__(self) -> Dynolog:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def connect(self) -> socket.socket:
        return socket.create_connection(("localhost", self.port), timeout=PATIENCE_S)

    def exchange(self, *pieces: bytes) -> bytes:
        """Everything that the daemon answers to these bytes, sent one after the other, until it closes."""
        with self.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.05 if len(pieces) > 1 else 0)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    answer += chunk
            return answer

    def rpc(self, message: object) -> Any:
        """The decoded answer; None where the daemon closed without one."""
        body = json.dumps(message).encode()
        answer = self.exchange(struct.pack("=i", len(body)) + body)
        return json.loads(answer[4:]) if answer else None

    def request(self, **fields: Any) -> Any:
        given = {"fn": "setKinetOnDemandRequest", "config": "X=1", "job_id": JOB, "pids": [1], "process_limit": 10}
        return self.rpc({key: value for key, value in {**given, **fields}.items() if value is not ...})
