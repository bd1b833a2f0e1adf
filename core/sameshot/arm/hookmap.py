"""The ConfigMap that brings the hook into pods: its files as they are, in the namespace of the job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

from sameshot.arm import labels
from sameshot.arm.values import Json
from sameshot.hook import PAYLOAD

HOOK_DIGEST = f"{labels.DOMAIN}/hook"
"""Its annotation: which version of the hook it holds."""
MAX_BYTES = 1 << 20
"""What the API server takes as the data of one ConfigMap."""

_PART_OF = {"app.kubernetes.io/name": "sameshot", "app.kubernetes.io/component": "hook"}


@cache
def hook_files() -> dict[str, str]:
    """The hook's files by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(PAYLOAD.glob("*.py"))}


def hook_digest() -> str:
    """Tells versions of the hook apart."""
    return digest_of(hook_files())


def digest_of(files: Mapping[str, str]) -> str:
    """16 hex digits over names and contents, in the names' order."""
    whole = hashlib.sha256()
    for name, text in sorted(files.items()):
        whole.update(f"{name}\0{text}\0".encode())
    return whole.hexdigest()[:16]


def hook_configmap(namespace: str | None = None) -> Json:
    """The object `sameshot-hook`; without a namespace it goes where the client's context points.

    It is not immutable: a newer hook replaces it, and every process of an armed pod that starts later runs that one,
    also in pods that were there before (the kubelet renews mounted ConfigMaps within a minute or two), as when torchrun
    starts its workers again. A process that runs keeps what it has loaded.
    """
    metadata: Json = {"name": labels.HOOK_CONFIGMAP}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = dict(_PART_OF)
    metadata["annotations"] = {HOOK_DIGEST: hook_digest()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(hook_files())}


def is_hook_configmap(thing: object) -> bool:
    """Whether this object is such a ConfigMap, of whatever version and namespace."""
    if not isinstance(thing, dict) or thing.get("kind") != "ConfigMap":
        return False
    metadata = thing.get("metadata")
    return isinstance(metadata, dict) and metadata.get("name") == labels.HOOK_CONFIGMAP
