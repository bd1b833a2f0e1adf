"""A pod's socket directory, served from the node: bound under the pod's own name, reached by descriptors.

The node sees a pod's volume as `<kubelet root>/pods/<uid>/volumes/kubernetes.io~empty-dir/sameshot`, the pod as
`/sameshot`. A child process makes the volume's *parent* its root (volume and mount are both named `sameshot`, so the
bound name is exactly `/sameshot/ipc/dynolog`) and passes the socket back: the agent needs CAP_SYS_CHROOT and no mount
namespace (proven on a real node). The name is checked before anything is served.

Everything inside belongs to the pod's user, who may put links anywhere, also to other pods' sockets: every directory
on the way is opened without following links, and so is every client before an answer goes to it.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from sameshot.errors import UsageError
from sameshot.profiler import kineto_ipc
from sameshot.profiler.place import CLIENT, DEAD_SOCKET_AGE_S, check_name, is_alive

IPC = "ipc"
BIND_WITHIN_S = 20.0
MAX_SWEPT = 10_000  # names looked at in one sweep

_CHILD = Path(__file__).with_name("chrootbind.py")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class PodPlace:
    """`volume` is the directory as the node sees it, `mounted_at` as the pod does; both end in the same name."""

    def __init__(self, volume: Path, mounted_at: str) -> None:
        if mounted_at != f"/{volume.name}":
            raise UsageError(
                f"The volume {volume} is mounted at {mounted_at!r} in its pod; only /{volume.name} can be served, as "
                "workers compare the name of their daemon's socket byte by byte."
            )
        self.worker_dir = f"{mounted_at}/{IPC}"
        self._path = f"{self.worker_dir}/{kineto_ipc.ENDPOINT}"
        self._volume = volume
        self._ipc: int | None = None  # the directory that the socket stands in
        self._stands: tuple[int, int] | None = None  # inode and time of the socket's file; the number alone comes back

    def bind(self) -> socket.socket:
        with contextlib.ExitStack() as opened:
            parent = _open(opened, str(self._volume.parent))
            ipc = _open(opened, IPC, _open(opened, self._volume.name, parent))
            _remove_stale(ipc)
            listening = _bind_below(parent, self._path)
            try:
                check_name(listening, self._path)
                # Whoever owns the directory could have led the bind elsewhere; a poll must reach us, and only us.
                found = os.lstat(kineto_ipc.ENDPOINT, dir_fd=ipc)
                if not stat.S_ISSOCK(found.st_mode):
                    raise UsageError(f"{self._volume}/{IPC} was changed while the daemon's socket was bound there.")
                listening.setblocking(False)
                self._release()
                self._ipc, self._stands = os.dup(ipc), _which(found)
            except BaseException:
                listening.close()
                raise
            return listening

    def send(self, listening: socket.socket, reply: bytes, client: str) -> None:
        # Through a descriptor of the socket's own inode: the node's path is too long for an address, and a name could
        # be a link to a socket of somebody else, who would take the answer for one of its own daemon.
        assert self._ipc is not None
        fd = os.open(client, _LOOK, dir_fd=self._ipc)
        try:
            listening.sendto(reply, socket.MSG_DONTWAIT, f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def intact(self) -> bool:
        try:
            with contextlib.ExitStack() as opened:
                ipc = _open(opened, IPC, _open(opened, str(self._volume)))
                return _which(os.lstat(kineto_ipc.ENDPOINT, dir_fd=ipc)) == self._stands
        except OSError:
            return False

    def sweep(self) -> None:
        if self._ipc is None:
            return
        with contextlib.suppress(OSError), os.scandir(self._ipc) as entries:
            for _, entry in zip(range(MAX_SWEPT), entries, strict=False):
                with contextlib.suppress(OSError):
                    if CLIENT.fullmatch(entry.name):
                        _remove_if_dead(self._ipc, entry.name)

    def close(self) -> None:
        if self._ipc is None:
            return
        with contextlib.suppress(OSError):
            if _which(os.lstat(kineto_ipc.ENDPOINT, dir_fd=self._ipc)) == self._stands:
                os.unlink(kineto_ipc.ENDPOINT, dir_fd=self._ipc)
        self._release()

    def _release(self) -> None:
        if self._ipc is not None:
            os.close(self._ipc)
            self._ipc = None


def _which(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _open(opened: contextlib.ExitStack, name: str, below: int | None = None) -> int:
    fd = os.open(name, _DIRECTORY, dir_fd=below)
    opened.callback(os.close, fd)
    return fd


def _remove_stale(ipc: int) -> None:
    """Remove the socket of a daemon that is gone. Raises `UsageError` where one lives, or something else stands."""
    try:
        fd = os.open(kineto_ipc.ENDPOINT, _LOOK, dir_fd=ipc)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise UsageError(f"{kineto_ipc.ENDPOINT} in the pod's socket directory is not a socket; remove it.")
        if is_alive(f"/proc/self/fd/{fd}"):
            raise UsageError("Another profiler daemon already serves this pod; end it.")
    finally:
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(kineto_ipc.ENDPOINT, dir_fd=ipc)


def _remove_if_dead(ipc: int, name: str) -> None:
    fd = os.open(name, _LOOK, dir_fd=ipc)
    try:
        status = os.fstat(fd)
        old = time.time() - status.st_mtime >= DEAD_SOCKET_AGE_S
        if stat.S_ISSOCK(status.st_mode) and old and not is_alive(f"/proc/self/fd/{fd}"):
            os.unlink(name, dir_fd=ipc)
    finally:
        os.close(fd)


def _bind_below(root: int, path: str) -> socket.socket:
    """A datagram socket bound as `path` by a child whose root directory is `root`.

    A process of its own (not a fork: this one has threads), which ends at once.
    """
    mine, its = socket.socketpair()
    with mine, its:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD), str(root), str(its.fileno()), path],
            pass_fds=(root, its.fileno()),
            stdin=subprocess.DEVNULL,
            close_fds=True,
        )
        its.close()
        try:
            mine.settimeout(BIND_WITHIN_S)
            answer, fds = _receive(mine)
        finally:
            child.kill()
            child.wait()
    if len(fds) == 1 and answer == b"0":
        return socket.socket(fileno=fds[0])
    for fd in fds:
        os.close(fd)
    if answer.isdigit():
        number = int(answer)
        raise OSError(number, f"no daemon socket could be bound in the pod's directory: {os.strerror(number)}")
    ended = f"ended by {signal.Signals(-child.returncode).name}" if child.returncode < 0 else "ended without an answer"
    raise OSError(f"the process that binds the daemon's socket {ended}")


def _receive(mine: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, ancillary, _, _ = mine.recvmsg(64, socket.CMSG_SPACE(array.array("i").itemsize))
    except TimeoutError:
        raise OSError(f"no daemon socket was bound in the pod's directory within {BIND_WITHIN_S:.0f} s") from None
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)
