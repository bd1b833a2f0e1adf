"""From armed pods to a report, with nothing but what `deploy/` applies: operator, coordinator, agent, each with the
rights that its account has; a person's command from outside, through the API server's port-forward."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cluster_lab import ClusterLab, PodProcess

from sameshot.arm.hookmap import hook_files
from sameshot.arm.kinds import arm_object
from sameshot.kube import names
from sameshot.model import JobRef

pytestmark = [pytest.mark.full, pytest.mark.live, pytest.mark.timeout(300)]

OPERATOR = "app.kubernetes.io/name=sameshot-operator"
OPERATOR_ACCOUNT = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
AWAY_S = 14.0  # longer than the window, and than what anybody remembers of reviews (5 s)


def test_from_armed_pods_to_a_report(training: Any) -> None:
    chain, api = training, training.lab.api
    status = chain.coordinator()["status"]
    assert (status["registered"], status["expected"]) == (2, 2) or status["expected"] is None
    assert status["endpoint"]
    hook = hook_of(chain)
    assert hook["data"] == hook_files()

    since = len(api.log)
    view = chain.sameshot(
        "capture", "-n", "ml", "--job", "train", "--duration", "500ms", "--warmup", "0s", "--activities", "cpu",
        "--wait", "-o", "json",
    )  # fmt: skip
    during = api.log[since:]
    assert not any(one.stores for one in during), [one for one in during if one.stores]
    # Otherwise there would be nothing to count: the way led through this server, and tokens were looked at.
    seen = {(one.verb, one.resource, one.subresource) for one in during}
    assert {("get", "pods", "portforward"), ("create", "serviceaccounts", "token")} <= seen
    assert {("create", "tokenreviews", ""), ("create", "subjectaccessreviews", "")} <= seen

    uri = view["manifest_uri"]
    manifest = archived(chain.store, uri)
    assert manifest["totals"] == {"expected": 2, "archived": 2, "failed": 0, "missing_ranks": []}
    assert [one["identity"]["rank"] for one in manifest["targets"]] == [0, 1]
    assert {one["identity"]["pod"] for one in manifest["targets"]} == {"train-0", "train-1"}
    assert manifest["capture"]["job"]["namespace"] == "ml"

    done = chain.lab.sameshot(
        "analyze", uri, "--out", "s3://traces/reports/one", "--on-cluster",
        kubeconfig=chain.kubeconfig, **chain.environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{chain.lab.story()}"
    place = uri.removeprefix("s3://traces/prod/").removesuffix("/manifest.json")
    page = chain.store.get_object(Bucket="traces", Key=f"reports/one/captures/{place}/report.html")["Body"].read()
    assert b"<html" in page[:2000]
    assert b"train" in page

    # In the namespace of users' jobs the operator has written its own objects, and nothing of theirs.
    assert {(one.verb, one.resource) for one in api.writes(user=OPERATOR_ACCOUNT) if one.namespace == "ml"} == {
        ("create", "capturecoordinators"),
        ("patch", "capturecoordinators"),
        ("create", "rolebindings"),
        ("create", "configmaps"),
    }


def hook_of(chain: Any) -> Any:
    return chain.lab.until(
        lambda: chain.lab.api.find("configmaps", "ml", "sameshot-hook"), "the hook is in its namespace"
    )


def archived(store: Any, uri: str) -> Any:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return json.loads(store.get_object(Bucket=bucket, Key=key)["Body"].read())


def test_operator_and_api_server_away_in_mid_capture_cost_nothing(training: Any) -> None:
    """Two wait for one capture (one account, one key): a person through the API server's port-forward, and a pod in
    the cluster. The pod is told how it ended while nobody answers at the API server, the person once it is back."""
    chain, lab = training, training.lab
    operator = lab.pod(names.SYSTEM_NAMESPACE, OPERATOR)
    restarts, known = operator.restarts, manifests(chain.store)
    key = f"outage-{time.time_ns()}"
    command = ("capture", "-n", "ml", "--job", "train", "--key", key, "--start-in", "6s", "--duration", "3s",
               "--warmup", "0s", "--activities", "cpu", "--wait")  # fmt: skip
    within = pod_that_asks(lab, key, *command)
    with lab.started(*command, kubeconfig=chain.kubeconfig, PYTHONUNBUFFERED="1", **chain.environment) as person:
        assert person.stdout is not None
        first = person.stdout.readline()
        assert "0 of 2 archived" in first, first
        lab.until(lambda: "0 of 2 archived" in within.said(), "the pod follows it, too", 20)
        assert not manifests(chain.store) - known
        operator.kill()
        lab.api.away()
        back_at = time.monotonic() + AWAY_S
        try:
            lab.until(lambda: manifests(chain.store) - known, "the manifest, while nobody answers", AWAY_S)
            lab.until(lambda: phase(lab, within) == "Succeeded", "the pod knows, while nobody answers", AWAY_S)
            time.sleep(max(0.0, back_at - time.monotonic()))  # and still nobody does: the person waits on
            assert person.poll() is None, person.communicate()
        finally:
            lab.api.come_back()
        out, err = person.communicate(timeout=60)
    assert person.returncode == 0, f"{out}\n{err}\n{lab.story()}"
    [uri] = {f"s3://traces/{key}" for key in manifests(chain.store) - known}
    assert uri in out.replace("\n", "")
    assert uri in within.said().replace("\n", "")
    assert archived(chain.store, uri)["totals"]["archived"] == 2
    assert operator.restarts == restarts + 1  # started again meanwhile, and it has waited for the API server
    assert chain.ready()["status"]["pod"]


def pod_that_asks(lab: ClusterLab, name: str, *command: str) -> PodProcess:
    """A pod in the job's namespace that may capture, as deploy/namespace allows its account."""
    container = {"name": "main", "image": "x", "command": ["sameshot"], "args": list(command)}
    spec = {
        "restartPolicy": "Never",
        "serviceAccountName": names.CALLERS_ACCOUNT,
        "automountServiceAccountToken": True,
        "containers": [container | {"env": [{"name": "PYTHONUNBUFFERED", "value": "1"}]}],
    }
    meta = {"name": name, "namespace": "ml", "labels": {"app": name}}
    lab.api.make({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return lab.pod("ml", f"app={name}")


def phase(lab: ClusterLab, pod: PodProcess) -> str:
    found: str = lab.api.get("pods", *pod.key)["status"]["phase"]
    assert found != "Failed", pod.said()
    return found


def manifests(store: Any) -> set[str]:
    listed = store.list_objects_v2(Bucket="traces").get("Contents") or ()
    return {one["Key"] for one in listed if one["Key"].endswith("manifest.json")}


def test_a_job_deleted_while_the_operator_is_down_takes_along_all_that_was_made_for_it(chain: Any) -> None:
    """What the collector can take goes at once, the rest once the operator is back."""
    lab, api = chain.lab, chain.lab.api
    job = armed_job(lab, "short")
    chain.ready(job)
    assert kinds_of(lab, job) == {
        "CaptureCoordinator", "Pod", "Service", "ServiceAccount", "Secret", "ConfigMap", "RoleBinding"
    }  # fmt: skip
    operator = ("deployments.apps", names.SYSTEM_NAMESPACE, "sameshot-operator")
    api.change(*operator, {"spec": {"replicas": 0}})
    lab.until(lambda: not api.list("pods", names.SYSTEM_NAMESPACE, labels=OPERATOR), "the operator has ended")
    api.delete("jobs.batch", "ml", "short")
    lab.until(lambda: not kinds_of(lab, job) & {"CaptureCoordinator", "RoleBinding"}, "what the collector takes", 20)
    assert "Pod" in kinds_of(lab, job)
    api.change(*operator, {"spec": {"replicas": 1}})
    lab.until(lambda: not kinds_of(lab, job), "nothing of it is left", 60)
    assert len(kinds_of(lab, chain.job)) == 7  # and all of another job's


def armed_job(lab: ClusterLab, name: str) -> JobRef:
    """A job whose one pod is armed and idle."""
    job = lab.job(name)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.uid, "controller": True}
    container = {"name": "trainer", "image": "x", "command": ["sleep", "infinity"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-0", "namespace": "ml", "ownerReferences": [owner]},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    lab.api.make(dict(arm_object(pod).thing))
    return job


def kinds_of(lab: ClusterLab, job: JobRef) -> set[str]:
    account, coordinator = names.account_of(job), names.coordinator_of(job)
    return {
        kind.kind
        for kind, one in lab.api.store.everything()
        if one["metadata"]["name"] in (account, coordinator) and kind.kind != "EndpointSlice"
    }
