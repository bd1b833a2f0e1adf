"""The values that the parts of arming hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from sameshot.errors import UsageError

Json = dict[str, Any]
"""One object of YAML or JSON, with plain dicts and lists."""

Workers = int | Literal["auto"]
"""How many workers a container starts; `auto`: it is decided on the node, so nobody knows yet."""


class NotArmable(UsageError):
    """This pod template can't be armed as it is; the message says why, and the way out."""


@dataclass(frozen=True)
class Field:
    """A fact that the kubelet fills in from the pod's own object (the downward API), such as one of its labels.

    A label that the pod does not have gives an empty value.
    """

    path: str

    @classmethod
    def label(cls, key: str) -> Self:
        return cls(f"metadata.labels['{key}']")


@dataclass(frozen=True)
class ArmOptions:
    """What a person may decide about arming; None: not said, so that what is recorded, or found out, holds."""

    container: str | None = None
    local_world_size: Workers | None = None
    single: bool | None = None  # one process without a launcher: rank 0 of 1
    arm_spawned: bool | None = None  # the script starts its ranks itself, with mp.spawn
    pythonpath: str | None = None
    """Set PYTHONPATH in the pod spec instead of wrapping the command; the value is what the image's own PYTHONPATH
    holds (an empty string: nothing)."""

    def over(self, other: ArmOptions) -> ArmOptions:
        """These, and where nothing is said here, those of `other`."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **said)


@dataclass(frozen=True)
class JobPlace:
    """What is known about the job around a pod template, from the kind of workload; None: not known there.

    A literal value, or the `Field` that will tell. What stays None the node's agent learns from the pod's owner.
    """

    name: str | Field | None = None
    uid: str | Field | None = None
    attempt: str | Field | None = None
    local_world_size: int | None = None
    container: str | None = None  # the container that trains by the kind's own convention
    ranks_pods: bool = False  # the kind sets RANK and WORLD_SIZE in every pod


def copied(thing: Any) -> Any:
    """A copy in which nothing is shared: two places of a YAML file may be one object in memory, by an anchor."""
    if isinstance(thing, dict):
        return {key: copied(value) for key, value in thing.items()}
    return [copied(each) for each in thing] if isinstance(thing, list) else thing


def inside(thing: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at these keys; empty where anything on the way is missing or something else."""
    for key in keys:
        thing = thing.get(key) if isinstance(thing, Mapping) else None
    return thing if isinstance(thing, Mapping) else {}


def mappings(holder: Mapping[str, Any], key: str) -> list[Json]:
    """The list of mappings at this key (volumes, env, …), empty where there is none. Raises NotArmable for another
    thing than that."""
    found = holder.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise NotArmable(f"Its {key} is not a list of mappings: {found!r:.80}.")
    return found
