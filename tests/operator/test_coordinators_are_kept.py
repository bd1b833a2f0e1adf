"""The operator with its shipped rights against an API server: what it makes for a job, and that it stays so."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from operator_lab import KINDS, OPERATOR, OURS, QUICK, Lab, Scripted, played, reference
from pod_security import violations

from sameshot.api.transport import Endpoint, channel
from sameshot.coordinator.configfile import ClusterConfig, read_config
from sameshot.kube import names
from sameshot.model import JobRef

Json = dict[str, Any]
LABELLED = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "ml", "labels": {"sameshot.dev/arm": "enabled"}},
}


async def ready(lab: Lab, *jobs: JobRef) -> None:
    for job in jobs:
        await lab.until(lambda job=job: lab.phase(job) == "Ready")
    await lab.quiet(0.3)


@played()
async def test_an_armed_job_gets_a_coordinator_and_then_nothing_is_asked_any_more(lab: Lab) -> None:
    lab.api.make(LABELLED)
    job = lab.job("llama", pods=2, size=4)
    lab.coordinators[lab.name(job)] = Scripted(registered=8, world_size=8)
    await lab.operate()
    await ready(lab, job)

    status, spec = lab.status(job), (lab.cr(job) or {})["spec"]
    assert spec["job"] == {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": job.uid, "attempt": 0}
    assert (spec["series"], spec["labels"]) == ("llama", {"team": "nlp"})
    assert (status["registered"], status["expected"], status["version"]) == (8, 8, "0.1.0")
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "Ready": "True", "Reachable": "True", "Policy": "True", "Reconciled": "True",
    }  # fmt: skip
    assert lab.left(job) == set(KINDS)
    authority = lab.api.get("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")["data"]
    assert status["caBundle"] == authority["ca.crt"]
    assert "sameshot-agent-tls" in {
        each["metadata"]["name"] for each in lab.api.list("secrets", names.AGENTS_NAMESPACE)
    }

    (token,) = lab.of(job).tokens
    claims = token.split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert (said["aud"], said["sub"]) == ([f"sameshot/{names.account_of(job)}"], OPERATOR)

    since = len(lab.api.log)
    await asyncio.sleep(1.0)
    assert lab.asked(since) == [], "no work for an idle job"
    _only_ours_was_written(lab)


def _only_ours_was_written(lab: Lab) -> None:
    for each in lab.api.writes(user=OPERATOR):
        ours = each.namespace in OURS or each.group == "sameshot.dev" or each.resource == "rolebindings"
        assert ours or (each.resource == "configmaps" and each.name in ("", "sameshot-hook")), each
        assert each.status < 400, each
    for what in ("pods", "jobs.batch"):
        for thing in lab.api.list(what, "ml"):
            assert "finalizers" not in thing["metadata"]
            assert set(thing["metadata"].get("annotations", {})) <= {"sameshot.dev/armed", "sameshot.dev/series"}
    assert lab.api.list("events.events.k8s.io") == []


@played(host_network=False, coordinator_metrics="0.0.0.0:9464", archive="s3://traces/prod")
async def test_what_is_made_is_what_a_coordinator_reads_and_what_the_strictest_namespace_takes(lab: Lab) -> None:
    job = lab.job("llama")
    lab.starts = False
    await lab.operate(host_network=False)
    await lab.until(lambda: lab.own("pods", job))
    config, service = lab.own("configmaps", job) or {}, lab.own("services", job) or {}
    told = _decoded(config["data"]["config.json"])
    assert told == ClusterConfig(
        job=job, archive="s3://traces/prod", series="llama", probe="0.0.0.0:7445", metrics="0.0.0.0:9464"
    )
    assert json.loads(config["data"]["policy.json"])["max_duration_ms"] == 10_000
    assert config["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")

    pod = lab.own("pods", job) or {}
    assert violations(pod, "restricted") == []
    spec = pod["spec"]
    assert spec["serviceAccountName"] == names.account_of(job)
    assert spec["automountServiceAccountToken"] is False
    audiences = [
        source["serviceAccountToken"].get("audience")
        for volume in spec["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
    assert audiences == ["sameshot-agent", None]
    assert service["spec"]["ports"][0]["port"] == names.COORDINATOR_PORT
    assert all(pod["metadata"]["labels"][key] == value for key, value in service["spec"]["selector"].items())
    binding = lab.own("rolebindings.rbac.authorization.k8s.io", job) or {}
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": names.account_of(job), "namespace": names.COORDINATORS_NAMESPACE}
    ]
    assert binding["metadata"]["ownerReferences"][0]["uid"] == (lab.cr(job) or {})["metadata"]["uid"]
    await lab.until(lambda: lab.phase(job) == "Pending")
    assert "endpoint" not in lab.status(job)


def _decoded(text: str) -> ClusterConfig:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(text)
        return read_config(path)


@played()
async def test_why_a_coordinator_does_not_come_up_stands_in_its_status(lab: Lab) -> None:
    job = lab.job("llama")
    lab.starts = False
    await lab.operate()
    await lab.until(lambda: lab.own("pods", job))
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    status = {"phase": "Pending", "containerStatuses": [{"name": "coordinator", "state": {"waiting": waiting}}]}
    lab.api.set_status("pods", names.COORDINATORS_NAMESPACE, lab.name(job), status)
    await lab.until(lambda: "ImagePullBackOff: no such image" in lab.condition(job, "Ready").get("message", ""))
    assert lab.phase(job) == "Pending"


@played()
async def test_what_is_deleted_or_edited_by_hand_is_restored(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    api, where, name = lab.api, names.COORDINATORS_NAMESPACE, lab.name(job)
    pod = (lab.own("pods", job) or {})["metadata"]["uid"]
    before = {each: lab.own(each, job) for each in KINDS}
    for what in ("services", "secrets", "configmaps"):
        api.delete(what, where, name)
    api.delete("serviceaccounts", where, names.account_of(job))
    api.delete("rolebindings.rbac.authorization.k8s.io", "ml", name)
    await lab.until(lambda: lab.left(job) == set(KINDS))

    api.change("services", where, name, {"spec": {"selector": {"app.kubernetes.io/name": "other", "more": "x"}}})
    api.change("configmaps", where, name, {"data": {"config.json": "{}", "more": "x"}})
    api.change("secrets", where, name, {"data": {"tls.crt": base64.b64encode(b"no certificate").decode()}})
    api.change("rolebindings.rbac.authorization.k8s.io", "ml", name, {"subjects": []})
    api.change(
        "pods", where, name, {"metadata": {"labels": {names.ATTEMPT: "7", "app.kubernetes.io/managed-by": None}}}
    )

    def restored() -> bool:
        for what in ("services", "configmaps", "rolebindings.rbac.authorization.k8s.io", "pods"):
            now, then = lab.own(what, job) or {}, before[what] or {}
            if now.get("data") != then.get("data") or now.get("subjects") != then.get("subjects"):
                return False
            if now["metadata"]["labels"] != then["metadata"]["labels"]:
                return False
            if what == "services" and now["spec"]["selector"] != then["spec"]["selector"]:
                return False
        return b"BEGIN CERTIFICATE" in base64.b64decode((lab.own("secrets", job) or {})["data"]["tls.crt"])

    await lab.until(restored)
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == pod, "its labels are mended; it is not replaced"

    await lab.quiet(0.3)
    api.delete("pods", where, name)
    await lab.until(lambda: (lab.own("pods", job) or {"metadata": {"uid": pod}})["metadata"]["uid"] != pod)
    await ready(lab, job)


@played()
async def test_a_role_binding_to_another_role_is_made_anew(lab: Lab) -> None:
    """What a binding binds to can't be changed. Whoever put another one there has no say in it."""
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    name, kind = lab.name(job), "rolebindings.rbac.authorization.k8s.io"
    await lab.rest()
    made = lab.own(kind, job) or {}
    lab.api.delete(kind, "ml", name)
    meta = {key: made["metadata"][key] for key in ("name", "namespace", "labels")}
    lab.api.make({**made, "metadata": meta, "roleRef": {**made["roleRef"], "name": "edit"}})
    await lab.operate()
    await lab.until(
        lambda: (lab.own(kind, job) or made)["roleRef"]["name"] == "sameshot-coordinator" and lab.own(kind, job)
    )


@played()
async def test_a_coordinator_object_deleted_by_hand_is_made_again_and_its_pod_stays(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    pod, cr = (lab.own("pods", job) or {})["metadata"]["uid"], (lab.cr(job) or {})["metadata"]["uid"]
    lab.api.delete("capturecoordinators.sameshot.dev", "ml", lab.name(job))
    await lab.until(lambda: lab.cr(job) is not None and (lab.cr(job) or {})["metadata"]["uid"] != cr)
    await ready(lab, job)
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == pod
    assert lab.left(job) == set(KINDS)


@played()
async def test_workers_are_counted_until_they_are_complete_and_again_when_pods_come(lab: Lab) -> None:
    job = lab.job("llama", pods=1, size=2)
    lab.coordinators[lab.name(job)] = Scripted(registered=0, world_size=None)
    await lab.operate()
    await ready(lab, job)
    await lab.until(lambda: lab.status(job).get("registered") == 0)
    first = lab.of(job).described
    lab.of(job).registered = 2
    await lab.until(lambda: lab.status(job).get("registered") == 2)
    assert lab.of(job).described > first
    await lab.quiet(0.3)
    counted = lab.of(job).described
    await asyncio.sleep(0.5)
    assert lab.of(job).described == counted
    lab.of(job).registered = 4
    lab.pod("llama-more", owner=lab.api.get("jobs.batch", "ml", "llama"), size=2)
    await lab.until(lambda: (lab.status(job)["registered"], lab.status(job)["expected"]) == (4, 4))


@played(timings=msgspec.structs.replace(QUICK, recount_s=1.0))
async def test_fifty_pods_that_come_to_a_job_that_runs_are_counted_a_few_times(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    since, before = len(lab.api.log), lab.of(job).described
    owner = lab.api.get("jobs.batch", "ml", "llama")
    for i in range(50):
        lab.pod(f"llama-more-{i}", owner=owner)
        await asyncio.sleep(0.02)
    lab.of(job).registered = 51
    await lab.until(lambda: (lab.status(job)["registered"], lab.status(job)["expected"]) == (51, 51))
    await lab.quiet(0.3)
    assert lab.of(job).described - before <= 8, "one a second and, at the end, with growing pauses"
    writes = [each for each in lab.api.writes(since, user=OPERATOR) if each.resource == "capturecoordinators"]
    assert len(writes) <= 6


def owned(lab: Lab, kind: str, name: str, owner: Json | None = None) -> Json:
    meta = {"name": name, "namespace": "ml", "ownerReferences": [] if owner is None else [reference(owner)]}
    return lab.api.make({"apiVersion": "apps/v1", "kind": kind, "metadata": meta})


def coordinators_of(lab: Lab) -> dict[str, str]:
    found = lab.api.list("capturecoordinators.sameshot.dev", "ml")
    return {each["spec"]["job"]["name"]: each.get("status", {}).get("phase", "") for each in found}


@played(timings=msgspec.structs.replace(QUICK, unsure_s=60.0))
@patch("sameshot.kube.owners.UNREAD_FOR_S", 0.1)
async def test_an_owner_that_can_not_be_read_for_a_moment_is_not_taken_for_the_job(lab: Lab) -> None:
    lab.api.fail(403, verb="get", resource="replicasets", user=OPERATOR)
    owner = owned(lab, "ReplicaSet", "serve-1", owned(lab, "Deployment", "serve"))
    await lab.operate()
    lab.pod("serve-1-a", owner=owner)
    await lab.until(lambda: lab.api.count(verb="get", resource="replicasets") >= 2)
    assert coordinators_of(lab) == {}
    lab.api.fail(0)
    await lab.until(lambda: coordinators_of(lab) == {"serve": "Ready"})


@played()
@patch("sameshot.kube.owners.UNREAD_FOR_S", 0.1)
async def test_what_was_taken_for_the_job_for_long_ends_when_the_job_is_known(lab: Lab) -> None:
    lab.api.fail(403, verb="get", resource="replicasets", user=OPERATOR)
    owner = owned(lab, "ReplicaSet", "serve-1", owned(lab, "Deployment", "serve"))
    await lab.operate()
    lab.pod("serve-1-a", owner=owner)
    await lab.until(lambda: coordinators_of(lab) == {"serve-1": "Ready"})
    lab.api.fail(0)
    wrong = JobRef("ml", "serve-1", owner["metadata"]["uid"], 0)
    await lab.until(lambda: coordinators_of(lab) == {"serve-1": "Finished", "serve": "Ready"})
    await lab.rest()
    await lab.operate()
    await lab.until(lambda: not lab.left(wrong))
    lab.api.delete("pods", "ml", "serve-1-a", gracePeriodSeconds=0)
    await lab.quiet(0.3)
    assert coordinators_of(lab)["serve-1"] == "Finished"


@played()
async def test_without_recorded_counts_the_workers_say_how_many_they_are(lab: Lab) -> None:
    job = lab.job("llama", pods=2, size=None)
    lab.coordinators[lab.name(job)] = Scripted(registered=None, world_size=None)
    await lab.operate()
    await ready(lab, job)
    assert {"registered", "expected"} & set(lab.status(job)) == set()
    lab.of(job).registered, lab.of(job).world_size = 16, 16
    await lab.until(lambda: (lab.status(job).get("registered"), lab.status(job).get("expected")) == (16, 16))


@played()
async def test_a_client_reaches_the_coordinator_by_what_the_status_says(lab: Lab) -> None:
    from sameshot.api.sameshot_pb2 import DescribeRequest
    from sameshot.api.sameshot_pb2_grpc import CoordinatorStub

    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    status = lab.status(job)
    endpoint = Endpoint(status["endpoint"], base64.b64decode(status["caBundle"]), status["serverName"], lambda: "mine")

    def ask() -> Any:
        with channel(endpoint) as link:
            return CoordinatorStub(link).Describe(DescribeRequest(), timeout=5)

    assert (await asyncio.to_thread(ask)).version == "0.1.0"
    assert "mine" in lab.of(job).tokens


# ---- whose


@played()
async def test_two_jobs_of_one_name_are_two(lab: Lab) -> None:
    one, other = lab.job("llama", namespace="ml"), lab.job("llama", namespace="research")
    await lab.operate()
    await ready(lab, one, other)
    assert lab.name(one) != lab.name(other)
    accounts = {names.account_of(one), names.account_of(other)}
    for job in (one, other):
        binding = lab.own("rolebindings.rbac.authorization.k8s.io", job) or {}
        assert binding["subjects"][0]["name"] in accounts
        accounts.discard(binding["subjects"][0]["name"])


@played()
async def test_a_forged_owner_of_another_namespace_gets_nothing(lab: Lab) -> None:
    victim = lab.job("llama", namespace="ml")
    real = lab.api.get("jobs.batch", "ml", "llama")
    forged = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**real["metadata"], "namespace": "evil"}}
    lab.pod("fake-0", owner=forged)
    odd = {"apiVersion": "unknown.dev/v1", "kind": "Odd", "metadata": {**real["metadata"], "namespace": "evil"}}
    lab.pod("odd-0", owner=odd)  # of a kind that nobody can look for: believed, in its own namespace
    evil = JobRef("evil", "llama", victim.uid, 0)
    await lab.operate()
    await ready(lab, victim, evil)
    roles = "rolebindings.rbac.authorization.k8s.io"
    assert names.account_of(evil) != names.account_of(victim)
    for job in (victim, evil):
        (binding,) = lab.api.list(roles, job.namespace)
        assert [one["name"] for one in binding["subjects"]] == [names.account_of(job)]
    assert names.coordinator_of(evil) != names.coordinator_of(victim)


@played()
async def test_a_job_that_was_deleted_gets_no_coordinator_though_its_pods_are_still_there(lab: Lab) -> None:
    gone = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gone", "namespace": "ml", "uid": "0-1"}}
    lab.pod("gone-0", owner=gone)
    other = lab.job("llama")
    await lab.operate()
    await ready(lab, other)
    assert len(lab.api.list("capturecoordinators.sameshot.dev")) == 1


@pytest.mark.parametrize(
    ("name", "uid"),
    [("odd", "UPPER-CASE"), ("odd", "x" * 40), ("odd\nINFO all is well", "0-1"), ("odd/../x", "0-1")],
    ids=["upper case", "too long", "a name of two lines", "a name of a path"],
)
def test_a_job_whose_name_or_uid_is_none_is_told_about_and_disturbs_nobody(
    name: str, uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    @played()
    async def play(lab: Lab) -> None:
        lab.pod("odd-0", owner={"apiVersion": "unknown.dev/v1", "kind": "Odd",
                                "metadata": {"name": name, "namespace": "ml", "uid": uid}})  # fmt: skip
        job = lab.job("llama")
        operator = await lab.operate()
        await ready(lab, job)
        assert operator.keeper.unusable == 1

    play()
    assert [each for each in caplog.messages if "no coordinator can be made for job 'ml/odd" in each]
    assert not [each for each in caplog.messages if "\n" in each]


@played()
async def test_a_pod_of_its_own_is_a_job_and_a_kind_nobody_knows_is_one_too(lab: Lab) -> None:
    alone = lab.pod("notebook")
    made = lab.api.make(
        {"apiVersion": "example.com/v1", "kind": "Training", "metadata": {"name": "odd", "namespace": "ml"}}
    )
    lab.pod("odd-0", owner=made, annotations={"sameshot.dev/series": "nightly"})
    notebook = JobRef("ml", "notebook", alone["metadata"]["uid"], 0)
    odd = JobRef("ml", "odd", made["metadata"]["uid"], 0)
    await lab.operate()
    await ready(lab, notebook, odd)
    assert (lab.cr(notebook) or {})["spec"]["job"]["kind"] == "Pod"
    assert (lab.cr(odd) or {})["spec"] == {
        "job": {"apiVersion": "example.com/v1", "kind": "Training", "name": "odd", "uid": odd.uid, "attempt": 0},
        "series": "nightly",
        "labels": {},
    }
    assert (lab.cr(odd) or {})["metadata"]["ownerReferences"] == [
        {**{key: value for key, value in reference(made).items() if key != "controller"}, "blockOwnerDeletion": False}
    ]


@played(overlay="namespaces", namespaces=("ml",))
async def test_an_operator_for_chosen_namespaces_serves_those_with_rights_in_no_other(lab: Lab) -> None:
    lab.api.put(LABELLED)
    lab.api.make({**LABELLED, "metadata": {**LABELLED["metadata"], "name": "research"}})
    job, other = lab.job("llama"), lab.job("bert", namespace="research")
    operator = await lab.operate()
    await ready(lab, job)
    late = lab.job("late")
    await lab.until(lambda: lab.phase(late) == "Ready")
    await lab.until(lambda: lab.api.find("configmaps", "ml", "sameshot-hook"))
    lab.delete(late)
    await lab.until(lambda: not lab.left(late))
    assert lab.cr(other) is None
    assert lab.api.find("configmaps", "research", "sameshot-hook") is None
    assert not [each for each in lab.api.log if each.user == OPERATOR and each.status == 403]
    assert operator.watching.restarts == 0
