"""sameshot for Kubeflow Pipelines: components to compose in a pipeline, and a pipeline that is ready to run.

Each component runs one of the engine-neutral steps of `sameshot.steps`; nothing is decided here.
"""

from __future__ import annotations
