"""What the operator follows: each kind of object, and how narrowly."""

from __future__ import annotations

import enum

import msgspec

from sameshot.arm import labels
from sameshot.kube import names
from sameshot.operator.config import OperatorConfig
from sameshot.operator.objects import Kind


class Source(enum.StrEnum):
    ARMED = "armed pods"
    COORDINATORS = "CaptureCoordinators"
    POLICIES = "CapturePolicies"
    CLUSTER_POLICIES = "ClusterCapturePolicies"
    NAMESPACES = "namespaces"
    HOOKS = "the hook's ConfigMaps"
    BINDINGS = "RoleBindings"
    ACCOUNTS = "ServiceAccounts"
    SECRETS = "Secrets"
    CONFIGS = "ConfigMaps"
    SERVICES = "Services"
    PODS = "coordinators' pods"


class Followed(msgspec.Struct, frozen=True):
    """Of which resource, with which selectors; `own`: in the coordinators' namespace only."""

    group: str
    version: str
    plural: str
    labels: str = ""
    fields: str = ""
    own: bool = False
    namespaced: bool = True

    @property
    def users(self) -> bool:
        """Whether those who use a namespace may write such objects, as large and as many as they like."""
        return self.namespaced and not self.own

    def paths(self, config: OperatorConfig) -> list[str]:
        """What to list."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.own:
            return [f"{root}/namespaces/{config.coordinators_namespace}/{self.plural}"]
        if not self.namespaced or not config.namespaces:
            return [f"{root}/{self.plural}"]
        return [f"{root}/namespaces/{each}/{self.plural}" for each in config.namespaces]

    @property
    def query(self) -> dict[str, str]:
        both = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in both.items() if value}


_OURS = ",".join(f"{key}={value}" for key, value in names.MANAGED.items())

FOLLOWED: dict[Source, Followed] = {
    Source.ARMED: Followed("", "v1", "pods", names.ARMED_SELECTOR),
    Source.COORDINATORS: Followed(names.GROUP, names.VERSION, names.COORDINATORS),
    Source.POLICIES: Followed(names.GROUP, names.VERSION, names.POLICIES),
    Source.CLUSTER_POLICIES: Followed(names.GROUP, names.VERSION, names.CLUSTER_POLICIES, namespaced=False),
    Source.NAMESPACES: Followed("", "v1", "namespaces", names.ARMED_SELECTOR, namespaced=False),
    Source.HOOKS: Followed("", "v1", "configmaps", fields=f"metadata.name={labels.HOOK_CONFIGMAP}"),
    Source.BINDINGS: Followed("rbac.authorization.k8s.io", "v1", "rolebindings", _OURS),
    Source.ACCOUNTS: Followed("", "v1", "serviceaccounts", _OURS, own=True),
    Source.SECRETS: Followed("", "v1", "secrets", _OURS, own=True),
    Source.CONFIGS: Followed("", "v1", "configmaps", _OURS, own=True),
    Source.SERVICES: Followed("", "v1", "services", _OURS, own=True),
    Source.PODS: Followed("", "v1", "pods", _OURS, own=True),
}

CHILDREN: dict[Kind, Source] = {
    Kind.ACCOUNT: Source.ACCOUNTS,
    Kind.BINDING: Source.BINDINGS,
    Kind.SECRET: Source.SECRETS,
    Kind.CONFIG: Source.CONFIGS,
    Kind.SERVICE: Source.SERVICES,
    Kind.POD: Source.PODS,
}
KIND_OF = {source: kind for kind, source in CHILDREN.items()}
