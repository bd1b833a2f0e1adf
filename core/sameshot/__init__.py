"""On-demand profiling for distributed PyTorch training: one trustworthy set of traces from every rank, now.

Importing this package is light on purpose (no torch, pandas, kubernetes or grpc): schedulers parse DAG files that
import it all day. `sameshot.connect` and the other names below are loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sameshot.client import AsyncClient, CaptureView, Client, JobInfo, connect, jobs
    from sameshot.errors import SameshotError
    from sameshot.model import CaptureSpec, CaptureState, Outcome

_HOMES = {
    "AsyncClient": "sameshot.client",
    "CaptureSpec": "sameshot.model",
    "CaptureState": "sameshot.model",
    "CaptureView": "sameshot.client",
    "Client": "sameshot.client",
    "JobInfo": "sameshot.client",
    "Outcome": "sameshot.model",
    "SameshotError": "sameshot.errors",
    "connect": "sameshot.client",
    "jobs": "sameshot.client",
}

__all__ = [
    "AsyncClient",
    "CaptureSpec",
    "CaptureState",
    "CaptureView",
    "Client",
    "JobInfo",
    "Outcome",
    "SameshotError",
    "connect",
    "jobs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
