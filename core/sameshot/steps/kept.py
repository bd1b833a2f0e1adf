"""The capture of a request key when there is no coordinator to ask: its id follows from the key, and the archive has
its manifest. Where the archive of a job is, only the run's folder on this machine still tells."""

from __future__ import annotations

import asyncio

from sameshot.api.archived import view_of
from sameshot.client import CaptureView, JobInfo, jobs
from sameshot.client.wire import os_user
from sameshot.errors import NotFound, RequestKeyConflict
from sameshot.manifest import manifest_key
from sameshot.model import CaptureState, keyed_capture_id
from sameshot.steps.archive import read_manifest
from sameshot.steps.request import CaptureRequest
from sameshot.storage import Storage

USABLE = (CaptureState.SUCCEEDED, CaptureState.PARTIAL)
_AT_ONCE = 8  # numbers of a key: those of captures that were lost, or had no target, have no manifest


async def kept(request: CaptureRequest) -> CaptureView | None:
    """The newest usable capture of the request's key, of any run on this machine that the request can mean.

    None: there is none, or no run's folder tells where to look. Raises StorageError where the archive can't say,
    ManifestError where a manifest is damaged, and RequestKeyConflict where the key was used with another spec.
    """
    for run in await asyncio.to_thread(_meant, request):
        if (view := await _newest(request, run)) is not None:
            if view.spec != request.spec:
                raise RequestKeyConflict(
                    f"The request key {request.request_key!r} belongs to capture {view.capture_id}, which was asked "
                    "for with another spec; use another key."
                )
            return view
    return None


def _meant(request: CaptureRequest) -> list[JobInfo]:
    scheme, _, name = request.address.partition(":")
    if scheme != "local":
        return []
    return [
        each
        for each in jobs(also_ended=True)
        if name in ("", each.job.name, each.run)
        and request.job in (None, each.job.name)
        and request.uid in (None, each.job.uid)
        and request.attempt in (None, each.job.attempt)
    ]


async def _newest(request: CaptureRequest, run: JobInfo) -> CaptureView | None:
    archive, caller = Storage.open(run.archive), request.caller or os_user()

    async def look(n: int) -> CaptureView | None:
        capture_id = keyed_capture_id(run.job, caller, request.request_key, n)
        uri = archive.uri(manifest_key(run.job, capture_id))
        try:
            view = view_of(await read_manifest(uri), uri)
        except NotFound:
            return None
        return view if view.capture_id == capture_id else None

    newest, first = None, 1
    while True:
        found = [view for view in await asyncio.gather(*map(look, range(first, first + _AT_ONCE))) if view is not None]
        newest = next((view for view in reversed(found) if view.state in USABLE), newest)
        if not found:
            return newest
        first += _AT_ONCE
