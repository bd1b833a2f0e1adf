"""The demonstration's training job: torchrun agents as "nodes" of one machine, and the switches of its script."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from sameshot.errors import SameshotError
from sameshot.local.run import LocalRun
from sameshot.local.services import free_port

SCRIPT = Path(__file__).with_name("train.py")
_STEP = re.compile(rb"^step (\d+) ", re.MULTILINE)


class JobShape(msgspec.Struct, frozen=True):
    """How large the job is."""

    nodes: int = 2
    ranks_per_node: int = 2
    loader_workers: int = 2
    width: int = 256

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class DemoJob:
    """One torchrun per node, each in its node's armed environment; a context manager that leaves no process behind."""

    def __init__(self, local: LocalRun, shape: JobShape, folder: Path) -> None:
        self.shape = shape
        self._control = folder / "control"
        self._control.mkdir(parents=True, exist_ok=True)
        for switch in self._control.iterdir():
            switch.unlink()
        self._logs = [folder / f"node-{node}.log" for node in range(shape.nodes)]
        port = free_port()
        self._processes = [self._start(local, node, port) for node in range(shape.nodes)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
        deadline = time.monotonic() + (30 if kind is None else 5)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def steps(self) -> int:
        """The number of the last step that rank 0 reported, -1 before the first."""
        seen = [int(match[1]) for log in self._logs for match in _STEP.finditer(_read(log))]
        return max(seen, default=-1)

    def wait_for_step(self, step: int, timeout_s: float = 300.0) -> None:
        """Until training really went past `step`; raises SameshotError when the job ends or hangs before."""
        deadline = time.monotonic() + timeout_s
        while self.steps() < step:
            ended = [code for process in self._processes if (code := process.poll()) is not None]
            if ended or time.monotonic() > deadline:
                how = f"ended with {ended}" if ended else f"did not reach step {step} in {timeout_s:.0f} s"
                logs = "\n".join(_read(log).decode(errors="replace")[-2000:] for log in self._logs)
                raise SameshotError(f"The training job {how}. The end of its logs:\n{logs}")
            time.sleep(0.1)

    def slow_down(self, rank: int, milliseconds: float) -> None:
        """From the next step on this rank sleeps in every step."""
        pending = self._control / "slow.new"
        pending.write_text(f"{rank} {milliseconds}")
        pending.rename(self._control / "slow")

    def finish(self) -> None:
        """Ask the script to end after its current step."""
        (self._control / "finish").touch()

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """Exit codes of all launchers, by node."""
        deadline = time.monotonic() + timeout_s
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self._processes]

    def _start(self, local: LocalRun, node: int, port: int) -> subprocess.Popen[bytes]:
        with self._logs[node].open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run"),
                    *("--nnodes", str(self.shape.nodes), "--nproc-per-node", str(self.shape.ranks_per_node)),
                    *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                    *(str(SCRIPT), "--control", str(self._control), "--width", str(self.shape.width)),
                    *("--loader-workers", str(self.shape.loader_workers)),
                ],
                env={**local.environment(node), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except OSError:
        return b""
