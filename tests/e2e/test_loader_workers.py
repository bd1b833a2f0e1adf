"""DataLoader workers and launchers inherit a rank's environment; they are neither registered nor captured."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from live import TRAIN, events, free_port, running_job, wait_for

from sameshot.model import CaptureState
from sameshot.profiler.broker import Broker

pytestmark = [pytest.mark.live, pytest.mark.full]

SPAWNED = ("--loader-workers", "2")


def test_launcher_and_spawned_loader_workers_neither_register_nor_get_captured(tmp_path: Path) -> None:
    with running_job(tmp_path, nodes=1, script_args=SPAWNED) as job:
        (launcher,) = job.processes
        wait_for(lambda: len(torch_processes(launcher.pid)) == 1 + 2 + 2 * 2, "every process has torch")
        with job.local.client() as client:
            listed = client.workers().workers
        assert sorted((worker.registration.rank, worker.current) for worker in listed) == [(0, True), (1, True)]
        registered = {worker.registration.pid for worker in listed}
        assert len(list((job.local.node_dir(0) / "workers").glob("*.json"))) == 2
        sockets = list((job.local.node_dir(0) / "ipc").glob("dynoconfigclient*"))
        assert len(sockets) == 2  # nobody else speaks to the daemon at all

        view = job.capture()
        assert view.state is CaptureState.SUCCEEDED
        assert {fact.identity.pid for fact in view.targets} == registered
        for trace in job.traces_of(view).values():
            assert {each["pid"] for each in events(trace) if each.get("cat") == "cpu_op"} < registered


def test_without_the_hooks_care_the_same_job_enters_seven_processes(tmp_path: Path, ipc_dir: Path) -> None:
    async def enter_all() -> int:
        broker = Broker(ipc_dir)
        await broker.start()
        try:
            with plain_job(tmp_path, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=str(ipc_dir)):
                for _ in range(600):
                    if (found := len(await broker.registered())) >= 7:
                        break
                    await asyncio.sleep(0.1)
                return found
        finally:
            await broker.close()

    assert asyncio.run(enter_all()) == 7  # the launcher, two ranks, four loader workers


def torch_processes(launcher: int) -> list[int]:
    """The launcher and all its descendants that have torch loaded."""
    family = [psutil.Process(launcher), *psutil.Process(launcher).children(recursive=True)]
    return [each.pid for each in family if "libtorch_cpu" in Path(f"/proc/{each.pid}/maps").read_text()]


@pytest.fixture
def ipc_dir() -> Path:
    folder = Path(os.environ["SAMESHOT_RUNTIME_DIR"]) / "plain"
    folder.mkdir()
    return folder


@contextmanager
def plain_job(folder: Path, **environment: str) -> Iterator[None]:
    """The same training without us: only Kineto's own variables, in everybody's environment."""
    meeting = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    with (folder / "plain.log").open("wb") as log:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", *meeting),
                *(str(TRAIN), "--finish", str(folder / "finish"), *SPAWNED),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        (folder / "finish").touch()
        launcher.wait(90)
