"""The runtime directory: how a terminal finds the jobs that run on this machine.

    <root>/<run id>/job.json        what runs and where its coordinator listens (read by client/local.py)
    <root>/<run id>/alive.lock      locked for as long as the run lives
    <root>/<run id>/n<i>/           $SAMESHOT_DIR of node i: ipc/ workers/ captures/
    <root>/<run id>/spool-n<i>/     traces on their way to the archive
    <root>/<run id>/*.log           what agents and coordinator said

The root is private to its owner (mode 0700, checked): whoever can write there could pose as a worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from sameshot.client.local import LOCK_FILE, JobInfo, check_private, is_locked, jobs, runtime_root, write_job_file


class RunFolder:
    """One run's folder, locked while it lives."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls) -> RunFolder:
        """Make and lock a new folder below the runtime root."""
        base = runtime_root()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(base)
        _sweep(base)
        path = base / secrets.token_hex(4)
        path.mkdir(mode=0o700)
        lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, lock_fd)

    def announce(self, info: JobInfo) -> None:
        """From now on `sameshot jobs` shows this run."""
        write_job_file(self.path, info)

    def add_node(self, folder: Path) -> None:
        """Make a node's `$SAMESHOT_DIR`. Kineto needs the socket directory before torch is imported."""
        for part in ("ipc", "workers", "captures"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def left_behind(self) -> list[Path]:
        """Trace bytes that never reached the archive."""
        return _left_behind(self.path)

    def close(self, *, keep: bool) -> None:
        """Unlock, and remove the folder unless something in it is still worth having."""
        with contextlib.suppress(OSError):
            os.close(self._lock_fd)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove what killed runs left, but never trace bytes, nor a folder whose workers still train."""
    own = {info.run for info in jobs() if info.pid == os.getpid()}  # opening our own lock's file would release it
    for folder in base.iterdir():
        if folder.name in own or not (folder / LOCK_FILE).exists():
            continue
        locks = [folder / LOCK_FILE, *folder.glob("n*/workers/*.lock")]
        in_use = any(is_locked(lock, 0) for lock in locks)
        if not in_use and not _left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _left_behind(run: Path) -> list[Path]:
    """In the spools, and what stayed where its worker wrote it because its agent could not take it."""
    found = [*run.glob("spool-*/**/raw.json*"), *run.glob("spool-*/**/stored*"), *run.glob("n*/captures/**/*.json")]
    return sorted(path for path in found if path.is_file())
