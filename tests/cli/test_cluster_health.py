"""What `sameshot status` finds wrong: each rule with a cluster that has this one fault, and a sound one without any."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sameshot.arm.hookmap import hook_configmap
from sameshot.kube.coordinators import CaptureCoordinator, Condition, Job, Meta, Phase, PodPlace, Spec, Status
from sameshot.model import JobRef
from sameshot.steps.health import Finding, Seen, Severity, judge, rows
from sameshot.steps.health.read import hook_of
from sameshot.steps.health.seen import (
    Hook,
    SeenAgent,
    SeenCoordinator,
    SeenNamespace,
    SeenOperator,
    SeenPod,
    Unread,
)

JOB = JobRef("ml", "llama-7b", "3f0c", 0)
LONG_S = 3600.0


def pod(name: str = "llama-7b-0", **more: Any) -> SeenPod:
    given = {"armed": True, "job": JOB, "node": "node-a", "phase": "Running", "local_world_size": 8, **more}
    return SeenPod(namespace="ml", name=name, age_s=given.pop("age_s", LONG_S), **given)


def coordinator(age_s: float = LONG_S, **status: Any) -> SeenCoordinator:
    given = {
        "phase": Phase.READY,
        "registered": 8,
        "expected": 8,
        "endpoint": "c.sameshot-coordinators.svc:7443",
        **status,
    }
    spec = Spec(Job("batch/v1", "Job", JOB.name, JOB.uid, JOB.attempt))
    return SeenCoordinator(CaptureCoordinator(Meta("c-3f0c-0", "ml"), spec, Status(**given)), age_s)


def sound(**more: Any) -> Seen:
    given: dict[str, Any] = {
        "namespace": "ml",
        "pods": (pod(),),
        "coordinators": (coordinator(),),
        "namespaces": (SeenNamespace("ml", labelled=True, hook=Hook.CURRENT),),
        "agents": (SeenAgent("agent-1", "node-a", ready=True), SeenAgent("agent-2", "node-b", ready=False)),
        "operators": (SeenOperator("operator-1", ready=True),),
        **more,
    }
    return Seen(**given)


def namespace(**more: Any) -> tuple[SeenNamespace, ...]:
    return (SeenNamespace(**{"name": "ml", "labelled": True, "hook": Hook.CURRENT, **more}),)


def test_of_a_sound_cluster_nothing_is_said() -> None:
    assert judge(sound()) == []


def test_nor_of_one_where_nothing_runs() -> None:
    assert judge(sound(pods=(), coordinators=(), agents=())) == []


YOUNG = {"age_s": 20.0}
NOT_READY = Condition("Ready", "False", "ImagePullBackOff", "Back-off pulling image")


@pytest.mark.parametrize(
    ("change", "kind", "about", "wrong", "mend"),
    [
        (lambda: sound(installed=False, coordinators=()), "not-installed", "customresourcedefinition/",
         "not installed", "kubectl apply -k"),
        (lambda: sound(operators=()), "operator-away", "deployment/sameshot-operator", "no pod", "kubectl describe"),
        (lambda: sound(operators=(SeenOperator("o-1", ready=False, why="CrashLoopBackOff"),)), "operator-away",
         "deployment/sameshot-operator", "CrashLoopBackOff", "kubectl describe"),
        (lambda: sound(coordinators=()), "no-coordinator", "job llama-7b", "no CaptureCoordinator", "kubectl logs"),
        (lambda: sound(coordinators=(), pods=(pod(job=JobRef("ml", "x", "../../y")),)), "unusable-job", "job x",
         "uid", "ownerReferences"),
        (lambda: sound(coordinators=(coordinator(phase=Phase.FAILED, conditions=(NOT_READY,)),)), "coordinator-failed",
         "capturecoordinator/c-3f0c-0", "Back-off pulling image", "kubectl describe -n ml capturecoordinator c-3f0c-0"),
        (lambda: sound(coordinators=(coordinator(phase=Phase.PENDING, pod=PodPlace("co", "c-1", 7443)),)),
         "coordinator-pending", "capturecoordinator/c-3f0c-0", "not become Ready", "kubectl describe -n co pod c-1"),
        (lambda: sound(coordinators=(coordinator(registered=6),)), "ranks-missing", "job llama-7b", "6 of 8 ranks",
         "sameshot workers -n ml --job llama-7b"),
        (lambda: sound(agents=()), "node-without-agent", "node/node-a", "has no agent",
         "kubectl label node node-a sameshot.dev/agent=enabled"),
        (lambda: sound(agents=(SeenAgent("agent-1", "node-a", ready=False, why="OOMKilled"),)), "node-without-agent",
         "node/node-a", "OOMKilled", "pod agent-1"),
        (lambda: sound(namespaces=namespace(hook=Hook.MISSING)), "hook-missing", "configmap/sameshot-hook",
         "no ConfigMap", "sameshot arm --hook-only --namespace ml | kubectl apply -f -"),
        (lambda: sound(namespaces=namespace(hook=Hook.MISSING, labelled=False)), "hook-missing",
         "configmap/sameshot-hook", "start without it", "kubectl label namespace ml sameshot.dev/arm=enabled"),
        (lambda: sound(namespaces=namespace(hook=Hook.FOREIGN)), "hook-foreign", "configmap/sameshot-hook",
         "not of sameshot", "Rename or delete"),
        (lambda: sound(namespaces=namespace(hook=Hook.EDITED)), "hook-edited", "configmap/sameshot-hook", "edited",
         "kubectl apply"),
        (lambda: sound(pods=(pod(), pod("other", armed=False, job=None, not_armed="It has no torch."))), "pod-refused",
         "pod/other", "It has no torch.", "docs/arming.md"),
        (lambda: sound(pods=(pod(), pod("other", armed=False, job=None))), "pod-unarmed", "pod/other",
         "the webhook was not asked", "sameshot arm -f"),
    ],
)  # fmt: skip
def test_one_fault_is_one_problem_with_its_object_and_a_way_out(
    change: Callable[[], Seen], kind: str, about: str, wrong: str, mend: str
) -> None:
    (found,) = judge(change())
    assert (found.kind, found.severity) == (kind, Severity.PROBLEM)
    assert found.about.startswith(about)
    assert wrong in found.wrong
    assert mend in found.mend
    for sentence in (found.wrong, found.mend):
        assert sentence.endswith(".")
        assert "\n" not in sentence


@pytest.mark.parametrize(
    "seen",
    [
        sound(coordinators=(), pods=(pod(**YOUNG),)),
        sound(coordinators=(), pods=(pod(ended=True, phase="Succeeded"),)),
        sound(coordinators=(coordinator(phase=Phase.PENDING, age_s=20.0),)),
        sound(coordinators=(coordinator(registered=3),), pods=(pod(), pod("llama-7b-1", age_s=20.0))),
        sound(coordinators=(coordinator(registered=None),)),
        sound(coordinators=(coordinator(registered=3, expected=None),)),
        sound(coordinators=(coordinator(phase=Phase.FINISHED, registered=0),), pods=()),
        sound(agents=(), pods=(pod(phase="Pending", node=""),)),
        sound(agents=None, operators=None, unread=(Unread("agents", "403"),)),
        sound(coordinators=(), unread=(Unread("CaptureCoordinators", "403"),)),
        sound(namespaces=namespace(labelled=None, hook=None)),
        sound(pods=(pod(), pod("old", armed=False, job=None, ended=True, phase="Failed"))),
    ],
    ids=[
        "coming", "ended", "starting", "registering", "not counted", "size unknown", "finished", "no node yet",
        "agents unread", "coordinators unread", "hook unread", "ended unarmed",
    ],
)  # fmt: skip
def test_what_comes_has_ended_or_could_not_be_read_is_no_fault(seen: Seen) -> None:
    assert judge(seen) == []


def test_worth_knowing_is_told_after_the_problems_and_is_none() -> None:
    spaces = namespace(
        hook=Hook.OTHER_VERSION, policy_problems=("CapturePolicy x has 'a' as maxDurationMs, which is none",)
    )
    found = judge(sound(namespaces=spaces, operators=()))
    assert [(each.kind, each.severity) for each in found] == [
        ("operator-away", Severity.PROBLEM),
        ("policy-not-understood", Severity.NOTE),
        ("hook-other-version", Severity.NOTE),
    ]


def test_a_second_attempt_needs_a_coordinator_of_its_own() -> None:
    again = msgspec.structs.replace(JOB, attempt=1)
    found: list[Finding] = judge(sound(pods=(pod(job=again),)))
    assert [each.kind for each in found] == ["no-coordinator"]


def test_jobs_are_listed_also_without_a_coordinator() -> None:
    other = JobRef("ml", "bert", "77", 0)
    seen = sound(pods=(pod(), pod("llama-7b-1", phase="Pending"), pod("bert-0", job=other)))
    assert [(row.job, row.phase, row.running, row.pods, row.registered) for row in rows(seen)] == [
        ("bert", "", 1, 1, None),
        ("llama-7b", "Ready", 1, 2, 8),
    ]


def test_which_hook_a_config_map_holds_is_told_by_its_content() -> None:
    ours = hook_configmap("ml")
    assert hook_of(ours) is Hook.CURRENT
    assert hook_of({**ours, "data": {**ours["data"], "more.py": "x"}}) is Hook.EDITED
    assert hook_of({**ours, "data": None}) is Hook.EDITED
    assert hook_of({"metadata": {"name": "sameshot-hook"}, "data": {"a": "b"}}) is Hook.FOREIGN
    older = {
        "metadata": {"annotations": {"sameshot.dev/hook": digest({"a.py": "x = 1\n"})}},
        "data": {"a.py": "x = 1\n"},
    }
    assert hook_of(older) is Hook.OTHER_VERSION


def digest(files: dict[str, str]) -> str:
    """sha256 over each name, a zero byte, its content and a zero byte, in the order of names."""
    return hashlib.sha256(b"".join(f"{name}\0{files[name]}\0".encode() for name in sorted(files))).hexdigest()[:16]
