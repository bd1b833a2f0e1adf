"""Where a pod's `sameshot` directory is on its node, and what it looks like from there.

The kubelet keeps a pod's emptyDirs as `<root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>` (root: by default
/var/lib/kubelet; the layout is that of the volume plug-ins, unchanged since Kubernetes 1.0). Down to the volume all of
it belongs to the kubelet; what is inside belongs to the pod's user and is looked at as `safefs` does.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sameshot.agent import registrations, safefs
from sameshot.arm import labels

KUBELET_ROOT = Path("/var/lib/kubelet")
EMPTY_DIRS = ("volumes", "kubernetes.io~empty-dir")
MAX_COUNTED = 20_000  # names, where bytes are counted
MAX_DEPTH = 8
_BLOCK = 512  # bytes of a block in stat(2)


def volume_of(root: Path, pod_uid: str) -> Path:
    return root.joinpath("pods", pod_uid, *EMPTY_DIRS, labels.VOLUME)


class SpoolGone(OSError):
    """What is finished could be moved nowhere: of no pod can it be told whether it can be served."""


def problem_with(volume: Path, spool: Path) -> str | None:
    """Why a pod's directory can't be served; None: it can.

    Raises FileNotFoundError where it is not there (yet), SpoolGone where the spool is not.
    """
    with safefs.directory(volume.parent, volume.name) as fd:
        try:
            kept_on = os.stat(spool).st_dev
        except FileNotFoundError:
            raise SpoolGone(f"the agent's spool {spool} was removed; a restart of the agent makes it anew") from None
        if os.fstat(fd).st_dev != kept_on:
            return (
                f"it is on another file system than the spool {spool} (an emptyDir in memory, or a mount of its own), "
                "so finished traces could not be moved"
            )
    return None


def used_bytes(volume: Path) -> int:
    """What lies in the directory, as the disk counts it; of very many names, or very deep ones, only the first."""
    left = [MAX_COUNTED]
    with contextlib.suppress(OSError, safefs.Unsafe), safefs.directory(volume.parent, volume.name) as top:
        return _used_below(top, left, MAX_DEPTH)
    return 0


def _used_below(folder: int, left: list[int], depth: int) -> int:
    used = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                break
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                elif depth > 0:
                    below = os.open(entry.name, safefs.DIRECTORY, dir_fd=folder)
                    try:
                        used += _used_below(below, left, depth - 1)
                    finally:
                        os.close(below)
    return used


def has_registration(volume: Path) -> bool:
    """Whether any worker has ever registered in this directory."""
    return _any_name(volume, registrations.WORKERS, ".json")


def was_prepared(volume: Path) -> bool:
    """Whether the hook came so far as to prepare the directory for Kineto."""
    return _any_name(volume, None, "kineto.conf")


def _any_name(volume: Path, folder: str | None, ending: str) -> bool:
    parts = (volume.name,) if folder is None else (volume.name, folder)
    with (
        contextlib.suppress(OSError, safefs.Unsafe),
        safefs.directory(volume.parent, *parts) as fd,
        os.scandir(fd) as entries,
    ):
        for _, entry in zip(range(MAX_COUNTED), entries, strict=False):
            if entry.name.endswith(ending) and not entry.name.startswith("."):
                return True
    return False
