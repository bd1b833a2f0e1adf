"""Is a rendered object one that Argo accepts? Its own CRD schemas read strictly, and what they can't see.

schemas = Schemas(shared_data / "argo-crds")
assert schemas.problems(document) == []               # every field exists and has its type
assert problems(document, installed=[template]) == [] # everything that is referred to is there, and bound
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

Json = dict[str, Any]


class Schemas:
    """The full CRD schemas of a folder, with every unknown field an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def problems(self, document: Json) -> list[str]:
        validator = self._validator(document["kind"])
        found = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in
                 validator.iter_errors(document)]  # fmt: skip
        known = {"name", "generateName", "namespace", "labels", "annotations"}  # the schema leaves metadata open
        return found + [f"metadata/{name}: unknown" for name in set(document["metadata"]) - known]

    @functools.cache  # noqa: B019  (one instance per test session)
    def _validator(self, kind: str) -> Any:
        stored = json.loads((self._folder / f"{kind.lower()}s.json").read_text())
        schema = _strict(stored["openAPIV3Schema"])
        return jsonschema.Draft7Validator(schema)


def _strict(schema: Any) -> Any:
    """What a structural schema prunes is refused. `x-kubernetes-int-or-string` becomes what it means."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {
        name: {each: _strict(of) for each, of in value.items()} if name == "properties" else _strict(value)
        for name, value in schema.items()
    }
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


# ---- what no schema sees

_BODIES = {"container", "containerSet", "dag", "data", "http", "plugin", "resource", "script", "steps", "suspend"}
_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_PARAMETER = re.compile(r"[-a-zA-Z0-9_]+")
_TAG = re.compile(r"\{\{(.*?)\}\}")
_REFERENCE = re.compile(r"(inputs\.parameters|tasks|steps)\.([-\w.]+)")
_GLOBAL = {"workflow.uid", "workflow.name", "workflow.namespace", "workflow.serviceAccountName", "workflow.status"}
_LONGEST_CRON_NAME = 52


def problems(document: Json, installed: Iterable[Json] = ()) -> list[str]:
    """What is wrong with a workflow, a template or a schedule, beyond its fields; empty: nothing."""
    return list(_Checker(document, list(installed)).problems())


class _Checker:
    def __init__(self, document: Json, installed: list[Json]) -> None:
        self.document = document
        self.installed = {
            (each["kind"] == "ClusterWorkflowTemplate", each["metadata"]["name"]): each for each in installed
        }
        self.kind = document["kind"]
        spec = document["spec"]
        self.spec: Json = spec["workflowSpec"] if self.kind == "CronWorkflow" else spec
        self.templates = _by_name(self.spec.get("templates", []))

    def problems(self) -> Iterator[str]:
        yield from self._metadata()
        if (reference := self.spec.get("workflowTemplateRef")) is not None:
            yield from self._run(reference)
            return
        yield from self._entrypoint()
        for template in self.spec.get("templates", []):
            for problem in self._template(template):
                yield f"template {template['name']}: {problem}"
        yield from _repeated("template", self.spec.get("templates", []))
        if self.spec.get("onExit", "") not in {"", *self.templates}:
            yield f"exit handler {self.spec['onExit']} is not there"
        workflow = {f"workflow.parameters.{each['name']}" for each in _asked(self.spec)} | _GLOBAL
        for name, hook in self.spec.get("hooks", {}).items():
            yield from (f"hook {name}: {each}" for each in self._call(hook, hook.get("arguments", {})))
            yield from (f"hook {name}: {each}" for each in _tags(hook, workflow))

    def _metadata(self) -> Iterator[str]:
        metadata = self.document["metadata"]
        name = metadata.get("name") or metadata.get("generateName", "") + "xxxxx"
        longest = _LONGEST_CRON_NAME if self.kind == "CronWorkflow" else 63
        if len(name) > longest or not _OBJECT_NAME.fullmatch(name):
            yield f"name {name!r}"
        if self.kind == "ClusterWorkflowTemplate" and "namespace" in metadata:
            yield "a ClusterWorkflowTemplate has no namespace"
        yield from _labels(metadata)
        if self.kind == "CronWorkflow" and not self.document["spec"].get("schedules"):
            yield "no schedules"

    def _run(self, reference: Json) -> Iterator[str]:
        found = self.installed.get((bool(reference.get("clusterScope")), reference["name"]))
        if found is None:
            yield f"workflowTemplateRef {reference['name']} is not installed"
            return
        asked, given = _asked(found["spec"]), _by_name(_asked(self.spec))
        yield from (f"argument {name} is unknown" for name in given if name not in _by_name(asked))
        for each in asked:
            if "value" not in each and "value" not in given.get(each["name"], {}):
                yield f"argument {each['name']} is not bound"

    def _entrypoint(self) -> Iterator[str]:
        entry = self.templates.get(self.spec.get("entrypoint", ""))
        if entry is None:
            yield f"entrypoint {self.spec.get('entrypoint')} is not there"
            return
        arguments = _by_name(_asked(self.spec))
        yield from (f"entrypoint: {each}" for each in _unbound(entry, arguments))

    def _template(self, template: Json) -> Iterator[str]:
        if len(bodies := _BODIES & set(template)) != 1:
            yield f"has bodies {sorted(bodies)}"
        if len(template["name"]) > 63 or not _NAME.fullmatch(template["name"]):
            yield "name"
        for side in ("inputs", "outputs"):
            for kind in ("parameters", "artifacts"):
                each = template.get(side, {}).get(kind, [])
                yield from _repeated(kind, each)
                yield from (f"{kind} {one['name']!r}" for one in each if not _PARAMETER.fullmatch(one["name"]))
        yield from _labels(template.get("metadata", {}))
        if "dag" in template:
            yield from self._dag(template)
        elif "steps" in template:
            yield from self._steps(template)
        else:
            yield from self._pod(template)

    def _pod(self, template: Json) -> Iterator[str]:
        yield from _tags(template, _inputs(template) | _GLOBAL)
        mounted = {each["name"] for each in template.get("container", {}).get("volumeMounts", [])}
        volumes = {each["name"] for each in [*template.get("volumes", []), *self.spec.get("volumes", [])]}
        yield from (f"volume {name} is not there" for name in mounted - volumes)
        for each in template.get("outputs", {}).get("parameters", []):
            if "path" not in each.get("valueFrom", {}):
                yield f"output {each['name']} has no path"

    def _dag(self, template: Json) -> Iterator[str]:
        tasks = _by_name(template["dag"]["tasks"])
        yield from _repeated("task", template["dag"]["tasks"])
        for task in template["dag"]["tasks"]:
            before = _ancestors(tasks, task["name"])
            named = f"task {task['name']}"
            yield from (f"{named}: depends on {name}, which is not there" for name in before - set(tasks))
            if task["name"] in before:
                yield f"{named}: depends on itself"
                continue
            known = self._scope(template, [tasks[name] for name in before & set(tasks)], "tasks")
            yield from (f"{named}: {problem}" for problem in self._task(task, known))
        yield from _tags(template.get("outputs", {}), self._scope(template, tasks.values(), "tasks"))

    def _steps(self, template: Json) -> Iterator[str]:
        before: list[Json] = []
        for group in template["steps"]:
            known = self._scope(template, before, "steps")
            for step in group:
                yield from (f"step {step['name']}: {problem}" for problem in self._task(step, known))
            before += group
        yield from _repeated("step", before)
        yield from _tags(template.get("outputs", {}), self._scope(template, before, "steps"))

    def _scope(self, template: Json, before: Iterable[Json], kind: str) -> set[str]:
        return _inputs(template) | _GLOBAL | {f"{kind}.{of}" for each in before for of in self._outputs(each)}

    def _task(self, task: Json, known: set[str]) -> Iterator[str]:
        if len(task["name"]) > 63 or not _NAME.fullmatch(task["name"]):
            yield "name"
        if "withParam" in task or "withItems" in task:
            known = known | {"item"}
        yield from self._call(task, task.get("arguments", {}))
        yield from _tags({name: value for name, value in task.items() if name != "hooks"}, known)
        for name, hook in task.get("hooks", {}).items():
            if name != "exit" and "expression" not in hook:
                yield f"hook {name} has no expression"
            yield from (f"hook {name}: {each}" for each in self._call(hook, hook.get("arguments", {})))
            yield from (f"hook {name}: {each}" for each in _tags(hook, known - {"item"}))
            for _, path in _REFERENCE.findall(hook.get("expression", "")):
                if path.split(".")[0] != task["name"]:
                    yield f"hook {name} looks at {path}"

    def _call(self, caller: Json, arguments: Json) -> Iterator[str]:
        if ("template" in caller) == ("templateRef" in caller):
            yield "needs a template or a templateRef"
            return
        found = self._called(caller)
        if found is None:
            yield f"template {caller.get('template') or caller['templateRef']} is not there"
            return
        given = _by_name(arguments.get("parameters", []))
        declared = _by_name(found.get("inputs", {}).get("parameters", []))
        yield from (f"argument {name} is unknown" for name in given if name not in declared)
        yield from _unbound(found, given)

    def _called(self, caller: Json) -> Json | None:
        if "template" in caller:
            return self.templates.get(caller["template"])
        reference = caller["templateRef"]
        where = self.installed.get((bool(reference.get("clusterScope")), reference["name"]))
        return None if where is None else _by_name(where["spec"]["templates"]).get(reference["template"])

    def _outputs(self, task: Json) -> Iterator[str]:
        found = self._called(task) or {}
        for kind in ("parameters", "artifacts"):
            for each in found.get("outputs", {}).get(kind, []):
                yield f"{task['name']}.outputs.{kind}.{each['name']}"
        yield f"{task['name']}.status"


def _asked(spec: Json) -> list[Json]:
    found: list[Json] = spec.get("arguments", {}).get("parameters", [])
    return found


def _unbound(template: Json, given: Mapping[str, Json]) -> Iterator[str]:
    for each in template.get("inputs", {}).get("parameters", []):
        bound = "value" in each or "default" in each or each["name"] in given
        if not bound:
            yield f"input {each['name']} is not bound"


def _tags(value: Any, known: set[str]) -> Iterator[str]:
    for tag in _TAG.findall(json.dumps(value)):
        if not tag.startswith("="):
            if tag not in known:
                yield f"{{{{{tag}}}}} is not known here"
            continue
        for root, path in _REFERENCE.findall(tag):
            if f"{root}.{path}" not in known:
                yield f"{{{{{tag}}}}} names {root}.{path}, which is not known here"


def _inputs(template: Json) -> set[str]:
    return {f"inputs.parameters.{each['name']}" for each in template.get("inputs", {}).get("parameters", [])}


def _ancestors(tasks: Mapping[str, Json], name: str) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        task = tasks.get(left.pop(), {})
        named = set(task.get("dependencies", []))
        named |= {each.split(".")[0] for each in re.findall(r"[\w.-]+", task.get("depends", ""))}
        left += named - found
        found |= named
    return found


def _labels(metadata: Json) -> Iterator[str]:
    for name, value in metadata.get("labels", {}).items():
        if len(value) > 63 or len(name.split("/")[-1]) > 63:
            yield f"label {name}"


def _repeated(what: str, each: list[Json]) -> Iterator[str]:
    names = [one["name"] for one in each]
    yield from (f"{what} {name} is there twice" for name in {one for one in names if names.count(one) > 1})


def _by_name(each: Iterable[Json]) -> dict[str, Json]:
    return {one["name"]: one for one in each}
