"""One pod template in, the armed one out, and back: the pure function that command line and webhook share.

Arming adds two volumes, their mounts, variables of the environment, a label and an annotation, and puts four words in
front of the container's command. Nothing else of a template changes, and what was added is written down in the
annotation: arming again changes nothing, disarming takes out exactly that, and what somebody changed in it is reported.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.command import WRAPPER, cautions, runs_bare_python, workers_in, wrapped_at
from sameshot.arm.environment import LOCAL_SIZE, added_env, named_env
from sameshot.arm.quantity import quantity
from sameshot.arm.record import VERSION, ArmedRecord, Replaced, record_of
from sameshot.arm.trainer import choose, containers_of
from sameshot.arm.values import ArmOptions, Field, JobPlace, Json, NotArmable, Workers
from sameshot.arm.volumes import missing_mounts, missing_volumes

__all__ = ["ArmOptions", "Armed", "JobPlace", "NotArmable", "arm_template", "disarm_template", "options_in"]

# A window of 2 s at the largest rate that was seen for one GPU.
_SMALL_WINDOW_BYTES = 2 * 300 * 10**6


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
    work: Json = copy.deepcopy(template)
    changes: list[str] = []
    if record is not None:
        options = options.over(record.said)
        place = _over(place, record)
        changes = _take_out(work, record)
    new, warnings = _put_in(work, options, place)
    # What was there before may have grown since (env, when a controller added to it); that alone changes nothing.
    if record is not None and msgspec.structs.replace(new, created=record.created) == record and not changes:
        return Armed(copy.deepcopy(template), tuple(warnings), record, changed=False)
    told = [f"{change} since it was armed; it is armed anew" for change in changes]
    return Armed(work, (*told, *warnings), new)


def disarm_template(template: Json) -> Armed:
    """The same template without what arming added; one that is not armed comes back as it is.

    What somebody changed in the added parts is told in the warnings. Raises NotArmable for a record it can't read.
    """
    record = record_of(template)
    work: Json = copy.deepcopy(template)
    if record is None:
        return Armed(work, changed=False)
    changes = _take_out(work, record)
    return Armed(work, tuple(f"{change} since it was armed" for change in changes))


def options_in(template: Mapping[str, Any]) -> ArmOptions:
    """What the annotations of a pod or template say about arming. Raises NotArmable for a value that means nothing."""
    metadata = template.get("metadata") or {}
    said: Mapping[str, Any] = metadata.get("annotations") or {}
    size = said.get(labels.LOCAL_WORLD_SIZE)
    return ArmOptions(
        container=said.get(labels.CONTAINER),
        local_world_size=None if size is None else workers_of(str(size), f"The annotation {labels.LOCAL_WORLD_SIZE}"),
        single=_flag(said, labels.SINGLE),
        arm_spawned=_flag(said, labels.ARM_SPAWNED),
        pythonpath=said.get(labels.PYTHONPATH),
    )


def workers_of(text: str, where: str) -> Workers:
    """A local world size as people write it: a number, `auto` or `gpu`. Raises NotArmable."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    if text in ("auto", "gpu", "cpu", "xpu"):
        return "auto"
    raise NotArmable(f"{where} is {text!r}; it must be a number of workers from 1 on, or auto.")


def _flag(said: Mapping[str, Any], name: str) -> bool | None:
    value = said.get(name)
    if value is None:
        return None
    if value in ("true", "false"):
        return bool(value == "true")
    raise NotArmable(f'The annotation {name} is {value!r}; it must be "true" or "false".')


def _over(place: JobPlace, record: ArmedRecord) -> JobPlace:
    """`place`, and where it knows nothing, what was recorded."""

    def recorded(name: str) -> str | Field | None:
        entry = next((each for each in record.env if each["name"] == name), None)
        if entry is None:
            return None
        source = entry.get("valueFrom")
        return Field(source["fieldRef"]["fieldPath"]) if source else str(entry["value"])

    return replace(
        place,
        name=place.name or recorded("SAMESHOT_JOB_NAME"),
        uid=place.uid or recorded("SAMESHOT_JOB_UID"),
        attempt=place.attempt or recorded("SAMESHOT_JOB_ATTEMPT"),
        local_world_size=place.local_world_size or record.local_world_size,
        container=place.container or record.container,
    )


# Arming


def _put_in(template: Json, options: ArmOptions, place: JobPlace) -> tuple[ArmedRecord, list[str]]:
    """Arm a template that is not armed, in place."""
    trainer, warnings = choose(template, options.container, place.container)
    spec: Json = template["spec"]
    _refuse(template)
    volumes = missing_volumes(spec)
    mounts = missing_mounts(trainer)
    words = _command(trainer)
    arguments = [*words, *_strings(trainer, "args")]
    size = _local_world_size(options, place, trainer, arguments)
    prefix, replaced, told = _path(trainer, words, options.pythonpath)
    warnings += told
    env = added_env(trainer, options, place, size)

    created: list[str] = []
    _extend(spec, "volumes", volumes, created)
    _extend(trainer, "volumeMounts", mounts, created, as_="mounts")
    _extend(trainer, "env", [*env, *([replaced.now] if replaced and replaced.was is None else [])], created)
    if replaced is not None and replaced.was is not None:
        entries: list[Json] = trainer["env"]
        entries[entries.index(replaced.was)] = replaced.now
    if prefix:
        trainer["command"] = [*prefix, *trainer["command"]]
    metadata = _mapping(template, "metadata", created)
    marks = _mapping(metadata, "labels", created)
    label = labels.ARM_LABEL not in marks
    marks[labels.ARM_LABEL] = labels.ENABLED
    annotations = _mapping(metadata, "annotations", created)

    said = {name: value for name, value in vars(options).items() if value is not None}
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
        options=said,
    )
    annotations[labels.ARMED] = record.text
    warnings += cautions(arguments)
    warnings += _no_rank(trainer, options, place, arguments, size)
    warnings += _little_room(spec, size)
    return record, warnings


def _refuse(template: Json) -> None:
    """What keeps a pod as a whole from being armed."""
    metadata = template.get("metadata") or {}
    if (metadata.get("labels") or {}).get(labels.ARM_LABEL) == labels.DISABLED:
        raise NotArmable(f"Its label {labels.ARM_LABEL} is {labels.DISABLED}; take the label out to have it armed.")
    system = template["spec"].get("os")
    if isinstance(system, dict) and system.get("name") == "windows":
        raise NotArmable("It is a Windows pod; captures need Linux.")


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


def _path(container: Json, words: list[str], told: str | None) -> tuple[tuple[str, ...], Replaced | None, list[str]]:
    """How the hook's folder gets in front of the Python path: words before the command, or an environment entry.

    A PYTHONPATH in a pod spec replaces the image's own, which nobody can read here. So a command is wrapped, and the
    variable is set only where its whole value is known: it stands in the spec already, or a person told it.
    """
    if told is None and words:
        return WRAPPER, None, []
    name = container["name"]
    entries = named_env(container, "PYTHONPATH")
    if len(entries) > 1:
        raise NotArmable(f"Container {name} sets PYTHONPATH {len(entries)} times; leave one of them.")
    if entries:
        entry = entries[0]
        if "valueFrom" in entry:
            raise NotArmable(
                f"Container {name} takes PYTHONPATH from elsewhere (valueFrom), and without a wrapped command nothing "
                "can be put in front of it: write the image's entrypoint as `command`, without --pythonpath."
            )
        value = str(entry.get("value") or "")
        if told and told != value:
            raise NotArmable(
                f"Container {name} sets PYTHONPATH to {value!r} itself, which replaces the image's; leave "
                f"--pythonpath {told!r} out, or write its value there."
            )
        return (), Replaced({"name": "PYTHONPATH", "value": _joined(value)}, entry), []
    if told is None:
        raise NotArmable(
            f"Container {name} has no `command`: its image's entrypoint can't be read here, so nothing can be put in "
            "front of it. Write the entrypoint as `command`, or say with --pythonpath what the image's PYTHONPATH is "
            "('' where it has none)."
        )
    warnings = []
    if container.get("envFrom"):
        warnings.append(
            "PYTHONPATH is set in the pod spec from now on; one that comes through envFrom no longer counts"
        )
    return (), Replaced({"name": "PYTHONPATH", "value": _joined(told)}), warnings


def _joined(rest: str) -> str:
    return f"{labels.HOOK_DIRECTORY}:{rest}" if rest else labels.HOOK_DIRECTORY


def _local_world_size(options: ArmOptions, place: JobPlace, container: Json, arguments: list[str]) -> Workers | None:
    """Workers in the trainer, from whoever said it most plainly; None: nobody did."""
    if options.local_world_size is not None:
        return options.local_world_size
    for entry in named_env(container, LOCAL_SIZE):
        if "value" in entry:
            return workers_of(str(entry["value"]), f"{LOCAL_SIZE} of container {container['name']}")
    if options.single:
        return 1
    told = workers_in(arguments)
    if told is not None:
        return told
    for entry in named_env(container, "PET_NPROC_PER_NODE"):  # what torchrun takes for its option of that name
        value = str(entry.get("value", ""))
        return int(value) if value.isdigit() and int(value) > 0 else "auto"
    if place.local_world_size is not None:
        return place.local_world_size
    if place.ranks_pods and runs_bare_python(arguments):
        return 1
    return None


def _no_rank(
    container: Json, options: ArmOptions, place: JobPlace, arguments: list[str], size: Workers | None
) -> list[str]:
    """A warning where nothing that is visible makes a rank of the program."""
    if options.single or options.arm_spawned or not runs_bare_python(arguments):
        return []
    if place.ranks_pods or named_env(container, "RANK") or container.get("envFrom"):
        if size == 1 or options.local_world_size is not None:
            return []
        told = (
            "the command starts Python without a launcher; where it is the pod's only worker say --local-world-size 1, "
            "otherwise its local rank is not known and it won't register"
        )
        return [told]
    told = (
        "the command starts Python without a launcher that sets RANK; a job of one process needs --single, a script "
        "that calls mp.spawn needs --arm-spawned, otherwise nothing registers"
    )
    return [told]


def _little_room(spec: Json, size: Workers | None) -> list[str]:
    """A warning where the pod's own limit of ephemeral storage is smaller than the traces of a short window."""
    limits: list[int] = []
    for container in spec["containers"]:
        resources = container.get("resources")
        limit = (resources.get("limits") or {}).get("ephemeral-storage") if isinstance(resources, dict) else None
        if limit is None:
            return []  # the pod as a whole is unlimited
        limits.append(quantity(str(limit)))
    needed = _SMALL_WINDOW_BYTES * (size if isinstance(size, int) else 1)
    if sum(limits) >= needed:
        return []
    told = (
        f"the pod's limit of ephemeral-storage is {sum(limits) / 1e9:.1f} GB; traces of a 2 s window may need "
        f"{needed / 1e9:.1f} GB, and a capture that might not fit is refused"
    )
    return [told]


def _mapping(holder: Json, key: str, created: list[str]) -> Json:
    if holder.get(key) is None:
        if key not in holder:
            created.append(key)
        holder[key] = {}
    found: Json = holder[key]
    return found


def _extend(holder: Json, key: str, items: list[Json], created: list[str], *, as_: str | None = None) -> None:
    if not items:
        return
    if holder.get(key) is None:
        if key not in holder:
            created.append(as_ or key)
        holder[key] = []
    holder[key] = [*holder[key], *copy.deepcopy(items)]


# Disarming


def _take_out(template: Json, record: ArmedRecord) -> list[str]:
    """Take out, in place, what the record says was put in; returns what of it somebody had changed."""
    changes: list[str] = []
    containers = containers_of(template)
    spec: Json = template["spec"]
    _remove(spec, "volumes", record.volumes, lambda each: each.get("name"), "volume", changes)
    trainer = next((each for each in containers if each["name"] == record.container), None)
    if trainer is None:
        changes.append(f"container {record.container} is gone, with all that was added to it")
    else:
        where = f" of container {record.container}"
        mounted = f"mount{where} at"
        _remove(trainer, "volumeMounts", record.mounts, lambda each: each.get("mountPath"), mounted, changes)
        _remove(trainer, "env", record.env, lambda each: each.get("name"), f"variable{where}", changes)
        if record.pythonpath is not None:
            _restore_path(trainer, record.pythonpath, changes)
        if record.command:
            _unwrap(trainer, record.command, changes)
    metadata: Json = template["metadata"]
    del metadata["annotations"][labels.ARMED]
    marks = metadata.get("labels")
    if record.label:
        now = marks.get(labels.ARM_LABEL) if isinstance(marks, dict) else None
        if now == labels.ENABLED:
            del metadata["labels"][labels.ARM_LABEL]
        else:
            state = "is gone" if now is None else f"was set to {now!r}, which is left,"
            changes.append(f"label {labels.ARM_LABEL} {state}")
    for holder, key, name in (
        (spec, "volumes", "volumes"),
        (trainer, "volumeMounts", "mounts"),
        (trainer, "env", "env"),
        (metadata, "labels", "labels"),
        (metadata, "annotations", "annotations"),
        (template, "metadata", "metadata"),
    ):
        if name in record.created and holder is not None and key in holder and not holder[key]:
            del holder[key]
    return changes


def _remove(
    holder: Json, key: str, ours: tuple[Json, ...], name: Callable[[Json], Any], what: str, changes: list[str]
) -> None:
    items = holder.get(key)
    if not isinstance(items, list):
        items = []
    for item in ours:
        there = [each for each in items if isinstance(each, dict) and name(each) == name(item)]
        if not there:
            changes.append(f"{what} {name(item)} is gone")
        elif there != [item]:
            changes.append(f"{what} {name(item)} was changed (now {there[-1]!r:.200})")
        items = [each for each in items if each not in there]
    if key in holder and isinstance(holder[key], list):
        holder[key] = items


def _restore_path(container: Json, replaced: Replaced, changes: list[str]) -> None:
    entries = container.get("env") or []
    at = next((index for index, each in enumerate(entries) if each.get("name") == "PYTHONPATH"), None)
    if at is None:
        changes.append(f"PYTHONPATH of container {container['name']} is gone")
        return
    entry = entries[at]
    if entry == replaced.now:
        entries[at : at + 1] = [] if replaced.was is None else [copy.deepcopy(replaced.was)]
        return
    value = str(entry.get("value", ""))
    rest = re.sub(rf"^{re.escape(labels.HOOK_DIRECTORY)}(?::|$)", "", value)
    changes.append(f"PYTHONPATH of container {container['name']} was changed (now {entry!r:.200})")
    if rest != value:  # the hook's folder is still in front of it
        entries[at : at + 1] = [{**entry, "value": rest}] if rest else []


def _unwrap(container: Json, prefix: tuple[str, ...], changes: list[str]) -> None:
    words = container.get("command")
    at = wrapped_at(words, prefix) if isinstance(words, list) else None
    if at is None:
        changes.append(f"the command of container {container['name']} was changed, and is left as it is now,")
        return
    assert isinstance(words, list)
    container["command"] = [*words[:at], *words[at + len(prefix) :]]
    if at:
        changes.append(f"words were put before the wrapped command of container {container['name']} ({words[0]!r} …)")
