"""The ends of coordinators: jobs that finish, restart or are deleted, upgrades, an operator that is away."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
from operator_lab import KINDS, OPERATOR, QUICK, Lab, Scripted, played, shipped

from sameshot.kube import names
from sameshot.model import JobRef
from sameshot.operator.config import Timings
from sameshot.operator.run import Operator

FINISHED, SUPERSEDED, REPLACED = 1, 2, 3
JOBSET_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


async def ready(lab: Lab, *jobs: JobRef) -> None:
    for job in jobs:
        await lab.until(lambda job=job: lab.phase(job) == "Ready")
    await lab.quiet(0.3)


def image(lab: Lab, job: JobRef) -> str:
    pod = lab.own("pods", job)
    return "" if pod is None else str(pod["spec"]["containers"][0]["image"])


def timings(**more: float) -> Timings:
    return msgspec.structs.replace(QUICK, **more)


@pytest.mark.full
@played(timings=timings(grace_s=2.0))
async def test_a_finished_job_is_told_so_at_once_and_its_coordinator_goes_after_its_grace(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    lab.of(job).unsettled = 1
    lab.finish(job)
    await lab.until(lambda: lab.phase(job) == "Finished")
    await lab.until(lambda: lab.of(job).retired)
    assert lab.status(job)["endpoint"], "what it captured can still be asked for"
    await asyncio.sleep(2.2)
    assert lab.own("pods", job) is not None, "its capture has not converged"
    lab.of(job).unsettled = 0
    await lab.until(lambda: not lab.left(job))
    assert set(lab.of(job).retired) == {FINISHED}
    assert lab.phase(job) == "Finished"
    assert not {"endpoint", "pod", "caBundle"} & set(lab.status(job))
    await lab.quiet(0.3)
    since = len(lab.api.log)
    await lab.rest()
    await lab.operate()
    await lab.quiet(0.3)
    assert [each for each in lab.api.writes(since) if each.status < 400 and each.user != "kubernetes-admin"] == []
    assert not lab.left(job)


@played()
async def test_a_suspended_job_keeps_its_coordinator(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    lab.api.set_status("jobs.batch", "ml", "llama", {"conditions": [{"type": "Suspended", "status": "True"}]})
    lab.api.delete("pods", "ml", "llama-0")
    await lab.until(lambda: lab.api.count(verb="get", resource="jobs", name="llama") >= 4)
    assert lab.phase(job) == "Ready"
    assert not lab.of(job).retired


@pytest.mark.full
@played(timings=timings(grace_s=1.5))
async def test_a_later_attempt_supersedes_the_one_before_and_the_account_stays(lab: Lab) -> None:
    made = lab.api.make({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                         "metadata": {"name": "llama", "namespace": "ml"}})  # fmt: skip
    first, second = (JobRef("ml", "llama", made["metadata"]["uid"], attempt) for attempt in (0, 1))
    lab.pod("llama-0", owner=made, labels={JOBSET_ATTEMPT: "0"})
    await lab.operate()
    await ready(lab, first)
    lab.end_pods(first, "Failed")
    lab.pod("llama-1", owner=made, labels={JOBSET_ATTEMPT: "1"})
    await lab.until(lambda: lab.phase(second) == "Ready" and lab.phase(first) == "Superseded")
    await lab.until(lambda: lab.of(first).retired == [SUPERSEDED])
    assert lab.own("pods", first) is not None, "for a while it says so itself"
    await lab.until(lambda: lab.left(first) == {"serviceaccounts"})
    await lab.quiet(0.3)
    assert lab.left(second) == set(KINDS)
    assert not lab.of(second).retired
    assert lab.phase(first) == "Superseded"
    lab.api.set_status("jobsets.jobset.x-k8s.io", "ml", "llama", {"terminalState": "Completed"})
    lab.end_pods(second)
    await lab.until(lambda: lab.phase(second) == "Finished" and not lab.left(second))
    assert lab.phase(first) == "Superseded"


@played()
async def test_with_its_job_all_of_it_goes(lab: Lab) -> None:
    job, other = lab.job("llama"), lab.job("bert")
    await lab.operate()
    await ready(lab, job, other)
    lab.delete(job)
    await lab.until(lambda: lab.cr(job) is None and not lab.left(job))
    assert set(lab.of(job).retired) == {FINISHED}
    assert lab.left(other) == set(KINDS)


@pytest.mark.full
@played(timings=timings(orphan_s=1.5))
async def test_captures_of_a_deleted_job_are_waited_for_but_not_for_ever(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    lab.of(job).unsettled = 1
    lab.delete(job)
    await lab.until(lambda: lab.cr(job) is None and lab.of(job).retired)
    await asyncio.sleep(0.8)
    assert {"pods", "secrets", "configmaps", "serviceaccounts"} <= lab.left(job)
    await lab.until(lambda: not lab.left(job))


@played()
async def test_what_a_job_left_behind_while_the_operator_was_away_is_swept_when_it_is_back(lab: Lab) -> None:
    job, other = lab.job("llama"), lab.job("bert")
    await lab.operate()
    await ready(lab, job, other)
    await lab.rest()
    lab.delete(job)
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine", "namespace": "sameshot-coordinators"},
    }
    lab.api.make(foreign)
    await lab.until(lambda: lab.cr(job) is None and not lab.api.list("pods", "ml", fields="metadata.name=llama-0"))
    assert lab.left(job) == set(KINDS) - {"rolebindings.rbac.authorization.k8s.io"}, "its owner took that along"
    since = len(lab.api.log)
    await lab.operate()
    await lab.until(lambda: not lab.left(job))
    await lab.quiet(0.3)
    assert lab.left(other) == set(KINDS)
    assert lab.api.find("configmaps", "sameshot-coordinators", "mine") is not None
    touched = {each.name for each in lab.api.writes(since) if each.verb == "delete" and each.user.endswith("operator")}
    assert touched == {lab.name(job), names.account_of(job)}


@played()
async def test_a_restarted_operator_asks_nobody_and_writes_nothing_where_all_is_well(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    await lab.until(lambda: lab.status(job).get("registered") == 1)
    await lab.rest()
    since, described = len(lab.api.log), lab.of(job).described
    await lab.operate()
    await lab.quiet(0.4)
    assert [each for each in lab.api.writes(since) if each.user.endswith("operator")] == []
    assert lab.of(job).described == described
    assert not lab.of(job).retired


@pytest.mark.full
@played(timings=timings(call_s=0.4))
async def test_an_upgraded_operator_replaces_a_coordinator_only_when_no_capture_runs(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate(image="sameshot/cluster:1")
    await ready(lab, job)
    old = (lab.own("pods", job) or {})["metadata"]["uid"]
    lab.of(job).unsettled = 1
    await lab.rest()
    await lab.operate(image="sameshot/cluster:2")
    await lab.until(lambda: len(lab.of(job).retired) >= 4)
    assert set(lab.of(job).retired) == {REPLACED}
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == old
    lab.of(job).silent = True
    told = len(lab.of(job).retired)
    await lab.until(lambda: len(lab.of(job).retired) > told)
    await asyncio.sleep(0.5)
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == old, "it may still have captures"
    lab.of(job).silent, lab.of(job).unsettled = False, 0

    await lab.until(lambda: image(lab, job) == "sameshot/cluster:2")
    await ready(lab, job)


@played()
async def test_a_coordinators_pod_that_was_evicted_is_made_again(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    old = (lab.own("pods", job) or {})["metadata"]["uid"]
    evicted = {"phase": "Failed", "reason": "Evicted", "podIP": "127.0.0.1"}
    lab.api.set_status("pods", names.COORDINATORS_NAMESPACE, lab.name(job), evicted)
    await lab.until(lambda: (lab.own("pods", job) or {"metadata": {"uid": old}})["metadata"]["uid"] != old)
    await ready(lab, job)
    assert not lab.of(job).retired


# ---- trouble


@played()
async def test_what_happened_while_watching_was_broken_is_seen(lab: Lab) -> None:
    job, other = lab.job("llama"), lab.job("bert")
    operator = await lab.operate()
    await ready(lab, job, other)
    lab.api.away()
    lab.delete(job)
    service = lab.own("services", other)
    lab.api.store.delete(lab.api.store.kind("", "services"), names.COORDINATORS_NAMESPACE, lab.name(other), {})
    await lab.until(lambda: lab.cr(job) is None)
    lab.api.forget_before()  # whoever comes back is told that it has missed something
    lab.api.come_back()
    operator._lost()
    await lab.until(lambda: not lab.left(job))
    await lab.until(lambda: lab.own("services", other) not in (None, service))


@pytest.mark.full
@played()
async def test_an_api_server_that_is_away_for_a_while_costs_nothing(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate()
    await ready(lab, job)
    uid = (lab.own("pods", job) or {})["metadata"]["uid"]
    lab.api.away()
    await asyncio.sleep(1.5)
    lab.api.come_back()
    other = lab.job("bert")
    await lab.until(lambda: lab.phase(other) == "Ready")
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == uid
    assert not lab.of(job).retired


@pytest.mark.full
@played()
async def test_a_job_that_always_fails_delays_no_other(lab: Lab) -> None:
    """Somebody else's object has the name: a conflict for ever."""
    bad = lab.job("bad")
    spec = {"job": {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "attempt": 0}}
    lab.api.make({"apiVersion": "sameshot.dev/v1alpha1", "kind": "CaptureCoordinator", "spec": spec,
                  "metadata": {"name": lab.name(bad), "namespace": "ml"}})  # fmt: skip
    operator = await lab.operate()
    await lab.until(lambda: operator.queue.failures >= 3)
    jobs = [lab.job(f"job-{i}") for i in range(5)]
    await lab.until(lambda: all(lab.phase(each) == "Ready" for each in jobs), 10)
    assert operator.queue.resting == 1
    tries = [each.at for each in lab.asked() if each.resource == "capturecoordinators" and each.status == 409]
    pauses = [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert min(pauses) > 0.07
    assert max(pauses[:4]) > 0.15, "they grow"


@played()
async def test_a_write_that_is_refused_stands_in_the_status_until_it_works(lab: Lab) -> None:
    job = lab.job("llama")
    lab.api.fail(403, verb="create", resource="services")
    await lab.operate()
    await lab.until(lambda: lab.condition(job, "Reconciled").get("status") == "False")
    assert lab.condition(job, "Reconciled")["reason"] == "Forbidden"
    assert lab.phase(job) == "Failed"
    lab.api.fail(0)
    await lab.until(lambda: lab.phase(job) == "Ready")
    assert lab.condition(job, "Reconciled")["status"] == "True"


@played()
async def test_a_later_attempt_that_is_refused_keeps_no_earlier_one_from_making_room(lab: Lab) -> None:
    """What refuses it is often the quota that the earlier one fills."""
    made = lab.api.make({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                         "metadata": {"name": "llama", "namespace": "ml"}})  # fmt: skip
    first, second = (JobRef("ml", "llama", made["metadata"]["uid"], attempt) for attempt in (0, 1))
    lab.pod("llama-0", owner=made, labels={JOBSET_ATTEMPT: "0"})
    await lab.operate()
    await ready(lab, first)
    lab.api.fail(403, verb="create", resource="pods", user=OPERATOR)
    lab.end_pods(first, "Failed")
    lab.pod("llama-1", owner=made, labels={JOBSET_ATTEMPT: "1"})
    await lab.until(lambda: lab.own("pods", first) is None)
    assert lab.phase(first) == "Superseded"
    assert lab.condition(first, "Reconciled")["status"] == "True", "the trouble is the other one's"
    await lab.until(lambda: lab.condition(second, "Reconciled").get("reason") == "Forbidden")
    lab.api.fail(0)
    await ready(lab, second)


@played(timings=timings(call_s=0.3))
async def test_a_coordinator_that_never_answered_is_replaced_all_the_same_where_another_one_is_wanted(lab: Lab) -> None:
    job = lab.job("llama")
    lab.coordinators[lab.name(job)] = Scripted(silent=True)
    slow = timings(call_s=0.3, orphan_s=1.5)
    await lab.operate(timings=slow)
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "False")
    name = f"-n {names.COORDINATORS_NAMESPACE} {lab.name(job)}"
    assert lab.condition(job, "Reachable")["message"].endswith(f"kubectl delete pod {name}")
    await lab.rest()
    await lab.operate(timings=slow, coordinators_api_server="https://192.0.2.1:6443")
    await lab.until(lambda: lab.of(job).retired)
    pod = (lab.own("pods", job) or {})["metadata"]["uid"]
    await lab.until(lambda: (lab.own("pods", job) or {"metadata": {"uid": pod}})["metadata"]["uid"] != pod)
    lab.of(job).silent = False
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "True")


@played(timings=timings(call_s=0.3))
async def test_a_coordinator_that_can_not_be_reached_is_told_about(lab: Lab) -> None:
    job = lab.job("llama")
    lab.coordinators[lab.name(job)] = Scripted(silent=True)
    await lab.operate()
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "False")
    assert "did not answer in time" in lab.condition(job, "Reachable")["message"]
    assert lab.phase(job) == "Ready"
    lab.of(job).silent = False
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "True")


@played(timings=timings(call_s=0.3, ask_s=60.0, end_longest_s=0.3))
async def test_one_that_was_away_for_long_is_not_said_to_be_so_for_as_long_again(lab: Lab) -> None:
    job = lab.job("llama")
    lab.coordinators[lab.name(job)] = Scripted(silent=True)
    await lab.operate()
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "False")
    lab.of(job).silent = False
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "True", 10)


@played()
async def test_pods_whose_job_is_not_there_cost_ever_fewer_questions(lab: Lab) -> None:
    lab.api.collects = False  # nobody takes them away
    gone = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gone", "namespace": "ml", "uid": "0-1"}}
    lab.pod("gone-0", owner=gone)
    operator = await lab.operate(timings=timings(end_longest_s=60.0, end_s=0.05, unread_s=60.0))

    def looks() -> list[float]:
        return [each.at for each in lab.asked() if each.resource == "jobs" and each.name == "gone"]

    await lab.until(lambda: len(looks()) >= 7)
    pauses = [later - sooner for sooner, later in itertools.pairwise(looks()[2:])]
    assert pauses[-1] > 2 * pauses[-3], "each pause is twice the one before"
    assert operator.queue.failures == 0
    assert lab.api.list("capturecoordinators.sameshot.dev") == []


@played()
async def test_an_operator_that_is_installed_before_its_kinds_waits_for_them(lab: Lab) -> None:
    kinds = [each for each in shipped() if each["kind"] == "CustomResourceDefinition"]
    for each in kinds:
        lab.api.delete("customresourcedefinitions.apiextensions.k8s.io", "", each["metadata"]["name"])
    job = lab.job("llama")
    starting = asyncio.create_task(lab.operate())
    await lab.until(lambda: any(each.resource == "capturecoordinators" and each.status == 404 for each in lab.asked()))
    assert not starting.done()
    lab.api.apply(kinds)
    await starting
    await ready(lab, job)
    cr = (lab.cr(job) or {})["metadata"]["uid"]
    lab.api.delete("capturecoordinators.sameshot.dev", "ml", lab.name(job))
    await lab.until(lambda: (lab.cr(job) or {"metadata": {"uid": cr}})["metadata"]["uid"] != cr)


@pytest.mark.full
@played()
async def test_a_renewed_token_is_taken_before_the_old_one_is_refused(lab: Lab) -> None:
    way = lab.way()
    assert way.token_file is not None
    way.token_file.write_text(lab.api.token_for(OPERATOR, lasts_s=3))
    lab.operator = Operator(lab.config(), way)
    await lab.operator.start()
    job = lab.job("llama")
    await ready(lab, job)
    way.token_file.write_text(lab.api.token_for(OPERATOR, lasts_s=600))
    await asyncio.sleep(3.5)
    lab.api.drop_watches()
    later = lab.job("bert")
    await lab.until(lambda: lab.phase(later) == "Ready")
    assert lab.operator.watching.restarts == 0
    assert not [each for each in lab.api.log if each.status == 401]
