"""The face for flytekit 1.16. flytekit loads this module whenever it is imported itself (entry point
`flytekit.plugins`), so that a connector's process knows ours: it registers the connector, and is light."""

from __future__ import annotations

import importlib
from typing import Any

from flytekit.extend.backend.base_connector import ConnectorRegistry

from sameshot_flyte.flyte1.connector import SameshotConnector

_HOMES = {
    "SameshotCapture": "task",
    "analyze": "analysis",
    "analyze_rank": "analysis",
    "capture": "task",
    "compare": "analysis",
    "profile_job": "workflow",
    "reduce": "analysis",
}

ConnectorRegistry.register(SameshotConnector(), override=True)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
