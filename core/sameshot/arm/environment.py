"""The variables that the hook reads (`sameshot.hook` says what each means), as entries of a pod spec."""

from __future__ import annotations

from typing import Any

from sameshot.arm import labels
from sameshot.arm.values import ArmOptions, Field, JobPlace, Json, NotArmable, Workers, mappings

OWN_NAME = "SAMESHOT_CONTAINER"
LOCAL_SIZE = "SAMESHOT_LOCAL_WORLD_SIZE"
SINGLE = "SAMESHOT_SINGLE"
SPAWNED = "SAMESHOT_ARM_SPAWNED"
# What a person may set by hand, too: it is then left as it is, and not ours.
_ALSO_BY_HAND = (LOCAL_SIZE, SINGLE, SPAWNED)


def named_env(container: Json, name: str) -> list[Json]:
    """The container's own entries of that name."""
    return [each for each in mappings(container, "env") if each.get("name") == name]


def added_env(container: Json, options: ArmOptions, place: JobPlace, size: Workers | None) -> list[Json]:
    """The entries to add. Raises NotArmable where one that arming decides stands there already."""
    wanted: dict[str, str | Field | None] = {
        "SAMESHOT_ARMED": "1",
        "SAMESHOT_DIR": labels.DIRECTORY,
        "SAMESHOT_NODE": Field("spec.nodeName"),
        "SAMESHOT_POD": Field("metadata.name"),
        "SAMESHOT_POD_UID": Field("metadata.uid"),
        "SAMESHOT_JOB_NAMESPACE": Field("metadata.namespace"),
        "SAMESHOT_JOB_NAME": place.name,
        "SAMESHOT_JOB_UID": place.uid,
        "SAMESHOT_JOB_ATTEMPT": place.attempt,
        OWN_NAME: container["name"],
        LOCAL_SIZE: str(size or "auto"),
        SINGLE: "1" if options.single else None,
        SPAWNED: "1" if options.arm_spawned else None,
    }
    added = []
    for name, value in wanted.items():
        if value is None:
            continue
        if named_env(container, name):
            if name in _ALSO_BY_HAND:
                continue
            raise NotArmable(
                f"Container {container['name']} has a variable {name} of its own, which arming sets; take it out."
            )
        added.append(_entry(name, value))
    return added


def _entry(name: str, value: str | Field) -> Json:
    if isinstance(value, str):
        return {"name": name, "value": value}
    reference: dict[str, Any] = {"apiVersion": "v1", "fieldPath": value.path}  # the server's default, written out
    return {"name": name, "valueFrom": {"fieldRef": reference}}
