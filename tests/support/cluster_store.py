"""The objects of an emulated API server and what its verbs do to them; no network, no rights.

One lock, one counter of versions for all objects, a list of events that watches follow. What is kept is never changed
in place. Written after https://kubernetes.io/docs/reference/using-api/api-concepts/; where the real server is lax or
strict, this one is the same as far as a test here can tell: see `tests/kube/test_emulated_api.py`.
"""

from __future__ import annotations

import base64
import binascii
import copy
import datetime
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonpatch
from cluster_kinds import BUILT_IN, Kind, kinds_of, problems_of, pruned
from cluster_selectors import Term, field_of

Json = dict[str, Any]
Key = tuple[str, str, str, str]  # group, plural, namespace, name
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_CERTAIN = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace",
            "name", "generateName")  # fmt: skip
MERGE, JSON_PATCH, STRATEGIC = (
    f"application/{kind}+json" for kind in ("merge-patch", "json-patch", "strategic-merge-patch")
)


class Problem(Exception):
    """What the server answers instead."""

    def __init__(self, status: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details = status, reason, message, details or {}

    @property
    def body(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.status,
        }


@dataclass(frozen=True)
class Event:
    version: int
    kind: Kind
    before: Json | None  # None: it was not there
    after: Json | None  # None: it is gone


@dataclass(frozen=True)
class Selected:
    """What a list or watch is about."""

    kind: Kind
    namespace: str = ""
    labels: tuple[Term, ...] = ()
    fields: tuple[Term, ...] = ()

    def holds(self, thing: Json) -> bool:
        meta = thing["metadata"]
        if self.namespace and meta.get("namespace") != self.namespace:
            return False
        labels = meta.get("labels") or {}
        return all(term.holds(labels) for term in self.labels) and all(
            term.holds({term.key: field_of(thing, term.key)}) for term in self.fields
        )


class Store:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kinds: list[Kind] = list(BUILT_IN)
        self.version = 1000
        self.oldest = 0
        self.events: list[Event] = []
        self.graceful_pods = False  # a kubelet stands by and says when a pod on a node has ended
        self.on_change: Callable[[], None] = lambda: None
        self.on_kinds: Callable[[], None] = lambda: None
        self._objects: dict[Key, Json] = {}
        self._ip = 0
        for name in ("default", "kube-system"):
            self.create(self.kind("", "namespaces"), "", {"metadata": {"name": name}})

    # --- kinds

    def find_kind(self, group: str, version: str, plural: str) -> Kind | None:
        return next((k for k in self.kinds if (k.group, k.version, k.plural) == (group, version, plural)), None)

    def kind(self, group: str, plural: str) -> Kind:
        return next(k for k in self.kinds if (k.group, k.plural) == (group, plural))

    def kind_of(self, thing: Json) -> Kind:
        found = self._named(thing["apiVersion"], thing["kind"])
        if found is None:
            raise Problem(404, "NotFound", f'no matches for kind "{thing["kind"]}" in version "{thing["apiVersion"]}"')
        return found

    def _named(self, api_version: str, kind: str) -> Kind | None:
        return next((k for k in self.kinds if (k.api_version, k.kind) == (api_version, kind)), None)

    # --- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Json | None:
        with self.lock:
            found = self._objects.get(_key(kind, namespace, name))
            return None if found is None else _in_version(kind, found)

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        found = self.find(kind, namespace, name)
        if found is None:
            raise _not_found(kind, name)
        return found

    def select(self, selected: Selected) -> list[Json]:
        kind = selected.kind
        with self.lock:
            return [
                _in_version(kind, thing)
                for key, thing in sorted(self._objects.items())
                if key[:2] == (kind.group, kind.plural) and selected.holds(thing)
            ]

    def every(self, kind: Kind) -> Iterable[Json]:
        with self.lock:
            return [thing for key, thing in self._objects.items() if key[:2] == (kind.group, kind.plural)]

    def everything(self) -> list[tuple[Kind, Json]]:
        with self.lock:
            return [(self.kind(key[0], key[1]), thing) for key, thing in self._objects.items()]

    # --- writing

    def create(self, kind: Kind, namespace: str, body: Json, *, dry: bool = False, strict: bool = False) -> Json:
        with self.lock:
            thing = self._received(kind, namespace, body)
            meta = thing["metadata"]
            if not meta.get("name"):
                if not meta.get("generateName"):
                    raise _invalid(kind, "", "metadata.name: Required value: name or generateName is required")
                meta["name"] = (
                    f"{meta['generateName'][:58]}{''.join(random.choices('bcdfghjklmnpqrstvwxz2456789', k=5))}"
                )
            name = meta["name"]
            self._check_name(kind, name)
            if meta.get("resourceVersion"):
                raise Problem(500, "InternalError", "resourceVersion should not be set on objects to be created")
            self._check_namespace(kind, namespace, name)
            if _key(kind, namespace, name) in self._objects:
                raise Problem(
                    409,
                    "AlreadyExists",
                    f'{kind.resource} "{name}" already exists',
                    {"name": name, "kind": kind.plural},
                )
            for each in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
                meta.pop(each, None)
            meta["uid"] = str(uuid.uuid4())
            meta["creationTimestamp"] = _now()
            if kind.counts_generations:
                meta["generation"] = 1
            else:
                meta.pop("generation", None)
            if kind.status:
                thing.pop("status", None)
            thing = self._checked(kind, thing, None, strict)
            self._on_create(kind, thing)
            return self._keep(kind, None, thing, dry)

    def update(
        self, kind: Kind, namespace: str, name: str, body: Json, *, sub: str = "", dry: bool = False,
        strict: bool = False, patched: bool = False,
    ) -> Json:  # fmt: skip
        with self.lock:
            before = self._objects.get(_key(kind, namespace, name))
            if before is None:
                raise _not_found(kind, name)
            thing = self._received(kind, namespace, body)
            meta = thing["metadata"]
            if meta.setdefault("name", name) != name:
                raise Problem(400, "BadRequest", f"the name of the object ({meta['name']}) does not match the name on "
                              f"the URL ({name})")  # fmt: skip
            wanted = meta.get("resourceVersion")
            if not wanted and kind.custom and not patched:
                raise _invalid(
                    kind, name, "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
                )
            if wanted and wanted != before["metadata"]["resourceVersion"]:
                raise _conflict(kind, name)
            if meta.get("uid") not in (None, "", before["metadata"]["uid"]):
                was = before["metadata"]["uid"]
                raise Problem(
                    409, "Conflict", f"Precondition failed: UID in precondition: {meta['uid']}, in object: {was}"
                )
            for each in _CERTAIN:
                if each in before["metadata"]:
                    meta[each] = before["metadata"][each]
                else:
                    meta.pop(each, None)
            meta.pop("managedFields", None)
            if sub == "status":
                thing = {**before, "metadata": {**before["metadata"]}, "status": thing.get("status")}
                if thing["status"] is None:
                    del thing["status"]
            elif kind.status:
                thing.pop("status", None)
                if "status" in before:
                    thing["status"] = before["status"]
            if kind.group == "" and kind.plural == "namespaces":
                thing["spec"] = before.get("spec")
            thing = self._checked(kind, thing, before, strict)
            self._on_update(kind, thing, before)
            meta = thing["metadata"]
            meta["resourceVersion"] = before["metadata"]["resourceVersion"]
            if _shape(thing) == _shape(before):
                return _in_version(kind, before)  # nothing changed, nothing is written
            if kind.counts_generations and _told(thing) != _told(before):
                meta["generation"] = meta.get("generation", 0) + 1
            over = (kind.group, kind.plural) != ("", "pods") or meta.get("deletionGracePeriodSeconds") == 0
            if over and meta.get("deletionTimestamp") and not meta.get("finalizers"):
                return self._drop(kind, before, thing, dry)
            return self._keep(kind, before, thing, dry)

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Any, how: str, *, sub: str = "", dry: bool = False,
        strict: bool = False,
    ) -> Json:  # fmt: skip
        with self.lock:
            before = self.get(kind, namespace, name)
            if how == JSON_PATCH:
                try:
                    thing = jsonpatch.apply_patch(copy.deepcopy(before), patch)
                except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
                    raise Problem(422, "Invalid", f"the server rejected our request due to an error in our request: "
                                  f"{error}") from None  # fmt: skip
            elif how in (MERGE, STRATEGIC):
                if how == STRATEGIC and kind.custom:
                    raise _no_media(how)
                if how == STRATEGIC and _has_lists_of_objects(patch):
                    raise Problem(415, "UnsupportedMediaType", "this emulated server can't merge lists strategically")
                if not isinstance(patch, dict):
                    raise Problem(400, "BadRequest", "a merge patch is an object")
                thing = merged(before, patch)
            else:
                raise _no_media(how)
            return self.update(kind, namespace, name, thing, sub=sub, dry=dry, strict=strict, patched=True)

    def delete(self, kind: Kind, namespace: str, name: str, options: Json | None = None, *, dry: bool = False) -> Json:
        """What is left of it: as it was, or as it waits for its end."""
        options = options or {}
        with self.lock:
            before = self._objects.get(_key(kind, namespace, name))
            if before is None:
                raise _not_found(kind, name)
            wanted = options.get("preconditions") or {}
            for key, field in (("uid", "uid"), ("resourceVersion", "resourceVersion")):
                if wanted.get(key) and wanted[key] != before["metadata"][field]:
                    raise Problem(
                        409, "Conflict",
                        f'Operation cannot be fulfilled on {kind.resource} "{name}": the {key} in the precondition '
                        f"({wanted[key]}) does not match the {key} in record ({before['metadata'][field]})",
                    )  # fmt: skip
            if options.get("propagationPolicy") == "Orphan" and not dry:
                self._orphan(before["metadata"]["uid"])
            grace = options.get("gracePeriodSeconds")
            waits = bool(before["metadata"].get("finalizers"))
            if (kind.group, kind.plural) == ("", "pods"):
                if grace is None:
                    grace = before["spec"].get("terminationGracePeriodSeconds", 30)
                ended = (before.get("status") or {}).get("phase") in ("Succeeded", "Failed")
                if not self.graceful_pods or not before["spec"].get("nodeName") or ended:
                    grace = 0
                waits = waits or grace > 0
            if (kind.group, kind.plural) == ("", "namespaces"):
                waits, grace = True, None
            if not waits:
                return self._drop(kind, before, before, dry)
            meta = before["metadata"]
            if meta.get("deletionTimestamp") and (grace is None or grace >= meta.get("deletionGracePeriodSeconds", 0)):
                return before
            thing = copy.deepcopy(before)
            thing["metadata"]["deletionTimestamp"] = _now(grace or 0)
            thing["metadata"]["deletionGracePeriodSeconds"] = grace or 0
            if kind.plural == "namespaces":
                thing["status"] = {"phase": "Terminating"}
            return self._keep(kind, before, thing, dry)

    # --- in the background of a real cluster

    def collect(self) -> list[str]:
        """Remove what has no living owner, and what is in namespaces that end; `namespace/kind/name` of each.

        As the real collector: an owner counts only by its uid; a namespaced one is looked for in the dependent's own
        namespace; of a kind that the server does not know nothing is concluded.
        """
        gone: list[str] = []
        with self.lock:
            while True:
                more = [one for one in self._orphans() if self._end(*one)]
                gone += [
                    f"{one['metadata'].get('namespace', '')}/{kind.kind}/{one['metadata']['name']}"
                    for kind, one in more
                ]
                if not more:
                    return gone

    def _orphans(self) -> Iterator[tuple[Kind, Json]]:
        living = {thing["metadata"]["uid"] for thing in self._objects.values()}
        ending = {
            key[3] for key, thing in self._objects.items()
            if key[:2] == ("", "namespaces") and thing["metadata"].get("deletionTimestamp")
        }  # fmt: skip
        inside = {key[2] for key in self._objects if key[2]}
        for key, thing in list(self._objects.items()):
            kind = self.kind(key[0], key[1])
            if (
                (key[:2] == ("", "namespaces") and key[3] in ending and key[3] not in inside)
                or key[2] in ending
                or (
                    (owners := thing["metadata"].get("ownerReferences"))
                    and not any(self._may_live(owner, key[2], living) for owner in owners)
                )
            ):
                yield kind, thing

    def _may_live(self, owner: Json, namespace: str, living: set[str]) -> bool:
        kind = self._named(owner["apiVersion"], owner["kind"])
        if kind is None or (kind.namespaced and not namespace):
            return True  # can't be looked up: nothing is concluded
        if owner["uid"] not in living:
            return False
        found = self._objects.get(_key(kind, namespace if kind.namespaced else "", owner["name"]))
        return found is not None and found["metadata"]["uid"] == owner["uid"]

    def _end(self, kind: Kind, thing: Json) -> bool:
        meta = thing["metadata"]
        if kind.plural == "namespaces" and not kind.group:
            self._drop(kind, thing, thing, False)
            return True
        if meta.get("deletionTimestamp"):
            return False
        self.delete(kind, meta.get("namespace", ""), meta["name"])
        return True

    def _orphan(self, uid: str) -> None:
        for key, thing in list(self._objects.items()):
            owners = thing["metadata"].get("ownerReferences") or []
            if any(one["uid"] == uid for one in owners):
                changed = copy.deepcopy(thing)
                changed["metadata"]["ownerReferences"] = [one for one in owners if one["uid"] != uid]
                self._keep(self.kind(key[0], key[1]), thing, changed, False)

    # --- inside

    def _received(self, kind: Kind, namespace: str, body: Any) -> Json:
        if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
            raise Problem(400, "BadRequest", "the body is not an object")
        thing = copy.deepcopy(body)
        thing["metadata"] = thing.get("metadata") or {}
        for field, here in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if thing.setdefault(field, here) != here:
                raise Problem(400, "BadRequest", f"the {field} of the object ({thing[field]}) is not {here}")
        meta = thing["metadata"]
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise Problem(400, "BadRequest", "the namespace of the object does not match the one of the request")
        else:
            meta.pop("namespace", None)
        for each in ("labels", "annotations"):
            found = meta.get(each)
            if found is not None and not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
                raise Problem(400, "BadRequest", f"metadata.{each} are texts: {found}")
        for each in meta.get("ownerReferences") or ():
            if not all(each.get(key) for key in ("apiVersion", "kind", "name", "uid")):
                raise _invalid(kind, meta.get("name", ""), f"metadata.ownerReferences: Required value: {each}")
        return thing

    def _check_name(self, kind: Kind, name: str) -> None:
        if kind.group == "rbac.authorization.k8s.io":
            good = name not in (".", "..") and "/" not in name and "%" not in name
        elif kind.plural in ("namespaces", "services"):
            good = len(name) <= 63 and _LABEL.match(name) is not None
        else:
            good = len(name) <= 253 and _SUBDOMAIN.match(name) is not None
        if not good:
            raise _invalid(kind, name, f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain')

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        found = self._objects.get(("", "namespaces", "", namespace))
        if found is None:
            raise Problem(404, "NotFound", f'namespaces "{namespace}" not found')
        if found["metadata"].get("deletionTimestamp"):
            raise Problem(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: unable to create new content in '
                          f"namespace {namespace} because it is being terminated")  # fmt: skip

    def _checked(self, kind: Kind, thing: Json, before: Json | None, strict: bool) -> Json:
        thing, unknown = pruned(kind, thing)
        if unknown and strict:
            raise Problem(
                400, "BadRequest", f"strict decoding error: {', '.join(f'unknown field {u!r}' for u in unknown)}"
            )
        if wrong := problems_of(kind, thing, before):
            raise _invalid(kind, thing["metadata"]["name"], "; ".join(wrong))
        return thing

    def _on_create(self, kind: Kind, thing: Json) -> None:
        meta, spec = thing["metadata"], thing.get("spec")
        match kind.group, kind.plural:
            case "", "pods":
                self._new_pod(kind, thing)
            case "", "namespaces":
                meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]
                thing["spec"], thing["status"] = {"finalizers": ["kubernetes"]}, {"phase": "Active"}
            case "", "secrets":
                _new_secret(kind, thing)
            case "", "configmaps":
                if not all(isinstance(value, str) for value in (thing.get("data") or {}).values()):
                    raise Problem(400, "BadRequest", "ConfigMap in version v1 cannot be handled: data are texts")
            case "", "services":
                self._ip += 1
                spec.setdefault("type", "ClusterIP")
                spec.setdefault("clusterIP", f"10.96.{self._ip // 250}.{self._ip % 250 + 1}")
            case "batch", "jobs":
                spec.setdefault("backoffLimit", 6)
                spec.setdefault("completions", 1)
                spec.setdefault("parallelism", 1)
                mine = {"batch.kubernetes.io/controller-uid": meta["uid"]}
                spec.setdefault("selector", {"matchLabels": mine})
                labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
                labels.update(mine | {"batch.kubernetes.io/job-name": meta["name"], "job-name": meta["name"]})
                if spec["template"]["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
                    raise _invalid(
                        kind, meta["name"], "spec.template.spec.restartPolicy: Required value: Never or OnFailure"
                    )
            case "apiextensions.k8s.io", "customresourcedefinitions":
                if meta["name"] != f"{spec['names']['plural']}.{spec['group']}":
                    raise _invalid(kind, meta["name"], "metadata.name: must be spec.names.plural+'.'+spec.group")
                ready = {
                    "status": "True",
                    "reason": "InitialNamesAccepted",
                    "message": "",
                    "lastTransitionTime": _now(),
                }
                thing["status"] = {
                    "conditions": [{"type": "NamesAccepted", **ready}, {"type": "Established", **ready}],
                    "acceptedNames": spec["names"],
                    "storedVersions": [one["name"] for one in spec["versions"] if one.get("storage")],
                }

    def _new_pod(self, kind: Kind, thing: Json) -> None:
        meta, spec = thing["metadata"], thing.get("spec") or {}
        if not spec.get("containers"):
            raise _invalid(kind, meta["name"], "spec.containers: Required value")
        for each in spec["containers"]:
            if not each.get("name") or not _LABEL.match(each["name"]):
                raise _invalid(kind, meta["name"], f"spec.containers.name: Invalid value: {each.get('name')!r}")
        mounts = {volume["name"] for volume in spec.get("volumes") or ()}
        for each in (*spec["containers"], *(spec.get("initContainers") or ())):
            for mount in each.get("volumeMounts") or ():
                if mount["name"] not in mounts:
                    raise _invalid(
                        kind, meta["name"], f'spec.containers.volumeMounts.name: Not found: "{mount["name"]}"'
                    )
        account = spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
        if ("", "serviceaccounts", meta["namespace"], account) not in self._objects:
            raise Problem(403, "Forbidden", f'pods "{meta["name"]}" is forbidden: error looking up service account '
                          f'{meta["namespace"]}/{account}: serviceaccount "{account}" not found')  # fmt: skip
        spec["serviceAccount"] = account
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        thing["status"] = {"phase": "Pending", "qosClass": "BestEffort"}

    def _on_update(self, kind: Kind, thing: Json, before: Json) -> None:
        name, spec, was = before["metadata"]["name"], thing.get("spec") or {}, before.get("spec") or {}
        match kind.group, kind.plural:
            case "", "pods":
                if _unchangeable_of_pod(spec) != _unchangeable_of_pod(was):
                    raise _invalid(kind, name, "spec: Forbidden: pod updates may not change fields other than "
                                   "`spec.containers[*].image`, …")  # fmt: skip
            case "", "secrets":
                _new_secret(kind, thing)
                if thing.get("type") != before.get("type"):
                    raise _invalid(kind, name, "type: Invalid value: field is immutable")
                _immutable(kind, thing, before)
            case "", "configmaps":
                _immutable(kind, thing, before)
            case "batch", "jobs":
                if spec.get("template") != was.get("template") or spec.get("selector") != was.get("selector"):
                    raise _invalid(kind, name, "spec.template: Invalid value: field is immutable")
            case "apps", _:
                if spec.get("selector") != was.get("selector"):
                    raise _invalid(kind, name, "spec.selector: Invalid value: field is immutable")
            case "", "services":
                spec.setdefault("clusterIP", was.get("clusterIP"))
                if spec["clusterIP"] != was.get("clusterIP"):
                    raise _invalid(kind, name, "spec.clusterIPs[0]: Invalid value: may not change once set")
            case "rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings":
                if thing["roleRef"] != before["roleRef"]:
                    raise _invalid(kind, name, "roleRef: Invalid value: cannot change roleRef")

    def _keep(self, kind: Kind, before: Json | None, thing: Json, dry: bool) -> Json:
        if dry:
            return thing
        meta = thing["metadata"]
        self._note(kind, before, thing)
        self._objects[_key(kind, meta.get("namespace", ""), meta["name"])] = thing
        if (kind.group, kind.plural) == ("apiextensions.k8s.io", "customresourcedefinitions"):
            self._forget_kinds(thing["spec"])
            self.kinds += kinds_of(thing)
            self.on_kinds()
        if (kind.group, kind.plural, before) == ("", "namespaces", None):
            self.create(self.kind("", "serviceaccounts"), meta["name"], {"metadata": {"name": "default"}})
            authority = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self.ca}}
            self.create(self.kind("", "configmaps"), meta["name"], authority)
        self.on_change()
        return _in_version(kind, thing)

    ca = ""  # what every namespace's ConfigMap kube-root-ca.crt says

    def _drop(self, kind: Kind, before: Json, thing: Json, dry: bool) -> Json:
        if dry:
            return thing
        meta = before["metadata"]
        gone = copy.deepcopy(thing)
        self._note(kind, before, None, gone)
        del self._objects[_key(kind, meta.get("namespace", ""), meta["name"])]
        if (kind.group, kind.plural) == ("apiextensions.k8s.io", "customresourcedefinitions"):
            spec = before["spec"]
            for other, each in self.everything():
                if (other.group, other.plural) == (spec["group"], spec["names"]["plural"]):
                    self._drop(other, each, each, False)
            self._forget_kinds(spec)
            self.on_kinds()
        self.on_change()
        return gone

    def _forget_kinds(self, spec: Json) -> None:
        self.kinds = [k for k in self.kinds if (k.group, k.plural) != (spec["group"], spec["names"]["plural"])]

    def _note(self, kind: Kind, before: Json | None, after: Json | None, gone: Json | None = None) -> None:
        self.version += 1
        (after or gone or {})["metadata"]["resourceVersion"] = str(self.version)
        if after is None and gone is not None:
            before = gone
        self.events.append(Event(self.version, kind, before, after))


def merged(thing: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return kind.group, kind.plural, namespace if kind.namespaced else "", name


def _in_version(kind: Kind, thing: Json) -> Json:
    return thing if thing.get("apiVersion") == kind.api_version else {**thing, "apiVersion": kind.api_version}


def _shape(thing: Json) -> Json:
    """For "has anything changed": an empty map or list in metadata is none."""
    meta = {key: value for key, value in thing["metadata"].items() if value not in ({}, [], None)}
    return {**thing, "metadata": meta}


def _told(thing: Json) -> Json:
    return {key: value for key, value in thing.items() if key not in ("metadata", "status")}


def _now(later_s: float = 0) -> str:
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=later_s)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _not_found(kind: Kind, name: str) -> Problem:
    return Problem(
        404, "NotFound", f'{kind.resource} "{name}" not found', {"name": name, "group": kind.group, "kind": kind.plural}
    )


def _conflict(kind: Kind, name: str) -> Problem:
    return Problem(
        409, "Conflict",
        f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; please apply your '
        "changes to the latest version and try again",
    )  # fmt: skip


def _invalid(kind: Kind, name: str, why: str) -> Problem:
    return Problem(
        422, "Invalid", f'{kind.kind}.{kind.group} "{name}" is invalid: {why}', {"name": name, "kind": kind.kind}
    )


def _no_media(how: str) -> Problem:
    return Problem(
        415, "UnsupportedMediaType",
        f"the body of the request was in an unknown format; accepted: {JSON_PATCH}, {MERGE}; not {how}",
    )  # fmt: skip


def _has_lists_of_objects(patch: Any) -> bool:
    if isinstance(patch, dict):
        return any(_has_lists_of_objects(each) for each in patch.values())
    return isinstance(patch, list) and any(isinstance(each, dict) for each in patch)


def _unchangeable_of_pod(spec: Json) -> Json:
    kept = {
        k: v
        for k, v in spec.items()
        if k not in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
    }
    kept.pop("nodeName", None)  # the scheduler's binding is one of the lab's writes
    kept["containers"] = [{k: v for k, v in one.items() if k != "image"} for one in spec.get("containers") or ()]
    return kept


def _immutable(kind: Kind, thing: Json, before: Json) -> None:
    if before.get("immutable") and any(
        thing.get(key) != before.get(key) for key in ("data", "binaryData", "immutable")
    ):
        raise _invalid(kind, before["metadata"]["name"], "data: Forbidden: field is immutable when `immutable` is set")


def _new_secret(kind: Kind, thing: Json) -> None:
    data = dict(thing.get("data") or {})
    for key, value in (thing.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(value.encode()).decode()
    for key, value in data.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Problem(
                400, "BadRequest", f"Secret in version v1 cannot be handled: illegal base64 in {key}"
            ) from None
    if data:
        thing["data"] = data
    thing.setdefault("type", "Opaque")
    if thing["type"] == "kubernetes.io/tls" and not {"tls.crt", "tls.key"} <= set(data):
        raise _invalid(kind, thing["metadata"]["name"], "data[tls.crt], data[tls.key]: Required value")
