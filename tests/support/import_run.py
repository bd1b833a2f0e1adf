"""A simulated run as a capture on disk: its traces, imported as a user would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from make_job import Run

from sameshot.trace.imported import Import, import_traces


def import_run(folder: Path, run: Run, *, without: Sequence[int] = (), **options: Any) -> Path:
    """Write the run's traces below `folder` and import them; the capture's folder. `options` are fields of `Import`."""
    files, hosts = {}, {}
    for rank in range(run.job.world):
        if rank in without:
            continue
        path = folder / "given" / f"rank{rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run.trace(rank)))
        files[rank], hosts[rank] = path, run.identity(rank).host or ""
    import_traces(Import(**{"files": files, "out": folder / "capture", "hosts": hosts, "nodes": hosts, **options}))
    return folder / "capture"
