"""What the operator may do: the least that it works with, as a table that deploy/ is tested against.

`Right.names` are resourceNames; `SELECTED` rights are given in every namespace that the operator serves (by a
ClusterRoleBinding, or by one RoleBinding for each selected namespace), the others in one namespace, or in the cluster.
(How lists and watches by name are authorized: https://kubernetes.io/docs/reference/access-authn-authz/rbac/, "Referring
to resources": they carry a field selector metadata.name=….)
"""

from __future__ import annotations

import enum

import msgspec

from sameshot.arm import labels
from sameshot.arm.ended import ENDINGS
from sameshot.kube import names

COORDINATOR_ROLE = "sameshot-coordinator"
"""The ClusterRole that a coordinator's account is bound to in its job's namespace, and nowhere else."""
CA_SECRET = "sameshot-ca"
AGENT_TLS_SECRET = "sameshot-agent-tls"
CRD = f"{names.COORDINATORS}.{names.GROUP}"


class Where(enum.StrEnum):
    CLUSTER = "cluster"  # of things without a namespace
    SELECTED = "selected"  # in all namespaces, or in the selected ones
    SYSTEM = "system"  # names.SYSTEM_NAMESPACE
    COORDINATORS = "coordinators"  # names.COORDINATORS_NAMESPACE
    AGENTS = "agents"  # names.AGENTS_NAMESPACE


class Right(msgspec.Struct, frozen=True):
    where: Where
    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    why: str = ""


_FOLLOW = ("list", "watch")
_KEEP = ("create", "delete", "list", "patch", "watch")

RIGHTS: tuple[Right, ...] = (
    Right(Where.CLUSTER, "", "namespaces", _FOLLOW, why="which ones are labelled for the hook"),
    Right(Where.CLUSTER, names.GROUP, names.CLUSTER_POLICIES, _FOLLOW, why="the cluster's policy"),
    Right(
        Where.CLUSTER,
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        ("get",),
        (CRD,),
        why="its uid owns the hook's ConfigMaps, so that they go with it",
    ),
    Right(
        Where.CLUSTER,
        "rbac.authorization.k8s.io",
        "clusterroles",
        ("bind",),
        (COORDINATOR_ROLE,),
        why="to bind what it does not have itself",
    ),
    Right(Where.SELECTED, "", "pods", ("get", *_FOLLOW), why="armed pods; a pod that is a job of its own"),
    Right(Where.SELECTED, names.GROUP, names.COORDINATORS, ("create", "get", "list", "watch")),
    Right(Where.SELECTED, names.GROUP, f"{names.COORDINATORS}/status", ("patch",)),
    Right(Where.SELECTED, names.GROUP, names.POLICIES, _FOLLOW),
    Right(Where.SELECTED, "rbac.authorization.k8s.io", "rolebindings", _KEEP, why="of coordinators' accounts"),
    Right(Where.SELECTED, "", "configmaps", ("create",), why="the hook's; creation can't be limited to a name"),
    Right(Where.SELECTED, "", "configmaps", ("delete", "list", "patch", "watch"), (labels.HOOK_CONFIGMAP,)),
    *(
        Right(Where.SELECTED, group, ending.resource, ("get",), why="owners of pods, and whether a job has ended")
        for (group, _), ending in ENDINGS.items()
        if group
    ),
    Right(Where.SELECTED, "apps", "replicasets", ("get",), why="owners of pods"),
    Right(Where.SYSTEM, "", "pods", ("get",), why="its own: coordinators get the image that it has"),
    Right(Where.SYSTEM, "", "secrets", ("create",), why="the authority's; creation can't be limited to a name"),
    Right(Where.SYSTEM, "", "secrets", ("get", "update"), (CA_SECRET,)),
    Right(
        Where.SYSTEM,
        "",
        "serviceaccounts/token",
        ("create",),
        (names.OPERATOR_ACCOUNT,),
        why="tokens of its own account, with which it calls coordinators",
    ),
    Right(Where.COORDINATORS, "", "pods", _KEEP),
    Right(Where.COORDINATORS, "", "services", _KEEP),
    Right(Where.COORDINATORS, "", "serviceaccounts", _KEEP),
    Right(Where.COORDINATORS, "", "secrets", _KEEP, why="coordinators' certificates"),
    Right(Where.COORDINATORS, "", "configmaps", _KEEP),
    Right(Where.AGENTS, "", "secrets", ("create",), why="the agents' certificate; creation can't be limited to a name"),
    Right(Where.AGENTS, "", "secrets", ("get", "patch"), (AGENT_TLS_SECRET,)),
)
"""Everything else is refused to it: above all, to write anything that belongs to users."""
