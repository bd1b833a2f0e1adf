"""Which processes are candidates, decided from environment, command line and ancestors alone."""

from __future__ import annotations

import sys

import pytest

from sameshot.hook import PAYLOAD

sys.path.insert(0, str(PAYLOAD))
import _sameshot_arm as arm
import _sameshot_rank as ranks

TRAIN = ["python", "-u", "train.py", "--lr", "0.1"]
SPAWN = [
    "/usr/bin/python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
    "--multiprocessing-fork",
]
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"}
SRUN = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SAMESHOT_LOCAL_WORLD_SIZE": "4"}
FIVE = {"rank": 5, "local_rank": 1, "world_size": 8, "local_world_size": 4}


def decide(
    env: dict[str, str], argv: list[str] = TRAIN, ancestors: tuple[list[str], ...] = ()
) -> dict[str, int | None] | None:
    decided: dict[str, int | None] | None = ranks.decide({"SAMESHOT_ARMED": "1"} | env, argv, lambda: ancestors)
    return decided


@pytest.mark.parametrize("env", [TORCHRUN, MPIRUN, HYDRA, SRUN])
def test_the_rank_is_taken_from_whoever_started_the_process(env: dict[str, str]) -> None:
    assert decide(env) == FIVE


def test_without_the_marker_nothing_is_a_candidate() -> None:
    assert ranks.decide(TORCHRUN, TRAIN, lambda: ()) is None


def test_without_any_rank_nothing_is_a_candidate() -> None:
    assert decide({"WORLD_SIZE": "8", "LOCAL_RANK": "0", "SAMESHOT_LOCAL_WORLD_SIZE": "1"}) is None


def test_torchruns_rank_goes_before_that_of_a_process_manager() -> None:
    assert decide(TORCHRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "OMPI_COMM_WORLD_RANK": "9"}) == FIVE


@pytest.mark.parametrize("recorded", ["2", "auto", "gpu", ""])
def test_a_rank_without_a_local_rank_may_number_pods_and_counts_only_for_one_worker(recorded: str) -> None:
    env = {"RANK": "3", "WORLD_SIZE": "4"}
    assert decide(env | {"SAMESHOT_LOCAL_WORLD_SIZE": recorded}) is None
    assert decide(env | {"SAMESHOT_LOCAL_WORLD_SIZE": "1"}) == {
        "rank": 3,
        "local_rank": 0,
        "world_size": 4,
        "local_world_size": 1,
    }


def test_a_declared_single_process_is_rank_0_of_1() -> None:
    assert decide({"SAMESHOT_SINGLE": "1"}) == {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}


@pytest.mark.parametrize(
    "argv",
    [
        ["/venv/bin/python3", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python", "-um", "torch.distributed.launch", "train.py"],
        ["python", "-mtorch.distributed.run", "train.py"],
        ["python", "-X", "dev", "-W", "ignore", "-m", "torch.distributed.run", "train.py"],
        ["python", "--check-hash-based-pycs", "never", "/venv/bin/torchrun", "train.py"],
        ["python", "/venv/lib/python3.11/site-packages/torch/distributed/run.py", "train.py"],
        ["python", "/venv/bin/accelerate", "launch", "train.py"],
        ["python", "-m", "accelerate.commands.launch", "train.py"],
        ["python", "/venv/bin/deepspeed", "train.py"],
        ["python", "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"],
        ["python", "/venv/bin/lightning", "run", "model", "train.py"],
        ["python", "/venv/bin/fabric", "run", "train.py"],
        ["python", "-m", "lightning.fabric.cli", "run", "train.py"],
    ],
)
def test_a_launcher_never_is_a_rank_whatever_its_environment_says(argv: list[str]) -> None:
    assert decide(TORCHRUN, argv) is None
    assert decide(SRUN, argv) is None
    assert decide({"SAMESHOT_SINGLE": "1"}, argv) is None


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "torchrun_wrapper.py"],
        ["python", "torchrun.py", "torchrun"],
        ["python", "-c", "import torchrun", "-m", "torch.distributed.run"],
        ["python", "-m", "lightning_project.train"],
        ["python", "-m", "train", "-m", "torch.distributed.run"],
        ["python"],
        ["python", "-"],
    ],
)
def test_a_program_that_only_looks_like_a_launcher_is_none(argv: list[str]) -> None:
    assert decide(TORCHRUN, argv) == FIVE


@pytest.mark.parametrize("env", [MPIRUN, HYDRA, SRUN])
def test_below_a_launcher_a_process_managers_rank_is_the_launchers(env: dict[str, str]) -> None:
    launcher = ["python", "/venv/bin/accelerate", "launch", "train.py"]
    assert decide(env, ancestors=(["bash"], launcher, ["slurmstepd"])) is None
    assert decide(env, ancestors=(["bash"], ["slurmstepd"])) == FIVE


@pytest.mark.parametrize(
    "argv",
    [
        SPAWN,
        ["python", "-B", *SPAWN[1:]],
        ["python", "-c", "from multiprocessing.forkserver import main; main(4, 5)"],
        ["python", "-c", "from multiprocessing.resource_tracker import main;main(4)"],
        ["python", "-c", "from multiprocess.spawn import spawn_main; spawn_main(1)", "--multiprocessing-fork"],
        ["python", "-m", "joblib.externals.loky.backend.popen_loky_posix", "--process-name", "x"],
    ],
)
def test_helpers_of_multiprocessing_inherit_a_rank_and_are_none(argv: list[str]) -> None:
    assert decide(TORCHRUN, argv) is None
    assert decide(TORCHRUN | {"SAMESHOT_SINGLE": "1"}, argv) is None


def test_spawned_children_are_candidates_of_unknown_rank_where_the_script_starts_the_ranks() -> None:
    env = {"SAMESHOT_ARM_SPAWNED": "1", "SAMESHOT_LOCAL_WORLD_SIZE": "4", "RANK": "1"}
    assert decide(env, SPAWN) == {"rank": None, "local_rank": None, "world_size": None, "local_world_size": 4}
    assert decide(env, ["python", "-c", "from multiprocessing.forkserver import main; main(4, 5)"]) is None


def test_the_script_that_starts_the_ranks_is_none_itself() -> None:
    assert decide({"SAMESHOT_ARM_SPAWNED": "1", "SAMESHOT_LOCAL_WORLD_SIZE": "1", "RANK": "1"}) is None


def test_job_ids_are_stable_positive_int32_and_differ_between_containers() -> None:
    places = [
        {"SAMESHOT_NODE": node, "SAMESHOT_JOB_UID": uid, "SAMESHOT_POD_UID": pod, "SAMESHOT_CONTAINER": container}
        for node in ("a", "b")
        for uid in ("1", "2")
        for pod in ("", f"pod-{node}-{uid}")
        for container in ("main", "other")
    ]
    ids = [arm.kineto_job_id(place) for place in places]
    assert len(set(ids)) == len(places)
    assert all(1 <= one < 2**31 for one in ids)
    assert ids == [arm.kineto_job_id(dict(place)) for place in places]
    assert arm.kineto_job_id(places[0]) == arm.kineto_job_id({"SAMESHOT_NODE": "a", "SAMESHOT_JOB_UID": "1"})
