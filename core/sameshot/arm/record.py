"""What arming added to a pod template, kept in its annotation: whole, so that any later version can take it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.values import ArmOptions, Json, NotArmable

VERSION = 1


class Replaced(msgspec.Struct, frozen=True, omit_defaults=True):
    """An environment entry that arming set, and what stood in its place (None: nothing)."""

    now: Json
    was: Json | None = None


class ArmedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation `sameshot.dev/armed`. Readers of expected counts need `container` and `local_world_size`."""

    v: int
    container: str
    local_world_size: int | None = None  # workers that the container starts; None: not known before they register
    volumes: tuple[Json, ...] = ()
    mounts: tuple[Json, ...] = ()
    env: tuple[Json, ...] = ()
    command: tuple[str, ...] = ()  # put in front of the container's own command
    pythonpath: Replaced | None = None
    label: bool = False  # the label that asks for arming was not there before
    created: tuple[str, ...] = ()  # which of metadata, labels, annotations, volumes, mounts, env were not there
    options: dict[str, str | int | bool] = {}  # what a person had decided

    @property
    def said(self) -> ArmOptions:
        return ArmOptions(**self.options)  # type: ignore[arg-type]  # only `ArmOptions` are ever written

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def record_of(template: Mapping[str, Any]) -> ArmedRecord | None:
    """What arming added to this pod or pod template; None: it is not armed. Raises NotArmable for an unknown record."""
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(labels.ARMED) if isinstance(annotations, Mapping) else None
    if text is None:
        return None
    try:
        version = msgspec.json.decode(text, type=_Version).v
        if version == VERSION:
            record = msgspec.json.decode(text, type=ArmedRecord)
            record.said  # noqa: B018  # unknown options raise
            return record
    except (msgspec.MsgspecError, TypeError, RecursionError):  # anybody can write an annotation
        raise NotArmable(
            f"The annotation {labels.ARMED} is not what arming writes. Take it out, and what arming added (the volumes "
            f"{labels.VOLUME} and {labels.HOOK_VOLUME}, their mounts, the variables {labels.ENV_PREFIX}*, the words "
            "in front of the command), or start from the file as it was before."
        ) from None
    raise NotArmable(
        f"It was armed by another version of sameshot (record version {version}, this one knows {VERSION}); disarm it "
        "with that version first."
    )


class _Version(msgspec.Struct):
    v: int
