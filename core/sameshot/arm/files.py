"""A whole file of Kubernetes objects, armed or disarmed: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sameshot.arm import labels
from sameshot.arm.documents import GONE, read
from sameshot.arm.hookmap import hook_configmap, is_hook_configmap
from sameshot.arm.kinds import (
    UNSUPPORTED,
    ArmedObject,
    arm_object,
    disarm_object,
    is_known,
    kind_of,
    may_be_a_workload,
    templates_of,
)
from sameshot.arm.trainer import asks_for_an_accelerator
from sameshot.arm.values import ArmOptions, Json, NotArmable, inside
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

    template_paths: Sequence[str]
    only: Sequence[str]
    told: list[Told] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    templates: int = 0
    namespaces: dict[str | None, None] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)  # which of `only`

    def wants(self, thing: Json) -> bool:
        """Whether this object is one of those that a person named."""
        name = _name(thing)
        for each in self.only:
            kind, slash, rest = each.rpartition("/")
            if rest in (name, name.removesuffix("…")) and (not slash or kind.lower() == str(thing["kind"]).lower()):
                self.found.add(each)
                return True
        return not self.only

    def do(self, where: str, act: Callable[[], ArmedObject]) -> ArmedObject | None:
        """The outcome of `act` for one object; None: it was refused."""
        try:
            done = act()
        except NotArmable as error:
            self.refused.append(f"{where}: {error}")
            return None
        self.templates += done.templates
        self.told += [Told(f"{where}, {path}" if path else where, text) for path, text in done.told]
        return done

    def check(self) -> None:
        """Raise NotArmable for everything that was refused."""
        missing = [each for each in self.only if each not in self.found]
        if missing:
            raise NotArmable(f"There is nothing named {', '.join(missing)} in it.")
        if self.refused:
            raise NotArmable("Nothing was changed. " + " ".join(self.refused))


def arm_text(
    text: str,
    options: ArmOptions | None = None,
    *,
    template_paths: Sequence[str] = (),
    only: Sequence[str] = (),
    namespace: str | None = None,
    hook: bool = True,
) -> ArmedText:
    """The same file with its workloads armed, and the hook's ConfigMap in front, once for each of their namespaces.

    `only` names workloads (`name` or `kind/name`); without it, where some ask for an accelerator, the others stay as
    they are. `namespace` is that of objects which name none. Raises NotArmable, with every reason, where any of the
    workloads can't be armed, and where there is none at all.
    """
    stream = read(text)
    work = _Work(template_paths, only)
    equipped = any(_asks(item, template_paths) for thing in stream.things for item in _objects(thing))

    def arm(thing: Json, where: str) -> Json:
        if not work.wants(thing) or not _is_workload(thing, where, work):
            return thing
        if equipped and not only and is_known(thing) and not _asks(thing, ()) and not _is_armed(thing):
            work.told.append(Told(where, "asks for no accelerator, as others do; it is left as it is (see --only)"))
            return thing
        done = work.do(where, lambda: arm_object(thing, options, () if is_known(thing) else template_paths))
        if done is None or not done.templates:
            return thing
        work.namespaces[_namespace(thing)] = None
        return done.thing

    new = [_each(thing, f"document {number}", arm) for number, thing in enumerate(stream.things, start=1)]
    work.check()
    if not work.templates:
        seen = "; ".join(f"{each.where}: {each.text}" for each in work.told)
        raise NotArmable(f"There is no workload in it that could be armed{f' ({seen})' if seen else ''}.")
    wanted = {(each or namespace): hook_configmap(each or namespace) for each in work.namespaces} if hook else {}
    front = list(wanted.values())
    for index, thing in enumerate(stream.things):
        if not is_hook_configmap(thing) or _namespace(thing) not in wanted:
            continue
        ours = wanted[_namespace(thing)]
        if ours == thing:
            front.remove(ours)
        else:
            new[index] = GONE
    changed = stream.with_changes(new, front)
    told = [*work.told, *_lost(changed.rewritten)]
    return ArmedText(changed.text, work.templates, tuple(told), tuple(_namespace(each) for each in front))


def disarm_text(text: str, *, template_paths: Sequence[str] = (), only: Sequence[str] = ()) -> ArmedText:
    """The same file without what arming added; the hook's ConfigMap goes, too, unless only some are disarmed."""
    stream = read(text)
    work = _Work(template_paths, only)

    def disarm(thing: Json, where: str) -> Json:
        unknown = kind_of(thing) in UNSUPPORTED or not _has_templates(thing, template_paths)
        if unknown or not work.wants(thing):
            return thing
        done = work.do(where, lambda: disarm_object(thing, () if is_known(thing) else template_paths))
        return thing if done is None else done.thing

    new = [_each(thing, f"document {number}", disarm) for number, thing in enumerate(stream.things, start=1)]
    work.check()
    changed = stream.with_changes([GONE if is_hook_configmap(each) and not only else each for each in new], ())
    return ArmedText(changed.text, work.templates, (*work.told, *_lost(changed.rewritten)))


def _each(thing: Any, where: str, change: Callable[[Json, str], Json]) -> Any:
    """One document with `change` made to its object, or to each object of a List."""
    if thing is None:
        return None
    if not isinstance(thing, dict) or "kind" not in thing:
        raise UsageError(f"The {where} is no Kubernetes object: it has no kind.")
    if (items := _items(thing)) is not None:
        changed = [_each(item, f"{where}, item {number}", change) for number, item in enumerate(items, start=1)]
        return {**thing, "items": changed}
    return change(thing, f"{where}, {thing['kind']} {_name(thing)}")


def _objects(thing: Any) -> Iterator[Json]:
    """The objects of a document, as far as they are any."""
    if isinstance(thing, dict):
        items = _items(thing)
        for each in [thing] if items is None else items:
            if isinstance(each, dict):
                yield each


def _items(thing: Json) -> list[Any] | None:
    items = thing.get("items")
    return items if str(thing.get("kind")).endswith("List") and isinstance(items, list) else None


def _name(thing: Json) -> str:
    named = inside(thing, "metadata")
    return str(named.get("name") or f"{named.get('generateName', '')}…")


def _has_templates(thing: Json, template_paths: Sequence[str]) -> bool:
    return is_known(thing) or (bool(template_paths) and may_be_a_workload(thing))


def _is_workload(thing: Json, where: str, work: _Work) -> bool:
    """Whether there is something to arm in it, or to refuse."""
    if kind_of(thing) in UNSUPPORTED or _has_templates(thing, work.template_paths):
        return True
    if may_be_a_workload(thing):
        told = "this kind is not known; where it holds pod templates say where with --template-path"
        work.told.append(Told(where, told))
    return False


def _templates(thing: Json, template_paths: Sequence[str]) -> list[Json]:
    if kind_of(thing) in UNSUPPORTED or not _has_templates(thing, template_paths):
        return []
    return [template for _, template in templates_of(thing, () if is_known(thing) else template_paths)]


def _asks(thing: Json, template_paths: Sequence[str]) -> bool:
    return any(map(asks_for_an_accelerator, _templates(thing, template_paths)))


def _is_armed(thing: Json) -> bool:
    return any(labels.ARMED in inside(each, "metadata", "annotations") for each in _templates(thing, ()))


def _namespace(thing: Json) -> str | None:
    metadata = thing.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, dict) else None
    return str(found) if found else None


def _lost(rewritten: Sequence[int]) -> Iterator[Told]:
    for index in rewritten:
        yield Told(
            f"document {index + 1}", "it could not be changed in place: its comments, anchors and formatting are lost"
        )
