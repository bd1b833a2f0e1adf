"""Real torch under real launchers: exactly the ranks register, and exactly the ranks reach the profiler daemon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hook_lab import DEADLINE_S, Responder, environment, held, python, registrations, script, started, until

from sameshot.model import Phase

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_RANKS = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "0"]
RENDEZVOUS = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]

# DDP with a DataLoader whose two workers are spawned, and so import torch under the rank's environment. Ends when the
# file named in argv[1] is there; the last line is what the rank's environment looked like to user code.
TRAIN = """
import json, os, sys, time
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group, get_rank

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.ones(8) * index

if __name__ == "__main__":
    init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    stop = torch.zeros(1)
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=8, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    while not stop:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        stop = torch.tensor([float(os.path.exists(sys.argv[1]))])
        torch.distributed.all_reduce(stop)   # the ranks end together
    from torch.optim import optimizer as optim
    print(json.dumps({
        "rank": get_rank(), "pid": os.getpid(), "slurm": os.environ.get("SLURM_JOB_ID"),
        "armed": "SAMESHOT_ARMED" in os.environ, "step_hooks": len(optim._global_optimizer_post_hooks)}), flush=True)
    destroy_process_group()
"""


def train(
    folder: Path, daemon: Responder, command: list[str], env: dict[str, str], expected: int
) -> tuple[list[dict[str, object]], str]:
    """Run until `expected` processes have polled and every one that could poll had the time to; then end the job."""
    stop = folder / "stop"
    command = [*command, str(script(folder, TRAIN)), str(stop)]
    with started(command, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: len(daemon.polled) >= expected, f"{expected} processes poll", process)
        # DataLoader workers import torch before the first batch is there, and Kineto asks at import.
        until(lambda: daemon.polls >= 5 * len(daemon.polled), "several polls of each", process)
        stop.touch()
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    # Ranks share one output, and their lines may run into each other.
    return [json.loads(report) for report in re.findall(r"\{[^{}]*\}", stdout)], stderr


def accelerate(folder: Path) -> list[str]:
    """`accelerate launch` for several processes: its own script, which runs torchrun's code in the same process."""
    code = "import torch\nfrom torch.distributed.run import main\nmain()\n"
    return [sys.executable, str(script(folder, code, "accelerate"))]


@pytest.mark.parametrize(
    ("launcher", "around"),
    [
        pytest.param("torchrun", {}, id="torchrun"),
        pytest.param(
            "torchrun",
            {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "77"},
            id="srun torchrun",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "accelerate",
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            id="accelerate in a pod that numbers its pods with RANK",
            marks=pytest.mark.full,
        ),
    ],
)
def test_only_the_ranks_register_and_reach_the_daemon(
    shared_dir: Path, tmp_path: Path, launcher: str, around: dict[str, str]
) -> None:
    command = TORCHRUN if launcher == "torchrun" else accelerate(tmp_path)
    env = environment(shared_dir, **around)
    with Responder(shared_dir) as daemon:
        ranks, stderr = train(tmp_path, daemon, [*command, *TWO_RANKS, *RENDEZVOUS], env, 2)
    assert "sameshot" not in stderr
    workers = registrations(shared_dir)
    assert [(one.rank, one.local_rank, one.world_size) for one in workers] == [(0, 0, 2), (1, 1, 2)]
    assert {one.pid for one in workers} == set(daemon.polled) == {rank["pid"] for rank in ranks}
    assert {one.kineto_job_id for one in workers} == daemon.job_ids
    for worker in workers:
        assert worker.phase is Phase.EXITING
        assert worker.restart_count == 0
        assert worker.groups
        assert worker.ancestors[: len(daemon.polled[worker.pid])] == daemon.polled[worker.pid]
    for rank in ranks:
        assert (rank["armed"], rank["slurm"], rank["step_hooks"]) == (False, around.get("SLURM_JOB_ID"), 0)


@pytest.mark.full
def test_the_naive_way_brings_the_launcher_and_the_data_loader_to_the_daemon(shared_dir: Path, tmp_path: Path) -> None:
    naive = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": f"{shared_dir}/ipc",
        "KINETO_CONFIG": str(script(tmp_path, "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n", "kineto.conf")),
    }
    with Responder(shared_dir) as daemon:
        ranks, _ = train(tmp_path, daemon, [*TORCHRUN, *TWO_RANKS, *RENDEZVOUS], environment(None, **naive), 5)
    assert len(ranks) == 2
    assert len(daemon.polled) > 2 * len(ranks)


SPAWNING = """
import torch, torch.multiprocessing as mp
def work(rank, store):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.distributed.all_reduce(torch.ones(1))
    torch.distributed.destroy_process_group()
if __name__ == "__main__":
    import sys
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize("declared", [True, False])
def test_ranks_that_the_script_spawns_itself_register_where_arming_was_told_so(
    shared_dir: Path, tmp_path: Path, declared: bool
) -> None:
    names = {"SAMESHOT_LOCAL_WORLD_SIZE": "2"} | ({"SAMESHOT_ARM_SPAWNED": "1"} if declared else {})
    done = subprocess.run(
        [sys.executable, str(script(tmp_path, SPAWNING)), str(tmp_path / "store")],
        env=environment(shared_dir, **names),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sameshot" not in done.stderr
    workers = registrations(shared_dir)
    expected = [(0, 0, 2, Phase.EXITING), (1, 1, 2, Phase.EXITING)] if declared else []
    assert [(one.rank, one.local_rank, one.world_size, one.phase) for one in workers] == expected


def test_ranks_of_mpirun_register(shared_dir: Path, tmp_path: Path) -> None:
    code = """
        import os, torch
        rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
        torch.distributed.init_process_group(
            "gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=size)
        torch.distributed.destroy_process_group()
    """
    train_script = script(tmp_path, code)
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(2):
            names = {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "STORE": str(tmp_path / "store"),
            }
            env = environment(shared_dir, **names)
            processes.append(stack.enter_context(started([sys.executable, str(train_script)], env)))
        assert [process.wait(DEADLINE_S) for process in processes] == [0, 0]
    workers = registrations(shared_dir)
    assert [(one.rank, one.local_rank, one.world_size, one.local_world_size) for one in workers] == [
        (0, 0, 2, 2),
        (1, 1, 2, 2),
    ]
    assert {one.pid for one in workers} == {process.pid for process in processes}


def test_a_single_process_registers_and_trains_on_in_silence_without_a_daemon(shared_dir: Path) -> None:
    code = """
        import time, torch
        end = time.monotonic() + 3     # several polls
        while time.monotonic() < end:
            torch.ones(8) + 1
            time.sleep(0.01)
        print("trained")
    """
    done = python(environment(shared_dir, SAMESHOT_SINGLE="1"), code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    (worker,) = registrations(shared_dir)
    assert (worker.rank, worker.local_rank, worker.world_size, worker.phase) == (0, 0, 1, Phase.EXITING)


def test_a_daemon_that_comes_later_is_found(shared_dir: Path, tmp_path: Path) -> None:
    code = "import os, sys, time, torch\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    stop = tmp_path / "stop"
    command = [sys.executable, str(script(tmp_path, code)), str(stop)]
    with started(command, environment(shared_dir, SAMESHOT_SINGLE="1"), stderr=subprocess.PIPE) as process:
        until(lambda: any(one.torch_version for one in registrations(shared_dir)), "torch is imported", process)
        until(lambda: any((shared_dir / "ipc").iterdir()), "Kineto has its socket", process)
        with Responder(shared_dir) as daemon:
            until(lambda: process.pid in daemon.polled, "found", process)
            stop.touch()
            _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (0, "")
    assert os.listdir(shared_dir / "ipc") == ["dynolog"]  # the worker took its socket's name away


def test_the_longest_allowed_directory_holds_kinetos_sockets(shared_dir: Path, tmp_path: Path) -> None:
    directory = shared_dir / ("x" * (49 - len(os.fsencode(shared_dir))))
    assert len(os.fsencode(directory)) == 50
    code = "import os, sys, time, torch\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    stop = tmp_path / "stop"
    command = [sys.executable, str(script(tmp_path, code)), str(stop)]
    directory.mkdir()
    with Responder(directory) as daemon, started(command, environment(directory, SAMESHOT_SINGLE="1")) as process:
        until(lambda: process.pid in daemon.polled, "polls", process)
        stop.touch()
        assert process.wait(DEADLINE_S) == 0


def test_a_killed_rank_is_seen_dead_while_its_data_loader_lives_on(shared_dir: Path, tmp_path: Path) -> None:
    code = """
        import time, torch
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, index):
                if index > 1: time.sleep(600)
                return index
        if __name__ == "__main__":
            for _ in torch.utils.data.DataLoader(Slow(), num_workers=2, multiprocessing_context="fork"):
                print("first batch", flush=True)
    """
    command = [sys.executable, str(script(tmp_path, code))]
    env = environment(shared_dir, SAMESHOT_SINGLE="1")
    with started(command, env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first batch\n"
        (lock,) = (shared_dir / "workers").glob("*.lock")
        assert held(lock)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        holding = [
            child
            for child in children
            if str(lock) in {os.path.realpath(link) for link in Path(f"/proc/{child}/fd").iterdir()}
        ]
        assert len(holding) == 2  # both workers inherited the open lock file
        process.kill()
        process.wait()
        assert not held(lock)
        assert all(os.path.exists(f"/proc/{child}") for child in holding)
        for child in holding:
            os.kill(int(child), signal.SIGKILL)
