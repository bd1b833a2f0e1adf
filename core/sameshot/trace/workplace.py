"""A folder that appears under its name only when it is whole: made beside it as `.NAME.PID.part`, renamed at the end.

Whoever makes one holds a lock on its part. What a killed process left is removed by the next that wants the same name:
a part whose process is gone from this machine and whose lock nobody holds, here or wherever else the disk is used.
Where a file system has no locks, nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sameshot.errors import UsageError


def check_place(out: Path) -> None:
    """Raises UsageError where no new folder can get this name: it is taken, or no name of a folder of its own."""
    try:
        if out.is_symlink():
            raise UsageError(
                f"{out} is a symbolic link (to {out.readlink()}), and a new folder never takes the place of a link. "
                "Name the folder itself, or another."
            )
        if out.name in ("", "..") or os.path.ismount(out):
            raise UsageError(f"{out} can't be a new folder: give a name of its own, as in {out / 'capture'}.")
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise UsageError(f"{out} can't be read: {error.strerror}.") from None
    if taken:
        raise UsageError(f"{out} is there already and not empty; a capture is never overwritten. Name another.")


@contextlib.contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, for `publish`; removed at the end where that was not reached. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _sweep(out)
    part = out.parent / f".{out.name}.{os.getpid()}.part"
    part.mkdir()
    lock = None
    try:
        with contextlib.suppress(OSError):
            lock = _lock(part)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def publish(part: Path, out: Path) -> None:
    """Give it its name, over an empty folder at most. Raises OSError."""
    os.rename(part, out)


def sync(part: Path) -> None:
    """All of it on disk, as it must be before it gets its name. Raises OSError, also for a disk found full only now."""
    for where, _, names in os.walk(part):
        for path in (*(Path(where, name) for name in names), Path(where)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def empty(part: Path) -> None:
    """Remove what is in it, to begin anew. Raises OSError."""
    for path in part.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sweep(out: Path) -> None:
    """Remove what killed processes of this user left of the same folder."""
    name = re.compile(re.escape(f".{out.name}.") + r"([0-9]{1,9})\.part")
    with contextlib.suppress(OSError), os.scandir(out.parent) as entries:
        for entry in list(entries):
            if (match := name.fullmatch(entry.name)) is None or _is_alive(int(match[1])):
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                lock = _lock(Path(entry.path))
                try:
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(lock)


def _lock(folder: Path) -> int:
    """A descriptor that holds it; OSError where another one does, and where there are no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_alive(pid: int) -> bool:
    """Of others: what bears this process's own number is of a process before it, or its lock says otherwise."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
