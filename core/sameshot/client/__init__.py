"""How anything outside talks to a job's coordinator.

    with connect("local") as client:
        capture = client.start_capture(CaptureSpec(duration_ms=2000))
        for view in client.watch(capture.capture_id): ...

`AsyncClient` is the same for event loops; `jobs` finds what runs on this machine.
"""

from __future__ import annotations

from sameshot.api.views import AgentStatus, CaptureView, JobDescription, WorkersView
from sameshot.client.address import register_resolver, resolve
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
    "WorkersView",
    "connect",
    "jobs",
    "register_resolver",
    "resolve",
]


def connect(address: str = "local", *, caller: str | None = None) -> Client:
    """A client of the coordinator at `address`: `host:port`, `unix:/path`, or `local[:job name]` for a job on this
    machine. Nothing is sent yet. Raises NoSuchJob, or UsageError where the address is none or matches several jobs."""
    return Client(resolve(address), caller=caller)
