"""`sameshot agent`: on one machine, or on a node of a cluster, and nothing in between."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sameshot.cli.services import agent
from sameshot.errors import UsageError
from sameshot.kube import names
from sameshot.profiler.daemon import BackendName

ROOT, DIR, SPOOL = Path("/var/lib/kubelet"), [Path("/tmp/n0")], Path("/tmp/spool")


def test_coordinators_are_where_the_other_parts_look_for_them() -> None:
    assert inspect.signature(agent).parameters["coordinators_namespace"].default == names.COORDINATORS_NAMESPACE


def test_an_agent_of_one_machine_knows_nothing_of_clusters(tmp_path: Path) -> None:
    """Its start is a part of every local run's."""
    program = (
        "import sys, pathlib\n"
        "from sameshot.cli import services\n"
        "services.run_service = lambda service, **_: service.close()\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "services.agent(node='a', archive=str(here), directory=[here], spool=here)\n"
        "kube = ('arm', 'agent.poddirs', 'agent.coordinators', 'kube.api', 'kube.podlist', 'kube.reviews')\n"
        "print([name for name in (*map('sameshot.{}'.format, kube), 'prometheus_client') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "Say whom to serve"),
        ({"directory": DIR}, "with --spool"),
        ({"directory": DIR, "spool": SPOOL, "kubelet_root": ROOT}, "Say whom to serve"),
        ({"kubelet_root": ROOT, "backend": BackendName.DYNOLOG}, "only the back end broker"),
        ({"directory": DIR, "spool": SPOOL, "certificate": ROOT, "key": ROOT}, "and with --kubelet-root"),
        ({"kubelet_root": ROOT, "certificate": ROOT}, "go together"),
        ({"kubelet_root": ROOT, "key": ROOT}, "go together"),
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
