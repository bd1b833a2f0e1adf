"""A workload that `sameshot arm` armed, and what its controller makes of it: the webhook leaves those pods alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from webhook_lab import Json, pod, response_in, review_of

from sameshot.arm.kinds import arm_object
from sameshot.arm.template import disarm_template
from sameshot.webhook import review
from sameshot.webhook.review import Outcome

FIXTURES = Path(__file__).parents[1] / "arm" / "fixtures"
OF_JOB = {"batch.kubernetes.io/job-name": "x", "batch.kubernetes.io/controller-uid": "u", "job-name": "x"}
RANKED = [("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "x-master-0"), ("MASTER_PORT", "23456")]
# What the controller of each kind puts on a pod, labels and variables, by its own documentation.
MADE_BY: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {
    "job": (OF_JOB | {"batch.kubernetes.io/job-completion-index": "0"}, [("JOB_COMPLETION_INDEX", "0")]),
    "cronjob": (OF_JOB, []),
    "jobset": (
        OF_JOB | {"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/jobset-uid": "u",
                  "jobset.sigs.k8s.io/restart-attempt": "0", "jobset.sigs.k8s.io/replicatedjob-name": "workers"},
        [("JOB_COMPLETION_INDEX", "0")],
    ),
    "pytorchjob": ({"training.kubeflow.org/job-name": "mnist", "training.kubeflow.org/replica-index": "0"}, RANKED),
    "volcanojob": ({"volcano.sh/job-name": "resnet", "volcano.sh/task-spec": "worker"}, RANKED),
    "statefulset": ({"apps.kubernetes.io/pod-index": "0"}, []),
    "deployment": ({"pod-template-hash": "5d9c"}, []),
    "pod": ({}, []),
}  # fmt: skip


def templates(thing: Any) -> Iterator[Json]:
    """Every armed pod template in it, wherever it stands."""
    if isinstance(thing, dict):
        if "sameshot.dev/armed" in ((thing.get("metadata") or {}).get("annotations") or {}) and "spec" in thing:
            yield thing
            return
        for each in thing.values():
            yield from templates(each)
    elif isinstance(thing, list):
        for each in thing:
            yield from templates(each)


def made_from(template: Json, kind: str) -> Json:
    """The pod as it is at admission: the controller's labels and variables, an owner, and a token's volume."""
    marks, variables = MADE_BY[kind]
    made = copy.deepcopy(template)
    plain = pod()
    made |= {"apiVersion": "v1", "kind": "Pod"}
    made["metadata"] |= {"namespace": "ml", "creationTimestamp": None}
    if kind != "pod":
        made["metadata"] |= {"generateName": "x-", "ownerReferences": [{"kind": kind, "name": "x", "controller": True}]}
    made["metadata"].setdefault("labels", {}).update(marks)
    made["spec"].setdefault("volumes", []).append(plain["spec"]["volumes"][0])
    for container in made["spec"]["containers"]:
        container.setdefault("volumeMounts", []).append(plain["spec"]["containers"][0]["volumeMounts"][0])
        container.setdefault("env", []).extend({"name": name, "value": value} for name, value in variables)
    return made


@pytest.mark.parametrize("kind", MADE_BY)
def test_it_is_left_alone(kind: str) -> None:
    thing = json.loads(json.dumps(yaml.safe_load((FIXTURES / f"{kind}.yaml").read_text())))
    found = list(templates(arm_object(thing).thing))
    assert found
    for template in found:
        body = review_of(made_from(template, kind))
        answer, _, verdict = review.answer(body)
        assert verdict.outcome is Outcome.UNCHANGED
        assert "patch" not in response_in(answer, body)


@pytest.mark.parametrize("kind", MADE_BY)
def test_one_that_only_asks_for_it_is_armed_as_the_workload_would_have_been(kind: str) -> None:
    """But for what a pod can't know: the job's name where only the workload has it."""
    thing = json.loads(json.dumps(yaml.safe_load((FIXTURES / f"{kind}.yaml").read_text())))
    for armed in templates(arm_object(thing).thing):
        plain = disarm_template(armed).template
        plain.setdefault("metadata", {}).setdefault("labels", {})["sameshot.dev/arm"] = "enabled"
        verdict = review.judge(review.request_in(review_of(made_from(plain, kind))))
        assert verdict.outcome is Outcome.ARMED
        assert verdict.pod is not None
        record = json.loads(verdict.pod["metadata"]["annotations"]["sameshot.dev/armed"])
        expected = json.loads(armed["metadata"]["annotations"]["sameshot.dev/armed"])
        for key in ("container", "local_world_size", "command", "volumes", "mounts", "pythonpath"):
            assert record.get(key) == expected.get(key), key
