"""How anything outside talks to a job's coordinator.

    with connect("local") as client:
        capture = client.start_capture(CaptureSpec(duration_ms=2000))
        for view in client.watch(capture.capture_id): ...

`AsyncClient` is the same for event loops; `jobs` finds what runs on this machine. In a cluster a job is
`kube:<namespace>/<job>` (`client.cluster`).
"""

from __future__ import annotations

from sameshot.api.views import AgentStatus, CaptureView, JobDescription, WorkersView
from sameshot.client.address import Say, register_resolver, resolve
from sameshot.client.aio import AsyncClient
from sameshot.client.local import JobInfo, jobs
from sameshot.client.sync import Client

__all__ = [
    "AgentStatus",
    "AsyncClient",
    "CaptureView",
    "Client",
    "JobDescription",
    "JobInfo",
    "Say",
    "WorkersView",
    "connect",
    "jobs",
    "register_resolver",
    "resolve",
]


def connect(address: str = "local", *, caller: str | None = None, say: Say | None = None) -> Client:
    """A client of the coordinator at `address`: `host:port`, `unix:/path`, `local[:job name]` for a job on this
    machine, or `kube:<namespace>/<job>` for one in a cluster (`client.cluster.address` has all of it).

    Nothing is sent to it yet. Raises what `resolve` does: NoSuchJob, UsageError where the address is none or fits
    several jobs, and in a cluster Unreachable and Denied; a coordinator that is just starting is waited for, and `say`
    is told so."""
    return Client(resolve(address, say=say), caller=caller)
