"""The face for Flyte 2's SDK. Every connector service imports this, so it registers the connector, and no more."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sameshot_flyte.flyte2.connector import SameshotConnector

if TYPE_CHECKING:
    from sameshot_flyte.flyte2.ready import analyze, analyze_rank, compare, env, profile_job, reduce
    from sameshot_flyte.flyte2.task import SameshotCapture, capture, capture_env
    from sameshot_flyte.flyte2.workflow import Tasks, tasks

_HOMES = {
    "SameshotCapture": "task",
    "Tasks": "workflow",
    "analyze": "ready",
    "analyze_rank": "ready",
    "capture": "task",
    "capture_env": "task",
    "compare": "ready",
    "env": "ready",
    "profile_job": "ready",
    "reduce": "ready",
    "tasks": "workflow",
}

__all__ = [
    "SameshotCapture",
    "SameshotConnector",
    "Tasks",
    "analyze",
    "analyze_rank",
    "capture",
    "capture_env",
    "compare",
    "env",
    "profile_job",
    "reduce",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
