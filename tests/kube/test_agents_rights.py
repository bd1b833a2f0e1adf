"""What a node agent may do in the cluster is the least with which it works: each verb is taken away once."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi
from cluster_kinds import Kind
from kube_api import a_pod, an_object
from kubernetes_objects import kustomized
from live import wait_for

from sameshot.errors import Denied, Unreachable
from sameshot.kube import names
from sameshot.kube.podlist import PodList
from sameshot.kube.reviews import TokenReviews
from sameshot.model import JobRef

AGENT = Path(__file__).parents[2] / "deploy" / "agent"
USER = names.username_of(names.AGENTS_NAMESPACE, "sameshot-agent")
JOB = JobRef("ml", "llama", "u-1")
ROLE = next(each for each in kustomized(AGENT) if each["kind"] == "ClusterRole")
VERBS = [
    (group, resource, verb)
    for rule in ROLE["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with ClusterApi(kinds=[Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")]) as api:
        api.apply(kustomized(AGENT))
        yield api


def tell(api: ClusterApi) -> None:
    """A pod under each kind of owner that is climbed, all on node-a, and one on another node."""
    template = {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}
    top = an_object("TrainJob", "train", api_version="trainer.kubeflow.org/v1alpha1")  # nobody needs to read it
    jobset = api.make(an_object("JobSet", "set", api_version="jobset.x-k8s.io/v1alpha2", owner=top))
    job = api.make({**an_object("Job", "set-0", api_version="batch/v1", owner=jobset), "spec": template})
    deployment = api.make(
        {**an_object("Deployment", "serve", api_version="apps/v1"), "spec": {"selector": {}, **template}}
    )
    replicas = api.make(
        {
            **an_object("ReplicaSet", "serve-1", api_version="apps/v1", owner=deployment),
            "spec": {"selector": {}, **template},
        }
    )
    api.make(a_pod("of-a-jobset", node="node-a", owner=job))
    api.make(a_pod("of-a-deployment", node="node-a", owner=replicas))
    api.make(a_pod("elsewhere", node="node-b", owner=job))


def without(group: str, resource: str, verb: str) -> dict[str, Any]:
    role = copy.deepcopy(ROLE)
    for rule in role["rules"]:
        if group in rule["apiGroups"] and resource in rule["resources"]:
            rule["verbs"].remove(verb)
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    return role


def works(api: ClusterApi) -> list[str]:
    """What an agent can't do of all that it does; empty: it works."""
    problems = []
    list_of = PodList(api.kube(USER), node="node-a")
    try:
        if not list_of.start(1.5):
            return ["no list"]
        jobs = {each.pod.name: each.job for each in list_of.armed()}
        if jobs.keys() != {"of-a-jobset", "of-a-deployment"}:
            problems.append(f"other pods: {sorted(jobs)}")
        for name, top in (("of-a-jobset", "train"), ("of-a-deployment", "serve")):
            if (job := jobs.get(name)) is None or job.name != top:
                problems.append(f"{name} is of {job}")
        api.make(a_pod("late", node="node-a"))
        wait_for(lambda: len(list_of.armed()) == 3, "a new pod is seen, if by a new list")
        if any(each.user == USER and each.verb == "watch" and each.status == 403 for each in api.log):
            problems.append("no watch")
    finally:
        list_of.close()
    api.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": names.account_of(JOB), "namespace": names.COORDINATORS_NAMESPACE}})  # fmt: skip
    coordinator = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(JOB))
    token = api.token_for(coordinator, audience=names.AGENT_AUDIENCE)
    try:
        who = asyncio.run(TokenReviews(api.kube(USER), names.AGENT_AUDIENCE).who(token))
        assert who.username == coordinator
    except Unreachable:
        problems.append("no reviews")
    return problems


def test_with_the_rights_that_are_shipped_an_agent_works_and_writes_nothing(api: ClusterApi) -> None:
    tell(api)
    assert works(api) == []
    assert [each for each in api.log if each.user == USER and each.stores] == []
    asked = {(each.verb, each.group, each.resource) for each in api.log if each.user == USER and each.status < 400}
    assert asked == {(verb, group, resource) for group, resource, verb in VERBS}


@pytest.mark.parametrize(("group", "resource", "verb"), VERBS, ids=[f"{b}.{a}-{c}" for a, b, c in VERBS])
def test_without_any_one_of_its_verbs_it_does_not(api: ClusterApi, group: str, resource: str, verb: str) -> None:
    tell(api)
    api.put(without(group, resource, verb))
    assert works(api) != []


def test_a_real_token_is_good_for_its_audience_and_until_its_account_is_gone(api: ClusterApi) -> None:
    account = names.account_of(JOB)
    thing = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": account, "namespace": names.COORDINATORS_NAMESPACE}}  # fmt: skip
    api.put(thing)
    user = names.username_of(names.COORDINATORS_NAMESPACE, account)
    clock = [0.0]

    def who(audience: str) -> str:
        judge = TokenReviews(api.kube(USER), names.AGENT_AUDIENCE, outage_s=600, clock=lambda: clock[0])
        return asyncio.run(judge.who(api.token_for(user, audience=audience))).username

    assert who(names.AGENT_AUDIENCE) == user
    for other in ("https://kubernetes.default.svc", names.audience_of(JOB), ""):
        with pytest.raises(Denied):
            who(other)
    judge = TokenReviews(api.kube(USER), names.AGENT_AUDIENCE, outage_s=600, clock=lambda: clock[0])
    token = api.token_for(user, audience=names.AGENT_AUDIENCE)

    async def through() -> None:
        await judge.who(token)
        api.away()
        clock[0] = 300.0
        await judge.who(token)
        api.come_back()
        api.delete("serviceaccounts", names.COORDINATORS_NAMESPACE, account)
        clock[0] = 306.0
        with pytest.raises(Denied):
            await judge.who(token)

    asyncio.run(through())
