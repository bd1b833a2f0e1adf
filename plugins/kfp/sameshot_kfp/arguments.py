"""A component's inputs as the flags of `sameshot step`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sameshot.steps.contract import KFP
from sameshot.steps.options import said

_NAMES = {"trained_image": "image"}
_OURS = ("run_id", "task_name", "key", "manifest_uri", "manifest_sha256", "shards")
"""What is no flag of the same name."""


def of(step: str, values: Mapping[str, Any]) -> list[str]:
    """What comes after `sameshot step`."""
    flags: list[str] = [step.replace("_", "-")]
    if step == "capture":
        flags += ["--key", request_key(values)]
    else:
        flags += [values["manifest_uri"], "--expected-sha256", values["manifest_sha256"]]
    if analysed := ",".join(filter(None, values.get("shards", ()))):  # the cache may know them, and they be gone
        flags += [f"--analysed={analysed}"]
    for name, value in values.items():
        if name not in _OURS:
            flags += _flag(name, value)
    return flags


def request_key(values: Mapping[str, Any]) -> str:
    """The same for a retry of the same task. Raises UsageError where a part is empty."""
    return KFP.request_key(run_id=values["run_id"], task_name=values["task_name"], key=values["key"])


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    if name == "history":
        return [] if value else ["--no-history"]
    if isinstance(value, bool):
        return [flag] if value else []
    value = said(name, value)
    return [] if value is None else [f"{flag}={value}"]  # in one word: what people write may begin with a dash
