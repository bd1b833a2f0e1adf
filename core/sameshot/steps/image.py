"""The container image in which engines run steps: pinned to this very version, so that a step and its caller agree."""

from __future__ import annotations

import sameshot

IMAGE = f"sameshot/steps:{sameshot.__version__}"
"""Python with `sameshot[analysis]` and nothing to be installed at run time; its entry point is `sameshot`. It runs as
any user, with nothing to write but /tmp, and names one that is not root, by number: Kubernetes can't tell of a name."""

IMAGE_ENV = "SAMESHOT_STEPS_IMAGE"
"""Where the image was pushed to, for analysis Jobs: no public registry has it."""
