"""Where a broker's socket stands, and how workers are reached from there: a directory of this machine.

For a pod's directory, which the node sees under another path than the pod, see `podplace`.

Three things could harm the training process and are ruled out here: an answer from a socket that is not named
`<directory>/dynolog`, with the very directory string the worker has in KINETO_IPC_SOCKET_DIR, aborts it; a path beyond
`sun_path` is cut; and a second daemon on the same name would steal polls.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import Protocol

from sameshot.errors import SameshotError, UsageError
from sameshot.profiler import kineto_ipc

MAX_SUN_PATH = 107
# Kineto binds <directory>/dynoconfigclient<uuid4>; with /ipc as its end, $SAMESHOT_DIR may have 50 bytes (hook/).
MAX_DIRECTORY_BYTES = MAX_SUN_PATH - len("/" + kineto_ipc.CLIENT_PREFIX) - 36
# A client socket exists for a moment before it is bound. Younger than this it is never called dead.
DEAD_SOCKET_AGE_S = 60.0
SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)  # asm-generic/socket.h; the control message has the same number
CLIENT = re.compile(re.escape(kineto_ipc.CLIENT_PREFIX) + r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class IpcPlace(Protocol):
    """One socket directory, as a broker uses it. `worker_dir` is the string that its workers have for it."""

    worker_dir: str

    def bind(self) -> socket.socket:
        """A datagram socket whose name is exactly `<worker_dir>/dynolog`; may block for a moment.

        Raises `FileNotFoundError` where the directory is not there (yet), another `OSError` or `UsageError` where
        nothing can be served, `SameshotError` where the name came out wrong: then nobody may be answered.
        """
        ...

    def send(self, listening: socket.socket, reply: bytes, client: str) -> None:
        """Send to the worker's socket of this name, without waiting. Raises OSError where that is impossible."""
        ...

    def intact(self) -> bool:
        """Whether workers that look for their daemon now find the socket that `bind` made."""
        ...

    def sweep(self) -> None:
        """Remove the sockets that dead workers left behind."""
        ...

    def close(self) -> None:
        """Remove the socket's name, unless it is a successor's by now."""
        ...


class HostPlace:
    """A directory that workers and broker see under the same path. Made where it is missing."""

    def __init__(self, directory: Path) -> None:
        self.worker_dir = str(directory)
        self._path = f"{self.worker_dir}/{kineto_ipc.ENDPOINT}"
        self._inode = 0

    def bind(self) -> socket.socket:
        _check_directory(self.worker_dir)
        self.sweep()
        listening = _bind(self._path)
        self._inode = os.lstat(self._path).st_ino
        return listening

    def send(self, listening: socket.socket, reply: bytes, client: str) -> None:
        listening.sendto(reply, socket.MSG_DONTWAIT, f"{self.worker_dir}/{client}")

    def intact(self) -> bool:
        try:
            return os.lstat(self._path).st_ino == self._inode
        except OSError:
            return False

    def sweep(self) -> None:
        remove_dead_clients(self.worker_dir, DEAD_SOCKET_AGE_S)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.intact():
                os.unlink(self._path)


def check_name(listening: socket.socket, path: str) -> None:
    """Raise `SameshotError` unless the socket is a datagram socket of exactly this name."""
    name = listening.getsockname()
    if listening.family is not socket.AF_UNIX or listening.type is not socket.SOCK_DGRAM or name != path:
        raise SameshotError(
            f"The daemon's socket is named {name!r} instead of {path!r}; an answer under that name would abort the "
            "training processes, so nothing was served."
        )


def is_alive(path: str) -> bool:
    """Whether some process holds a datagram socket of this name open. Sends nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # in doubt it is not ours to remove
        return True


def remove_dead_clients(directory: str, older_than_s: float) -> list[str]:
    """Unlink the sockets that dead workers left behind; returns their names.

    Only sockets named as Kineto names its own, that nobody holds open, and that are older than `older_than_s`.
    """
    removed = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                before = entry.stat(follow_symlinks=False)
                if (
                    CLIENT.fullmatch(entry.name)
                    and stat.S_ISSOCK(before.st_mode)
                    and time.time() - before.st_mtime >= older_than_s
                    and not is_alive(entry.path)
                    and os.lstat(entry.path).st_ino == before.st_ino
                ):
                    os.unlink(entry.path)
                    removed.append(entry.name)
    return removed


def _check_directory(directory: str) -> None:
    size = len(os.fsencode(directory))
    if size > MAX_DIRECTORY_BYTES:
        raise UsageError(
            f"The socket directory {directory!r} is {size} bytes long and Kineto's sockets in it would not fit into a "
            f"UNIX address; choose one of at most {MAX_DIRECTORY_BYTES} bytes."
        )
    if not os.path.isabs(directory) or os.path.normpath(directory) != directory:
        raise UsageError(
            f"The socket directory {directory!r} must be absolute and plainly written: workers compare it byte by byte "
            "and abort when it differs."
        )
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The socket directory {directory!r} can't be made: {error.strerror}.") from None


def _bind(path: str) -> socket.socket:
    """A socket under exactly this name. Raises `UsageError` where another daemon answers there."""
    if is_alive(path):
        raise UsageError(
            f"Another profiler daemon already serves {path}; end it, or use the back end that talks to it (dynolog)."
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise UsageError(f"{path} is not a socket; remove it.")
            os.unlink(path)
        # Before the bind: no poll may come in without its sender and its time.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listening.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        listening.setblocking(False)
        listening.bind(path)
        os.chmod(path, 0o666)  # workers may run as other users; the directory decides who gets here
        check_name(listening, path)
    except OSError as error:
        listening.close()
        raise UsageError(f"No daemon socket at {path}: {error.strerror or error}.") from None
    except BaseException:
        listening.close()
        raise
    return listening
