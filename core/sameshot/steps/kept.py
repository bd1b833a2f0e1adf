"""The capture of a request key when there is no coordinator to ask: its id follows from the key, and the archive has
its manifest.

Where the archive of a job is, the run's folder on this machine still tells. Of a job in a cluster nobody tells but
$SAMESHOT_ARCHIVE: its CaptureCoordinator, which may be there still, says which job it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import msgspec

from sameshot.api.archived import view_of
from sameshot.client import CaptureView, jobs
from sameshot.client.cluster import caller_of, is_kube, known_jobs, parse
from sameshot.client.wire import os_user
from sameshot.errors import NotFound, RequestKeyConflict, SameshotError
from sameshot.manifest import manifest_key
from sameshot.model import CaptureState, JobRef, keyed_capture_id
from sameshot.steps.archive import read_manifest
from sameshot.steps.preflight import in_thread
from sameshot.steps.request import CaptureRequest
from sameshot.storage import Storage

ARCHIVE = "SAMESHOT_ARCHIVE"
USABLE = (CaptureState.SUCCEEDED, CaptureState.PARTIAL)
_AT_ONCE = 8  # numbers of a key: those of captures that were lost, or had no target, have no manifest


async def kept(request: CaptureRequest) -> CaptureView | None:
    """The newest usable capture of the request's key, of any run that the request can mean.

    None: there is none, or nothing tells where to look. Raises StorageError where the archive can't say,
    ManifestError where a manifest is damaged, and RequestKeyConflict where the key was used with another spec.
    """
    if is_kube(request.address):
        runs = await in_thread(lambda _: _in_cluster(request))
    else:
        runs = await asyncio.to_thread(_meant, request)
    for run in runs:
        if (view := await _newest(request, run)) is not None:
            if view.spec != request.spec:
                raise RequestKeyConflict(
                    f"The request key {request.request_key!r} belongs to capture {view.capture_id}, which was asked "
                    "for with another spec; use another key."
                )
            return view
    return None


def not_looked(request: CaptureRequest, environment: Mapping[str, str] = os.environ) -> str:
    """Why `kept` could not look, in a sentence; empty where it could."""
    if not is_kube(request.address) or environment.get(ARCHIVE):
        return ""
    return (
        f"Whether the request key has a capture already is not known: set ${ARCHIVE} to the archive of the cluster to "
        "have it looked up there."
    )


class _Run(msgspec.Struct, frozen=True):
    """A job's run, where its manifests are, and whose request key it is."""

    job: JobRef
    archive: str
    caller: str


def _meant(request: CaptureRequest) -> list[_Run]:
    scheme, _, name = request.address.partition(":")
    if scheme != "local":
        return []
    return [
        _Run(each.job, each.archive, request.caller or os_user())
        for each in jobs(also_ended=True)
        if name in ("", each.job.name, each.run) and _fits(request, each.job)
    ]


def _in_cluster(request: CaptureRequest, environment: Mapping[str, str] = os.environ) -> list[_Run]:
    """The newest attempt first. Without any CaptureCoordinator left only a pinned request says which job it means."""
    archive, wanted = environment.get(ARCHIVE), parse(request.address)
    if not archive:
        return []
    try:
        found, caller = known_jobs(request.address), caller_of(request.address)
    except SameshotError:
        found, caller = [], request.caller or ""
    if not found and wanted.job and request.uid is not None:
        found = [JobRef(wanted.namespace, wanted.job, request.uid, request.attempt or 0)]
    return [_Run(each, archive, caller) for each in found if caller and _fits(request, each)]


def _fits(request: CaptureRequest, job: JobRef) -> bool:
    return request.job in (None, job.name) and request.uid in (None, job.uid) and request.attempt in (None, job.attempt)


async def _newest(request: CaptureRequest, run: _Run) -> CaptureView | None:
    archive, caller = Storage.open(run.archive), run.caller

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
