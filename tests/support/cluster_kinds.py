"""The kinds that an emulated API server knows, and what it makes of CustomResourceDefinitions.

Objects of a CRD are pruned, defaulted and validated by its openAPIV3Schema. Of CEL only the rule `self == oldSelf` is
evaluated; every other rule is recorded as not evaluated (`Kind.cel`), never taken for fulfilled in silence.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema

Json = dict[str, Any]
UNCHANGING = "self == oldSelf"


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False  # has a status subresource: main writes never change it, and the reverse
    custom: bool = False
    fields: tuple[str, ...] = ()  # to select by, beside metadata.name and metadata.namespace
    more: tuple[str, ...] = ()  # other subresources
    schema: Json | None = field(default=None, hash=False, compare=False)
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`pods`, `jobs.batch`: as the server's messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def counts_generations(self) -> bool:
        return self.status or self.custom

    @property
    def cel(self) -> tuple[str, ...]:
        """Rules of its schema that are not evaluated here."""
        return tuple(f"{path}: {rule}" for path, rule in _rules(self.schema or {}, "") if rule != UNCHANGING)


def _core(plural: str, kind: str, **more: Any) -> Kind:
    return Kind("", "v1", plural, kind, **more)


BUILT_IN: tuple[Kind, ...] = (
    _core("pods", "Pod", status=True, fields=("spec.nodeName", "status.phase", "spec.serviceAccountName",
          "status.podIP", "spec.restartPolicy"), more=("log", "portforward", "eviction", "binding", "exec")),
    _core("services", "Service", status=True),
    _core("serviceaccounts", "ServiceAccount", more=("token",)),
    _core("secrets", "Secret", fields=("type",)),
    _core("configmaps", "ConfigMap"),
    _core("namespaces", "Namespace", namespaced=False, status=True, fields=("status.phase",)),
    _core("nodes", "Node", namespaced=False, status=True, fields=("spec.unschedulable",)),
    _core("events", "Event", fields=("involvedObject.name", "involvedObject.uid", "reason", "type")),
    _core("endpoints", "Endpoints"),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", status=True),
    _core("resourcequotas", "ResourceQuota", status=True),
    _core("limitranges", "LimitRange"),
    Kind("events.k8s.io", "v1", "events", "Event"),
    Kind("apps", "v1", "deployments", "Deployment", status=True, more=("scale",)),
    Kind("apps", "v1", "replicasets", "ReplicaSet", status=True, more=("scale",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", status=True),
    Kind("apps", "v1", "statefulsets", "StatefulSet", status=True, more=("scale",)),
    Kind("batch", "v1", "jobs", "Job", status=True, fields=("status.successful",)),
    Kind("batch", "v1", "cronjobs", "CronJob", status=True),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
         namespaced=False),
    Kind("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
         namespaced=False),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy",
         namespaced=False, status=True),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
         "ValidatingAdmissionPolicyBinding", namespaced=False),
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False,
         status=True),
)  # fmt: skip

# Kinds of training jobs, as their CRDs declare them; `ClusterApi.serve` adds one. No schema: anything goes.
JOBSET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", status=True, custom=True)
PYTORCHJOB = Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", status=True, custom=True)
TRAINJOB = Kind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", status=True, custom=True)
VOLCANO_JOB = Kind("batch.volcano.sh", "v1alpha1", "jobs", "Job", status=True, custom=True)


def kinds_of(definition: Json) -> Iterator[Kind]:
    """One for each served version of a CustomResourceDefinition."""
    spec = definition["spec"]
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        yield Kind(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            namespaced=spec["scope"] == "Namespaced",
            status="status" in (version.get("subresources") or {}),
            custom=True,
            fields=tuple(one["jsonPath"].removeprefix(".") for one in version.get("selectableFields") or ()),
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            short=tuple(spec["names"].get("shortNames") or ()),
        )


def pruned(kind: Kind, thing: Json) -> tuple[Json, list[str]]:
    """Without the fields that the schema does not know, and which those were. Defaults are filled in."""
    if kind.schema is None:
        return thing, []
    unknown: list[str] = []
    about = {key: value for key, value in thing.items() if key not in ("apiVersion", "kind", "metadata")}
    schema = {**kind.schema, "properties": dict(kind.schema.get("properties") or {})}
    for each in ("apiVersion", "kind", "metadata"):
        schema["properties"].pop(each, None)
    kept = _prune(schema, copy.deepcopy(about), "", unknown)
    head = {key: thing[key] for key in ("apiVersion", "kind", "metadata") if key in thing}
    return {**head, **kept}, unknown


def problems_of(kind: Kind, thing: Json, before: Json | None) -> list[str]:
    """What its schema says against an object, as it is now and (before) was."""
    if kind.schema is None:
        return []
    validator = jsonschema.Draft202012Validator(_plain(kind.schema))
    found = [
        f"{'.'.join(str(part) for part in error.absolute_path) or '<root>'}: {error.message}"
        for error in validator.iter_errors(thing)
    ]
    if before is not None:
        found += list(_changed(kind.schema, thing, before, ""))
    return found


def _prune(schema: Json, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for key in list(value):
            if key in known:
                if value[key] is None and not known[key].get("nullable"):
                    del value[key]  # a null where none may be is dropped, so that a default can take its place
                    continue
                value[key] = _prune(known[key], value[key], f"{path}.{key}", unknown)
            elif isinstance(rest, dict):
                value[key] = _prune(rest, value[key], f"{path}.{key}", unknown)
            elif rest is not True and not schema.get("x-kubernetes-preserve-unknown-fields"):
                unknown.append(f"{path}.{key}".lstrip("."))
                del value[key]
        for key, each in known.items():
            if key not in value and "default" in each:
                value[key] = _prune(each, copy.deepcopy(each["default"]), f"{path}.{key}", unknown)
        return value
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_prune(schema["items"], each, f"{path}[{i}]", unknown) for i, each in enumerate(value)]
    return value


def _plain(schema: Any) -> Any:
    """The same in JSON Schema's words."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _plain(value) for key, value in schema.items() if not key.startswith("x-") and key != "nullable"}
    for name in ("properties", "patternProperties"):
        if isinstance(schema.get(name), dict):
            made[name] = {key: _plain(value) for key, value in schema[name].items()}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in made:
        made["type"] = [*([made["type"]] if isinstance(made["type"], str) else made["type"]), "null"]
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
    if made.get("format") in ("int32", "int64", "double", "float"):
        del made["format"]
    return made


def _changed(schema: Json, now: Any, before: Any, path: str) -> Iterator[str]:
    """Where `self == oldSelf` stands and does not hold. Such a rule holds for a value that was not there before."""
    for rule in schema.get("x-kubernetes-validations") or ():
        if rule["rule"].strip() == UNCHANGING and now != before:
            yield f"{path.lstrip('.') or '<root>'}: Invalid value: {rule.get('message', UNCHANGING)}"
    if isinstance(now, dict) and isinstance(before, dict):
        for key, each in (schema.get("properties") or {}).items():
            if key in now and key in before:
                yield from _changed(each, now[key], before[key], f"{path}.{key}")


def _rules(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _rules(each, path)
        return
    if not isinstance(schema, dict):
        return
    for rule in schema.get("x-kubernetes-validations") or ():
        yield path.lstrip(".") or "<root>", rule["rule"].strip()
    for key, each in (schema.get("properties") or {}).items():
        yield from _rules(each, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        yield from _rules(schema.get(key), f"{path}[]")
