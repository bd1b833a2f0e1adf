"""From a capture in memory to its manifest, and what of this job is in the archive."""

from __future__ import annotations

from sameshot import manifest
from sameshot.api.archived import view_of
from sameshot.api.views import CaptureView
from sameshot.errors import NotFound
from sameshot.model import JobRef
from sameshot.storage import Storage


def manifest_of(view: CaptureView) -> bytes:
    """The manifest of a converged capture. Raises ManifestError where the facts contradict each other."""
    if view.outcome is None or view.converged_at_ns is None:
        raise ValueError("a capture has no manifest before it has converged")
    capture = manifest.Capture(
        capture_id=view.capture_id,
        request_key=view.request_key or None,
        caller=view.caller,
        n=view.n,
        job=manifest.Job.of(view.job, view.series or None),
        world_size=view.world_size,
        backend=view.backend,
        generation=view.generation or None,
        spec=view.spec,
        start_at_ns=view.start_at_ns,
        frozen_at=None if view.frozen_at_ns is None else manifest.timestamp(view.frozen_at_ns),
        converged_at=manifest.timestamp(view.converged_at_ns),
        outcome=view.outcome,
    )
    targets = [manifest.Target(each.target_id, each.identity, each.artifact, each.failure) for each in view.targets]
    return manifest.encode(manifest.build(capture, targets))


class Manifests:
    """The job attempt's manifests in the archive; read only."""

    def __init__(self, storage: Storage, job: JobRef) -> None:
        self._storage = storage
        self._job = job

    def uri(self, capture_id: str) -> str:
        return self._storage.uri(manifest.manifest_key(self._job, capture_id))

    async def read(self, capture_id: str) -> bytes | None:
        """None: there is none. Raises StorageError where the archive can't tell."""
        try:
            return await self._storage.get(manifest.manifest_key(self._job, capture_id))
        except NotFound:
            return None

    async def view(self, capture_id: str) -> CaptureView | None:
        """Raises ManifestError where something else stands there."""
        data = await self.read(capture_id)
        return None if data is None else view_of(manifest.decode(data), self.uri(capture_id))

    async def capture_ids(self) -> list[str]:
        """Every capture of this attempt that has a manifest."""
        keys = await self._storage.list(self._job.path)
        ends = [key.removeprefix(f"{self._job.path}/").split("/") for key in keys]
        return [parts[0] for parts in ends if len(parts) == 2 and parts[1] == "manifest.json"]
