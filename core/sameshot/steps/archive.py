"""Reading one manifest from the archive without blocking an event loop: the durable fact, whoever is still there."""

from __future__ import annotations

from sameshot import manifest
from sameshot.manifest import Manifest
from sameshot.storage import Storage

_DEADLINE_S = 20.0  # whoever waits tries again; a hanging store must not hold it up for long


async def read_manifest(manifest_uri: str) -> Manifest:
    """Raises NotFound where there is none (yet), StorageError where the store can't tell, ManifestError where it was
    edited or is of an unknown version."""
    folder, _, name = manifest_uri.rpartition("/")
    return manifest.decode(await Storage.open(folder or ".", deadline_s=_DEADLINE_S).get(name))
