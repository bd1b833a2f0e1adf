"""The two volumes that a captured pod needs, and what may stand in their way."""

from __future__ import annotations

import posixpath
from typing import Any

from sameshot.arm import labels
from sameshot.arm.values import Json, NotArmable, inside, mappings

# Server-side defaults are written out, so that an object read back from a cluster is what was written.
VOLUMES: tuple[Json, ...] = (
    {"name": labels.VOLUME, "emptyDir": {}},
    {
        "name": labels.HOOK_VOLUME,
        # Readable whatever the user of the container is; without the ConfigMap the pod starts, unarmed.
        "configMap": {"name": labels.HOOK_CONFIGMAP, "defaultMode": 0o444, "optional": True},
    },
)
MOUNTS: tuple[Json, ...] = (
    {"name": labels.VOLUME, "mountPath": labels.DIRECTORY},
    {"name": labels.HOOK_VOLUME, "mountPath": labels.HOOK_DIRECTORY, "readOnly": True},
)


def missing_volumes(spec: Json) -> list[Json]:
    """Which of our volumes this pod lacks. Raises NotArmable where a volume of our name is something else."""
    there: dict[Any, Json] = {each.get("name"): each for each in mappings(spec, "volumes")}
    missing = []
    for volume in VOLUMES:
        existing = there.get(volume["name"])
        if existing is None:
            missing.append(volume)
        elif volume["name"] == labels.VOLUME:
            _check_user_directory(existing)
        elif existing != volume:
            raise NotArmable(
                f"The pod has a volume {labels.HOOK_VOLUME} of its own, which is not the hook's ConfigMap; rename it."
            )
    return missing


def _check_user_directory(volume: Json) -> None:
    """A user may bring the directory, for instance to give it a size limit, if it is what the agent can work with."""
    kinds = sorted(key for key in volume if key != "name")
    if kinds != ["emptyDir"]:
        raise NotArmable(
            f"The pod has a volume {labels.VOLUME} of its own ({', '.join(kinds) or 'of no type'}); traces need an "
            "emptyDir of that name: rename yours."
        )
    medium = inside(volume, "emptyDir").get("medium")
    if medium:
        raise NotArmable(
            f"The pod's volume {labels.VOLUME} is an emptyDir of medium {medium}: traces of hundreds of MB would count "
            "against the container's memory and could have it killed. Leave the medium out, so that it is on disk."
        )


def missing_mounts(container: Json) -> list[Json]:
    """Which of our mounts the trainer lacks. Raises NotArmable where something else is mounted there."""
    mounts = mappings(container, "volumeMounts")
    devices = [str(each.get("devicePath", "")) for each in mappings(container, "volumeDevices")]
    missing = []
    for mount in MOUNTS:
        if odd := [each for each in devices if _within(each, mount["mountPath"])]:
            raise NotArmable(
                f"Container {container['name']} has a device of its own (volumeDevices) at {', '.join(odd)}, in the "
                f"way of {mount['mountPath']}; move it."
            )
        there = [each for each in mounts if _within(str(each.get("mountPath", "")), mount["mountPath"])]
        others = [each for each in mounts if each.get("name") == mount["name"] and each not in there]
        if not there and not others:
            missing.append(mount)
            continue
        if len(there) != 1 or others or not _serves(there[0], mount):
            odd = [str(each.get("mountPath")) for each in (*there, *others)]
            raise NotArmable(
                f"Container {container['name']} has mounts of its own in the way of {mount['mountPath']} "
                f"({', '.join(odd)}); the volume {mount['name']} must be mounted there whole (no subPath), and nothing "
                "else below: move them."
            )
    return missing


def _within(path: str, folder: str) -> bool:
    plain = posixpath.normpath(f"/{path.lstrip('/')}")  # relative ones are taken from the root, by the kubelet, too
    return plain == folder or plain.startswith(f"{folder}/")


def _serves(mount: Json, ours: Json) -> bool:
    said = {key: value for key, value in mount.items() if value not in (None, "", False, "None", "Disabled")}
    said.pop("recursiveReadOnly", None)
    return said == ours
