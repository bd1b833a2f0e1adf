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
import time
from pathlib import Path

from sameshot.client.local import JOB_FILE, LOCK_FILE, JobInfo, check_private, is_locked, runtime_root, write_job_file

# Folders of this very process. Opening the file of one's own record lock and closing it again releases the lock.
_OWN: set[Path] = set()
# A run that has not announced itself yet may be about to lock its folder; older than this it was killed before.
_UNANNOUNCED_S = 60.0


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
        _OWN.add(path)
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
        _OWN.discard(self.path)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove what killed runs left, but never trace bytes, nor a folder whose workers still train."""
    for folder in base.iterdir():
        if folder in _OWN or not _may_be_dead(folder):
            continue
        locks = [folder / LOCK_FILE, *folder.glob("n*/workers/*.lock")]
        in_use = any(is_locked(lock, 0) for lock in locks)
        if not in_use and not _left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _may_be_dead(folder: Path) -> bool:
    """Whether it is a run's folder whose lock tells: one that was announced, or should have been long ago."""
    try:
        age_s = time.time() - (folder / LOCK_FILE).stat().st_mtime
    except OSError:
        return False
    return age_s > _UNANNOUNCED_S or (folder / JOB_FILE).exists()


def _left_behind(run: Path) -> list[Path]:
    """In the spools, and what stayed where its worker wrote it because its agent could not take it."""
    found = [*run.glob("spool-*/**/raw.json*"), *run.glob("spool-*/**/stored*"), *run.glob("n*/captures/**/*.json")]
    return sorted(path for path in found if path.is_file())
