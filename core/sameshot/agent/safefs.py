"""File access in directories that other, untrusted processes write to.

A training process owns its `$SAMESHOT_DIR` and may put anything there: links that lead out, FIFOs that block whoever
opens them, sockets, huge files. Every path is therefore walked one component at a time from an open directory, links
are never followed, nothing is opened in a way that can block, and what was opened is what is judged (fstat), never
what a name stood for a moment ago.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Unsafe(Exception):
    """What stands there is not a plain file (or directory) that may be touched; the message says why."""


@contextlib.contextmanager
def directory(root: Path, *parts: str) -> Iterator[int]:
    """A descriptor of `root/parts…`. `root` itself is trusted (the operator named it), everything below is not.

    Raises FileNotFoundError where it is not there and `Unsafe` where a component is anything but a directory.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        fd = _below(fd, part)
    try:
        yield fd
    finally:
        os.close(fd)


def make_directories(root: Path, *parts: str, uid: int, gid: int) -> None:
    """Make `root/parts…`, the last one writable for `uid`. What is there already must be a real directory."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        made = False
        with contextlib.suppress(FileExistsError):
            _mkdir(fd, part)
            made = True
        fd = _below(fd, part)
        if made:
            os.fchmod(fd, 0o755)  # whatever our umask is, the worker must get through
    try:
        if os.fstat(fd).st_uid != uid:
            _hand_over(fd, uid, gid)
    finally:
        os.close(fd)


def remove_empty_directories(root: Path, *parts: str) -> None:
    """Remove `root/parts…` from the leaf upwards as far as they are empty, at most up to the first of `parts`."""
    for depth in range(len(parts), 1, -1):
        try:
            with directory(root, *parts[: depth - 1]) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)
        except (OSError, Unsafe):
            return


def read_small(dir_fd: int, name: str, *, limit: int, owner_uid: int | None) -> tuple[bytes, os.stat_result]:
    """The content of a small regular file. Raises `Unsafe` or OSError; never blocks, never reads beyond `limit`."""
    fd = open_regular(dir_fd, name, owner_uid=owner_uid)
    try:
        status = os.fstat(fd)
        if status.st_size > limit:
            raise Unsafe(f"it is {status.st_size} bytes long, more than {limit}")
        data = b""
        while len(data) <= limit and (piece := os.read(fd, limit + 1 - len(data))):
            data += piece
        if len(data) > limit:
            raise Unsafe(f"it grew beyond {limit} bytes")
        return data, status
    finally:
        os.close(fd)


@contextlib.contextmanager
def held(dir_fd: int, name: str) -> Iterator[os.stat_result]:
    """What stands under this name, links not followed, without opening it for anything (O_PATH).

    Within the context its inode number is its own: a freed one is given to the next file at once (seen on ext4).
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield os.fstat(fd)
    finally:
        os.close(fd)


def open_regular(dir_fd: int, name: str, *, owner_uid: int | None) -> int:
    """A read descriptor of a plain file that has one name only and belongs to `owner_uid` (None: to anybody)."""
    if not is_plain_name(name):
        raise Unsafe(f"{name!r} is not a plain file name")
    try:
        fd = os.open(name, _READ, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unsafe("it is a symbolic link") from None
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, a device without a driver
            raise Unsafe("it is a socket or a device") from None
        raise
    try:
        check_regular(os.fstat(fd), owner_uid=owner_uid)
    except Unsafe:
        os.close(fd)
        raise
    return fd


def hold_open(path: str | Path) -> int:
    """A read descriptor of a file in the spool that may still belong to the pod's user; raises OSError at once.

    Its owner may hold a lease on it (fcntl(2)), and then whoever opens it waits for up to 45 s. While this descriptor
    is open nobody can take one, so others may open the file without care.
    """
    try:
        return os.open(path, _READ)
    except BlockingIOError:
        raise BlockingIOError(errno.EAGAIN, "its owner holds a lease on it", str(path)) from None


def check_regular(status: os.stat_result, *, owner_uid: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unsafe(f"it is a {kind_of(status.st_mode)}, not a regular file")
    if status.st_nlink != 1:  # a second name can lead to a file of somebody else
        raise Unsafe(f"it has {status.st_nlink} names (hard links)")
    if owner_uid is not None and status.st_uid != owner_uid:
        raise Unsafe(f"it belongs to uid {status.st_uid}, not to {owner_uid}")


def is_plain_name(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def kind_of(mode: int) -> str:
    """What a mode is, in a word."""
    kinds = {
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symbolic link",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "regular file" if stat.S_ISREG(mode) else "thing of unknown kind")


def write_atomically(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace `path` as a whole; one writer at a time. `durable` waits for the disk and survives a power failure."""
    scratch = path.with_name(f".{path.name}.tmp")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    if durable:
        with directory(path.parent) as fd:
            os.fsync(fd)


def _below(fd: int, part: str) -> int:
    """One component down from `fd`, which is closed in any case."""
    try:
        if not is_plain_name(part):
            raise Unsafe(f"{part!r} is not a plain directory name")
        return os.open(part, DIRECTORY, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Unsafe(f"{part!r} on the way there is not a directory") from None
        raise
    finally:
        os.close(fd)


def _mkdir(fd: int, part: str) -> None:
    try:
        if not is_plain_name(part):
            raise Unsafe(f"{part!r} is not a plain directory name")
        os.mkdir(part, 0o755, dir_fd=fd)
    except FileExistsError:
        raise
    except (OSError, Unsafe):
        os.close(fd)
        raise


def _hand_over(fd: int, uid: int, gid: int) -> None:
    try:
        os.fchown(fd, uid, gid)
    except PermissionError:  # an agent without privilege beside workers of another user
        os.fchmod(fd, 0o1777)
