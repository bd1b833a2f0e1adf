"""The engine-neutral steps: what every workflow plugin wraps, and `sameshot step NAME` runs in a container.

    from sameshot.steps.capture import capture       # each step is a function in the module of its name
    result = capture(CaptureRequest(address="local:bert", request_key="…"))   # one capture, waited for
    for shard in result.shards: analyze_rank(result.manifest_uri, shard, results_uri)
    reduce(result.manifest_uri, results_uri)                                  # summary, report, a row of history
    compare(result.manifest_uri, results_uri, threshold=0.1)                  # against the series' previous capture
    cancel(address, capture_id)

Values go in, small values come out (`results`); what an engine calls its parts stands in `contract`. Importing this
package is light (no grpc, numpy or pyarrow): schedulers import plugins all day. The values below are loaded at first
use; functions are not among them, since several are called like their module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameshot.steps.contract import AIRFLOW, ARGO, CONTRACTS, FLYTE, KFP, Engine, ExecutionContract
    from sameshot.steps.request import Action, CaptureRequest
    from sameshot.steps.results import (
        AnalysisResult,
        CancelResult,
        CaptureResult,
        CompareResult,
        CompareVerdict,
        Headline,
        RankResult,
        from_builtins,
        to_builtins,
    )

_HOMES = {
    "AIRFLOW": "contract",
    "ARGO": "contract",
    "CONTRACTS": "contract",
    "FLYTE": "contract",
    "KFP": "contract",
    "Action": "request",
    "AnalysisResult": "results",
    "CancelResult": "results",
    "CaptureRequest": "request",
    "CaptureResult": "results",
    "CompareResult": "results",
    "CompareVerdict": "results",
    "Engine": "contract",
    "ExecutionContract": "contract",
    "Headline": "results",
    "RankResult": "results",
    "from_builtins": "results",
    "to_builtins": "results",
}

__all__ = [
    "AIRFLOW",
    "ARGO",
    "CONTRACTS",
    "FLYTE",
    "KFP",
    "Action",
    "AnalysisResult",
    "CancelResult",
    "CaptureRequest",
    "CaptureResult",
    "CompareResult",
    "CompareVerdict",
    "Engine",
    "ExecutionContract",
    "Headline",
    "RankResult",
    "from_builtins",
    "to_builtins",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
