"""A whole file of Kubernetes objects, armed or disarmed: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sameshot.arm.documents import GONE, read
from sameshot.arm.hookmap import hook_configmap, is_hook_configmap
from sameshot.arm.kinds import UNSUPPORTED, arm_object, disarm_object, is_known, kind_of, may_be_a_workload
from sameshot.arm.values import ArmOptions, Json, NotArmable
from sameshot.errors import UsageError


@dataclass(frozen=True)
class Told:
    """What a person should know about one object."""

    where: str  # `document 2, JobSet bert, spec.…template`
    text: str


@dataclass(frozen=True)
class ArmedText:
    """A file after arming or disarming."""

    text: str
    templates: int  # pod templates that are armed in it, or were disarmed
    told: tuple[Told, ...] = ()
    hooks: tuple[str | None, ...] = ()  # the namespaces whose ConfigMap was put in front; None: the client's own


@dataclass
class _Work:
    """What comes up while one goes through the objects."""

    told: list[Told] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    templates: int = 0
    namespaces: dict[str | None, None] = field(default_factory=dict)


def arm_text(
    text: str,
    options: ArmOptions | None = None,
    *,
    template_paths: Sequence[str] = (),
    namespace: str | None = None,
    hook: bool = True,
) -> ArmedText:
    """The same file with its workloads armed, and the hook's ConfigMap in front, once for each of their namespaces.

    `namespace` is that of objects which name none. Objects that are no workloads stay as they are. Raises NotArmable,
    with every reason, where any workload can't be armed, and where there is none at all.
    """
    stream = read(text)
    work = _Work()
    new: list[Any] = []
    for number, thing in enumerate(stream.things, start=1):
        new.append(
            _each(thing, f"document {number}", lambda item, where: _arm(item, where, options, template_paths, work))
        )
    if work.refused:
        raise NotArmable("Nothing was changed. " + " ".join(work.refused))
    if not work.templates:
        seen = "; ".join(f"{each.where}: {each.text}" for each in work.told)
        raise NotArmable(f"There is no workload in it that could be armed{f' ({seen})' if seen else ''}.")
    wanted = {
        each if each is not None else namespace: hook_configmap(each if each is not None else namespace)
        for each in work.namespaces
    }
    front = list(wanted.values()) if hook else []
    for index, thing in enumerate(stream.things):
        if hook and is_hook_configmap(thing):
            ours = wanted.get(_namespace(thing))
            if ours is None:
                continue
            if ours == thing:
                front.remove(ours)
            else:
                new[index] = GONE
    changed = stream.with_changes(new, front)
    told = [*work.told, *_lost(changed.rewritten)]
    return ArmedText(changed.text, work.templates, tuple(told), tuple(_namespace(each) for each in front))


def disarm_text(text: str, *, template_paths: Sequence[str] = ()) -> ArmedText:
    """The same file without what arming added, the hook's ConfigMap included."""
    stream = read(text)
    work = _Work()
    new: list[Any] = []
    for number, thing in enumerate(stream.things, start=1):
        new.append(_each(thing, f"document {number}", lambda item, where: _disarm(item, where, template_paths, work)))
    if work.refused:
        raise NotArmable("Nothing was changed. " + " ".join(work.refused))
    changed = stream.with_changes([GONE if is_hook_configmap(each) else each for each in new], ())
    return ArmedText(changed.text, work.templates, (*work.told, *_lost(changed.rewritten)))


def _each(thing: Any, where: str, change: Any) -> Any:
    """One document with `change` made to its object, or to each object of a List."""
    if thing is None:
        return None
    if not isinstance(thing, dict) or "kind" not in thing:
        raise UsageError(f"The {where} is no Kubernetes object: it has no kind.")
    items = thing.get("items")
    if str(thing["kind"]).endswith("List") and isinstance(items, list):
        changed = [_each(item, f"{where}, item {number}", change) for number, item in enumerate(items, start=1)]
        return {**thing, "items": changed}
    metadata = thing.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    name = named.get("name") or f"{named.get('generateName', '')}…"
    return change(thing, f"{where}, {thing['kind']} {name}")


def _arm(thing: Json, where: str, options: ArmOptions | None, template_paths: Sequence[str], work: _Work) -> Json:
    known = is_known(thing)
    if not known and kind_of(thing) not in UNSUPPORTED and (not template_paths or not may_be_a_workload(thing)):
        if may_be_a_workload(thing):
            work.told.append(
                Told(where, "this kind is not known; where it holds pod templates say where with --template-path")
            )
        return thing
    try:
        done = arm_object(thing, options, () if known else template_paths)
    except NotArmable as error:
        work.refused.append(f"{where}: {error}")
        return thing
    work.templates += done.templates
    work.told += [Told(f"{where}, {path}" if path else where, text) for path, text in done.told]
    work.namespaces[_namespace(thing)] = None
    return done.thing


def _disarm(thing: Json, where: str, template_paths: Sequence[str], work: _Work) -> Json:
    known = is_known(thing)
    if kind_of(thing) in UNSUPPORTED or (not known and (not template_paths or not may_be_a_workload(thing))):
        return thing
    try:
        done = disarm_object(thing, () if known else template_paths)
    except NotArmable as error:
        work.refused.append(f"{where}: {error}")
        return thing
    work.templates += done.templates
    work.told += [Told(f"{where}, {path}" if path else where, text) for path, text in done.told]
    return done.thing


def _namespace(thing: Json) -> str | None:
    metadata = thing.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, dict) else None
    return str(found) if found else None


def _lost(rewritten: Sequence[int]) -> Iterator[Told]:
    for index in rewritten:
        yield Told(
            f"document {index + 1}", "it could not be changed in place: its comments, anchors and formatting are lost"
        )
