"""Takes out of a pod template what arming put in, however the rest was edited since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sameshot.arm import labels
from sameshot.arm.command import wrapped_at
from sameshot.arm.environment import OWN_NAME
from sameshot.arm.pythonpath import put_back
from sameshot.arm.record import ArmedRecord
from sameshot.arm.trainer import containers_of
from sameshot.arm.values import Json, mappings


def take_out(template: Json, record: ArmedRecord, *, for_good: bool) -> list[str]:
    """Take out, in place, what the record says was put in; returns what of it somebody had changed.

    `for_good`: nothing is put in again, so a volume that something else mounts by now must stay.
    """
    changes: list[str] = []
    spec: Json = template["spec"] if containers_of(template) else {}
    metadata: Json = template["metadata"]
    trainer = _trainer(spec["containers"], record, changes)
    if trainer is not None:
        where = f" of container {trainer['name']}"
        _remove(trainer, "volumeMounts", record.mounts, lambda each: each.get("mountPath"), f"mount{where} at", changes)
        _remove(trainer, "env", record.env, lambda each: each.get("name"), f"variable{where}", changes)
        if record.pythonpath is not None:
            put_back(trainer, record.pythonpath, changes)
        if record.command:
            _unwrap(trainer, record.command, changes)
    used = _users(spec) if for_good else {}
    unused = [each for each in record.volumes if each["name"] not in used]
    changes += [
        f"{', '.join(used[each['name']])} came to mount volume {each['name']}, which is left"
        for each in record.volumes
        if each not in unused
    ]
    _remove(spec, "volumes", unused, lambda each: each.get("name"), "volume", changes)
    del metadata["annotations"][labels.ARMED]
    if record.label:
        _remove_label(metadata, changes)
    for holder, key in (
        (spec, "volumes"),
        (trainer, "volumeMounts"),
        (trainer, "env"),
        (metadata, "labels"),
        (metadata, "annotations"),
        (template, "metadata"),
    ):
        if key in record.created and holder is not None and key in holder and not holder[key]:
            del holder[key]
    return changes


def _trainer(containers: Sequence[Json], record: ArmedRecord, changes: list[str]) -> Json | None:
    """The container that was armed, also under a new name: a variable that arming set still tells the old one."""
    name = record.container
    found = next((each for each in containers if each["name"] == name), None)
    if found is None:
        mark = [each for each in record.env if each["name"] == OWN_NAME]
        marked = [each for each in containers if mark and mark[0] in mappings(each, "env")]
        if len(marked) == 1:
            found = marked[0]
            changes.append(f"container {name} was renamed {found['name']}")
        else:
            changes.append(f"container {name} is gone, with all that was added to it")
    return found


def _users(spec: Json) -> dict[str, list[str]]:
    """The volumes that are mounted, and the containers that do so."""
    found: dict[str, list[str]] = {}
    for key in ("containers", "initContainers", "ephemeralContainers"):
        for container in mappings(spec, key):
            for name in {str(each.get("name")) for each in mappings(container, "volumeMounts")}:
                found.setdefault(name, []).append(f"container {container.get('name')}")
    return found


def _remove(
    holder: Json, key: str, ours: Sequence[Json], name: Callable[[Json], Any], what: str, changes: list[str]
) -> None:
    items = mappings(holder, key)
    for item in ours:
        there = [each for each in items if name(each) == name(item)]
        if not there:
            changes.append(f"{what} {name(item)} is gone")
        elif there != [item]:
            changes.append(f"{what} {name(item)} was changed (now {there[-1]!r:.200})")
        items = [each for each in items if each not in there]
    if ours and holder.get(key) is not None:
        holder[key] = items


def _unwrap(container: Json, prefix: tuple[str, ...], changes: list[str]) -> None:
    words = container.get("command")
    at = wrapped_at(words, prefix) if isinstance(words, list) else None
    if at is None or not isinstance(words, list):
        changes.append(f"the command of container {container['name']} was changed, and is left as it is now")
        return
    container["command"] = [*words[:at], *words[at + len(prefix) :]]
    if at:
        changes.append(f"words were put before the wrapped command of container {container['name']} ({words[0]!r} …)")


def _remove_label(metadata: Json, changes: list[str]) -> None:
    marks = metadata.get("labels")
    now = marks.get(labels.ARM_LABEL) if isinstance(marks, dict) else None
    if now == labels.ENABLED:
        del metadata["labels"][labels.ARM_LABEL]
    else:
        state = "is gone" if now is None else f"was set to {now!r}, which is left"
        changes.append(f"label {labels.ARM_LABEL} {state}")
