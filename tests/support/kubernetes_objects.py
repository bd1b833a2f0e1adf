"""Is a set of objects one that an API server accepts, and does it hang together? Read without a server.

assert schema_problems(document) == []     # every field exists in Kubernetes' published API, and has its type
assert set_problems(documents) == []       # whatever one object refers to is there

The schema is that of the official Python client, which is generated from Kubernetes' OpenAPI document (1.30 there: what
it knows every supported version knows). Kinds that it lacks are looked up in `OTHERS`. That client is imported where
it is asked: tests that only read files do without it, or skip for the want of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

# https://cert-manager.io/docs/reference/api-docs (v1): the fields that are used here, and whether they must be there
OTHERS: dict[tuple[str, str], dict[str, bool]] = {
    ("cert-manager.io/v1", "Issuer"): {"selfSigned": False, "ca": False},
    ("cert-manager.io/v1", "Certificate"): {
        "secretName": True, "issuerRef": True, "isCA": False, "commonName": False, "dnsNames": False,
        "duration": False, "renewBefore": False, "privateKey": False, "usages": False,
    },
}  # fmt: skip
_CLUSTER_WIDE = {
    "Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "MutatingWebhookConfiguration",
    "CustomResourceDefinition",
}  # fmt: skip
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME = re.compile(r"[a-z0-9](-?[a-z0-9]){0,14}")


def documents_in(*files: Path) -> list[Json]:
    return [each for file in files for each in yaml.load_all(file.read_text(), Loader=_LOADER) if each is not None]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


def kustomized(folder: Path) -> list[Json]:
    """What `kustomize build` makes of a folder, as far as ours go: resources, and patches that merge mappings."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(told) <= {"apiVersion", "kind", "resources", "patches"}, told
    found: list[Json] = []
    for name in told["resources"]:
        place = (folder / name).resolve()
        assert not folder.resolve().is_relative_to(place), f"{name}: a base must not hold what is built on it"
        found += kustomized(place) if place.is_dir() else documents_in(place)
    for entry in told.get("patches", []):
        assert set(entry) == {"path"}, entry
        (patch,) = documents_in(folder / entry["path"])  # several in one file: newer versions only
        (target,) = [each for each in found if identity(each) == identity(patch)]
        _merge(target, patch)
    names = [identity(each) for each in found]
    assert len(set(names)) == len(names), "kustomize refuses an object that comes twice, also when it is the same"
    return found


_BY_NAME = ("containers", "env", "volumes")  # lists whose items are merged by name, in Kubernetes' own types
_WHOLE = ("args", "tolerations")  # lists that are replaced


def _merge(target: Json, patch: Json) -> None:
    """A strategic merge patch, as far as ours go."""
    for key, value in patch.items():
        assert key != "$patch", "directives are not known here"
        assert value is not None, "removals are not known here"
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        elif key in _BY_NAME:
            there = {each["name"]: each for each in target.setdefault(key, [])}
            for each in value:
                if each["name"] in there:
                    _merge(there[each["name"]], each)
            target[key][:0] = [each for each in value if each["name"] not in there]  # new ones come first
        else:
            assert key in _WHOLE or not isinstance(value, list), f"how {key} merges is not known here"
            target[key] = value


def identity(document: Json) -> tuple[str, str, str, str]:
    meta = document["metadata"]
    return document["apiVersion"], document["kind"], meta.get("namespace", ""), meta["name"]


# ---- one object


def schema_problems(document: Json) -> list[str]:
    """Unknown fields, wrong types, missing required fields."""
    key = (document["apiVersion"], document["kind"])
    if key in OTHERS:
        return list(_of_another(document, OTHERS[key]))
    group, _, version = document["apiVersion"].rpartition("/")
    del group
    name = f"{version.capitalize()}{document['kind']}"
    client = _client()
    if not hasattr(client, name):
        return [f"{key} is not known"]
    found = list(_problems("", document, name))
    if not found:
        try:
            client.ApiClient()._ApiClient__deserialize(document, name)
        except ValueError as error:  # a required field is missing, or a value is not one of those allowed
            found.append(str(error))
    return found


def _client() -> Any:
    from kubernetes import client

    return client


def _of_another(document: Json, fields: Mapping[str, bool]) -> Iterator[str]:
    spec = document["spec"]
    yield from (f"spec.{name}: unknown" for name in spec if name not in fields)
    yield from (f"spec.{name}: missing" for name, needed in fields.items() if needed and name not in spec)


def _problems(path: str, value: Any, kind: str) -> Iterator[str]:
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for index, each in enumerate(value):
            yield from _problems(f"{path}[{index}]", each, match[1])
    elif match := re.fullmatch(r"dict\((.*?), (.*)\)", kind):
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no mapping"
            return
        for name, each in value.items():
            yield from _problems(f"{path}.{name}", each, match[2])
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool" and kind != "object"):
            yield f"{path}: {value!r} is no {kind}"
    else:
        yield from _of_model(path, value, getattr(_client(), kind))


_PLAIN: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "datetime": str,
}


def _of_model(path: str, value: Any, model: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {model.__name__}"
        return
    kinds = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for name, each in value.items():
        if name not in kinds:
            yield f"{path}.{name}: unknown in {model.__name__}"
        else:
            yield from _problems(f"{path}.{name}", each, kinds[name])


# ---- all of them together


def pod_templates(documents: Iterable[Json]) -> list[tuple[Json, Json]]:
    """(the object that has it, the pod template)"""
    return [(each, found) for each in documents if (found := _template(each)) is not None]


def _template(document: Json) -> Json | None:
    spec = document.get("spec", {})
    if document["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    found: Json | None = spec.get("template")
    return found


def set_problems(documents: Iterable[Json], *, there: Iterable[str] = ()) -> list[str]:
    """Names that nothing accepts, and references that lead nowhere. `there`: namespaces that are not ours to make."""
    return list(_Set(list(documents), set(there)).problems())


class _Set:
    def __init__(self, documents: list[Json], there: set[str]) -> None:
        self.documents = documents
        self.there = there
        self.here = {
            (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in documents
        }

    def problems(self) -> Iterator[str]:
        if len({identity(each) for each in self.documents}) != len(self.documents):
            yield "an object is there twice"
        for each in self.documents:
            where = f"{each['kind']} {each['metadata']['name']}"
            yield from (f"{where}: {problem}" for problem in self._of(each))

    def _of(self, document: Json) -> Iterator[str]:
        meta, kind = document["metadata"], document["kind"]
        namespace = meta.get("namespace", "")
        if not _SUBDOMAIN.fullmatch(meta["name"]) or len(meta["name"]) > 253:
            yield "no name"
        if (kind in _CLUSTER_WIDE) == bool(namespace):
            yield "a namespace where there is none, or none where there must be one"
        if namespace and ("Namespace", "", namespace) not in self.here and namespace not in self.there:
            yield f"its namespace {namespace} is not among them"
        for name, value in (meta.get("labels") or {}).items():
            if not _LABEL_VALUE.fullmatch(value) or not _SUBDOMAIN.fullmatch(name.rpartition("/")[0] or "x"):
                yield f"label {name}={value}"
        checks = {
            "Deployment": self._of_pods, "DaemonSet": self._of_pods, "CronJob": self._of_pods,
            "Service": self._of_service, "RoleBinding": self._of_binding,
            "PodDisruptionBudget": self._of_selector, "NetworkPolicy": self._of_policy,
            "ClusterRoleBinding": self._of_binding, "MutatingWebhookConfiguration": self._of_webhooks,
            "Certificate": self._of_certificate,
        }  # fmt: skip
        if kind in checks:
            yield from checks[kind](document)

    def _of_pods(self, document: Json) -> Iterator[str]:
        namespace = document["metadata"]["namespace"]
        template = _template(document)
        assert template is not None
        spec = template["spec"]
        chosen = document["spec"].get("selector", {}).get("matchLabels")
        if document["kind"] != "CronJob" and not _selects(chosen, template["metadata"]["labels"]):
            yield "its selector does not select its own pods"
        account = spec.get("serviceAccountName", "default")
        if ("ServiceAccount", namespace, account) not in self.here:
            yield f"there is no ServiceAccount {account}"
        priority = spec.get("priorityClassName")
        if priority and ("PriorityClass", "", priority) not in self.here:
            yield f"there is no PriorityClass {priority}"
        volumes = [each["name"] for each in spec.get("volumes", [])]
        yield from (
            f"volume {name} twice or misnamed"
            for name in volumes
            if volumes.count(name) > 1 or not _LABEL.fullmatch(name)
        )
        mounted = set()
        for container in spec["containers"]:
            mounts = container.get("volumeMounts", [])
            mounted |= {each["name"] for each in mounts}
            yield from (f"{each['name']} is mounted and no volume" for each in mounts if each["name"] not in volumes)
            paths = [each["mountPath"] for each in mounts]
            yield from (f"two mounts at {path}" for path in set(paths) if paths.count(path) > 1)
            names = [each["name"] for each in container.get("env", [])]
            yield from (f"variable {name} twice" for name in set(names) if names.count(name) > 1)
            yield from self._of_ports(container)
            yield from _of_resources(container.get("resources", {}))
        yield from (f"volume {name} is mounted nowhere" for name in volumes if name not in mounted)
        yield from (
            "a topology spread that counts other pods"
            for each in spec.get("topologySpreadConstraints", [])
            if not _selects(each["labelSelector"]["matchLabels"], template["metadata"]["labels"])
        )

    def _of_ports(self, container: Json) -> Iterator[str]:
        names = {each["name"] for each in container.get("ports", [])}
        yield from (f"port name {name}" for name in names if not _PORT_NAME.fullmatch(name))
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in names:
                yield f"{probe} asks port {port}, which is none"

    def _chosen(self, namespace: str, labels: Mapping[str, str]) -> list[Json]:
        return [
            template
            for owner, template in pod_templates(self.documents)
            if owner["metadata"]["namespace"] == namespace and _selects(labels, template["metadata"]["labels"])
        ]

    def _of_service(self, document: Json) -> Iterator[str]:
        chosen = self._chosen(document["metadata"]["namespace"], document["spec"]["selector"])
        if len(chosen) != 1:
            yield f"it selects {len(chosen)} workloads"
            return
        ports = {each["name"] for container in chosen[0]["spec"]["containers"] for each in container.get("ports", [])}
        for each in document["spec"]["ports"]:
            if each["targetPort"] not in ports:
                yield f"target port {each['targetPort']} is none"

    def _of_selector(self, document: Json) -> Iterator[str]:
        if len(self._chosen(document["metadata"]["namespace"], document["spec"]["selector"]["matchLabels"])) != 1:
            yield "it selects no workload"

    def _of_policy(self, document: Json) -> Iterator[str]:
        selector = document["spec"]["podSelector"]
        if not selector:
            return  # all pods of the namespace, whoever makes them
        chosen = self._chosen(document["metadata"]["namespace"], selector["matchLabels"])
        if len(chosen) != 1:
            yield "it selects no workload"
            return
        ports = {each["name"] for container in chosen[0]["spec"]["containers"] for each in container.get("ports", [])}
        for rule in document["spec"].get("ingress", []):
            yield from (f"port {each['port']} is none" for each in rule["ports"] if each["port"] not in ports)

    def _of_binding(self, document: Json) -> Iterator[str]:
        role = document["roleRef"]
        where = document["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
        if role["apiGroup"] != "rbac.authorization.k8s.io" or (role["kind"], where, role["name"]) not in self.here:
            yield f"there is no {role['kind']} {role['name']}"
        for each in document["subjects"]:
            if each["kind"] == "Group":
                namespace = each["name"].removeprefix("system:serviceaccounts:")
                if each.get("apiGroup") != "rbac.authorization.k8s.io" or ("Namespace", "", namespace) not in self.here:
                    yield f"{each['name']} are no accounts of a namespace of ours"
            elif (each["kind"], each["namespace"], each["name"]) not in self.here:
                yield f"there is no {each['kind']} {each['name']}"

    def _of_webhooks(self, document: Json) -> Iterator[str]:
        for hook in document["webhooks"]:
            if hook["name"].count(".") < 2:
                yield f"{hook['name']} has fewer than three parts"
            service = hook["clientConfig"]["service"]
            found = [
                each for each in self.documents
                if (each["kind"], each["metadata"]["name"]) == ("Service", service["name"])
                and each["metadata"]["namespace"] == service["namespace"]
            ]  # fmt: skip
            if not found or service.get("port", 443) not in {each["port"] for each in found[0]["spec"]["ports"]}:
                yield f"its service {service} is not there"
        source = (document["metadata"].get("annotations") or {}).get("cert-manager.io/inject-ca-from")
        if source and ("Certificate", *source.split("/")) not in self.here:
            yield f"there is no Certificate {source}"

    def _of_certificate(self, document: Json) -> Iterator[str]:
        issuer = document["spec"]["issuerRef"]
        if (issuer["kind"], document["metadata"]["namespace"], issuer["name"]) not in self.here:
            yield f"there is no {issuer['kind']} {issuer['name']}"


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def _of_resources(resources: Json) -> Iterator[str]:
    for name, request in resources.get("requests", {}).items():
        limit = resources.get("limits", {}).get(name)
        if limit is not None and amount(request) > amount(limit):
            yield f"{name}: {request} is asked for and {limit} allowed"


def amount(text: str) -> float:
    match = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi)?", text)
    assert match is not None, text
    return float(match[1]) * {None: 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[match[2]]
