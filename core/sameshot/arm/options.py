"""What a pod says about arming in its own annotations: the webhook has no command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sameshot.arm import labels
from sameshot.arm.values import ArmOptions, NotArmable, Workers, inside


def options_in(template: Mapping[str, Any]) -> ArmOptions:
    """The options in the annotations of a pod or pod template. Raises NotArmable for a value that means nothing."""
    said = inside(template, "metadata", "annotations")
    size = _text(said, labels.LOCAL_WORLD_SIZE)
    return ArmOptions(
        container=_text(said, labels.CONTAINER),
        local_world_size=None if size is None else workers_of(size, f"The annotation {labels.LOCAL_WORLD_SIZE}"),
        single=_flag(said, labels.SINGLE),
        arm_spawned=_flag(said, labels.ARM_SPAWNED),
        pythonpath=_text(said, labels.PYTHONPATH),
    )


def workers_of(text: str, where: str) -> Workers:
    """A local world size as people write it: a number, or a word of torchrun's (auto, gpu, …). Raises NotArmable."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    if text in ("auto", "gpu", "cpu", "xpu"):
        return "auto"
    raise NotArmable(f"{where} is {text!r}; it must be a number of workers from 1 on, or auto.")


def _text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is None or isinstance(value, str):
        return value
    raise NotArmable(f"The annotation {name} is {value!r}; annotations are strings: put it in quotes.")


def _flag(said: Mapping[str, Any], name: str) -> bool | None:
    value = _text(said, name)
    if value in (None, "true", "false"):
        return None if value is None else value == "true"
    raise NotArmable(f'The annotation {name} is {value!r}; it must be "true" or "false".')
