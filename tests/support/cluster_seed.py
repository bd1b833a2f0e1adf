"""What every cluster has at its start: the roles that ours aggregate to or lean on, as far as tests need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
_TO = f"{GROUP}/aggregate-to-"
_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "patch", "update")
_APPS = "deployments replicasets daemonsets statefulsets"
_STREAMS = "pods/attach pods/exec pods/portforward pods/proxy"
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = [*_PUBLIC, "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]
_KEPT = "configmaps events persistentvolumeclaims serviceaccounts services"
_AUTHENTICATED, _ANYBODY = "system:authenticated", "system:unauthenticated"


def seeded() -> Iterator[Json]:
    yield _role("cluster-admin", _rule("*", "*", "*"), {"nonResourceURLs": ["*"], "verbs": ["*"]})
    yield _role(
        "system:aggregate-to-view",
        _rule("", f"{_KEPT} endpoints namespaces pods pods/log pods/status", *_READ),
        _rule("apps", _APPS, *_READ),
        _rule("batch", "jobs cronjobs", *_READ),
        to="view",
    )
    yield _role(
        "system:aggregate-to-edit",
        _rule("", f"{_KEPT} pods secrets pods/eviction {_STREAMS}", *_WRITE),
        _rule("", f"{_STREAMS} secrets", *_READ),
        _rule("", "serviceaccounts/token", "create"),
        _rule("", "serviceaccounts", "impersonate"),
        _rule("apps", _APPS, *_WRITE),
        _rule("batch", "jobs cronjobs", *_WRITE),
        to="edit",
    )
    yield _role(
        "system:aggregate-to-admin",
        _rule(GROUP, "roles rolebindings", *_READ, *_WRITE),
        _rule("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        to="admin",
    )
    for name, above in (("view", "edit"), ("edit", "admin"), ("admin", "")):
        selector = {"matchLabels": {_TO + name: "true"}}
        yield {**_role(name, to=above), "aggregationRule": {"clusterRoleSelectors": [selector]}}
    yield _role(
        "system:auth-delegator",
        _rule("authentication.k8s.io", "tokenreviews", "create"),
        _rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    )
    yield _role(
        "system:basic-user",
        _rule("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
        _rule("authentication.k8s.io", "selfsubjectreviews", "create"),
    )
    yield _role("system:discovery", {"nonResourceURLs": _DISCOVERY, "verbs": ["get"]})
    yield _role("system:public-info-viewer", {"nonResourceURLs": _PUBLIC, "verbs": ["get"]})
    yield _binding("system:basic-user", _AUTHENTICATED)
    yield _binding("system:discovery", _AUTHENTICATED)
    yield _binding("system:public-info-viewer", _AUTHENTICATED, _ANYBODY)


def _rule(group: str, resources: str, *verbs: str) -> Json:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


def _role(name: str, *rules: Json, to: str = "") -> Json:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults", **({_TO + to: "true"} if to else {})}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels},
        "rules": list(rules),
    }


def _binding(name: str, *groups: str) -> Json:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups],
    }
