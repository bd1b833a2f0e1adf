"""One pod template in, the armed one out, and back: the pure function that command line and webhook share.

Arming adds two volumes, their mounts, variables of the environment, a label and an annotation, and puts four words in
front of the container's command. Nothing else of a template changes, and what was added is written down in the
annotation: arming again changes nothing, disarming takes out exactly that, and what somebody changed in it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.command import WRAPPER, cautions, wrapped_at
from sameshot.arm.environment import added_env
from sameshot.arm.options import options_in
from sameshot.arm.pythonpath import way_in
from sameshot.arm.record import VERSION, ArmedRecord, record_of
from sameshot.arm.takeout import take_out
from sameshot.arm.trainer import choose
from sameshot.arm.values import ArmOptions, Field, JobPlace, Json, NotArmable, copied, inside, mappings
from sameshot.arm.volumes import missing_mounts, missing_volumes
from sameshot.arm.workers import little_room, local_world_size, no_rank

__all__ = ["ArmOptions", "Armed", "JobPlace", "NotArmable", "arm_template", "disarm_template", "options_in"]

_OS_OF_NODES = ("kubernetes.io/os", "beta.kubernetes.io/os")


@dataclass(frozen=True)
class Armed:
    """A pod template after arming or disarming, with what a person should know, in words."""

    template: Json
    warnings: tuple[str, ...] = ()
    record: ArmedRecord | None = None  # None: it is not armed
    changed: bool = True


def arm_template(template: Json, options: ArmOptions | None = None, place: JobPlace | None = None) -> Armed:
    """The same pod template (or pod), armed; the argument is left alone.

    Where it is armed already, everything that `options` and `place` don't say holds as it was recorded.
    Raises NotArmable with the reason and the way out.
    """
    record = record_of(template)
    options, place = options or ArmOptions(), place or JobPlace()
    work: Json = copied(template)
    changes: list[str] = []
    if record is not None:
        options = options.over(record.said)
        place = _over(place, record)
        changes = take_out(work, record, for_good=False)
    new, warnings = _put_in(work, options, place)
    # What was there before may have grown since (env, when a controller added to it); that alone changes nothing.
    if record is not None and msgspec.structs.replace(new, created=record.created) == record and not changes:
        return Armed(copied(template), tuple(warnings), record, changed=False)
    told = [f"since it was armed, {change}; it is armed anew" for change in changes]
    return Armed(work, (*told, *warnings), new)


def disarm_template(template: Json) -> Armed:
    """The same template without what arming added; one that is not armed comes back as it is.

    What somebody changed in the added parts is told in the warnings. Raises NotArmable for a record it can't read.
    """
    record = record_of(template)
    work: Json = copied(template)
    if record is None:
        return Armed(work, changed=False)
    changes = take_out(work, record, for_good=True)
    return Armed(work, tuple(f"since it was armed, {change}" for change in changes))


def _over(place: JobPlace, record: ArmedRecord) -> JobPlace:
    """`place`, and where it knows nothing, what was recorded."""

    def recorded(name: str) -> str | Field | None:
        entry: Json = next((each for each in record.env if each["name"] == name), {})
        path = inside(entry, "valueFrom", "fieldRef").get("fieldPath")
        return entry.get("value") if path is None else Field(path)

    return replace(
        place,
        name=place.name or recorded("SAMESHOT_JOB_NAME"),
        uid=place.uid or recorded("SAMESHOT_JOB_UID"),
        attempt=place.attempt or recorded("SAMESHOT_JOB_ATTEMPT"),
        local_world_size=place.local_world_size or record.local_world_size,
        container=place.container or record.container,
    )


def _put_in(template: Json, options: ArmOptions, place: JobPlace) -> tuple[ArmedRecord, list[str]]:
    """Arm a template that is not armed, in place."""
    trainer, warnings = choose(template, options.container, place.container)
    spec: Json = template["spec"]
    _refuse(template)
    command = _command(trainer)
    words = [*command, *_strings(trainer, "args")]
    size = local_world_size(options, place, trainer, words)
    volumes, mounts = missing_volumes(spec), missing_mounts(trainer)
    prefix, replaced, told = way_in(trainer, command, options.pythonpath)
    env = added_env(trainer, options, place, size)
    warnings += [
        *told,
        *cautions(words),
        *no_rank(trainer, options, place, words, size),
        *little_room(spec, size),
    ]

    created: list[str] = []
    _extend(spec, "volumes", volumes, created)
    _extend(trainer, "volumeMounts", mounts, created)
    _extend(trainer, "env", [*env, *([replaced.now] if replaced and replaced.was is None else [])], created)
    if replaced is not None and replaced.was is not None:
        entries: list[Json] = trainer["env"]
        entries[entries.index(replaced.was)] = dict(replaced.now)
    if prefix:
        trainer["command"] = [*prefix, *command]
    metadata = _mapping(template, "metadata", created)
    marks = _mapping(metadata, "labels", created)
    label = labels.ARM_LABEL not in marks
    marks[labels.ARM_LABEL] = labels.ENABLED
    annotations = _mapping(metadata, "annotations", created)
    record = ArmedRecord(
        v=VERSION,
        container=trainer["name"],
        local_world_size=size if isinstance(size, int) else None,
        volumes=tuple(volumes),
        mounts=tuple(mounts),
        env=tuple(env),
        command=prefix,
        pythonpath=replaced,
        label=label,
        created=tuple(created),
        options={name: value for name, value in vars(options).items() if value is not None},
    )
    annotations[labels.ARMED] = record.text
    return record, warnings


def _refuse(template: Json) -> None:
    """What keeps a pod as a whole from being armed."""
    wish = inside(template, "metadata", "labels").get(labels.ARM_LABEL, labels.ENABLED)
    if wish == labels.DISABLED:
        raise NotArmable(f"Its label {labels.ARM_LABEL} is {labels.DISABLED}; take the label out to have it armed.")
    if wish != labels.ENABLED:
        raise NotArmable(f"Its label {labels.ARM_LABEL} is {wish!r}; it can be {labels.ENABLED} or {labels.DISABLED}.")
    spec = inside(template, "spec")
    if "windows" in (
        inside(spec, "os").get("name"),
        *(inside(spec, "nodeSelector").get(each) for each in _OS_OF_NODES),
    ):
        raise NotArmable("It is a Windows pod; captures need Linux.")
    if labels.MIRROR in inside(template, "metadata", "annotations"):
        raise NotArmable(
            "It mirrors a static pod, which its kubelet runs from a file of the node: static pods can't have the "
            "hook's ConfigMap. Run it as a DaemonSet or a Job."
        )


def _strings(container: Json, key: str) -> list[str]:
    words = container.get(key)
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise NotArmable(f"The {key} of container {container['name']} is not a list of strings: {words!r:.80}.")
    return words


def _command(container: Json) -> list[str]:
    words = _strings(container, "command")
    if wrapped_at(words, WRAPPER) is not None:
        raise NotArmable(
            f"The command of container {container['name']} is wrapped by arming already, but the annotation "
            f"{labels.ARMED} that says what else was added is gone: start from the file as it was before."
        )
    return words


def _mapping(holder: Json, key: str, created: list[str]) -> Json:
    found: Any = holder.get(key)
    if found is None:
        if key not in holder:
            created.append(key)
        found = holder[key] = {}
    if not isinstance(found, dict):
        raise NotArmable(f"Its {key} is not a mapping: {found!r:.80}.")
    return found


def _extend(holder: Json, key: str, items: list[Json], created: list[str]) -> None:
    if not items:
        return
    if key not in holder:
        created.append(key)
    holder[key] = [*mappings(holder, key), *copied(items)]
