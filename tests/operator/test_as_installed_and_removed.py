"""The operator with the rights that deploy/ gives it: each of them is used, and nothing is left when all is removed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
from typing import Any

from cluster_api import ClusterApi
from cluster_kinds import PYTORCHJOB, TRAINJOB, VOLCANO_JOB
from cluster_store import Problem
from kubernetes_objects import kustomized
from operator_lab import JOBS, JOBSET, KINDS, ODD, OPERATOR, REPO, Lab, played, reference

from sameshot.arm import labels
from sameshot.kube import names
from sameshot.model import JobRef
from sameshot.operator import authority
from sameshot.operator.access import own_image
from sameshot.operator.rights import RIGHTS, Where

Json = dict[str, Any]
Used = dict[tuple[Where, str, str], set[str]]  # (where, group, resource) → verbs
PLACES = {
    names.SYSTEM_NAMESPACE: Where.SYSTEM,
    names.COORDINATORS_NAMESPACE: Where.COORDINATORS,
    names.AGENTS_NAMESPACE: Where.AGENTS,
}
OWNERS = {
    "apps/v1": ["StatefulSet", "ReplicaSet"],
    "jobset.x-k8s.io/v1alpha2": ["JobSet"],
    "kubeflow.org/v1": ["PyTorchJob"],
    "trainer.kubeflow.org/v1alpha1": ["TrainJob"],
    "batch.volcano.sh/v1alpha1": ["Job"],
}


def table() -> Used:
    found: Used = {}
    for each in RIGHTS:
        found.setdefault((each.where, each.group, each.resource), set()).update(each.verbs)
    return found


def used(lab: Lab) -> Used:
    """What was asked for and allowed, in the table's words."""
    known, found = table(), Used()
    for each in lab.api.log:
        if each.user != OPERATOR or not each.resource or each.resource.startswith("/"):  # what kinds there are
            continue
        resource = f"{each.resource}/{each.subresource}" if each.subresource else each.resource
        where = PLACES.get(each.namespace)
        if where is None:
            where = Where.CLUSTER if (Where.CLUSTER, each.group, resource) in known else Where.SELECTED
        assert each.status not in (401, 403), each
        found.setdefault((where, each.group, resource), set()).add(each.verb)
    return found


def namespace(name: str, **marks: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": marks}}


def owned_pod(lab: Lab, name: str, api_version: str, kind: str) -> None:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}
    meta = {"name": name, "namespace": "ml"}
    made = lab.api.make({"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec})
    lab.pod(f"{name}-0", owner=made, labels={JOBSET: "0"} if kind == "JobSet" else {})


@played()
async def test_each_right_that_it_has_is_used_and_none_that_it_has_not_is_missed(lab: Lab) -> None:
    """Whatever is taken from the table, or added to it, shows here: a server that holds to RBAC would refuse, or nobody
    would ever ask."""
    api = lab.api
    for kind in (PYTORCHJOB, TRAINJOB, VOLCANO_JOB):
        api.serve(kind)
    own = {"image": "registry/cluster@sha256:00", "name": "operator"}
    api.make({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "me", "namespace": names.SYSTEM_NAMESPACE},
              "spec": {"containers": [{"image": "mesh", "name": "mesh"}, own]}})  # fmt: skip
    me = {"POD_NAME": "me", "POD_NAMESPACE": names.SYSTEM_NAMESPACE}
    assert own_image(lab.config(image=""), lab.way(), me).image == own["image"]
    broken = {"apiVersion": "v1", "kind": "Secret", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}
    for name, there, kind in (
        ("sameshot-ca", names.SYSTEM_NAMESPACE, "Opaque"),
        ("sameshot-agent-tls", names.AGENTS_NAMESPACE, "kubernetes.io/tls"),
    ):
        api.make({**broken, "type": kind, "metadata": {"name": name, "namespace": there}})
    api.make(namespace("ml", **{labels.ARM_LABEL: labels.ENABLED}))
    api.make(namespace("idle", **{labels.ARM_LABEL: labels.ENABLED}))
    job = lab.job("llama")
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}
    of_apps = {"apiVersion": "apps/v1", "spec": spec}
    deployment = api.make({**of_apps, "kind": "Deployment", "metadata": {"name": "d", "namespace": "ml"}})
    above = {"name": "d-1", "namespace": "ml", "ownerReferences": [reference(deployment)]}
    replicas = api.make({**of_apps, "kind": "ReplicaSet", "metadata": above})
    lab.pod("d-1-x", owner=replicas)
    for api_version, kinds in OWNERS.items():
        for kind in kinds:
            owned_pod(lab, f"{kind.lower()}-{api_version.split('.')[0].replace('/', '-')}", api_version, kind)
    alone = JobRef("ml", "alone", lab.pod("alone")["metadata"]["uid"], 0)
    made = api.get("jobsets.jobset.x-k8s.io", "ml", "jobset-jobset")
    jobset = JobRef("ml", "jobset-jobset", made["metadata"]["uid"], 0)
    await lab.operate()
    await lab.rest()
    ageing = authority.new(datetime.datetime.now(datetime.UTC) - 300 * authority.DAY)
    old = {key: base64.b64encode(value).decode() for key, value in ageing.data.items()}
    api.change("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca", {"data": old})
    await lab.operate()
    await lab.rest()
    assert "next.crt" in api.get("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")["data"], "one that ends soon"
    for place, name in ((names.SYSTEM_NAMESPACE, "sameshot-ca"), (names.AGENTS_NAMESPACE, "sameshot-agent-tls")):
        api.delete("secrets", place, name)
    for what in ("configmaps", "capturecoordinators"):
        api.fail(409, verb="create", resource=what, user=OPERATOR, times=1)  # somebody else was first
    await lab.operate()
    for each in (job, jobset, alone):
        await lab.until(lambda each=each: lab.phase(each) == "Ready")
    await lab.until(lambda: api.find("configmaps", "idle", labels.HOOK_CONFIGMAP))
    await lab.quiet(0.3)

    where, name = names.COORDINATORS_NAMESPACE, lab.name(job)
    api.change("services", where, name, {"spec": {"selector": {"more": "x"}}})
    api.change("configmaps", where, name, {"data": {"config.json": "{}"}})
    api.change("secrets", where, name, {"data": {"tls.crt": "bm9uZQ=="}})
    api.change("serviceaccounts", where, names.account_of(job), {"automountServiceAccountToken": True})
    api.change("pods", where, name, {"metadata": {"labels": {names.ATTEMPT: "7"}}})
    api.change("rolebindings.rbac.authorization.k8s.io", "ml", name, {"subjects": []})
    api.change("configmaps", "idle", labels.HOOK_CONFIGMAP, {"data": {"sitecustomize.py": "pass"}})
    await lab.quiet(0.3)
    api.change("namespaces", "", "idle", {"metadata": {"labels": {labels.ARM_LABEL: None}}})
    await lab.until(lambda: api.find("configmaps", "idle", labels.HOOK_CONFIGMAP) is None)
    await lab.rest()
    bindings = "rolebindings.rbac.authorization.k8s.io"
    made = api.get(bindings, "ml", name)
    api.delete(bindings, "ml", name)
    meta = {key: made["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
    other = {**made, "metadata": meta, "roleRef": {**made["roleRef"], "name": "view"}}
    api.make(other)  # what it binds to can't be changed: it is made anew
    await lab.operate()
    await lab.until(lambda: (api.find(bindings, "ml", name) or other)["roleRef"] == made["roleRef"])
    lab.end_pods(job)
    await lab.until(lambda: lab.left(job) == set(KINDS))
    lab.delete(job)
    await lab.until(lambda: not lab.left(job))
    await lab.quiet(0.3)
    wanted = table()
    assert wanted.pop((Where.CLUSTER, "rbac.authorization.k8s.io", "clusterroles")) == {
        "bind"
    }  # asked of by the server
    found = used(lab)
    lacking = {key: verbs - found.get(key, set()) for key, verbs in wanted.items() if verbs - found.get(key, set())}
    beyond = {key: verbs - wanted.get(key, set()) for key, verbs in found.items() if verbs - wanted.get(key, set())}
    assert beyond == {}
    assert sorted(map(str, lacking.items())) == []


def everything(api: ClusterApi) -> set[tuple[str, str, str]]:
    return {
        (kind.kind, thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        for kind, thing in api.store.everything()
    }


def remove(api: ClusterApi, documents: list[Json]) -> None:
    """`kubectl delete`: one after the other; what is gone already is none."""
    for each in documents:
        with contextlib.suppress(Problem):
            kind, where = api._place(each)
            api.store.delete(kind, where, each["metadata"]["name"])


@played()
async def test_nothing_is_left_of_it_when_it_is_removed_as_the_page_says(lab: Lab) -> None:
    with ClusterApi(kinds=[JOBS, ODD]) as untouched:
        for name in ("ml", "other"):
            untouched.make(namespace(name))
        before = everything(untouched)
    api = lab.api
    documents = [
        each for each in kustomized(REPO / "deploy/overlays/cluster-wide")
        if not each["apiVersion"].startswith("cert-manager.io/")
    ]  # fmt: skip
    api.apply(documents)
    api.apply(kustomized(REPO / "deploy/namespace"))
    api.put(namespace("ml", **{labels.ARM_LABEL: labels.ENABLED}))
    jobs = [lab.job("llama"), lab.job("bert", namespace="other")]
    await lab.operate()
    for job in jobs:
        await lab.until(lambda job=job: lab.phase(job) == "Ready")
    await lab.until(lambda: api.find("configmaps", "ml", labels.HOOK_CONFIGMAP))

    await lab.rest()
    deployed = [each for each in documents if each["kind"] == "Deployment"]
    remove(api, [each for each in deployed if each["metadata"]["name"] == "sameshot-operator"])
    remove(api, api.list("capturecoordinators.sameshot.dev"))
    bindings = "rolebindings.rbac.authorization.k8s.io"
    made_by_it = "app.kubernetes.io/managed-by=sameshot-operator"
    await lab.until(lambda: not api.list(bindings, labels=made_by_it))
    remove(api, documents)
    remove(api, kustomized(REPO / "deploy/namespace"))
    users = {("Job", job.namespace, job.name) for job in jobs}
    users |= {("Pod", job.namespace, f"{job.name}-0") for job in jobs}
    for _ in range(400):
        if everything(api) == before | users:
            return
        await asyncio.sleep(0.05)
    assert everything(api) == before | users


def test_an_operator_for_chosen_namespaces_keeps_their_jobs_and_never_asks_about_others() -> None:
    async def play() -> None:
        with ClusterApi(kinds=[JOBS, ODD], collects=True) as api:
            for each in ("ml", "other"):
                api.make(namespace(each, **{labels.ARM_LABEL: labels.ENABLED}))
            api.apply(kustomized(REPO / "deploy/overlays/namespaces"))
            lab = Lab(api, namespaces=("ml",))
            keeping = asyncio.create_task(lab.keep())
            try:
                job, other = lab.job("llama"), lab.job("bert", namespace="other")
                await lab.operate()
                await lab.until(lambda: lab.phase(job) == "Ready")
                await lab.until(lambda: api.find("configmaps", "ml", labels.HOOK_CONFIGMAP))
                await lab.quiet(0.3)
                assert lab.cr(other) is None
                assert api.find("configmaps", "other", labels.HOOK_CONFIGMAP) is None
                asked = [each for each in api.log if each.user == OPERATOR]
                assert not [each for each in asked if each.namespace == "other" or each.status in (401, 403)]
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                await lab.close()

    asyncio.run(play())
