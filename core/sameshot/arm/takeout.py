"""Takes out of a pod template what arming put in, however the rest was edited since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sameshot.arm import labels
from sameshot.arm.command import wrapped_at
from sameshot.arm.pythonpath import put_back
from sameshot.arm.record import ArmedRecord
from sameshot.arm.trainer import containers_of
from sameshot.arm.values import Json, mappings


def take_out(template: Json, record: ArmedRecord) -> list[str]:
    """Take out, in place, what the record says was put in; returns what of it somebody had changed."""
    changes: list[str] = []
    spec: Json = template["spec"] if containers_of(template) else {}
    metadata: Json = template["metadata"]
    _remove(spec, "volumes", record.volumes, lambda each: each.get("name"), "volume", changes)
    trainer = next((each for each in spec["containers"] if each["name"] == record.container), None)
    if trainer is None:
        changes.append(f"container {record.container} is gone, with all that was added to it")
    else:
        where = f" of container {record.container}"
        _remove(trainer, "volumeMounts", record.mounts, lambda each: each.get("mountPath"), f"mount{where} at", changes)
        _remove(trainer, "env", record.env, lambda each: each.get("name"), f"variable{where}", changes)
        if record.pythonpath is not None:
            put_back(trainer, record.pythonpath, changes)
        if record.command:
            _unwrap(trainer, record.command, changes)
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
