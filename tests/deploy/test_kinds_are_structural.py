"""Our kinds of objects, by the rules that an API server checks a CustomResourceDefinition by.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes_objects import kustomized

from sameshot.kube import coordinators, names
from sameshot.model import CapturePolicy

CRDS = Path(__file__).parents[2] / "deploy/crds"
Json = dict[str, Any]

_KNOWN = {
    "type", "format", "description", "properties", "required", "items", "additionalProperties", "enum", "nullable",
    "default", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties",
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip
_OF_METADATA = {"name", "generateName"}  # all of metadata that a schema, and a rule, may speak of


def definitions() -> dict[str, Json]:
    return {each["spec"]["names"]["kind"]: each for each in kustomized(CRDS)}


every = pytest.mark.parametrize("kind", ["CaptureCoordinator", "CapturePolicy", "ClusterCapturePolicy"])


def version_of(kind: str) -> Json:
    (version,) = definitions()[kind]["spec"]["versions"]
    found: Json = version
    return found


def schema_of(kind: str) -> Json:
    found: Json = version_of(kind)["schema"]["openAPIV3Schema"]
    return found


def problems(schema: Json, path: str = "") -> Iterator[str]:
    """Why a server would not take this schema, or would not do what it seems to say."""
    if unknown := set(schema) - _KNOWN:
        yield f"{path}: {sorted(unknown)}"
    if schema.get("type") not in ("object", "array", "string", "integer", "boolean"):
        yield f"{path}: no type"
    if path == ".metadata" and set(schema) - {"type"}:
        yield f"{path}: of metadata only the type may be said here"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties exclude each other"
    if missing := set(schema.get("required", ())) - set(schema.get("properties", {})):
        yield f"{path}: {sorted(missing)} are required and not known"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: no items"
    told = {"properties", "additionalProperties"} & set(schema)
    if schema.get("type") == "object" and path not in ("", ".metadata") and not told:
        yield f"{path}: everything in it would be dropped"
    if schema.get("x-kubernetes-list-type") == "map":
        keys, item = schema.get("x-kubernetes-list-map-keys", ()), schema["items"]
        if not keys or not set(keys) <= set(item.get("required", ())):
            yield f"{path}: keys of the list must be required of its items"
    if re.search(r"\\[pPAzZ]|\(\?[!=<]", schema.get("pattern", "")):
        yield f"{path}: the pattern is none of RE2's"  # the server is written in Go
    for rule in schema.get("x-kubernetes-validations", ()):
        yield from (f"{path}: {problem}" for problem in of_rule(rule, schema))
    for name, each in schema.get("properties", {}).items():
        yield from problems(each, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from problems(schema[name], f"{path}[]")


def of_rule(rule: Json, schema: Json) -> Iterator[str]:
    """A rule in CEL, as far as it can be read without CEL: balanced, and about fields that there are."""
    text = rule["rule"]
    if set(rule) - {"rule", "message", "reason", "fieldPath"} or not rule.get("message") or "\n" in rule["message"]:
        yield f"{rule}: a rule and its message on one line"
    bare = re.sub(r"'[^']*'", "''", text)
    if bare.count("(") != bare.count(")") or "'" in bare.replace("''", "") or re.search(r"[^=!<>]=[^=]", bare):
        yield f"{text}: unbalanced, or an assignment"
    if roots := set(re.findall(r"(?<![\w.])[a-zA-Z_]\w*(?!\w*\()", bare)) - {
        "self",
        "oldSelf",
        "true",
        "false",
        "null",
    }:
        yield f"{text}: {roots} are nothing"
    for field in re.findall(r"\b(?:self|oldSelf)((?:\.\w+)+)", bare):
        at: Json | None = schema
        for name in field.strip(".").split("."):
            if at is schema.get("properties", {}).get("metadata") and name in _OF_METADATA:
                at = {}
                break
            at = (at or {}).get("properties", {}).get(name)
        if at is None:
            yield f"{text}: there is no {field}"


@every
def test_the_schema_is_one_that_a_server_takes(kind: str) -> None:
    schema = schema_of(kind)
    assert list(problems(schema)) == []
    assert {"apiVersion", "kind", "metadata", "spec"} <= set(schema["properties"])
    assert schema["required"] == ["spec"]


@every
def test_every_text_and_list_has_a_limit(kind: str) -> None:
    """Else a rule's cost, which a server estimates from them, would be too high for it; and etcd would fill up."""

    def unlimited(schema: Json, path: str = "") -> Iterator[str]:
        if path in (".apiVersion", ".kind", ".metadata"):
            return
        if schema["type"] == "string" and not {"maxLength", "enum"} & set(schema):
            yield path
        if schema["type"] == "array" and "maxItems" not in schema:
            yield path
        if "additionalProperties" in schema and "maxProperties" not in schema:
            yield path
        for name, each in schema.get("properties", {}).items():
            yield from unlimited(each, f"{path}.{name}")
        for name in ("items", "additionalProperties"):
            if name in schema:
                yield from unlimited(schema[name], f"{path}[]")

    assert list(unlimited(schema_of(kind))) == []


@every
def test_names_and_columns_fit(kind: str) -> None:
    spec = definitions()[kind]["spec"]
    plural = spec["names"]["plural"]
    assert definitions()[kind]["metadata"]["name"] == f"{plural}.{names.GROUP}"
    assert spec["group"] == names.GROUP
    assert (spec["names"]["singular"], spec["names"]["listKind"]) == (kind.lower(), f"{kind}List")
    assert plural in (names.COORDINATORS, names.POLICIES, names.CLUSTER_POLICIES)
    assert (version_of(kind)["name"], version_of(kind)["served"], version_of(kind)["storage"]) == (
        names.VERSION,
        True,
        True,
    )
    for column in version_of(kind)["additionalPrinterColumns"]:
        at: Any = schema_of(kind)
        path = column["jsonPath"].strip(".").split(".")
        if path[0] == "metadata":
            assert path == ["metadata", "creationTimestamp"]
            continue
        for name in path:
            at = at["properties"][name]
        assert column["type"] == at["type"], column


def test_a_coordinators_schema_has_the_fields_of_its_value() -> None:
    def fields(of: type[msgspec.Struct]) -> set[str]:
        return set(of.__struct_encode_fields__)

    top = schema_of("CaptureCoordinator")["properties"]
    spec, status = top["spec"]["properties"], top["status"]["properties"]
    assert set(spec) == fields(coordinators.Spec)
    assert set(spec["job"]["properties"]) == fields(coordinators.Job)
    assert set(status) == fields(coordinators.Status)
    assert set(status["pod"]["properties"]) == fields(coordinators.PodPlace)
    assert set(status["conditions"]["items"]["properties"]) == fields(coordinators.Condition)
    assert set(status["phase"]["enum"]) == {each.value for each in coordinators.Phase}
    assert version_of("CaptureCoordinator")["subresources"] == {"status": {}}


def test_policies_have_the_fields_of_the_policy_that_coordinators_hold_to() -> None:
    """In camelCase; the cluster's and the namespace's are the same."""

    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(each.capitalize() for each in rest)

    spec = schema_of("CapturePolicy")["properties"]["spec"]
    assert set(spec["properties"]) == {camel(each) for each in CapturePolicy.__struct_fields__}
    assert "required" not in spec
    cluster = schema_of("ClusterCapturePolicy")["properties"]["spec"]
    assert cluster["properties"] == spec["properties"]
    assert definitions()["ClusterCapturePolicy"]["spec"]["scope"] == "Cluster"


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "object", "properties": {"a": {}}}, "no type"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "no items"),
        ({"type": "object", "properties": {"a": {"type": "string", "oneOf": []}}}, "oneOf"),
        ({"type": "object", "required": ["b"], "properties": {}}, "required and not known"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "would be dropped"),
        (
            {"type": "object", "x-kubernetes-validations": [{"rule": "self.b > 0", "message": "x"}], "properties": {}},
            "there is no .b",
        ),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "(self", "message": "x"}]}, "unbalanced"),
    ],
)
def test_the_check_sees_what_a_server_would_refuse(schema: Json, told: str) -> None:
    assert any(told in each for each in problems(schema)), list(problems(schema))


def test_short_names_are_none_of_other_projects() -> None:
    """`cc` is Cluster API's ClusterClass; kubectl takes one of two at will."""
    short = {kind: each["spec"]["names"]["shortNames"] for kind, each in definitions().items()}
    assert short == {"CaptureCoordinator": ["ssc"], "CapturePolicy": ["ssp"], "ClusterCapturePolicy": ["cssp"]}
