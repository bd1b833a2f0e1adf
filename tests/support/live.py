"""Real training jobs under a real `LocalRun`, for tests that capture while training runs.

    with running_job(tmp_path) as job:
        view = job.capture(duration_ms=1000)
        assert view.state is CaptureState.SUCCEEDED

`LiveJob` starts the ranks (by torchrun, or one by one), and knows where everything of its run is on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sameshot.api.views import CaptureView
from sameshot.local.run import LocalRun, LocalSetup
from sameshot.local.services import sameshot_argv
from sameshot.model import CaptureSpec, Registration, TargetState, Worker

TRAIN = Path(__file__).parent / "scripts" / "train.py"

# static: torchrun's default. c10d: the one under which workers of several nodes can be restarted. none: no launcher,
# so nobody ends the other ranks when one of them dies.
Launcher = Literal["static", "c10d", "none"]


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Poll until `condition` holds; the failure says what never came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:.0f} s still not: {what}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


JOBS: list[LiveJob] = []
"""Those that run now, so that a test can tell torch's own crash from a failure of ours."""


class LiveJob:
    """A job's processes, each in the armed environment of its node."""

    def __init__(
        self,
        local: LocalRun,
        folder: Path,
        *,
        ranks_per_node: int = 2,
        script: Path = TRAIN,
        script_args: Sequence[str] = (),
        launcher: Launcher = "static",
        launcher_args: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.local = local
        self.folder = folder
        self.nodes = len(local.setup.nodes)
        self.ranks_per_node = ranks_per_node
        self.world_size = self.nodes * ranks_per_node
        self.finish_file = folder / "finish"
        self.lives = 0
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(environment or {})}
        self._command = [str(script), "--finish", str(self.finish_file), *script_args]
        self._launcher = launcher
        self._launcher_args = launcher_args
        self._launch()
        JOBS.append(self)

    def _launch(self) -> None:
        port, launcher, command = free_port(), self._launcher, self._command
        self.lives += 1
        if launcher == "none":
            for rank in range(self.world_size):
                self._start_rank(rank, port, command)
            return
        for node in range(self.nodes):
            self._start_launcher(node, _rendezvous(launcher, node, port), self._launcher_args, command)

    @property
    def crashed(self) -> bool:
        """A worker died of SIGSEGV. torch before 2.14 can, whenever a recording stops (docs/troubleshooting.md)."""
        logs = self.logs[-len(self.processes) :]
        return any(b"Signal 11 (SIGSEGV)" in log.read_bytes() for log in logs) or any(
            process.poll() == -signal.SIGSEGV for process in self.processes
        )

    def restart(self) -> None:
        """The same job once more, with new processes under the same agents."""
        self.kill()
        self.processes.clear()
        self.finish_file.unlink(missing_ok=True)
        self._launch()
        self.wait_training()

    def _start_launcher(self, node: int, meeting: list[str], extra: Sequence[str], command: list[str]) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.nodes)]
        self._start(
            f"node-{node}",
            [*torchrun, "--nproc-per-node", str(self.ranks_per_node), *meeting, *extra, *command],
            self.local.environment(node),
        )

    def _start_rank(self, rank: int, port: int, command: list[str]) -> None:
        place = {
            "RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": rank % self.ranks_per_node,
            "LOCAL_WORLD_SIZE": self.ranks_per_node,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        armed = self.local.environment(rank // self.ranks_per_node)
        self._start(
            f"rank-{rank}", [sys.executable, *command], armed | {name: str(value) for name, value in place.items()}
        )

    def _start(self, name: str, argv: list[str], environment: dict[str, str]) -> None:
        log = self.folder / f"{name}.{self.lives}.log"
        self.logs.append(log)
        with log.open("wb") as output:
            self.processes.append(
                subprocess.Popen(
                    argv,
                    env=environment | self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_the_tests,
                )
            )

    # ---- the training

    def steps(self) -> int:
        """How many steps rank 0 has reported, over all its lives."""
        return sum(len(re.findall(rb"^step \d+", log.read_bytes(), re.MULTILINE)) for log in self.logs)

    def wait_training(self, more_steps: int = 3, timeout_s: float = 120.0) -> None:
        """Until all ranks are registered, and steps are really being made."""
        goal = self.steps() + more_steps
        wait_for(lambda: self.steps() >= goal or self._check_alive(), "training makes steps", timeout_s)
        wait_for(lambda: len(self.workers()) == self.world_size, f"{self.world_size} current workers", timeout_s)

    def workers(self) -> dict[int, Worker]:
        """Rank → the current worker."""
        with self.local.client() as client:
            current = [worker for worker in client.workers().workers if worker.current]
        return {rank: worker for worker in current if (rank := worker.registration.rank) is not None}

    def registrations(self) -> dict[int, Registration]:
        """Rank → the current worker's registration."""
        return {rank: worker.registration for rank, worker in self.workers().items()}

    def pids(self) -> dict[int, int]:
        """Rank → pid of the current workers."""
        return {rank: one.pid for rank, one in self.registrations().items()}

    def finish(self, timeout_s: float = 90.0) -> list[int]:
        """Let the training end by itself; exit codes of what was started."""
        self.finish_file.touch()
        return [process.wait(timeout_s) for process in self.processes]

    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _check_alive(self) -> bool:
        ended = [process.returncode for process in self.processes if process.poll() is not None]
        if ended:
            raise AssertionError(f"the job ended with {ended}:\n{self.output()[-3000:]}")
        return False

    # ---- captures of it

    def start(self, *, request_key: str | None = None, **spec: Any) -> CaptureView:
        """Ask for a capture; unless stated otherwise of 500 ms without warm-up, to be quick."""
        with self.local.client() as client:
            return client.start_capture(
                CaptureSpec.of({"duration_ms": 500, "warmup_ms": 0, **spec}), request_key=request_key
            )

    def wait(self, view: CaptureView, timeout_s: float = 90.0) -> CaptureView:
        with self.local.client() as client:
            return client.wait(view.capture_id, timeout_s=timeout_s)

    def capture(self, *, request_key: str | None = None, **spec: Any) -> CaptureView:
        """Ask, and wait until it has ended."""
        return self.wait(self.start(request_key=request_key, **spec))

    def get(self, view: CaptureView) -> CaptureView:
        with self.local.client() as client:
            return client.get(view.capture_id)

    def wait_until(self, view: CaptureView, state: TargetState, *, node: int | None = None) -> CaptureView:
        """Until every target (of one node) has come at least this far."""
        found = view

        def reached() -> bool:
            nonlocal found
            found = self.get(view)
            mine = [fact for fact in found.targets if node is None or fact.identity.node == f"node-{node}"]
            return bool(mine) and all(fact.state >= state for fact in mine)

        wait_for(reached, f"targets of {view.capture_id} reach {state.name}")
        return found

    def sameshot(self, *arguments: str) -> subprocess.Popen[str]:
        """The command line, in a process of its own, speaking to this job."""
        return subprocess.Popen(
            [*sameshot_argv(*arguments), "--address", self.local.address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    # ---- what is on disk

    def folder_of(self, view: CaptureView) -> Path:
        """Where a capture is in the archive (a directory)."""
        return Path(self.local.setup.archive) / self.local.job.path / view.capture_id

    def manifest_of(self, view: CaptureView) -> Path:
        return self.folder_of(view) / "manifest.json"

    def traces_of(self, view: CaptureView) -> dict[int, bytes]:
        """Rank → the JSON of its archived trace."""
        read = {}
        for fact in view.targets:
            if fact.artifact is not None:
                assert fact.identity.rank is not None
                read[fact.identity.rank] = gzip.decompress((self.folder_of(view) / fact.artifact.uri).read_bytes())
        return read

    def traces_on_nodes(self, view: CaptureView) -> list[Path]:
        """Every file of a capture that is still on a node, finished or not."""
        run = self.local.folder.path
        places = [self.local.node_dir(node) / "captures" / view.capture_id for node in range(self.nodes)]
        places += [spool / "captures" / view.capture_id for spool in run.glob("spool-*")]
        named = ("trace", "raw.json", "stored")
        return [path for place in places for path in place.rglob("*") if path.is_file() and path.name.startswith(named)]

    def journal(self, view: CaptureView) -> dict[tuple[str, str], float]:
        """(event, target id) → when an agent first recorded it, in seconds since the epoch."""
        found: dict[tuple[str, str], float] = {}
        for node in range(self.nodes):
            for line in (self.local.folder.path / f"agent-{node}.log").read_text(errors="replace").splitlines():
                if (entry := _ENTRY.match(line)) and entry["capture"] == view.capture_id:
                    at = datetime.datetime.strptime(entry["at"], "%Y-%m-%d %H:%M:%S,%f").timestamp()
                    found.setdefault((entry["event"], entry["target"]), at)
        return found


_ENTRY = re.compile(
    r"(?P<at>\S+ \S+) INFO sameshot\.agent (?P<event>\S+) capture=(?P<capture>\S*) target=(?P<target>\S*)"
)


def _end_with_the_tests() -> None:
    """A test run that is killed leaves no training behind (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _rendezvous(launcher: Launcher, node: int, port: int) -> list[str]:
    if launcher == "c10d":
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "live"]
    return ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]


def top_level(trace: bytes) -> dict[str, Any]:
    """A trace's keys beside its events."""
    return {key: value for key, value in json.loads(trace).items() if key != "traceEvents"}


def events(trace: bytes) -> list[dict[str, Any]]:
    return list(json.loads(trace)["traceEvents"])


@contextlib.contextmanager
def running_job(
    folder: Path, *, nodes: int = 2, setup: dict[str, object] | None = None, **job_options: object
) -> Iterator[LiveJob]:
    """A job that trains, with agents and a coordinator beside it; ended and cleaned up afterwards."""
    options = {
        "name": "live",
        "archive": str(folder / "archive"),
        "nodes": tuple(f"node-{node}" for node in range(nodes)),
        **(setup or {}),
    }
    with LocalRun(LocalSetup(**options)) as local:  # type: ignore[arg-type]
        job = LiveJob(local, folder, **job_options)  # type: ignore[arg-type]
        try:
            job.wait_training()
            yield job
        finally:
            job.kill()
            JOBS.remove(job)  # its logs may be gone before the next test looks at them
