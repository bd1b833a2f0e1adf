"""The whole of it without a cluster: an armed template, played as a kubelet would, and the hook's registration.

torch is an empty package here: the hook registers a rank when torch is imported, whatever torch then does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arm_lab import container_of, fixture

from sameshot.arm import ArmOptions
from sameshot.arm.hookmap import hook_files
from sameshot.arm.kinds import arm_object
from sameshot.model import JobRef, Registration

Json = dict[str, Any]
UID = "7c1d5c1e-0000-4000-8000-000000000001"


def played(pod: Json, name: str, folder: Path, **more: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a container, with the two mounts in `folder`."""
    container = container_of(pod, name)
    facts = {"spec.nodeName": "node-a"} | {f"metadata.{key}": pod["metadata"].get(key, "") for key in ("name", "uid")}
    facts["metadata.namespace"] = pod["metadata"]["namespace"]
    environment = {"PATH": os.environ["PATH"], **more}
    for entry in container["env"]:
        source = entry.get("valueFrom")
        if source is None:
            environment[entry["name"]] = entry["value"]
        else:
            path = source["fieldRef"]["fieldPath"]
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
            environment[entry["name"]] = (
                pod["metadata"]["labels"].get(label[1], "") if label is not None else facts[path]
            )
    assert environment["SAMESHOT_DIR"] == "/sameshot"
    environment["SAMESHOT_DIR"] = str(folder / "sameshot")
    command = [word.replace("/sameshot-hook", str(folder / "hook")) for word in container["command"]]
    return command, environment


@pytest.fixture
def node() -> Iterator[Path]:
    """Short, since sockets' paths are: pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="arm-") as made:
        folder = Path(made)
        for name in ("sameshot", "hook", "lib/torch"):
            (folder / name).mkdir(parents=True)
        for name, text in hook_files().items():
            (folder / "hook" / name).write_text(text)
        (folder / "lib/torch/__init__.py").touch()
        yield folder


def registrations(node: Path) -> list[Registration]:
    return [
        msgspec.json.decode(path.read_bytes(), type=Registration) for path in (node / "sameshot/workers").glob("*.json")
    ]


def run(pod: Json, name: str, node: Path, **environment: str) -> list[Registration]:
    command, surroundings = played(pod, name, node, PYTHONPATH=str(node / "lib"), **environment)
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return registrations(node)


def made_pod(kind: str, template: Json, labels: dict[str, str]) -> Json:
    """What a controller and the API server make of a template."""
    pod = json.loads(json.dumps(template))
    pod["metadata"] |= {"name": f"{kind}-0-x", "uid": UID, "namespace": "team-a"}
    pod["metadata"]["labels"] |= labels
    return pod


def test_a_worker_of_a_pytorchjob_registers_with_the_operators_rank(node: Path) -> None:
    """RANK counts pods there and no LOCAL_RANK is set: that the container has one worker was recorded."""
    workload = fixture("pytorchjob")
    container_of(workload["spec"]["pytorchReplicaSpecs"]["Worker"]["template"], "pytorch")["command"] = [
        sys.executable, "-c", "import torch"
    ]  # fmt: skip
    armed = arm_object(workload).thing["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    pod = made_pod("mnist-worker", armed, {"training.kubeflow.org/job-name": "mnist"})
    (found,) = run(pod, "pytorch", node, RANK="1", WORLD_SIZE="2")
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (1, 0, 2, 1)
    assert (found.node, found.pod, found.pod_uid, found.container) == ("node-a", "mnist-worker-0-x", UID, "pytorch")
    assert found.job == JobRef("team-a", "mnist", "")


def test_a_worker_of_a_jobset_knows_the_attempt(node: Path) -> None:
    workload = fixture("jobset")
    template = workload["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    container_of(template, "pytorch")["command"] = [sys.executable, "-c", "import torch"]
    armed = arm_object(workload).thing["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "llm",
        "jobset.sigs.k8s.io/jobset-uid": "u-1",
        "jobset.sigs.k8s.io/restart-attempt": "2",
    }
    (found,) = run(made_pod("llm-workers", armed, labels), "pytorch", node, RANK="5", LOCAL_RANK="5", WORLD_SIZE="64")
    assert found.job == JobRef("team-a", "llm", "u-1", 2)
    assert (found.rank, found.local_rank) == (5, 5)


def test_a_single_process_registers_as_rank_0(node: Path) -> None:
    workload = fixture("cronjob")
    template = workload["spec"]["jobTemplate"]["spec"]["template"]
    container_of(template)["command"] = [sys.executable, "-c", "import torch"]
    armed = arm_object(workload).thing["spec"]["jobTemplate"]["spec"]["template"]
    labels = {"batch.kubernetes.io/job-name": "nightly-1", "batch.kubernetes.io/controller-uid": "u-2"}
    (found,) = run(made_pod("nightly", armed, labels), "main", node)
    assert (found.rank, found.world_size, found.local_world_size) == (0, 1, 1)
    assert found.job == JobRef("team-a", "nightly-1", "u-2")


def test_without_its_rank_being_declared_it_does_not(node: Path) -> None:
    """As the warning says: a bare Python program without RANK."""
    workload = fixture("job")
    template = workload["spec"]["template"]
    container_of(template)["command"] = [sys.executable, "-c", "import torch"]
    done = arm_object(workload)
    assert any("--single" in text for _, text in done.told)
    assert run(made_pod("bert", done.thing["spec"]["template"], {}), "main", node) == []


def test_a_label_that_never_comes_leaves_the_job_unknown_and_the_rank_known(node: Path) -> None:
    """Older controllers set fewer labels; the agent tells the job from the pod's owner."""
    workload = fixture("job")
    container_of(workload["spec"]["template"])["command"] = [sys.executable, "-c", "import torch"]
    armed = arm_object(workload, ArmOptions(single=True)).thing["spec"]["template"]
    (found,) = run(made_pod("bert", armed, {}), "main", node)
    assert (found.rank, found.job) == (0, JobRef("team-a", "", ""))
