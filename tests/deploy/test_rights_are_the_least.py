"""Every right that a part has in the API: what its own table says, no more and no less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes_objects import kustomized

from sameshot.kube import names, owners
from sameshot.operator.rights import COORDINATOR_ROLE, RIGHTS, Where

DEPLOY = Path(__file__).parents[2] / "deploy"
WHOLE, CHOSEN, DEV = (DEPLOY / "overlays" / name for name in ("cluster-wide", "namespaces", "dev"))
Json = dict[str, Any]
Granted = dict[tuple[str, str, str, str], set[str]]  # (namespace or "", group, resource, name or "") → verbs

OPERATOR = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
COORDINATORS = f"system:serviceaccounts:{names.COORDINATORS_NAMESPACE}"
AGENT = names.username_of(names.AGENTS_NAMESPACE, "sameshot-agent")


def granted_to(subject: str, documents: list[Json]) -> Granted:
    """All that the bindings among these objects give to an account or a group; by themselves, not by others' roles."""
    found: Granted = {}
    for binding in documents:
        if not binding["kind"].endswith("Binding") or subject not in map(_named, binding["subjects"]):
            continue
        where = binding["metadata"].get("namespace", "")
        (role,) = [each for each in documents if _is(each, binding["roleRef"], where)]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        found.setdefault((where, group, resource, name), set()).update(rule["verbs"])
    return found


def _named(subject: Json) -> str:
    if subject["kind"] == "ServiceAccount":
        return names.username_of(subject["namespace"], subject["name"])
    return str(subject["name"])


def _is(document: Json, reference: Json, where: str) -> bool:
    namespace = where if reference["kind"] == "Role" else ""
    meta = document["metadata"]
    return (document["kind"], meta["name"], meta.get("namespace", "")) == (
        reference["kind"],
        reference["name"],
        namespace,
    )


def rules_of(kind: str, name: str, documents: list[Json]) -> Granted:
    (role,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    where = role["metadata"].get("namespace", "")
    return {
        (where, group, resource, name): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def table(selected: str) -> Granted:
    """What the operator's code says that it needs; `selected` is the namespace it serves, "" for all."""
    where = {
        Where.CLUSTER: "",
        Where.SELECTED: selected,
        Where.SYSTEM: names.SYSTEM_NAMESPACE,
        Where.COORDINATORS: names.COORDINATORS_NAMESPACE,
        Where.AGENTS: names.AGENTS_NAMESPACE,
    }
    return {
        (where[right.where], right.group, right.resource, name): set(right.verbs)
        for right in RIGHTS
        for name in right.names or ("",)
    }


# ---- the operator


@pytest.mark.parametrize("overlay", [WHOLE, DEV], ids=lambda each: each.name)
def test_the_operator_may_do_what_its_table_says_and_nothing_else(overlay: Path) -> None:
    assert granted_to(OPERATOR, kustomized(overlay)) == table("")


def test_an_operator_for_chosen_namespaces_has_no_right_in_any_other() -> None:
    documents = kustomized(CHOSEN)
    assert granted_to(OPERATOR, documents) == table("ml")
    (deployment,) = [each for each in documents if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [each for each in container["args"] if each.startswith("--namespace")] == ["--namespace=ml"]
    assert {("", resource) for where, _, resource, _ in table("ml") if where == ""} == {
        ("", each)
        for each in ("namespaces", "clustercapturepolicies", "customresourcedefinitions", "clusterroles")
    }  # fmt: skip


def test_the_operator_writes_nothing_that_belongs_to_users() -> None:
    """Outside of sameshot's own namespaces: its own kind, the hook, and bindings of one role."""
    own = {names.SYSTEM_NAMESPACE, names.COORDINATORS_NAMESPACE, names.AGENTS_NAMESPACE}
    written = {
        (group, resource, name): verbs - {"get", "list", "watch"}
        for (where, group, resource, name), verbs in granted_to(OPERATOR, kustomized(WHOLE)).items()
        if where not in own and verbs - {"get", "list", "watch"}
    }
    assert written == {
        (names.GROUP, "capturecoordinators", ""): {"create"},
        (names.GROUP, "capturecoordinators/status", ""): {"patch"},
        ("", "configmaps", ""): {"create"},
        ("", "configmaps", "sameshot-hook"): {"delete", "patch"},
        ("rbac.authorization.k8s.io", "rolebindings", ""): {"create", "delete", "patch"},
        ("rbac.authorization.k8s.io", "clusterroles", "sameshot-coordinator"): {"bind"},
    }


# ---- coordinators and agents


def test_a_coordinator_reads_pods_and_their_owners_in_its_jobs_namespace() -> None:
    climbed = {("", group, resource, ""): {"get"} for (group, _), resource in owners._MIDDLEMEN.items()}
    told = rules_of("ClusterRole", COORDINATOR_ROLE, kustomized(WHOLE))
    assert told == {("", "", "pods", ""): {"list", "watch"}} | climbed


def test_coordinators_may_ask_who_calls_and_find_agents_and_nothing_else() -> None:
    assert granted_to(COORDINATORS, kustomized(WHOLE)) == {
        ("", "authentication.k8s.io", "tokenreviews", ""): {"create"},
        ("", "authorization.k8s.io", "subjectaccessreviews", ""): {"create"},
        (names.AGENTS_NAMESPACE, "", "pods", ""): {"list", "watch"},
    }


def test_nobody_else_has_a_right_of_ours_unless_somebody_binds_it() -> None:
    documents = [each for overlay in (WHOLE, CHOSEN, DEV) for each in kustomized(overlay)]
    subjects = {_named(each) for one in documents if one["kind"].endswith("Binding") for each in one["subjects"]}
    assert subjects == {OPERATOR, COORDINATORS, AGENT}


def test_no_role_of_ours_has_a_wildcard_or_hands_on_what_it_can_choose() -> None:
    for role in kustomized(WHOLE):
        for rule in role.get("rules", []) if "Role" in role["kind"] else []:
            assert "*" not in str(rule), role["metadata"]["name"]
            assert not {"escalate", "impersonate"} & set(rule["verbs"])
            assert "bind" not in rule["verbs"] or rule.get("resourceNames") == ["sameshot-coordinator"]


# ---- people


def of_person(name: str) -> Granted:
    return rules_of("ClusterRole", name, kustomized(WHOLE))


def test_whoever_edits_a_namespace_may_capture_there_and_whoever_views_it_may_look() -> None:
    looks = {(names.GROUP, "capturecoordinators"), (names.GROUP, "capturepolicies")}
    for name, on_captures, account in (
        ("sameshot-user", {"create", "get", "list", "delete"}, names.CALLERS_ACCOUNT),
        ("sameshot-viewer", {"get", "list"}, "sameshot-viewer"),
    ):
        granted = of_person(name)
        assert granted == {
            ("", names.GROUP, names.CAPTURES, ""): on_captures,
            ("", "", "serviceaccounts/token", account): {"create"},
        } | {("", group, resource, ""): {"get", "list", "watch"} for group, resource in looks}


def test_whoever_only_views_can_get_no_token_of_the_account_that_captures() -> None:
    """Whoever can mint an account's token has its rights."""
    bound = {
        each["subjects"][0]["name"]: each["roleRef"]["name"]
        for each in kustomized(DEPLOY / "namespace")
        if each["kind"] == "RoleBinding"
    }
    assert bound == {"sameshot": "sameshot-user", "sameshot-viewer": "sameshot-viewer"}
    minted = {name for (_, _, resource, name) in of_person("sameshot-viewer") if resource == "serviceaccounts/token"}
    assert minted == {"sameshot-viewer"}


def test_the_cluster_s_own_roles_take_ours_in() -> None:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    taken = {
        each["metadata"]["name"]: key.removeprefix(prefix)
        for each in kustomized(WHOLE)
        for key in each["metadata"].get("labels", {})
        if key.startswith(prefix)
    }
    assert taken == {"sameshot-user": "edit", "sameshot-viewer": "view", "sameshot-admin": "admin"}


def test_a_way_to_coordinators_opens_connections_and_nothing_else() -> None:
    """A WebSocket begins with a GET (`get`); API servers from 1.35 on want `create` for it, too."""
    assert rules_of("Role", "sameshot-connect", kustomized(WHOLE)) == {
        (names.COORDINATORS_NAMESPACE, "", "pods", ""): {"get"},
        (names.COORDINATORS_NAMESPACE, "", "pods/portforward", ""): {"get", "create"},
    }


def test_analysis_and_gc_have_no_right_and_no_token() -> None:
    documents = [*kustomized(WHOLE), *kustomized(DEPLOY / "namespace")]
    for namespace, name in ((names.SYSTEM_NAMESPACE, "sameshot-gc"), ("ml", names.ANALYSIS_ACCOUNT)):
        (account,) = [
            each
            for each in documents
            if (each["kind"], each["metadata"]["name"]) == ("ServiceAccount", name)
            and each["metadata"]["namespace"] == namespace
        ]
        assert account["automountServiceAccountToken"] is False
        assert granted_to(names.username_of(namespace, name), documents) == {}
