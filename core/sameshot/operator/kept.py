"""What is kept of an object that somebody else may have filled: what is read here, and never more than some kilobytes.

A namespace's users may make an object of each kind that is followed as large as the API server takes it, which as
Python's values is ten times as much, and as many as they like. So objects are understood as they come, one by one, and
those that can't be ours are left out. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.hookmap import hook_configmap
from sameshot.arm.values import Json
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Status
from sameshot.kube.deep import decoded
from sameshot.kube.pods import Metadata, Pod, PodObject, controller_of, pod_of
from sameshot.operator.jobs import MAX_SERIES
from sameshot.operator.known import is_ours
from sameshot.operator.sources import Source

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 10  # of JSON, of what is kept of any one object
MOST_POLICY_BYTES = 4 << 10
MOST_KEYS = 64  # of a ConfigMap
MOST_LISTED = 4  # owners of an object, subjects of a binding: ours have one
OTHERWISE = "(otherwise)"
_OWN_MARKS = {*names.MANAGED, "app.kubernetes.io/name", "app.kubernetes.io/part-of", labels.ARM_LABEL,
              names.JOB_NAMESPACE, names.JOB_UID, names.ATTEMPT}  # fmt: skip
_MAX_NAME = 253


def kept(source: Source, thing: bytes | msgspec.Raw | Json) -> Json | None:
    """As JSON values (but for an armed pod, which is a `Pod` in `pod`); None: none of ours, or not understood."""
    slim = _SLIM.get(source)
    if slim is None:  # only we write these, and administrators
        return thing if isinstance(thing, dict) else decoded(thing, dict)
    try:
        return slim(msgspec.json.encode(thing) if isinstance(thing, dict) else thing)
    except Exception as error:  # whatever its maker wrote into it: the others are served all the same
        log.warning("one of %s was not understood why=%r", source.value, f"{type(error).__name__}: {error}"[:300])
        return None


class _PodMeta(Metadata, rename="camel"):
    resource_version: str = ""


class _Pod(PodObject):
    metadata: _PodMeta


def _armed(raw: bytes | msgspec.Raw) -> Json:
    found = decoded(raw, _Pod)
    meta = found.metadata
    pod: Pod | None = None
    try:
        owner = controller_of(meta)
        if owner is not None and max(map(len, msgspec.structs.astuple(owner))) > _MAX_NAME:
            raise ValueError(f"an owner with more than {_MAX_NAME} characters in a word")
        pod = pod_of(found)
    except Exception as error:
        log.warning(
            "pod %s/%s was not understood why=%r",
            meta.namespace, meta.name, f"{type(error).__name__}: {error}"[:300],
        )  # fmt: skip
    series = (meta.annotations or {}).get(labels.SERIES, "")[:MAX_SERIES]
    place = {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": place, "pod": pod, "series": series}


class _Owner(msgspec.Struct, rename="camel", omit_defaults=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[_Owner] = []

    def only(self, marks: set[str], notes: set[str]) -> Json:
        """Of labels and annotations only these."""
        self.labels = {key: value for key, value in self.labels.items() if key in marks}
        self.annotations = {key: value[:_MAX_NAME] for key, value in self.annotations.items() if key in notes}
        del self.owner_references[MOST_LISTED:]
        found: Json = msgspec.to_builtins(self)
        return found


class _Plain(msgspec.Struct):
    metadata: _Meta


def _namespace(raw: bytes | msgspec.Raw) -> Json:
    return {"metadata": decoded(raw, _Plain).metadata.only({labels.ARM_LABEL}, set())}


class _Subject(msgspec.Struct, rename="camel", omit_defaults=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _RoleRef(msgspec.Struct, rename="camel"):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class _Binding(msgspec.Struct, rename="camel"):
    metadata: _Meta
    role_ref: _RoleRef = msgspec.field(default_factory=_RoleRef)
    subjects: list[_Subject] = []


def _binding(raw: bytes | msgspec.Raw) -> Json | None:
    meta = decoded(raw, _Plain).metadata
    if not names.may_be_coordinator(meta.namespace, meta.name):
        return None
    found = decoded(raw, _Binding)
    place = found.metadata.only(_OWN_MARKS, {names.JOB_NAME})
    rest = {
        "roleRef": msgspec.to_builtins(found.role_ref),
        "subjects": msgspec.to_builtins(found.subjects[:MOST_LISTED]),
    }
    whole = {"metadata": place, **rest}
    return whole if _fits(whole) else {"metadata": {**place, "ownerReferences": []}}  # and it will be made anew


def _coordinator(raw: bytes | msgspec.Raw) -> Json | None:
    found = decoded(raw, CaptureCoordinator)
    if not is_ours(found):
        return None
    marks = {key: value for key, value in (found.metadata.labels or {}).items() if key in _OWN_MARKS}
    found = msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=marks))
    whole: Json = msgspec.to_builtins(found)
    if not _fits(whole):
        found = msgspec.structs.replace(found, status=Status())
        whole = msgspec.to_builtins(found)
    return whole if _fits(whole) else None


class _Policy(msgspec.Struct):
    metadata: _Meta
    spec: msgspec.Raw = msgspec.Raw(b"null")


def _policy(raw: bytes | msgspec.Raw) -> Json:
    found = decoded(raw, _Policy)
    small = len(bytes(found.spec)) <= MOST_POLICY_BYTES
    spec: Any = decoded(found.spec, object) if small else None
    return {"metadata": found.metadata.only(set(), set()), "spec": spec}


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] = {}
    immutable: bool = False


def _hook(raw: bytes | msgspec.Raw) -> Json:
    """Of what is as it should be the very same text is kept for all namespaces."""
    found, want = decoded(raw, _ConfigMap), hook_configmap()
    place = found.metadata.only({*want["metadata"]["labels"], *names.MANAGED}, set(want["metadata"]["annotations"]))
    data = {
        key: want["data"][key] if want["data"].get(key) == value else OTHERWISE
        for key, value in sorted(found.data.items())[:MOST_KEYS]
    }
    return {"metadata": place, "data": data, "immutable": found.immutable}


def _fits(thing: Json) -> bool:
    return len(msgspec.json.encode(thing)) <= MOST_BYTES


_SLIM: dict[Source, Callable[[bytes | msgspec.Raw], Json | None]] = {
    Source.ARMED: _armed,
    Source.NAMESPACES: _namespace,
    Source.BINDINGS: _binding,
    Source.COORDINATORS: _coordinator,
    Source.POLICIES: _policy,
    Source.CLUSTER_POLICIES: _policy,
    Source.HOOKS: _hook,
}
