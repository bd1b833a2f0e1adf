"""What deploy/ gives to whom, asked of an API server that holds to RBAC; and that nothing is left once it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi
from cluster_rbac import Asked, User
from kubernetes_objects import kustomized

from sameshot.arm import labels
from sameshot.errors import Denied
from sameshot.kube import names
from sameshot.kube.api import ApiError
from sameshot.kube.coordinators import Job, Spec, path_of
from sameshot.kube.reviews import AccessReviews, TokenReviews
from sameshot.kube.tokens import RequestedToken
from sameshot.model import CapturePolicy, JobRef
from sameshot.operator import coordinatorpod, objects
from sameshot.operator.authority import Pair
from sameshot.operator.config import OperatorConfig
from sameshot.operator.hooks import hook_of

DEPLOY = Path(__file__).parents[2] / "deploy"
WHOLE, CHOSEN = DEPLOY / "overlays/cluster-wide", DEPLOY / "overlays/namespaces"
OPERATOR = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
JOB = JobRef("ml", "llama", "6a0f7c1e-0000-4000-8000-000000000001", 0)
CONFIG = OperatorConfig(image="sameshot/cluster:0.1.0", archive="s3://traces/prod")
Json = dict[str, Any]


def without_foreign(documents: list[Json]) -> list[Json]:
    """Without those of cert-manager, whose kinds the emulated server does not have."""
    return [each for each in documents if not each["apiVersion"].startswith("cert-manager.io/")]


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with ClusterApi() as api:
        for name in ("ml", "other"):
            api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield api


@pytest.fixture
def installed(api: ClusterApi) -> ClusterApi:
    api.apply(without_foreign(kustomized(WHOLE)))
    api.apply(kustomized(DEPLOY / "namespace"))
    for name, role in (("erin", "edit"), ("vera", "view")):
        bind(api, name, "ClusterRole", role, "ml")
    return api


def bind(api: ClusterApi, person: str, kind: str, role: str, namespace: str) -> None:
    api.make(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{person}-{role}", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": person}],
        }
    )


def refused(call: Any) -> int:
    with pytest.raises(ApiError) as info:
        call()
    return info.value.status


# ---- people


def test_a_person_captures_through_an_account_of_the_namespace(installed: ClusterApi) -> None:
    """The whole way of a call: a token is asked for with the person's own rights, the coordinator looks whose it is and
    asks what that account may do."""
    asyncio.run(ways_of_calls(installed))


async def ways_of_calls(installed: ClusterApi) -> None:
    reviewer = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(JOB))
    installed.make(objects.account(JOB, CONFIG))
    asks = installed.kube(reviewer)
    tokens = TokenReviews(asks, names.audience_of(JOB))
    rights = AccessReviews(asks, group=names.GROUP, resource=names.CAPTURES, namespace="ml")
    elsewhere = AccessReviews(asks, group=names.GROUP, resource=names.CAPTURES, namespace="other")
    for person, account, may in (
        ("erin", names.CALLERS_ACCOUNT, {"create", "get", "list", "delete"}),
        ("vera", "sameshot-viewer", {"get", "list"}),
    ):
        token = RequestedToken(installed.kube(person), "ml", account, names.audience_of(JOB))()
        who = await tokens.who(token)
        assert who.username == names.username_of("ml", account)
        for verb in ("create", "get", "list", "delete"):
            if verb in may:
                await rights.check(who, verb, JOB.name)
            else:
                with pytest.raises(Denied):
                    await rights.check(who, verb, JOB.name)
            with pytest.raises(Denied):
                await elsewhere.check(who, verb, JOB.name)
        with pytest.raises(Denied):  # it is for this job's coordinators, and for nobody else
            await TokenReviews(asks, names.AGENT_AUDIENCE).who(token)


def test_who_only_views_gets_no_token_of_the_account_that_captures(installed: ClusterApi) -> None:
    with pytest.raises(Denied):
        RequestedToken(installed.kube("vera"), "ml", names.CALLERS_ACCOUNT, names.audience_of(JOB))()
    with pytest.raises(Denied):
        RequestedToken(installed.kube("mallory"), "ml", "sameshot-viewer", names.audience_of(JOB))()


def test_people_find_coordinators_and_policies_and_change_neither(installed: ClusterApi) -> None:
    installed.make({"apiVersion": names.API_VERSION, "kind": "CapturePolicy",
                    "metadata": {"name": "short", "namespace": "ml"}, "spec": {"maxDurationMs": 1000}})  # fmt: skip
    path = f"/apis/{names.API_VERSION}/namespaces/ml/{names.POLICIES}"
    for person in ("erin", "vera"):
        kube = installed.kube(person)
        assert b"maxDurationMs" in kube.get(path)
        kube.get(path_of("ml"))
        assert refused(lambda kube=kube: kube.get(path_of("other"))) == 403
        assert refused(lambda kube=kube: kube.send("DELETE", f"{path}/short")) == 403
    bind(installed, "ada", "ClusterRole", "admin", "ml")
    installed.kube("ada").send("DELETE", f"{path}/short")


def test_a_way_to_coordinators_is_given_by_a_binding_there_and_gives_nothing_else(installed: ClusterApi) -> None:
    erin, where = User("erin"), names.COORDINATORS_NAMESPACE

    def may(verb: str, resource: str, sub: str = "") -> bool:
        return installed.rbac.allows(erin, Asked(verb, "", resource, sub, where, "some-pod"))

    assert not may("get", "pods", "portforward")
    bind(installed, "erin", "Role", "sameshot-connect", where)
    assert all(may(verb, "pods", "portforward") for verb in ("get", "create"))
    assert may("get", "pods")
    for verb, resource, sub in (
        ("list", "pods", ""), ("create", "pods", ""), ("delete", "pods", ""), ("create", "pods", "exec"),
        ("get", "pods", "log"), ("get", "secrets", ""), ("create", "serviceaccounts", "token"),
        ("get", "configmaps", ""),
    ):  # fmt: skip
        assert not may(verb, resource, sub), (verb, resource, sub)


def test_who_administers_a_namespace_can_let_other_accounts_capture_there(installed: ClusterApi) -> None:
    """Kubernetes lets nobody give a right that he does not have: `admin` has all of sameshot-user's."""
    bind(installed, "ada", "ClusterRole", "admin", "ml")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "argo-captures", "namespace": "ml"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sameshot-user"},
        "subjects": [{"kind": "ServiceAccount", "name": "argo", "namespace": "ml"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/ml/rolebindings"
    installed.kube("ada").send("POST", path, binding)
    assert refused(lambda: installed.kube("erin").send("POST", path, binding)) == 403


# ---- the operator


def test_the_operator_gives_away_one_role_and_nothing_that_it_does_not_have_itself(installed: ClusterApi) -> None:
    kube = installed.kube(OPERATOR)
    path = objects.path(objects.Kind.BINDING, "ml")
    binding = objects.binding(JOB, CONFIG, "uid")
    kube.send("POST", path, binding)
    for role in ("edit", "view", "cluster-admin", "sameshot-user"):
        other = {**binding, "metadata": {**binding["metadata"], "name": f"x-{role}"}}
        other["roleRef"] = {**binding["roleRef"], "name": role}
        assert refused(lambda other=other: kube.send("POST", path, other)) == 403


def test_the_operator_reaches_no_secret_config_map_or_job_of_users(installed: ClusterApi) -> None:
    kube = installed.kube(OPERATOR)
    for kind, name in (("Secret", "own"), ("ConfigMap", "own"), ("ConfigMap", labels.HOOK_CONFIGMAP)):
        installed.make({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "ml"}})
    core = "/api/v1/namespaces/ml"
    for path in (f"{core}/secrets", f"{core}/secrets/own", f"{core}/configmaps", f"{core}/configmaps/own"):
        assert refused(lambda path=path: kube.get(path)) == 403
    assert refused(lambda: kube.send("DELETE", f"{core}/configmaps/own")) == 403
    for path in (f"{core}/pods/p", "/apis/batch/v1/namespaces/ml/jobs/j", "/api/v1/namespaces/ml"):
        for method in ("PATCH", "DELETE"):
            assert refused(lambda path=path, method=method: kube.send(method, path, {})) == 403
    kube.get(f"{core}/configmaps", {"fieldSelector": f"metadata.name={labels.HOOK_CONFIGMAP}"})
    system, agents = (f"/api/v1/namespaces/{each}/secrets" for each in (names.SYSTEM_NAMESPACE, names.AGENTS_NAMESPACE))
    for path in (f"{system}/sameshot-archive-delete", f"{agents}/sameshot-archive", system, agents):
        assert refused(lambda path=path: kube.get(path)) == 403
    with pytest.raises(Denied):  # and it can be nobody else
        RequestedToken(kube, "ml", names.CALLERS_ACCOUNT, names.audience_of(JOB))()
    RequestedToken(kube, names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT, names.audience_of(JOB))()


def test_an_operator_for_one_namespace_sees_no_other(api: ClusterApi) -> None:
    api.apply(kustomized(CHOSEN))
    kube = api.kube(OPERATOR)
    kube.get("/api/v1/namespaces/ml/pods")
    kube.get(path_of("ml"))
    assert refused(lambda: kube.get("/api/v1/namespaces/other/pods")) == 403
    assert refused(lambda: kube.get("/api/v1/pods")) == 403
    kube.send("POST", objects.path(objects.Kind.BINDING, "ml"), objects.binding(JOB, CONFIG, "uid"))
    elsewhere = objects.binding(JobRef("other", JOB.name, JOB.uid, 0), CONFIG, "uid")
    assert refused(lambda: kube.send("POST", objects.path(objects.Kind.BINDING, "other"), elsewhere)) == 403


# ---- removing it


def everything(api: ClusterApi) -> set[tuple[str, str, str]]:
    return {
        (kind.kind, thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        for kind, thing in api.store.everything()
    }


def run_a_while(api: ClusterApi) -> None:
    """What the operator makes for one job, and in a namespace that is labelled for the hook."""
    job = api.make(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "llama", "namespace": "ml"},
            "spec": {"template": {"spec": {"restartPolicy": "Never"}}},
        }
    )
    ref = JobRef("ml", "llama", job["metadata"]["uid"], 0)
    spec = Spec(Job("batch/v1", "Job", "llama", ref.uid, 0), "llama")
    made = api.make(objects.capture_coordinator(ref, spec))
    attempt = objects.Attempt(ref, "llama", CapturePolicy(), b"")
    for each in (
        objects.account(ref, CONFIG), objects.binding(ref, CONFIG, made["metadata"]["uid"]),
        objects.secret(ref, CONFIG, Pair(b"c", b"k")), objects.config_map(attempt, CONFIG),
        objects.service(attempt, CONFIG), coordinatorpod.pod(attempt, CONFIG),
    ):  # fmt: skip
        api.make(each)
    crd = api.get("customresourcedefinitions.apiextensions.k8s.io", "", f"{names.COORDINATORS}.{names.GROUP}")
    api.make(hook_of("ml", crd["metadata"]["uid"]))
    for namespace, name in ((names.SYSTEM_NAMESPACE, "sameshot-ca"), (names.AGENTS_NAMESPACE, "sameshot-agent-tls")):
        api.make({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}})


def test_a_removed_job_takes_along_what_was_made_for_it_in_its_namespace(installed: ClusterApi) -> None:
    before = everything(installed)
    run_a_while(installed)
    installed.delete("jobs.batch", "ml", "llama")
    while installed.collect():
        pass
    left = everything(installed) - before
    assert {namespace for _, namespace, _ in left} == {
        names.COORDINATORS_NAMESPACE, names.SYSTEM_NAMESPACE, names.AGENTS_NAMESPACE, "ml"
    }  # fmt: skip
    assert {(kind, name) for kind, namespace, name in left if namespace == "ml"} == {
        ("ConfigMap", labels.HOOK_CONFIGMAP)
    }  # fmt: skip
