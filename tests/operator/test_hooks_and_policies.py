"""What the operator keeps besides coordinators: the hook in labelled namespaces; and which policies hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from operator_lab import OPERATOR, QUICK, Lab, armed_pod, played

from sameshot.arm.hookmap import hook_configmap, hook_digest, hook_files
from sameshot.kube import names
from sameshot.operator.hooks import Hook, hook_of, judge

Json = dict[str, Any]
LABEL = {"sameshot.dev/arm": "enabled"}
WANT = hook_of("ml", "crd")


def namespace(name: str, labels: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def edited(**more: Any) -> Json:
    return {**WANT, **more}


@pytest.mark.parametrize(
    ("have", "labelled", "alive", "verdict"),
    [
        (None, True, 0, Hook.MAKE),
        (None, False, 3, Hook.FINE),
        (WANT, True, 0, Hook.FINE),
        (edited(data={**hook_files(), "more.py": ""}), True, 0, Hook.MEND),
        (edited(data={**WANT["data"], next(iter(hook_files())): "other"}), True, 0, Hook.MEND),
        (hook_configmap("ml"), True, 0, Hook.MEND),
        (edited(immutable=True, data={}), True, 0, Hook.REMAKE),
        ({"metadata": {"name": "sameshot-hook", "namespace": "ml"}, "data": {}}, True, 0, Hook.FOREIGN),
        ({"metadata": {"name": "sameshot-hook", "namespace": "ml"}, "data": {}}, False, 0, Hook.FINE),
        (WANT, False, 0, Hook.REMOVE),
        (WANT, False, 1, Hook.FINE),
        (hook_configmap("ml"), False, 0, Hook.FINE),
    ],
    ids=[
        "labelled", "not labelled", "as it should be", "a file too many", "of another version", "applied by hand",
        "immutable", "somebody else's", "somebody else's, not labelled", "its label is gone",
        "its label is gone and pods run", "applied by hand and not labelled",
    ],
)  # fmt: skip
def test_what_is_done_with_a_namespace(have: Json | None, labelled: bool, alive: int, verdict: Hook) -> None:
    assert judge(WANT, have, labelled=labelled, alive=alive) is verdict


@played()
async def test_the_hook_is_kept_where_a_namespace_is_labelled_and_goes_with_the_label(lab: Lab) -> None:
    api = lab.api
    api.make(namespace("ml", LABEL))
    api.make(namespace("plain", {}))
    api.make(namespace("taken", LABEL))
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sameshot-hook", "namespace": "taken"},
               "data": {"mine": "x"}}  # fmt: skip
    api.make(foreign)
    operator = await lab.operate()
    hook = ("configmaps", "ml", "sameshot-hook")
    made = await lab.until(lambda: api.find(*hook))
    assert made["data"] == hook_files()
    crd = api.get("customresourcedefinitions.apiextensions.k8s.io", "", "capturecoordinators.sameshot.dev")
    assert made["metadata"]["ownerReferences"][0]["uid"] == crd["metadata"]["uid"]

    api.change(*hook, {"data": {"more": "x"}, "metadata": {"annotations": {"sameshot.dev/hook": "older"}}})
    await lab.until(
        lambda: (
            api.get(*hook)["data"] == hook_files()
            and api.get(*hook)["metadata"]["annotations"]["sameshot.dev/hook"] == hook_digest()
        )
    )
    api.delete(*hook)
    await lab.until(lambda: api.find(*hook))
    await lab.until(lambda: operator.hooks.foreign == 1)
    assert api.get("configmaps", "taken", "sameshot-hook")["data"] == {"mine": "x"}
    assert api.find("configmaps", "plain", "sameshot-hook") is None

    api.change("namespaces", "", "plain", {"metadata": {"labels": LABEL}})
    await lab.until(lambda: api.find("configmaps", "plain", "sameshot-hook"))
    api.delete("configmaps", "taken", "sameshot-hook")
    await lab.until(lambda: api.find("configmaps", "taken", "sameshot-hook") and not operator.hooks.foreign)

    api.make(armed_pod("left", "ml", None, 1, {}, {}))
    await lab.until(lambda: operator.armed.alive_in("ml"))
    for each in ("plain", "ml"):
        api.change("namespaces", "", each, {"metadata": {"labels": {"sameshot.dev/arm": None}}})
    await lab.until(lambda: api.find("configmaps", "plain", "sameshot-hook") is None)
    assert api.find(*hook) is not None, "a pod of it runs, and its next process takes it"
    api.delete("pods", "ml", "left")
    await lab.until(lambda: api.find(*hook) is None)


@played()
async def test_with_the_kind_itself_the_hooks_go(lab: Lab) -> None:
    lab.api.make(namespace("ml", LABEL))
    await lab.operate()
    await lab.until(lambda: lab.api.find("configmaps", "ml", "sameshot-hook"))
    await lab.rest()
    lab.api.delete("customresourcedefinitions.apiextensions.k8s.io", "", "capturecoordinators.sameshot.dev")
    await lab.until(lambda: lab.api.find("configmaps", "ml", "sameshot-hook") is None)


def policy(name: str, where: str, **spec: Any) -> Json:
    kind = "CapturePolicy" if where else "ClusterCapturePolicy"
    metadata = {"name": name, "namespace": where} if where else {"name": name}
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


@played()
async def test_a_changed_policy_reaches_the_coordinators_file_and_no_pod_is_replaced(lab: Lab) -> None:
    job, other = lab.job("llama"), lab.job("bert", namespace="research")
    await lab.operate()
    for each in (job, other):
        await lab.until(lambda each=each: lab.phase(each) == "Ready")

    def held(job: Any) -> tuple[int, int]:
        told = json.loads((lab.own("configmaps", job) or {})["data"]["policy.json"])
        return told["max_duration_ms"], told["min_interval_ms"]

    assert held(job) == held(other) == (10_000, 0)
    lab.api.make(policy("default", "", maxDurationMs=30_000))
    await lab.until(lambda: held(job) == held(other) == (30_000, 0))
    lab.api.make(policy("careful", "ml", maxDurationMs=2_000, minIntervalMs=60_000))
    await lab.until(lambda: held(job) == (2_000, 60_000))
    assert held(other) == (30_000, 0)
    lab.api.delete("capturepolicies.sameshot.dev", "ml", "careful")
    await lab.until(lambda: held(job) == (30_000, 0))
    await lab.quiet(0.3)
    assert not lab.of(job).retired
    assert not [each for each in lab.api.writes(user=OPERATOR) if "policies" in each.resource]


@played(timings=msgspec.structs.replace(QUICK, remake_s=30.0, mend_longest_s=60.0))
async def test_policies_that_are_edited_often_are_applied_each_time_at_once(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    lab.api.make(policy("careful", "ml", maxDurationMs=9_000))
    for limit in (8_000, 7_000, 6_000, 5_000):
        lab.api.change("capturepolicies.sameshot.dev", "ml", "careful", {"spec": {"maxDurationMs": limit}})
        await lab.until(lambda limit=limit: str(limit) in (lab.own("configmaps", job) or {})["data"]["policy.json"], 5)
        await lab.quiet(0.2)
        assert lab.condition(job, "Reconciled")["status"] == "True"


@played()
async def test_a_policy_that_can_not_be_read_is_told_and_keeps_nobody_from_a_coordinator(lab: Lab) -> None:
    """An older or newer schema may have let it through."""
    from cluster_kinds import Kind

    lab.api.store.kinds = [each for each in lab.api.store.kinds if each.plural != "capturepolicies"]
    lab.api.serve(Kind(names.GROUP, names.VERSION, "capturepolicies", "CapturePolicy"))
    lab.api.make(policy("odd", "ml", maxDurationMs="long", minIntervalMs=5))
    job = lab.job("llama")
    await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    told = lab.condition(job, "Policy")
    assert (told["status"], told["reason"]) == ("False", "Invalid")
    assert "CapturePolicy odd has 'long' as maxDurationMs" in told["message"]
    assert json.loads((lab.own("configmaps", job) or {})["data"]["policy.json"])["min_interval_ms"] == 5
