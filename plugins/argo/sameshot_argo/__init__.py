"""sameshot for Argo Workflows: templates to compose in a workflow, and the same as plain YAML.

Each template runs one of the engine-neutral steps (`sameshot step NAME`) in a container; nothing is decided here.
"""

from __future__ import annotations
