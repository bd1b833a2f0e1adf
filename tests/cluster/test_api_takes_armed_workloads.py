"""Needs an API server only. Every armed fixture goes through it as a dry run: its validation, its defaults, its Pod
Security admission. Kinds whose definition is not installed there are tried as the pods that they would make."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from api_server import Answer, ApiServer, Namespace, Refused
from arm_lab import fixture

from sameshot.arm.hookmap import hook_configmap
from sameshot.arm.kinds import SUPPORTED, arm_object, disarm_object, kind_of, templates_of

Json = dict[str, Any]
pytestmark = pytest.mark.full

BUILT_IN = ("pod", "job", "cronjob", "statefulset", "deployment")
DEFINED = ("jobset", "pytorchjob", "volcanojob")
# What a server makes anew with every request.
_FRESH = ("uid", "creationTimestamp", "resourceVersion", "managedFields", "generation", "name", "selfLink")
_FRESH_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")


def settled(thing: Json) -> Json:
    """An answer without what differs between any two requests."""
    thing = copy.deepcopy(thing)
    for key in _FRESH:
        thing["metadata"].pop(key, None)
    thing.pop("status", None)
    holders = [thing, thing.get("spec", {}).get("template") or {}]
    for holder in holders:
        marks = (holder.get("metadata") or {}).get("labels") or {}
        for key in _FRESH_LABELS:
            marks.pop(key, None)
        # Whether an empty one is written out differs between versions, and means nothing.
        _drop_empty(holder, "metadata", "labels")
    if thing["kind"] == "Job":
        thing["spec"].pop("selector", None)
    if thing["kind"] == "Pod":  # the token's volume has a random name
        thing["spec"].pop("volumes")
        for each in thing["spec"]["containers"]:
            each.pop("volumeMounts", None)
    return thing


def _drop_empty(holder: Json, *keys: str) -> None:
    """What is empty at this path, from its end."""
    key, *rest = keys
    if rest and isinstance(holder.get(key), dict):
        _drop_empty(holder[key], *rest)
    if key in holder and not holder[key]:
        del holder[key]


def as_pods(thing: Json) -> list[Json]:
    """The pods that a workload's templates say."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **template,
            "metadata": {**template.get("metadata", {}), "generateName": "x-"},
        }
        for _, template in templates_of(thing)
    ]


def ours(told: Answer) -> list[str]:
    """Warnings that have to do with what arming adds."""
    return [each for each in told.warnings if "sameshot" in each.lower() or "restricted" in each]


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_server_takes_it_and_gives_it_back_whole(name: str, namespace: Namespace) -> None:
    plain = fixture(name)
    armed = arm_object(plain).thing
    taken = namespace.dry_run(armed)
    assert not ours(taken)
    assert arm_object(taken.thing).thing == taken.thing, "read back from the server it counts as armed, unchanged"
    done = disarm_object(taken.thing)
    assert not done.told
    assert settled(done.thing) == settled(namespace.dry_run(plain).thing)


@pytest.mark.parametrize("name", DEFINED)
def test_a_kind_that_is_installed_takes_it_too(name: str, api: ApiServer, namespace: Namespace) -> None:
    armed = arm_object(fixture(name)).thing
    if api.resource(armed) is None:
        group, kind = kind_of(armed)
        pytest.skip(f"the definition of {kind} ({group}) is not installed on this cluster; its pods are tried instead")
    taken = namespace.dry_run(armed)
    assert not disarm_object(taken.thing).told


@pytest.mark.parametrize("name", BUILT_IN + DEFINED)
def test_the_pods_that_it_says_are_valid(name: str, namespace: Namespace) -> None:
    for pod in as_pods(arm_object(fixture(name)).thing):
        assert not ours(namespace.dry_run(pod))


def test_all_kinds_are_tried() -> None:
    assert {kind_of(fixture(name)) for name in BUILT_IN + DEFINED} == set(SUPPORTED)


def test_a_restricted_pod_is_admitted_armed_without_a_warning(restricted: Namespace) -> None:
    plain = fixture("pod")
    assert not ours(restricted.dry_run(plain))
    assert not ours(restricted.dry_run(arm_object(plain).thing))


def test_the_namespace_does_enforce_what_it_says(restricted: Namespace) -> None:
    (pod,) = as_pods(arm_object(fixture("job")).thing)
    with pytest.raises(Refused, match="violates PodSecurity") as refused:
        restricted.dry_run(pod)
    assert refused.value.status == 403
    assert "sameshot" not in str(refused.value).split("violates PodSecurity")[1], "not because of what arming added"


def test_the_server_does_look_at_every_field(namespace: Namespace) -> None:
    pod = arm_object(fixture("pod")).thing
    pod["spec"]["containers"][0]["volumeMountz"] = []
    with pytest.raises(Refused, match="volumeMountz"):
        namespace.dry_run(pod)


def test_the_hooks_configmap_is_taken(namespace: Namespace) -> None:
    taken = namespace.dry_run(hook_configmap(namespace.name))
    assert taken.thing["data"] == hook_configmap()["data"]
