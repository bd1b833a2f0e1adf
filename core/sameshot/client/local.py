"""The jobs that run on this machine, read from the runtime directory that `sameshot run` writes.

    <root>/<run id>/job.json     what runs and where its coordinator listens
    <root>/<run id>/alive.lock   a POSIX record lock (lockf), held for as long as the run lives

The root is $SAMESHOT_RUNTIME_DIR, else /tmp/sameshot-<uid>; it must be ours and private (mode 0700), because whoever
can write there decides to which coordinator we talk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sameshot.errors import Denied, NoSuchJob, UsageError
from sameshot.model import JobRef

SCHEMA = "sameshot.dev/run/v1"
JOB_FILE = "job.json"
LOCK_FILE = "alive.lock"
_MAX_JOB_FILE = 1 << 20


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run on this machine. `coordinator` is an address for `connect`; `run` is the name of its folder."""

    job: JobRef
    series: str
    labels: dict[str, str] = {}
    coordinator: str
    archive: str
    pid: int
    started_at_ns: int = 0
    dynolog: tuple[str, ...] = ()  # host:port of the stock daemons beside it, one per node
    alive: bool = True
    run: str = ""


class _JobFile(msgspec.Struct, kw_only=True):
    """job.json as it is written; fields of newer versions are ignored."""

    schema: str
    job: JobRef
    series: str = ""
    labels: dict[str, str] = {}
    coordinator: str
    archive: str
    pid: int
    started_at_ns: int = 0
    dynolog: tuple[str, ...] = ()


def runtime_root() -> Path:
    """Where runs of this user are announced; it may not exist yet."""
    return Path(os.environ.get("SAMESHOT_RUNTIME_DIR") or f"/tmp/sameshot-{os.getuid()}")


def jobs(labels: Mapping[str, str] | None = None, *, also_ended: bool = False) -> list[JobInfo]:
    """The jobs on this machine that have all of `labels`, newest first; `also_ended` adds runs that left a folder.

    Raises Denied where the runtime directory is not private to this user.
    """
    wanted = dict(labels or {}).items()
    found = [info for info in _read_all(runtime_root()) if wanted <= info.labels.items()]
    return sorted((info for info in found if info.alive or also_ended), key=lambda info: -info.started_at_ns)


def resolve(name: str) -> str:
    """The coordinator's address of the running job called `name` (or in the folder of that name; "": the only one)."""
    running = jobs()
    matching = [info for info in running if name in ("", info.job.name, info.run)]
    if len(matching) == 1:
        return matching[0].coordinator
    if not matching:
        others = f" Running are: {', '.join(info.job.name for info in running)}." if running else ""
        what = f"called {name!r} " if name else ""
        raise NoSuchJob(
            f"No job {what}runs on this machine under {runtime_root()}; start one with `sameshot run`.{others}"
        )
    choices = ", ".join(f"local:{info.run} ({info.job.name})" for info in matching)
    raise UsageError(f"Several jobs match; name one of {choices}.")


def write_job_file(run: Path, info: JobInfo) -> None:
    """Announce a run; atomic, so that a reader sees all of it or nothing."""
    content = _JobFile(
        schema=SCHEMA,
        job=info.job,
        series=info.series,
        labels=info.labels,
        coordinator=info.coordinator,
        archive=info.archive,
        pid=info.pid,
        started_at_ns=info.started_at_ns,
        dynolog=info.dynolog,
    )
    scratch = run / f".{JOB_FILE}.tmp"
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    scratch.replace(run / JOB_FILE)


def check_private(root: Path) -> bool:
    """Whether the runtime directory is there; raises Denied where others could write to it and pose as a worker."""
    try:
        status = root.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Denied(
            f"The runtime directory {root} must be a directory of yours with mode 0700; mend it, or set "
            "SAMESHOT_RUNTIME_DIR to another one."
        )
    return True


def _read_all(root: Path) -> list[JobInfo]:
    if not check_private(root):
        return []
    return [info for run in root.iterdir() if (info := _read(run)) is not None]


def _read(run: Path) -> JobInfo | None:
    """None: not a run, or one whose file is of another version or damaged."""
    try:
        fd = os.open(run / JOB_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(_MAX_JOB_FILE + 1)
    with contextlib.suppress(msgspec.DecodeError):
        read = msgspec.json.decode(data, type=_JobFile)
        if read.schema == SCHEMA:
            return JobInfo(
                job=read.job,
                series=read.series,
                labels=read.labels,
                coordinator=read.coordinator,
                archive=read.archive,
                pid=read.pid,
                started_at_ns=read.started_at_ns,
                dynolog=read.dynolog,
                alive=is_locked(run / LOCK_FILE, read.pid),
                run=run.name,
            )
    return None


# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def is_locked(lock: Path, pid: int) -> bool:
    """Whether a process (`pid`, where it is known) holds the lock.

    Asked (F_GETLK), never tried, so that we can't be in anyone's way.

    A process that opens and closes a file gives up its own record locks on it, so the run's own file is never opened
    from within the run.
    """
    if pid == os.getpid():
        return True
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)
