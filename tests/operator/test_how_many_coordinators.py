"""Jobs that take no room get no coordinator's pod, and no namespace fills the cluster with coordinators."""

from __future__ import annotations

from typing import Any

from operator_lab import KINDS, Lab, armed_pod, batch_job, played

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


@played(max_coordinators=3)
async def test_many_jobs_that_come_at_once_get_no_more_either(lab: Lab) -> None:
    jobs = [lab.job(f"job-{i}") for i in range(12)]
    await lab.operate()
    await lab.until(lambda: all(lab.condition(each, "Ready") for each in jobs))
    await lab.quiet(0.3)
    assert len(made(lab)) == 3
    assert {each["spec"]["priorityClassName"] for each in made(lab)} == {"sameshot-coordinator"}
    assert sum(bool(lab.left(each)) for each in jobs) == 3
