"""The seam to wherever armed workers leave their directories: a fixed list on one machine, the kubelet's pods later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import msgspec

from sameshot.model import JobRef


class WorkerDir(msgspec.Struct, frozen=True):
    """One `$SAMESHOT_DIR`, seen from both sides, with what the *node* knows about its owner.

    `node`, `pod`, `pod_uid` and `job` come from whoever discovered the directory and override what a registration
    claims about itself; None: not known here, the registration's own word stands. Only files of `owner_uid` are
    accepted (None: of any one user, a pod's user is its own choice). `limit_bytes` is what the owner may still store
    there (a pod's ephemeral-storage limit), None without a limit.
    """

    path: Path
    worker_path: str
    node: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    job: JobRef | None = None
    owner_uid: int | None = None
    limit_bytes: int | None = None

    @property
    def in_pod(self) -> bool:
        """Whether its owner is a stranger who comes and goes: what is wrong with it is not the agent's fault."""
        return self.pod_uid is not None


class WorkerDirs(Protocol):
    """Asked at every look, so directories may come and go. `current` answers from memory, at once."""

    def current(self) -> Sequence[WorkerDir]: ...

    def unregistered(self, job: JobRef) -> Sequence[str]:
        """Of each place of this job where somebody should have registered long ago: why nobody did, in words."""
        ...

    async def start(self) -> None:
        """Begin to look; returns once there is something to answer from."""
        ...

    async def close(self) -> None: ...


class FixedDirs:
    """The directories of one machine without Kubernetes: worker and agent see the same path, run by the same user."""

    def __init__(self, *paths: Path, node: str | None = None, owner_uid: int | None = None) -> None:
        owner = os.geteuid() if owner_uid is None else owner_uid
        self._dirs = tuple(
            WorkerDir(path=path, worker_path=str(path), node=node, owner_uid=owner) for path in map(Path, paths)
        )

    @classmethod
    def of(cls, *dirs: WorkerDir) -> Self:
        """These very ones, with whatever is known about their owners."""
        fixed = cls()
        fixed._dirs = dirs
        return fixed

    def current(self) -> Sequence[WorkerDir]:
        return self._dirs

    def unregistered(self, job: JobRef) -> Sequence[str]:
        return ()

    async def start(self) -> None: ...

    async def close(self) -> None: ...
