"""Real torchrun jobs under a real `LocalRun`, for tests that capture while training runs."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sameshot.local.run import LocalRun, LocalSetup

TRAIN = Path(__file__).parent / "scripts" / "train.py"


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


class LiveJob:
    """torchrun agents as nodes, each in its armed environment."""

    def __init__(
        self,
        local: LocalRun,
        folder: Path,
        *,
        ranks_per_node: int = 2,
        script: Path = TRAIN,
        script_args: Sequence[str] = (),
        launcher_args: Sequence[str] = (),
    ) -> None:
        self.local = local
        self.nodes = len(local.setup.nodes)
        self.world_size = self.nodes * ranks_per_node
        self.finish_file = folder / "finish"
        self.logs = [folder / f"node-{node}.log" for node in range(self.nodes)]
        port = free_port()
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.nodes)),
                    *("--nproc-per-node", str(ranks_per_node), "--node-rank", str(node)),
                    *("--master-addr", "127.0.0.1", "--master-port", str(port), *launcher_args),
                    *(str(script), "--finish", str(self.finish_file), *script_args),
                ],
                env={**local.environment(node), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdin=subprocess.DEVNULL,
                stdout=self.logs[node].open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for node in range(self.nodes)
        ]

    def steps(self) -> int:
        """How many steps rank 0 has reported, over all its lives."""
        return sum(len(re.findall(rb"^step \d+", log.read_bytes(), re.MULTILINE)) for log in self.logs)

    def wait_training(self, more_steps: int = 3, timeout_s: float = 120.0) -> None:
        """Until all ranks are registered and confirmed, and steps are really being made."""
        goal = self.steps() + more_steps
        wait_for(lambda: self.steps() >= goal or self._check_alive(), "training makes steps", timeout_s)
        with self.local.client() as client:
            wait_for(
                lambda: len([w for w in client.workers().workers if w.current]) == self.world_size,
                f"{self.world_size} current workers",
                timeout_s,
            )

    def pids(self) -> dict[int, int]:
        """Rank → pid of the current workers."""
        with self.local.client() as client:
            return {
                worker.registration.rank: worker.registration.pid
                for worker in client.workers().workers
                if worker.current and worker.registration.rank is not None
            }

    def finish(self, timeout_s: float = 90.0) -> list[int]:
        """Let the training end by itself; exit codes of the launchers."""
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
