"""Reading one manifest from the archive without blocking an event loop: the durable fact, whoever is still there."""

from __future__ import annotations

import asyncio

from sameshot import manifest
from sameshot.manifest import Manifest
from sameshot.storage import Storage

_DEADLINE_S = 20.0  # whoever waits tries again; a hanging store must not hold it up for long


async def read_manifest(manifest_uri: str) -> Manifest:
    """Raises NotFound where there is none (yet), StorageError where the store can't tell, ManifestError where it was
    edited or is of an unknown version."""
    folder, _, name = manifest_uri.rpartition("/")
    return await decoded(await Storage.open(folder or ".", deadline_s=_DEADLINE_S).get(name))


async def decoded(data: bytes) -> Manifest:
    """Beside the event loop: of a job of 4096 ranks a manifest takes 0.6 s, and many captures may share the loop."""
    return await asyncio.to_thread(manifest.decode, data)
