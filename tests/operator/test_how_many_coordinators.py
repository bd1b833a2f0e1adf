"""Jobs that take no room get no coordinator's pod, and no namespace fills the cluster with coordinators."""

from __future__ import annotations

from typing import Any

import msgspec
from operator_lab import JOBSET, KINDS, QUICK, Lab, armed_pod, batch_job, played

from sameshot.kube import names
from sameshot.model import JobRef


def pending(lab: Lab, name: str, namespace: str = "ml") -> JobRef:
    """A job whose one pod finds no node."""
    made = lab.api.make(batch_job(name, namespace))
    pod = armed_pod(f"{name}-0", namespace, made, 1, {}, {})
    del pod["spec"]["nodeName"]
    pod["status"]["phase"] = "Pending"
    lab.api.make(pod)
    return JobRef(namespace, name, made["metadata"]["uid"], 0)


def made(lab: Lab) -> list[dict[str, Any]]:
    return lab.api.list("pods", names.COORDINATORS_NAMESPACE)


@played()
async def test_a_job_none_of_whose_pods_has_a_node_has_no_coordinators_pod_and_is_told_why(lab: Lab) -> None:
    job = pending(lab, "llama")
    await lab.operate()
    await lab.until(lambda: lab.condition(job, "Ready"))
    await lab.quiet(0.3)
    assert lab.phase(job) == "Pending"
    assert lab.condition(job, "Ready")["reason"] == "NoPodPlaced"
    assert lab.left(job) == set(), "no certificate, account or Service either"
    lab.api.change("pods", "ml", "llama-0", {"spec": {"nodeName": "node-a"}, "status": {"phase": "Running"}})
    await lab.until(lambda: lab.phase(job) == "Ready")
    assert lab.left(job) == set(KINDS)


@played(max_coordinators=3)
async def test_a_namespace_has_so_many_and_the_next_starts_when_one_ends(lab: Lab) -> None:
    first = [lab.job(f"first-{i}") for i in range(3)]
    other = lab.job("other", namespace="dev")
    operator = await lab.operate()
    await lab.until(lambda: all(lab.phase(each) == "Ready" for each in (*first, other)))
    later = [lab.job(f"later-{i}") for i in range(4)]
    await lab.until(lambda: all(lab.condition(each, "Ready") for each in later))
    assert {lab.condition(each, "Ready")["reason"] for each in later} == {"TooManyCoordinators"}
    assert all(lab.phase(each) == "Ready" for each in first), "the oldest keep theirs"
    assert operator.keeper.held_back == 4
    assert len(made(lab)) == 4
    lab.delete(first[1])
    await lab.until(lambda: sum(lab.phase(each) == "Ready" for each in later) == 1)
    await lab.quiet(0.3)
    assert len(made(lab)) == 4
    assert operator.keeper.held_back == 3


SLOW = msgspec.structs.replace(QUICK, grace_s=60.0, remake_s=1.0)


@played(max_coordinators=1, timings=SLOW)
async def test_a_job_that_restarts_does_not_wait_for_its_own_earlier_attempt(lab: Lab) -> None:
    """That stays for ten minutes, to say that it was superseded. So many more at most: jobs may restart in a loop."""
    owner = lab.api.make({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                          "metadata": {"name": "llama", "namespace": "ml"}})  # fmt: skip
    attempts = [JobRef("ml", "llama", owner["metadata"]["uid"], each) for each in range(3)]
    lab.pod("llama-0", owner=owner, labels={JOBSET: "0"})
    await lab.operate()
    await lab.until(lambda: lab.phase(attempts[0]) == "Ready")
    lab.end_pods(attempts[0], "Failed")
    lab.pod("llama-1", owner=owner, labels={JOBSET: "1"})
    await lab.until(lambda: lab.phase(attempts[1]) == "Ready")
    assert lab.phase(attempts[0]) == "Superseded"
    assert len(made(lab)) == 2
    lab.end_pods(attempts[1], "Failed")
    lab.pod("llama-2", owner=owner, labels={JOBSET: "2"})
    await lab.until(lambda: lab.phase(attempts[1]) == "Superseded")
    await lab.quiet(0.5)
    assert lab.condition(attempts[2], "Ready").get("reason") == "TooManyCoordinators"
    assert len(made(lab)) == 2


@played(max_coordinators=1, timings=SLOW)
async def test_who_is_being_replaced_keeps_its_place_before_those_that_wait(lab: Lab) -> None:
    job = lab.job("first")
    await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    waits = lab.job("later")
    await lab.until(lambda: lab.condition(waits, "Ready").get("reason") == "TooManyCoordinators")
    first = lab.own("pods", job)
    lab.api.delete("pods", names.COORDINATORS_NAMESPACE, lab.name(job), gracePeriodSeconds=0)
    await lab.until(lambda: lab.own("pods", job) not in (None, first))
    await lab.until(lambda: lab.phase(job) == "Ready")
    assert lab.condition(waits, "Ready")["reason"] == "TooManyCoordinators"
    assert len(made(lab)) == 1
    lab.finish(job)
    await lab.until(lambda: lab.phase(waits) == "Ready")


@played(max_coordinators=3)
async def test_many_jobs_that_come_at_once_get_no_more_either(lab: Lab) -> None:
    jobs = [lab.job(f"job-{i}") for i in range(12)]
    await lab.operate()
    await lab.until(lambda: all(lab.condition(each, "Ready") for each in jobs))
    await lab.quiet(0.3)
    assert len(made(lab)) == 3
    assert {each["spec"]["priorityClassName"] for each in made(lab)} == {"sameshot-coordinator"}
    assert sum(bool(lab.left(each)) for each in jobs) == 3
