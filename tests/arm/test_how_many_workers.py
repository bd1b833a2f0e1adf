from __future__ import annotations

import pytest
from arm_lab import annotation_of, container, env_of, template

from sameshot.arm import ArmOptions, JobPlace, NotArmable, arm_template
from sameshot.arm.workers import storage_limit


def told(
    command: list[str], *, options: ArmOptions | None = None, place: JobPlace | None = None, **fields: object
) -> str:
    armed = arm_template(template(container(command=command, **fields)), options, place).template
    value: str = env_of(armed)["SAMESHOT_LOCAL_WORLD_SIZE"]
    assert annotation_of(armed).get("local_world_size") == (int(value) if value.isdigit() else None)
    return value


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        (["torchrun", "--nproc-per-node=4", "t.py"], "4"),
        (["torchrun", "--nproc_per_node", "8", "t.py"], "8"),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"], "2"),
        (["torchrun", "--nproc-per-node=gpu", "t.py"], "auto"),
        (["torchrun", "--nproc-per-node=auto", "t.py"], "auto"),
        (["torchrun", "--nproc-per-node=$(GPUS)", "t.py"], "auto"),
        (["bash", "-c", "cd /app\nexec torchrun --nproc-per-node=8 \\\n  t.py"], "8"),
        (["bash", "-c", "torchrun --nproc-per-node $GPUS t.py"], "auto"),
        (["torchrun", "t.py"], "auto"),  # one, unless PET_NPROC_PER_NODE comes from somewhere
        (["deepspeed", "t.py"], "auto"),
    ],
)
def test_the_command_tells(command: list[str], workers: str) -> None:
    assert told(command) == workers


def test_the_arguments_tell_too() -> None:
    assert told(["torchrun"], args=["--nproc-per-node=3", "t.py"]) == "3"


@pytest.mark.parametrize(("value", "workers"), [("4", "4"), ("auto", "auto"), ("gpu", "auto")])
def test_the_variable_that_kubeflow_sets_in_pods_tells(value: str, workers: str) -> None:
    """A TrainJob's numProcPerNode reaches its pods as PET_NPROC_PER_NODE; it may be `auto`."""
    assert told(["torchrun", "t.py"], env=[{"name": "PET_NPROC_PER_NODE", "value": value}]) == workers


def test_a_person_knows_best() -> None:
    place = JobPlace(local_world_size=2)
    assert told(["torchrun", "--nproc-per-node=4", "t.py"], options=ArmOptions(local_world_size=6), place=place) == "6"
    assert told(["torchrun", "--nproc-per-node=4", "t.py"], options=ArmOptions(local_world_size="auto")) == "auto"


def test_the_kind_tells_where_the_command_does_not() -> None:
    place = JobPlace(local_world_size=2)
    assert told(["torchrun", "t.py"], place=place) == "2"
    assert told(["torchrun", "--nproc-per-node=4", "t.py"], place=place) == "4"


def test_one_worker_where_the_kind_ranks_pods_and_python_runs_without_a_launcher() -> None:
    """Without it the hook would not know the local rank of such a worker."""
    assert told(["python", "t.py"], place=JobPlace(ranks_pods=True)) == "1"
    assert told(["torchrun", "t.py"], place=JobPlace(ranks_pods=True)) == "auto"
    assert told(["bash", "run.sh"], place=JobPlace(ranks_pods=True)) == "auto"


def test_a_single_process_is_one() -> None:
    assert told(["python", "t.py"], options=ArmOptions(single=True)) == "1"


@pytest.mark.parametrize(
    "options", [ArmOptions(single=True, local_world_size=2), ArmOptions(single=True, arm_spawned=True)]
)
def test_a_single_process_with_others_is_a_contradiction(options: ArmOptions) -> None:
    with pytest.raises(NotArmable, match="one worker"):
        arm_template(template(), options)


@pytest.mark.parametrize("value", ["0", "-1", "two", "²", ""])
def test_a_count_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(NotArmable, match="SAMESHOT_LOCAL_WORLD_SIZE of container main"):
        arm_template(template(container(env=[{"name": "SAMESHOT_LOCAL_WORLD_SIZE", "value": value}])))


def warnings(
    command: list[str], options: ArmOptions | None = None, place: JobPlace | None = None, **fields: object
) -> str:
    return " ".join(arm_template(template(container(command=command, **fields)), options, place).warnings)


def test_python_without_anything_that_ranks_it_is_warned_about() -> None:
    assert "needs --single" in warnings(["python", "t.py"])
    assert "needs --single" in warnings(["python", "-u", "-m", "my.train"])
    assert not warnings(["python", "t.py"], ArmOptions(single=True))
    assert not warnings(["python", "t.py"], ArmOptions(arm_spawned=True))
    assert not warnings(["python", "-m", "torch.distributed.run", "t.py"])
    assert not warnings(["bash", "run.sh"])


def test_python_with_a_rank_and_no_local_rank_is_warned_about() -> None:
    rank = [{"name": "RANK", "value": "0"}]
    assert "--local-world-size 1" in warnings(["python", "t.py"], env=rank)
    assert not warnings(["python", "t.py"], ArmOptions(local_world_size=1), env=rank)
    assert not warnings(["python", "t.py"], env=[*rank, {"name": "LOCAL_RANK", "value": "0"}])
    assert not warnings(["python", "t.py"], place=JobPlace(ranks_pods=True))


@pytest.mark.parametrize(
    ("limit", "workers", "warned"),
    [
        ("1Gi", 1, False),
        ("1Gi", 2, True),
        ("500M", 1, True),
        ("4800M", 8, False),
        ("4799M", 8, True),
        ("1e9", 1, False),
    ],
)
def test_a_small_limit_of_storage_is_told_at_once(limit: str, workers: int, warned: bool) -> None:
    """300 MB/s and GPU, two seconds; the agent decides with real numbers before a capture."""
    pod = template(container(resources={"limits": {"ephemeral-storage": limit}}))
    told = arm_template(pod, ArmOptions(local_world_size=workers)).warnings
    assert any("ephemeral-storage" in each for each in told) == warned


def limited(amount: str | None, **fields: object) -> dict[str, object]:
    return {"resources": {"limits": {} if amount is None else {"ephemeral-storage": amount}}, **fields}


@pytest.mark.parametrize(
    ("main", "others", "inits", "bytes_"),
    [
        (None, [None], [], None),
        ("1G", [], [], 10**9),
        ("1G", [None], [], 10**9),  # a container without a limit adds nothing, and takes nothing away
        (None, ["2G"], [], 2 * 10**9),
        ("1G", ["2G"], [], 3 * 10**9),
        ("1G", [], [("3G", None)], 3 * 10**9),  # one that ends before the others begin
        ("1G", [], [("3G", "Always")], 4 * 10**9),  # one that goes on beside them
        ("1G", [], [("3G", "Always"), ("2G", None), (None, None)], 4 * 10**9),
        (None, [], [("3G", None)], 3 * 10**9),
    ],
)
def test_a_pod_is_limited_as_the_kubelet_counts(
    main: str | None, others: list[str | None], inits: list[tuple[str | None, str | None]], bytes_: int | None
) -> None:
    """The sums are those of its PodLimits, by hand."""
    pod = template(
        container(**limited(main)),
        *(container(f"other-{at}", **limited(each)) for at, each in enumerate(others)),
        initContainers=[
            container(f"init-{at}", **limited(amount, **({"restartPolicy": policy} if policy else {})))
            for at, (amount, policy) in enumerate(inits)
        ],
    )
    assert storage_limit(pod["spec"]) == bytes_
    for workers in (1, 5, 8):  # each needs 0.6 GB
        armed = arm_template(pod, ArmOptions(local_world_size=workers, container="main"))
        told = any("ephemeral-storage" in each for each in armed.warnings)
        assert told == (bytes_ is not None and bytes_ < workers * 600 * 10**6)
