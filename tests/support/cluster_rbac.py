"""Who may do what, as Kubernetes' RBAC decides it, from the Role and Binding objects of an emulated API server.

Also whether a role may be written: nobody may hand on a right that he does not hold (or needs `bind`, `escalate`).
Written after https://kubernetes.io/docs/reference/access-authn-authz/rbac/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cluster_selectors import matches_label_selector

Json = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict, hash=False)

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups


@dataclass(frozen=True)
class Asked:
    """One request: of an object (`resource`) or of a bare `path`."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def what(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


Find = Callable[[str, str, str], Json | None]  # (plural, namespace, name) of the RBAC group
All = Callable[[str], Iterable[Json]]  # plural


class Rbac:
    def __init__(self, find: Find, every: All) -> None:
        self._find = find
        self._every = every

    def allows(self, user: User, asked: Asked) -> bool:
        return user.is_master or any(_permits(rule, asked) for rule in self.rules(user, asked.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Json]:
        """All that this user holds there: the rules of the whole cluster, and of the namespace."""
        for binding in self._every("clusterrolebindings"):
            if _is_subject(user, binding, ""):
                yield from self.role(binding["roleRef"], "") or ()
        if not namespace:
            return
        for binding in self._every("rolebindings"):
            if binding["metadata"]["namespace"] == namespace and _is_subject(user, binding, namespace):
                yield from self.role(binding["roleRef"], namespace) or ()

    def role(self, reference: Json, namespace: str) -> list[Json] | None:
        """The rules of a role; None: there is none of that name."""
        if reference["kind"] == "ClusterRole":
            found = self._find("clusterroles", "", reference["name"])
        else:
            found = self._find("roles", namespace, reference["name"])
        return None if found is None else self.rules_of(found)

    def rules_of(self, role: Json) -> list[Json]:
        """With those that it aggregates, as the controller would have written them into it."""
        rules = list(role.get("rules") or ())
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            for other in self._every("clusterroles"):
                if other["metadata"]["name"] == role["metadata"]["name"]:
                    continue
                if matches_label_selector(selector, other["metadata"].get("labels") or {}):
                    rules += self.rules_of(other)
        return rules

    def why_not_written(self, user: User, plural: str, namespace: str, thing: Json, before: Json | None) -> str | None:
        """Why this user may not store this Role or Binding; None: he may."""
        if user.is_master:
            return None
        name = thing["metadata"].get("name", "")
        if plural in ("roles", "clusterroles"):
            if before is not None and all(before.get(key) == thing.get(key) for key in ("rules", "aggregationRule")):
                return None
            if self.allows(user, Asked("escalate", GROUP, plural, "", namespace, name)):
                return None
            rules = list(thing.get("rules") or ())
            if thing.get("aggregationRule"):
                rules.append({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
        else:
            reference = thing["roleRef"]
            kind = "clusterroles" if reference["kind"] == "ClusterRole" else "roles"
            if self.allows(user, Asked("bind", GROUP, kind, "", namespace, reference["name"])):
                return None
            found = self.role(reference, namespace)
            if found is None:
                return f"{kind}.{GROUP} {reference['name']!r} not found"
            rules = found
        held = list(self.rules(user, namespace))
        lacking = [one for rule in rules for one in _pieces(rule) if not any(_covers(mine, one) for mine in held)]
        if not lacking:
            return None
        return f"user {user.name!r} is attempting to grant RBAC permissions not currently held: {lacking}"


def _is_subject(user: User, binding: Json, namespace: str) -> bool:
    for subject in binding.get("subjects") or ():
        match subject["kind"]:
            case "User":
                found = user.name == subject["name"]
            case "Group":
                found = subject["name"] in user.groups
            case "ServiceAccount":
                found = user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
            case _:
                found = False
        if found:
            return True
    return False


def _permits(rule: Json, asked: Asked) -> bool:
    if not _has(rule.get("verbs"), asked.verb):
        return False
    if asked.path:
        return any(
            one in ("*", asked.path) or (one.endswith("*") and asked.path.startswith(one[:-1]))
            for one in rule.get("nonResourceURLs") or ()
        )
    if not _has(rule.get("apiGroups"), asked.group) or not _has_resource(rule.get("resources"), asked.what):
        return False
    names = rule.get("resourceNames") or ()
    return not names or asked.name in names


def _has(those: Iterable[str] | None, one: str) -> bool:
    return any(each in ("*", one) for each in those or ())


def _has_resource(those: Iterable[str] | None, what: str) -> bool:
    _, slash, sub = what.partition("/")
    return any(each in ("*", what) or (slash and each == f"*/{sub}") for each in those or ())


def _pieces(rule: Json) -> Iterator[Json]:
    """Rules that each name one verb of one resource (of one name)."""
    for verb in rule.get("verbs") or ():
        for url in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [url]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                piece = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                names = rule.get("resourceNames")
                if not names:
                    yield piece
                for name in names or ():
                    yield {**piece, "resourceNames": [name]}


def _covers(mine: Json, piece: Json) -> bool:
    if not _has(mine.get("verbs"), piece["verbs"][0]):
        return False
    if "nonResourceURLs" in piece:
        url = piece["nonResourceURLs"][0]
        return any(
            one in ("*", url) or (one.endswith("*") and url.startswith(one[:-1]))
            for one in mine.get("nonResourceURLs") or ()
        )
    if not _has(mine.get("apiGroups"), piece["apiGroups"][0]):
        return False
    if not _has_resource(mine.get("resources"), piece["resources"][0]):
        return False
    names = mine.get("resourceNames") or ()
    return not names or (piece.get("resourceNames") or [None])[0] in names
