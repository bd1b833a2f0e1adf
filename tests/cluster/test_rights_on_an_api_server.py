"""Needs an API server with RBAC; and, for `view` and `edit` to take in ours, its controller manager.

Every account is asked for by SubjectAccessReview, so it is the server's own authorizer that decides, on what deploy/
holds and nothing else. What an account may do by way of system:authenticated (discovery, reviews of itself) is not
looked at.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from api_server import Refused
from cluster_at_hand import Cluster, accounts_of

from sameshot.kube import names
from sameshot.model import JobRef
from sameshot.operator.rights import RIGHTS, Right, Where
from sameshot.steps.rights import rights

Json = dict[str, Any]
pytestmark = pytest.mark.full

JOB = JobRef("sameshot-test-jobs", "llama", "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0")
OPERATOR = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
COORDINATOR = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(JOB))
AGENT = names.username_of(names.AGENTS_NAMESPACE, "sameshot-agent")
GC = names.username_of(names.SYSTEM_NAMESPACE, "sameshot-gc")
SYSTEM, COORDINATORS, AGENTS = names.SYSTEM_NAMESPACE, names.COORDINATORS_NAMESPACE, names.AGENTS_NAMESPACE
HERE = "the job's namespace"  # stands for the test's own
CC = f"{names.COORDINATORS}.{names.GROUP}"
STATUS = f"{names.COORDINATORS}/status.{names.GROUP}"
CAPTURES = f"{names.CAPTURES}.{names.GROUP}"

PLACES = {Where.CLUSTER: "", Where.SELECTED: HERE, Where.SYSTEM: SYSTEM, Where.COORDINATORS: COORDINATORS}
PLACES[Where.AGENTS] = AGENTS


def row_of(right: Right) -> tuple[str, str, str, str, str]:
    what = f"{right.resource}.{right.group}" if right.group else right.resource
    return OPERATOR, " ".join(right.verbs), what, PLACES[right.where], right.names[0] if right.names else ""


# (who, verbs, what, where, name): what each part does; the operator by its own table. `where` empty: everywhere.
MAY: list[tuple[str, str, str, str, str]] = [
    *map(row_of, RIGHTS),
    (COORDINATOR, "create", "tokenreviews.authentication.k8s.io", "", ""),
    (COORDINATOR, "create", "subjectaccessreviews.authorization.k8s.io", "", ""),
    (COORDINATOR, "list watch", "pods", AGENTS, ""),
    (AGENT, "list watch", "pods", "", ""),
    (AGENT, "get", "jobs.batch", HERE, "llama"),
    (AGENT, "create", "tokenreviews.authentication.k8s.io", "", ""),
]

# What would be harm: users' objects changed, others' secrets read, rights handed on.
MAY_NOT: list[tuple[str, str, str, str, str]] = [
    (OPERATOR, "create update patch delete deletecollection", "pods", HERE, "alone"),
    (OPERATOR, "list watch create update patch delete", "jobs.batch", HERE, "llama"),
    (OPERATOR, "update patch", "jobs/status.batch", HERE, "llama"),
    (OPERATOR, "update patch", "jobs/finalizers.batch", HERE, "llama"),
    (OPERATOR, "get list watch create", "secrets", HERE, ""),
    (OPERATOR, "get update patch delete", "configmaps", HERE, "theirs"),
    (OPERATOR, "get list", "configmaps", "kube-system", ""),
    (OPERATOR, "create patch", "events", HERE, ""),
    (OPERATOR, "create", "pods/exec", COORDINATORS, ""),
    (OPERATOR, "create", "serviceaccounts/token", COORDINATORS, names.account_of(JOB)),
    (OPERATOR, "create", "serviceaccounts/token", HERE, names.CALLERS_ACCOUNT),
    (OPERATOR, "get", "secrets", SYSTEM, "another"),
    (OPERATOR, "create update patch bind escalate", "clusterroles.rbac.authorization.k8s.io", "", "edit"),
    (OPERATOR, "create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    (OPERATOR, "create", "roles.rbac.authorization.k8s.io", HERE, ""),
    (OPERATOR, "update patch delete deletecollection", CC, HERE, ""),
    (OPERATOR, "patch update", "namespaces", "", "kube-system"),
    (OPERATOR, "create get list delete", CAPTURES, HERE, "llama"),
    (OPERATOR, "get list", "nodes", "", ""),
    (COORDINATOR, "list watch", "pods", HERE, ""),  # not bound in this namespace
    (COORDINATOR, "get list watch", "secrets", COORDINATORS, ""),
    (COORDINATOR, "get list watch", "configmaps", COORDINATORS, ""),
    (COORDINATOR, "create patch delete", "pods", COORDINATORS, ""),
    (COORDINATOR, "create", "serviceaccounts/token", COORDINATORS, names.account_of(JOB)),
    (COORDINATOR, "get list patch", CC, HERE, ""),
    (COORDINATOR, "create patch", "events", HERE, ""),
    (COORDINATOR, "get", "secrets", AGENTS, "sameshot-agent-tls"),
    (AGENT, "create update patch delete", "pods", HERE, "alone"),
    (AGENT, "get list watch", "secrets", HERE, ""),
    (AGENT, "get list watch", "configmaps", HERE, ""),
    (AGENT, "create", "subjectaccessreviews.authorization.k8s.io", "", ""),
    (AGENT, "get list", "nodes", "", ""),
    (AGENT, "get list", CC, HERE, ""),
    (GC, "get list", "pods", HERE, ""),
    (GC, "get list", "secrets", SYSTEM, ""),
]


def each_verb(table: list[tuple[str, str, str, str, str]]) -> list[tuple[str, str, str, str, str]]:
    return [(who, verb, what, where, name) for who, verbs, what, where, name in table for verb in verbs.split()]


def told(row: tuple[str, str, str, str, str]) -> str:
    who, verb, what, where, name = row
    part = "coordinator" if who == COORDINATOR else who.rpartition(":")[2]
    return f"{part} {verb} {what} {name} in {where or 'the cluster'}"


def allowed(cluster: Cluster, namespace: str, row: tuple[str, str, str, str, str]) -> bool:
    who, verb, what, where, name = row
    return cluster.may(who, verb, what, namespace=namespace if where == HERE else where, name=name)


def test_each_part_may_what_it_does(sameshot: Cluster, ml: str) -> None:
    rows = each_verb(MAY)
    assert len(rows) > 40
    assert [told(row) for row in rows if not allowed(sameshot, ml, row)] == []


def test_and_nothing_that_would_be_harm(sameshot: Cluster, ml: str) -> None:
    rows = each_verb(MAY_NOT)
    assert len(rows) > 70
    assert [told(row) for row in rows if allowed(sameshot, ml, row)] == []


def test_a_coordinator_sees_the_pods_of_its_own_job_s_namespace_where_it_is_bound(sameshot: Cluster, ml: str) -> None:
    with sameshot.scope() as inner:
        inner.bind(ml, "sameshot-coordinator", COORDINATOR)
        for verb in ("list", "watch"):
            inner.until(lambda verb=verb: inner.may(COORDINATOR, verb, "pods", namespace=ml), f"{verb} is allowed")
        assert inner.may(COORDINATOR, "get", "jobs.batch", namespace=ml, name="llama")
        for verb, what in (("get", "secrets"), ("create", "pods"), ("get", "pods/log"), ("get", "configmaps")):
            assert not inner.may(COORDINATOR, verb, what, namespace=ml)
        other = names.username_of(COORDINATORS, names.account_of(JobRef(ml, "other", "ffff")))
        assert not inner.may(other, "list", "pods", namespace=ml), "another job's coordinator is not"


# ---- people and what captures for them

PEOPLE = {  # role bound in the namespace → verbs on captures
    "sameshot-user": {"create", "get", "list", "delete"},
    "sameshot-viewer": {"get", "list"},
    "edit": {"create", "get", "list", "delete"},
    "view": {"get", "list"},
    "admin": {"create", "get", "list", "delete"},
}


@pytest.mark.parametrize("role", PEOPLE)
def test_captures_are_a_matter_of_the_roles_that_clusters_have_anyway(role: str, sameshot: Cluster, ml: str) -> None:
    who = f"jane-{uuid.uuid4().hex[:8]}"
    with sameshot.scope() as inner:
        inner.bind(ml, role, who)
        last = "delete" if "delete" in PEOPLE[role] else "get"  # step by step: `view` into `edit` into `admin`
        inner.until(lambda: inner.may(who, last, CAPTURES, namespace=ml, name="llama"), f"{role} has taken ours in")
        verbs = {verb for verb in ("create", "get", "list", "delete", "update", "patch", "watch")
                 if inner.may(who, verb, CAPTURES, namespace=ml, name="llama")}  # fmt: skip
        assert verbs == PEOPLE[role]
        for verb in ("get", "list", "watch"):
            assert inner.may(who, verb, CC, namespace=ml)
        for verb in ("create", "update", "patch", "delete"):
            assert not inner.may(who, verb, CC, namespace=ml), "the operator writes them, and nobody else"
            assert not inner.may(who, verb, STATUS, namespace=ml)
            if role != "admin":
                assert not inner.may(who, verb, f"{names.POLICIES}.{names.GROUP}", namespace=ml)
        assert not inner.may(who, "get", CAPTURES, namespace="default", name="llama"), "in this namespace alone"


def test_a_right_can_be_given_for_one_job(sameshot: Cluster, ml: str) -> None:
    group, who = "rbac.authorization.k8s.io", f"joe-{uuid.uuid4().hex[:8]}"
    rule = {"apiGroups": [names.GROUP], "resources": [names.CAPTURES], "resourceNames": ["llama"], "verbs": ["create"]}
    meta = {"name": "one-job", "namespace": ml}
    with sameshot.scope() as inner:
        inner.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [rule]})
        inner.create(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "one-job"},
                "subjects": [{"kind": "User", "apiGroup": group, "name": who}],
            }
        )
        inner.until(lambda: inner.may(who, "create", CAPTURES, namespace=ml, name="llama"), "it is in force")
        assert not inner.may(who, "create", CAPTURES, namespace=ml, name="bert")
        assert not inner.may(who, "delete", CAPTURES, namespace=ml, name="llama")


def test_who_captures_from_a_laptop_may_open_a_connection_to_coordinators_and_nothing_more(
    sameshot: Cluster, ml: str
) -> None:
    who = f"lena-{uuid.uuid4().hex[:8]}"
    with sameshot.scope() as inner:
        inner.bind(ml, "edit", who)
        assert not inner.may(who, "get", "pods/portforward", namespace=COORDINATORS), "a user of a namespace alone"
        inner.bind(COORDINATORS, "sameshot-connect", who, kind="Role")
        for verb in ("get", "create"):  # a websocket begins with a GET; servers from 1.35 on ask for `create`, too
            inner.until(
                lambda verb=verb: inner.may(who, verb, "pods/portforward", namespace=COORDINATORS), "it is in force"
            )
        for verb, what in (("create", "pods/exec"), ("get", "pods/log"), ("delete", "pods"), ("get", "secrets")):
            assert not inner.may(who, verb, what, namespace=COORDINATORS), (verb, what)
        for name in (names.account_of(JOB), "default"):
            assert not inner.may(who, "create", "serviceaccounts/token", namespace=COORDINATORS, name=name)


def test_whoever_views_can_not_mint_a_token_of_the_account_that_captures(sameshot: Cluster, ml: str) -> None:
    who = f"vic-{uuid.uuid4().hex[:8]}"
    with sameshot.scope() as inner:
        inner.bind(ml, "sameshot-viewer", who)
        token = "serviceaccounts/token"
        inner.until(lambda: inner.may(who, "create", token, namespace=ml, name="sameshot-viewer"), "it is in force")
        for account in (names.CALLERS_ACCOUNT, "default", names.ANALYSIS_ACCOUNT):
            assert not inner.may(who, "create", token, namespace=ml, name=account)


def test_steps_of_an_engine_may_capture_in_the_jobs_namespace_as_their_own_account(sameshot: Cluster, ml: str) -> None:
    with sameshot.scope() as inner:
        there = inner.namespace("engine")
        for each in rights("steps", there, jobs_in=[ml]):
            inner.create(each)
        who = f"system:serviceaccount:{there}:steps"
        inner.until(lambda: inner.may(who, "create", CAPTURES, namespace=ml, name="llama"), "it is in force")
        assert inner.may(who, "create", "serviceaccounts/token", namespace=there, name="steps")
        assert not inner.may(who, "create", "serviceaccounts/token", namespace=there, name="default")
        assert inner.may(who, "watch", CC, namespace=ml)
        assert not inner.may(who, "create", CAPTURES, namespace=there, name="llama")
        assert not inner.may(who, "get", "secrets", namespace=ml)
        assert not inner.may(who, "get", "pods", namespace=ml)


def test_the_accounts_of_a_namespace_are_as_shipped_and_analysis_has_no_right_at_all(
    sameshot: Cluster, ml: str
) -> None:
    assert {each["metadata"]["name"] for each in accounts_of(ml) if each["kind"] == "ServiceAccount"} == {
        names.CALLERS_ACCOUNT,
        "sameshot-viewer",
        names.ANALYSIS_ACCOUNT,
    }
    user, viewer, analysis = (
        f"system:serviceaccount:{ml}:{each}" for each in ("sameshot", "sameshot-viewer", "sameshot-analysis")
    )
    sameshot.until(lambda: sameshot.may(user, "create", CAPTURES, namespace=ml, name="llama"), "it is in force")
    assert sameshot.may(viewer, "get", CAPTURES, namespace=ml, name="llama")
    assert not sameshot.may(viewer, "create", CAPTURES, namespace=ml, name="llama")
    for verb, what in (("get", CAPTURES), ("get", CC), ("get", "pods"), ("get", "secrets")):
        assert not sameshot.may(analysis, verb, what, namespace=ml)


# ---- enforced, not only said


def as_user(name: str) -> dict[str, str]:
    return {"Impersonate-User": name}


def binding(namespace: str, role: str) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "made-by-the-operator", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": names.account_of(JOB), "namespace": COORDINATORS}],
    }


def test_the_operator_hands_on_the_one_role_that_it_may_and_no_other(sameshot: Cluster, ml: str) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{ml}/rolebindings"
    given = sameshot.api.call(
        "POST", path, binding(ml, "sameshot-coordinator"), headers=as_user(OPERATOR), dryRun="All"
    )
    assert given.thing["roleRef"]["name"] == "sameshot-coordinator"
    # Whatever it holds itself, as sameshot-operator-jobs, anybody with RoleBindings may hand on.
    for role in ("cluster-admin", "edit", "view", "sameshot-user"):
        with pytest.raises(Refused) as refused:
            sameshot.api.call("POST", path, binding(ml, role), headers=as_user(OPERATOR), dryRun="All")
        assert refused.value.status == 403, role


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/namespaces/{ml}/pods/llama-0"),
        ("PATCH", "/apis/batch/v1/namespaces/{ml}/jobs/llama"),
        ("GET", "/api/v1/namespaces/{ml}/secrets"),
        ("POST", "/api/v1/namespaces/{ml}/serviceaccounts/sameshot/token"),
        ("POST", f"/api/v1/namespaces/{COORDINATORS}/serviceaccounts/{names.account_of(JOB)}/token"),
    ],
)
def test_what_the_operator_may_not_it_can_not(method: str, path: str, sameshot: Cluster, ml: str) -> None:
    body: Json = {"metadata": {"labels": {"a": "b"}}} if method == "PATCH" else {}
    headers = as_user(OPERATOR) | ({"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {})
    with pytest.raises(Refused) as refused:
        sameshot.api.call(method, path.format(ml=ml), body if method != "GET" else None, headers=headers)
    assert refused.value.status == 403
