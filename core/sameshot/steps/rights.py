"""The rights of who captures from within a cluster: an engine's step pods, workers, triggerers, connectors. Pure.

    rights("sameshot-workflow", "ml")                # of pods that run as this account, jobs in the same namespace
    rights("sameshot", "airflow", callers=["airflow-worker", "airflow-triggerer"], jobs_in=["ml", "vision"])

A caller never sends its own API credential to a coordinator but a token for one job, which it asks of the API server
(TokenRequest) for an account that it may do that for: its own, or one that several share, so that all of them are the
same caller. What that account may capture is said where the jobs are, by the ClusterRole `sameshot-user`, which also
lets it find coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

USER_ROLE = "sameshot-user"
"""The ClusterRole of deploy/access: finds coordinators, starts, reads and cancels captures. Bound per namespace."""
LABELS = {"app.kubernetes.io/name": "sameshot", "app.kubernetes.io/part-of": "sameshot"}
_RBAC = "rbac.authorization.k8s.io"


def rights(
    account: str, namespace: str, *, callers: Sequence[str] = (), jobs_in: Sequence[str] = (), make_account: bool = True
) -> list[Json]:
    """`callers` are accounts of the same namespace that ask tokens of `account` (default: it asks for itself);
    `jobs_in` are the namespaces of the jobs (default: the same). `make_account`: it is not there yet."""
    made = [service_account(account, namespace)] if make_account else []
    name = f"{account}-token"
    return [
        *made,
        role(name, namespace, [token_rule(account)]),
        role_binding(name, namespace, [(each, namespace) for each in callers or (account,)]),
        *captures_bindings(account, namespace, jobs_in),
        *(each for place in _places(namespace, jobs_in) for each in _finding(account, namespace, place, callers)),
    ]


def token_rule(account: str) -> Json:
    """To have the API server make tokens of this one account."""
    return {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account], "verbs": ["create"]}


def captures_bindings(account: str, namespace: str, jobs_in: Iterable[str] = ()) -> list[Json]:
    """What makes the account a user of captures, in each namespace of jobs; no more than that one has to be named."""
    return [
        role_binding(
            f"{_called(account, namespace, place)}-captures",
            place,
            [(account, namespace)],
            {"kind": "ClusterRole", "name": USER_ROLE},
        )
        for place in _places(namespace, jobs_in)
    ]


def _finding(account: str, namespace: str, place: str, callers: Sequence[str]) -> list[Json]:
    """Coordinators are looked up with the caller's own credential, whoever it then captures as."""
    others = [(each, namespace) for each in callers if each != account]
    if not others:
        return []
    name = f"{_called(account, namespace, place)}-coordinators"
    rule = {"apiGroups": ["sameshot.dev"], "resources": ["capturecoordinators"], "verbs": ["get", "list", "watch"]}
    return [role(name, place, [rule]), role_binding(name, place, others)]


def _places(namespace: str, jobs_in: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(jobs_in)) or [namespace]


def _called(account: str, namespace: str, place: str) -> str:
    """In the place of the jobs an account of another namespace is told from others of its name."""
    return account if place == namespace else f"{account}-of-{namespace}"


def service_account(name: str, namespace: str) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(name, namespace)}


def role(name: str, namespace: str, rules: Sequence[Json]) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _meta(name, namespace),
        "rules": list(rules),
    }


def role_binding(
    name: str, namespace: str, accounts: Iterable[tuple[str, str]], to: Mapping[str, str] | None = None
) -> Json:
    """`accounts` as (name, namespace); `to` by default the Role of the same name."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _meta(name, namespace),
        "roleRef": {"apiGroup": _RBAC, **(to or {"kind": "Role", "name": name})},
        "subjects": [{"kind": "ServiceAccount", "name": each, "namespace": where} for each, where in accounts],
    }


def _meta(name: str, namespace: str) -> Json:
    return {"name": name, "namespace": namespace, "labels": dict(LABELS)}
