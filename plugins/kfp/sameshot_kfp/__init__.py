"""sameshot for Kubeflow Pipelines: components to compose in a pipeline, and a pipeline that is ready to run.

    from sameshot_kfp import Components, profile_job, profile_pipeline

    components = Components.containers(image="registry.local/sameshot/steps:0.1.0")
    Compiler().compile(profile_pipeline(components), "profile-job.yaml")

Each component runs one of the engine-neutral steps of `sameshot.steps`; nothing is decided here. Importing this package
loads no KFP: the image that runs the components has none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameshot_kfp.cluster import in_cluster
    from sameshot_kfp.components import Components
    from sameshot_kfp.pipelines import analyze_capture, profile_job, profile_pipeline

_HOMES = {
    "Components": "components",
    "analyze_capture": "pipelines",
    "in_cluster": "cluster",
    "profile_job": "pipelines",
    "profile_pipeline": "pipelines",
}

__all__ = ["Components", "analyze_capture", "in_cluster", "profile_job", "profile_pipeline"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
