"""Needs an API server, its controller manager (Jobs, and what collects what a deleted owner leaves), RBAC. The operator
runs beside it with its own account's token. Coordinators' pods are made and may stay Pending: their image is none, but
for one test

    SAMESHOT_TEST_CLUSTER_IMAGE     that of deploy/containers/cluster.Containerfile, on a node already, with a tag that
                                    is not `latest`: then coordinators start, are found ready, and are captured with
    SAMESHOT_TEST_HOST_NETWORK=1    they use the node's network: where there is no network plugin
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cluster_at_hand import GONE_WITHIN_S, Cluster, accounts_of, apply
from cluster_parts import job_of, service

from sameshot.arm import labels
from sameshot.arm.hookmap import hook_configmap
from sameshot.client import connect
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Phase, path_of
from sameshot.local.services import Service
from sameshot.model import CaptureSpec, JobRef

Json = dict[str, Any]
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
WHO = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
THERE = f"/api/v1/namespaces/{names.COORDINATORS_NAMESPACE}"
CHILDREN = ("pods", "services", "secrets", "configmaps")
SETTLED_WITHIN_S = 60.0
SLOW = "what seems to belong to nobody is looked at twice, ten seconds apart; tests/operator has it with shorter times"


class Operator:
    def __init__(self, cluster: Cluster, image: str = "sameshot.invalid/cluster:0", *options: str) -> None:
        self.cluster = cluster
        self._options = ("--image", image, *options)
        self._folder = cluster.folder / f"operator-{uuid.uuid4().hex[:8]}"
        self._folder.mkdir()
        self._process: Service | None = None

    def start(self) -> None:
        token = self.cluster.token_file(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
        ca = () if self.cluster.ca_file is None else ("--api-ca-file", str(self.cluster.ca_file))
        self._process = service(
            "operator", self._folder, "operator", "--archive", "s3://nowhere/traces",
            "--api-server", self.cluster.api.url, "--api-token-file", str(token), *ca,
            "--grace", "1s", "--sweep", "3s", *self._options,
        )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(30)
            assert not self._process.restarts, (self._folder / "operator.log").read_text()[-4000:]
            self._process = None


@pytest.fixture(scope="module")
def operator(sameshot: Cluster) -> Iterator[Operator]:
    found = Operator(sameshot)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def operated(operator: Operator) -> Cluster:
    """A cluster with an operator that runs."""
    return operator.cluster


@pytest.fixture
def namespace(sameshot: Cluster) -> Iterator[str]:
    with sameshot.scope() as inner:
        name = inner.namespace("ml")
        apply(inner, accounts_of(name))
        yield name


def coordinator_of(cluster: Cluster, job: JobRef) -> CaptureCoordinator | None:
    found = cluster.get(path_of(job.namespace, names.coordinator_of(job)))
    return None if found is None else msgspec.convert(found, CaptureCoordinator)


def children(cluster: Cluster, job: JobRef) -> set[str]:
    """Which kinds of its objects there are in the coordinators' namespace."""
    selector = f"{names.JOB_UID}={job.uid}"
    found = {each for each in CHILDREN if cluster.items(f"{THERE}/{each}", labelSelector=selector)}
    if cluster.get(f"{THERE}/serviceaccounts/{names.account_of(job)}") is not None:
        found.add("serviceaccounts")
    return found


def made(cluster: Cluster, job: JobRef) -> bool:
    return coordinator_of(cluster, job) is not None and children(cluster, job) == {*CHILDREN, "serviceaccounts"}


def bindings(cluster: Cluster, job: JobRef) -> list[Json]:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{job.namespace}/rolebindings"
    return cluster.items(path, labelSelector=f"{names.JOB_UID}={job.uid}")


def delete_job(cluster: Cluster, job: JobRef) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    cluster.api.call("DELETE", f"/apis/batch/v1/namespaces/{job.namespace}/jobs/{job.name}", options)


def test_an_armed_job_gets_a_coordinator_with_all_that_is_its_own(operated: Cluster, namespace: str) -> None:
    with operated.scope() as inner:
        thing = inner.armed_job(namespace, "llama", pods=2)
        job = job_of(thing)
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)

        found = operated.get(path_of(namespace, names.coordinator_of(job)))
        assert found is not None
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("Job", job.uid, False)
        assert found["spec"]["job"] == {
            "apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": job.uid, "attempt": 0,
        }  # fmt: skip
        assert found["spec"]["labels"]["team"] == "nlp"
        operated.until(
            lambda: (told := coordinator_of(operated, job)) and told.status.conditions, "its status says something"
        )
        told = coordinator_of(operated, job)
        assert told is not None
        assert told.status.phase is Phase.PENDING, "nothing serves, and nobody says so"

        (pod,) = operated.items(f"{THERE}/pods", labelSelector=f"{names.JOB_UID}={job.uid}")
        assert pod["spec"]["serviceAccountName"] == names.account_of(job)
        assert pod["spec"].get("automountServiceAccountToken") is False
        (config,) = operated.items(f"{THERE}/configmaps", labelSelector=f"{names.JOB_UID}={job.uid}")
        assert json.loads(config["data"]["config.json"])["job"]["uid"] == job.uid
        (binding,) = bindings(operated, job)
        assert binding["roleRef"]["name"] == "sameshot-coordinator"
        assert binding["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
        account = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        assert operated.until(lambda: operated.may(account, "list", "pods", namespace=namespace), "it may see the pods")


def test_nothing_of_a_user_s_is_ever_written(operated: Cluster, namespace: str) -> None:
    with operated.scope() as inner:
        job = job_of(inner.armed_job(namespace, "untouched"))
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)
        things = [
            operated.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/untouched"),
            operated.get(f"/api/v1/namespaces/{namespace}"),
            *operated.items(f"/api/v1/namespaces/{namespace}/pods"),
        ]
        for each in things:
            assert each is not None
            managers = {one["manager"] for one in each["metadata"].get("managedFields", [])}
            assert not [one for one in managers if "sameshot" in one], managers
            assert not [one for one in each["metadata"].get("finalizers", []) if "sameshot" in one or "kopf" in one]
            assert not [one for one in each["metadata"].get("annotations", {}) if "kopf" in one]
        assert operated.items(f"/api/v1/namespaces/{namespace}/events") == [] or operated.emulated is None
        if operated.emulated is not None:  # which keeps a log of every request
            kinds = {
                (one.resource, one.verb) for one in operated.emulated.writes(user=WHO) if one.namespace == namespace
            }
            assert {kind for kind, _ in kinds} <= {names.COORDINATORS, "rolebindings", "configmaps"}, kinds


def test_a_deleted_job_takes_all_of_it_along(operated: Cluster, namespace: str) -> None:
    operated.not_too_slow(SLOW)
    with operated.scope() as inner:
        job = job_of(inner.armed_job(namespace, "deleted"))
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)
        delete_job(operated, job)
        operated.until(lambda: coordinator_of(operated, job) is None, "it goes with its owner", GONE_WITHIN_S)
        operated.until(lambda: bindings(operated, job) == [], "so does the RoleBinding", GONE_WITHIN_S)
        operated.until(lambda: not children(operated, job), "the operator removes the rest", GONE_WITHIN_S)


def test_what_belongs_to_a_job_that_there_is_not_is_swept(operated: Cluster, namespace: str) -> None:
    operated.not_too_slow(SLOW)
    with operated.scope() as inner:
        job = job_of(inner.armed_job(namespace, "there"))
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)
        stray = _stray(namespace)
        inner.create(stray)
        path = f"{THERE}/configmaps/{stray['metadata']['name']}"
        operated.until(lambda: operated.get(path) is None, "it is removed", GONE_WITHIN_S)
        assert made(operated, job), "and nothing else"


def _stray(namespace: str) -> Json:
    """What an operator that was ended in the middle leaves: something of a job of which nothing else is there."""
    gone = JobRef(namespace, "gone", str(uuid.uuid4()))
    meta = {
        "name": names.coordinator_of(gone),
        "namespace": names.COORDINATORS_NAMESPACE,
        "labels": {
            **names.MANAGED, names.JOB_UID: gone.uid, names.ATTEMPT: "0", names.JOB_NAMESPACE: gone.namespace,
        },
        "annotations": {names.JOB_NAME: gone.name},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}


def test_what_somebody_deletes_is_made_again(operated: Cluster, namespace: str) -> None:
    with operated.scope() as inner:
        job = job_of(inner.armed_job(namespace, "again"))
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)
        path = f"{THERE}/services/{names.coordinator_of(job)}"
        before = operated.get(path)
        assert before is not None
        operated.api.call("DELETE", path)
        operated.until(
            lambda: (now := operated.get(path)) and now["metadata"]["uid"] != before["metadata"]["uid"],
            "another Service is there",
            SETTLED_WITHIN_S,
        )


def test_the_hook_is_kept_in_namespaces_that_ask_for_it_and_a_foreign_one_is_left_alone(operated: Cluster) -> None:
    with operated.scope() as inner:
        asking = inner.namespace("asks", **{labels.ARM_LABEL: labels.ENABLED})
        path = f"/api/v1/namespaces/{asking}/configmaps/{labels.HOOK_CONFIGMAP}"
        hook = operated.until(lambda: operated.get(path), "the hook is there", SETTLED_WITHIN_S)
        assert hook["data"] == hook_configmap()["data"]
        operated.api.call("DELETE", path)
        operated.until(lambda: operated.get(path), "it is made again", SETTLED_WITHIN_S)

        silent = inner.namespace("silent")
        theirs = {
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {"name": labels.HOOK_CONFIGMAP, "namespace": silent},
        }  # fmt: skip
        inner.create(theirs)
        operated.api.patch(f"/api/v1/namespaces/{silent}", {"metadata": {"labels": {labels.ARM_LABEL: labels.ENABLED}}})
        other = inner.namespace("asks", **{labels.ARM_LABEL: labels.ENABLED})
        operated.until(
            lambda: operated.get(f"/api/v1/namespaces/{other}/configmaps/{labels.HOOK_CONFIGMAP}"),
            "a namespace that asked later has it",
            SETTLED_WITHIN_S,
        )
        left = operated.get(f"/api/v1/namespaces/{silent}/configmaps/{labels.HOOK_CONFIGMAP}")
        assert left is not None
        assert left["data"] == {"a": "b"}


def test_a_namespace_s_policy_reaches_its_coordinators(operated: Cluster, namespace: str) -> None:
    with operated.scope() as inner:
        job = job_of(inner.armed_job(namespace, "limited"))
        operated.until(lambda: made(operated, job), "everything of it is made", SETTLED_WITHIN_S)
        meta = {"name": "limits", "namespace": namespace}
        spec = {"maxDurationMs": 1234, "maxDurationWithStackMs": 123}
        inner.create({"apiVersion": names.API_VERSION, "kind": "CapturePolicy", "metadata": meta, "spec": spec})

        def policy() -> Json:
            config = operated.get(f"{THERE}/configmaps/{names.coordinator_of(job)}")
            return {} if config is None else json.loads(config["data"]["policy.json"])

        operated.until(lambda: policy().get("max_duration_ms") == 1234, "it is in its ConfigMap", SETTLED_WITHIN_S)
        assert policy()["max_duration_with_stack_ms"] == 123


def test_an_operator_that_comes_back_finds_what_happened_meanwhile(operator: Operator, namespace: str) -> None:
    cluster = operator.cluster
    cluster.not_too_slow(SLOW)
    with cluster.scope() as inner:
        stays, goes = (job_of(inner.armed_job(namespace, name)) for name in ("stays", "goes"))
        for job in (stays, goes):
            cluster.until(lambda job=job: made(cluster, job), f"{job.name} has all", SETTLED_WITHIN_S)
        before = coordinator_of(cluster, stays)
        operator.stop()
        try:
            delete_job(cluster, goes)
            comes = job_of(inner.armed_job(namespace, "comes"))
            cluster.until(lambda: coordinator_of(cluster, goes) is None, "it goes with its owner", GONE_WITHIN_S)
            assert children(cluster, goes), "nobody is there who would remove them"
        finally:
            operator.start()
        cluster.until(lambda: not children(cluster, goes), "they are swept", GONE_WITHIN_S)
        cluster.until(lambda: made(cluster, comes), "the new job has all", SETTLED_WITHIN_S)
        after = coordinator_of(cluster, stays)
        assert before is not None
        assert after is not None
        assert after.metadata.uid == before.metadata.uid, "the other one was left as it was"


def test_where_its_image_is_at_hand_a_coordinator_gets_ready_and_answers_through_the_server(
    operator: Operator, namespace: str
) -> None:
    image = os.environ.get("SAMESHOT_TEST_CLUSTER_IMAGE")
    if image is None or operator.cluster.emulated is not None:
        pytest.skip("SAMESHOT_TEST_CLUSTER_IMAGE is not set, or no kubelet is there that would run it")
    cluster = operator.cluster
    host = ("--host-network",) if os.environ.get("SAMESHOT_TEST_HOST_NETWORK") == "1" else ()
    # Also on a control plane's only node, and on one without a network plugin, which never gets ready.
    taints = {(each["key"], each["effect"]) for node in cluster.api.nodes() for each in node["spec"].get("taints", ())}
    tolerated = [word for key, effect in sorted(taints) for word in ("--toleration", f"{key}:{effect}")]
    with cluster.scope() as inner:
        operator.stop()
        real = Operator(cluster, image, "--endpoint", "pod-ip", "--coordinator-metrics", "", *host, *tolerated)
        real.start()
        try:
            job = job_of(inner.armed_job(namespace, "served"))

            def ready() -> bool:
                found = coordinator_of(cluster, job)
                return found is not None and found.status.phase is Phase.READY

            cluster.until(ready, f"the coordinator of {job} is ready", 240)
            address = f"kube:{namespace}/served?route=port-forward&kubeconfig={os.environ['KUBECONFIG']}"
            with connect(address) as client:
                told = client.describe()
                assert told.job == job
                # Without a request key, and with no worker to publish for: nothing asks for the archive, which is none.
                view = client.wait(client.start_capture(CaptureSpec(duration_ms=200)).capture_id, timeout_s=120)
            assert view.state.terminal, "its pods never started, and it says so"
            delete_job(cluster, job)
            cluster.until(lambda: not children(cluster, job), "all of it goes with its job", GONE_WITHIN_S)
        finally:
            real.stop()
            operator.start()
