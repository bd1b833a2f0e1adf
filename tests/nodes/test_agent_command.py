"""`sameshot agent`: on one machine, or on a node of a cluster, and nothing in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sameshot.cli.services import agent
from sameshot.errors import UsageError
from sameshot.profiler.daemon import BackendName

ROOT, DIR, SPOOL = Path("/var/lib/kubelet"), [Path("/tmp/n0")], Path("/tmp/spool")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "Say whom to serve"),
        ({"directory": DIR}, "with --spool"),
        ({"directory": DIR, "spool": SPOOL, "kubelet_root": ROOT}, "Say whom to serve"),
        ({"kubelet_root": ROOT, "backend": BackendName.DYNOLOG}, "only the back end broker"),
        ({"kubelet_root": ROOT}, "name the API server with --api-server"),
        ({"kubelet_root": ROOT, "api_server": "http://10.0.0.1:8080"}, "https only"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match=why):
        agent(node="node-a", archive="/tmp/archive", **options)
