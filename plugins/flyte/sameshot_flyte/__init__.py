"""sameshot for Flyte: a capture task on an async connector, `analyze_rank` to map, reports as Decks.

    from sameshot_flyte import SameshotCapture, profile_job

The names come from the face of the SDK that is installed: `sameshot_flyte.flyte1` on flytekit 1.16, `sameshot_flyte.
flyte2` on flyte 2; flytekit's where both are. All that decides anything is in the modules beside this one, for both.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_VALUES = ("Analysis", "Capture", "Comparison")
_OF_THE_SDK = (
    "SameshotCapture",
    "SameshotConnector",
    "analyze",
    "analyze_rank",
    "capture",
    "compare",
    "profile_job",
    "reduce",
)
_FACES = {"flytekit": "flyte1", "flyte": "flyte2"}

__all__ = [
    "Analysis",
    "Capture",
    "Comparison",
    "SameshotCapture",
    "SameshotConnector",
    "analyze",
    "analyze_rank",
    "capture",
    "compare",
    "profile_job",
    "reduce",
]


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        home = "references"
    elif name in _OF_THE_SDK:
        home = _face()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _face() -> str:
    for sdk, face in _FACES.items():
        found = importlib.util.find_spec(sdk)
        if found is not None and found.origin is not None:  # a folder called `flyte` that is no package has none
            return face
    raise ImportError(
        "No SDK of Flyte is installed. Install sameshot[flyte] for flytekit 1.16, or sameshot[flyte2] for flyte 2."
    )
