"""A TrainJob has no pod template that could be armed: its pods are, as its controllers make them.

What stands in them is from the source of Kubeflow's Trainer (2.0: its torch plugin, the runtime `torch-distributed`),
of JobSet and of Kubernetes' own Job controller.
"""

from __future__ import annotations

import copy
import json
import shlex
from typing import Any

import pytest
from arm_lab import WRAPPED, env_of
from webhook_lab import Json, applied, pod, response_in, review_of

from sameshot.webhook import review
from sameshot.webhook.review import Outcome

TORCHRUN = ["torchrun", "qwen.py"]
# As the Python SDK writes a function of the user's.
OF_THE_SDK = ["bash", "-c", "\nprintf '%s' \"$SCRIPT\" > train.py\ntorchrun train.py"]


def made_by_trainer(workers: str, *, nodes: int = 2, command: list[str] | None = None) -> Json:
    """Pod 1 of the TrainJob `qwen`, at admission. The label that asks for arming came by podTemplateOverrides."""
    job = "qwen-node-0"
    of_jobset = {
        "jobset-name": "qwen", "jobset-uid": "7a1", "replicatedjob-name": "node", "replicatedjob-replicas": "1",
        "job-index": "0", "job-global-index": "0", "job-key": "5f", "restart-attempt": "0", "global-replicas": "1",
    }  # fmt: skip
    marks = {f"jobset.sigs.k8s.io/{key}": value for key, value in of_jobset.items()}
    of_job = {"job-name": job, "controller-uid": "9c2", "batch.kubernetes.io/job-completion-index": "1"}
    of_job |= {"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/controller-uid": "9c2"}
    index = {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        }
    }
    env: list[Json] = [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": workers},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": "qwen-node-0-0.qwen"},
        {"name": "PET_MASTER_PORT", "value": "29500"},
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": index},
    ]
    return pod(
        labels={**marks, **of_job, "app": None},
        annotations={**marks, "batch.kubernetes.io/job-completion-index": "1"},
        metadata={
            "generateName": f"{job}-1-",
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "9c2", "controller": True}
            ],
        },
        container={"name": "node", "command": command or TORCHRUN, "env": env, "ports": [{"containerPort": 29500}]},
        spec={"hostname": f"{job}-1", "subdomain": "qwen"},
    )


def armed(asked: Json) -> Json:
    body = review_of(copy.deepcopy(asked))
    verdict = review.judge(review.request_in(body))
    assert (verdict.outcome, verdict.warnings) == (Outcome.ARMED, ())
    answer, _, _ = review.answer(body)
    done = applied(asked, response_in(answer, body))
    assert done == verdict.pod
    return done


@pytest.mark.parametrize("command", [TORCHRUN, OF_THE_SDK], ids=["torchrun", "SDK"])
@pytest.mark.parametrize(("workers", "known"), [("4", 4), ("1", 1), ("auto", None), ("gpu", None), ("cpu", None)])
def test_its_pods_are_armed_with_the_workers_that_it_says(workers: str, known: int | None, command: list[str]) -> None:
    asked = made_by_trainer(workers, command=command)
    done = armed(asked)
    [trainer] = done["spec"]["containers"]
    assert trainer["command"] == [*WRAPPED, *command], shlex.join(trainer["command"])
    env = env_of(done, "node")
    assert env["SAMESHOT_LOCAL_WORLD_SIZE"] == (workers if known else "auto")
    record = json.loads(done["metadata"]["annotations"]["sameshot.dev/armed"])
    assert (record["container"], record.get("local_world_size")) == ("node", known)


def test_its_pods_are_of_the_jobset_that_has_its_name_and_count_its_restarts() -> None:
    env = env_of(armed(made_by_trainer("2")), "node")
    own: dict[str, Any] = {key: value for key, value in env.items() if key.startswith("SAMESHOT_JOB_")}
    assert own == {
        "SAMESHOT_JOB_NAMESPACE": "@metadata.namespace",
        "SAMESHOT_JOB_NAME": "@metadata.labels['jobset.sigs.k8s.io/jobset-name']",
        "SAMESHOT_JOB_UID": "@metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
        "SAMESHOT_JOB_ATTEMPT": "@metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
    }


def test_what_torchrun_reads_stays_as_the_trainer_wrote_it() -> None:
    asked = made_by_trainer("auto")
    before, after = env_of(asked, "node"), env_of(armed(asked), "node")
    assert before.keys() >= {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    assert {key: value for key, value in after.items() if not key.startswith("SAMESHOT_")} == before
