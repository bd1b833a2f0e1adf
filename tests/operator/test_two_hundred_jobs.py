"""Two hundred armed jobs: they converge, cost nothing when idle, and one that fails delays no other. And each right
that the operator has is used."""

from __future__ import annotations

import asyncio
import base64
import datetime
import time

import msgspec
import pytest
from operator_lab import JOBSET, OPERATOR, QUICK, Lab, played

from sameshot.arm.ended import ENDINGS
from sameshot.kube import names
from sameshot.model import JobRef
from sameshot.operator import authority as certificates
from sameshot.operator.rights import RIGHTS, Where

pytestmark = pytest.mark.full


@played(max_coordinators=0, timings=msgspec.structs.replace(QUICK, call_s=10.0, ask_s=0.5, retry_longest_s=120.0))
async def test_two_hundred_jobs_converge_and_cost_nothing_then(lab: Lab) -> None:
    jobs = [lab.job(f"job-{i}") for i in range(200)]
    bad = lab.job("bad")
    lab.api.make({"apiVersion": "sameshot.dev/v1alpha1", "kind": "CaptureCoordinator",
                  "metadata": {"name": lab.name(bad), "namespace": "ml"}, "spec": {"job": {
                      "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "attempt": 0}}})  # fmt: skip
    begun = time.monotonic()
    operator = await lab.operate()
    await lab.until(lambda: sum(lab.phase(each) == "Ready" for each in jobs) == 200, 90, 0.5)
    await lab.until(lambda: sum(lab.status(each).get("registered") == 1 for each in jobs) == 200, 30, 0.5)
    took = time.monotonic() - begun
    assert operator.queue.resting == 1, "the one that can't be made"
    requests = len(lab.asked())
    print(f"200 jobs in {took:.1f} s, {requests / 200:.1f} requests a job")
    assert requests < 200 * 15

    # The bad one asks twice now and then (it can't be made; whose is it?), nobody else at all.
    await asyncio.sleep(0.5)
    since = len(lab.api.log)
    await asyncio.sleep(3.0)
    idle = [each for each in lab.asked(since) if each.name != lab.name(bad) and each.status != 409]
    assert [each for each in idle if (each.verb, each.resource, each.name) != ("get", "jobs", "bad")] == []

    late = lab.job("late")
    at = time.monotonic()
    await lab.until(lambda: lab.phase(late) == "Ready")
    print(f"one more in {time.monotonic() - at:.2f} s")


@played(timings=msgspec.structs.replace(QUICK, grace_s=0.1))
async def test_every_right_that_the_operator_has_is_used(lab: Lab) -> None:
    """So each verb of the table is needed: without one of these requests something above would not work."""
    api = lab.api
    label = {"sameshot.dev/arm": "enabled"}
    api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": label}})
    job = lab.job("llama")
    made = api.make({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                     "metadata": {"name": "set", "namespace": "ml"}})  # fmt: skip
    lab.pod("set-0", owner=made, labels={JOBSET: "0"})
    marks = {"a": "b"}
    replicas = api.make({"apiVersion": "apps/v1", "kind": "ReplicaSet",
                         "spec": {"selector": {"matchLabels": marks}, "template": {"metadata": {"labels": marks}}},
                         "metadata": {"name": "rs", "namespace": "ml"}})  # fmt: skip
    lab.pod("rs-0", owner=replicas)
    notebook = JobRef("ml", "notebook", lab.pod("notebook")["metadata"]["uid"], 0)
    jobset = JobRef("ml", "set", made["metadata"]["uid"], 0)
    ageing = certificates.new(datetime.datetime.now(datetime.UTC) - 300 * certificates.DAY)
    api.make({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sameshot-ca", "namespace": "sameshot-system"},
              "data": {key: base64.b64encode(value).decode() for key, value in ageing.data.items()}})  # fmt: skip
    operator = await lab.operate()
    for each in (job, jobset, notebook):
        await lab.until(lambda each=each: lab.phase(each) == "Ready")
    where, name = names.COORDINATORS_NAMESPACE, lab.name(job)
    for what in ("services", "configmaps"):
        api.change(what, where, name, {"metadata": {"labels": {names.JOB_UID: "x"}}})
    api.change("secrets", where, name, {"data": {"tls.crt": "eA=="}})
    api.change("serviceaccounts", where, names.account_of(job), {"automountServiceAccountToken": True})
    api.change("rolebindings.rbac.authorization.k8s.io", "ml", name, {"subjects": []})
    api.change("pods", where, name, {"metadata": {"labels": {names.ATTEMPT: "9"}}})
    api.change("configmaps", "ml", "sameshot-hook", {"data": {"more": "x"}})
    api.change("secrets", names.AGENTS_NAMESPACE, "sameshot-agent-tls", {"data": {"ca.crt": "eA=="}})
    operator._sweep_soon.set()
    await lab.quiet(0.3)
    lab.finish(job)
    await lab.until(lambda: not lab.left(job))
    api.delete("capturecoordinators.sameshot.dev", "ml", lab.name(job))
    cr = api.get("capturecoordinators.sameshot.dev", "ml", lab.name(jobset))
    api.delete("jobsets.jobset.x-k8s.io", "ml", "set")
    await lab.until(lambda: not lab.left(jobset) and cr)
    for each in api.list("pods", "ml"):
        api.delete("pods", "ml", each["metadata"]["name"])
    api.change("namespaces", "", "ml", {"metadata": {"labels": {"sameshot.dev/arm": None}}})
    await lab.until(lambda: api.find("configmaps", "ml", "sameshot-hook") is None)

    used = {
        (each.group, _resource(each), each.verb) for each in api.log if each.user == OPERATOR and each.status != 403
    }
    others = {(group, ending.resource) for (group, _), ending in ENDINGS.items() if group not in ("", "batch")}
    for right in RIGHTS:
        for verb in right.verbs:
            if verb == "bind" or (right.where is Where.SELECTED and (right.group, right.resource) in others):
                continue  # (the first is part of making a binding; owners of other kinds are read as a Job is)
            if (right.where, right.resource, verb) == (Where.SYSTEM, "pods", "get"):
                continue  # its own image, before it starts: in another test
            assert (right.group, right.resource, verb) in used, (right, verb)
    refused = [each for each in api.log if each.user == OPERATOR and each.status == 403]
    assert refused == []


def _resource(each: object) -> str:
    sub = getattr(each, "subresource", "")
    return f"{getattr(each, 'resource', '')}/{sub}" if sub else str(getattr(each, "resource", ""))
