"""Our own daemon for Kineto's UNIX-datagram protocol: sees every poll, knows what was fetched, can take back the rest.

It runs in a thread of its own. Kineto waits 90 ms for an answer; one that comes later stays in the worker's socket, is
read one poll too late, and so is every answer after it, for the rest of the worker's life. So the broker must not wait
for an event loop, and it never answers a poll that has grown old: the kernel's own receive time (SO_TIMESTAMPNS)
decides, and an unanswered poll costs nothing, since the worker asks again.

Three more things could harm the training process and are ruled out here: an answer from a socket that is not named
`<directory>/dynolog`, with the very directory string the worker has in KINETO_IPC_SOCKET_DIR, aborts it; a path beyond
`sun_path` is cut; and a second daemon on the same name would steal polls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import socket
import stat
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sameshot.errors import SameshotError, UsageError
from sameshot.profiler import kineto_ipc
from sameshot.profiler.daemon import BackendName, TriggerFact, TriggerRequest
from sameshot.profiler.slots import NS_PER_S, Slots

MAX_SUN_PATH = 107
# Kineto binds <directory>/dynoconfigclient<uuid4>; with /ipc as its end, $SAMESHOT_DIR may have 50 bytes (hook/).
MAX_DIRECTORY_BYTES = MAX_SUN_PATH - len("/" + kineto_ipc.CLIENT_PREFIX) - 36
ANSWER_WITHIN_NS = 50_000_000  # Kineto reads for 90 ms; the difference is for the way there
SWEEP_EVERY_S = 60.0
# A client socket exists for a moment before it is bound. Younger than this it is never called dead.
DEAD_SOCKET_AGE_S = 60.0

_log = logging.getLogger(__name__)

_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)  # asm-generic/socket.h; the control message has the same number
_TIMESPEC = struct.Struct("@qq")
_UCRED = struct.Struct("=iii")
_CLIENT = re.compile(re.escape(kineto_ipc.CLIENT_PREFIX) + r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size) + socket.CMSG_SPACE(_UCRED.size)

_listening: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child that outlives its parent must not look like a living daemon."""
    for inherited in _listening:
        inherited.close()


os.register_at_fork(after_in_child=_close_inherited)


class Broker:
    """The back end `broker`. `ipc_dir` is used exactly as `str(ipc_dir)`: workers need that very string.

    `clock` gives CLOCK_REALTIME in ns. `start` raises `UsageError` where the directory can't be used or another
    daemon is alive in it.
    """

    name = BackendName.BROKER

    def __init__(self, ipc_dir: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        self.socket_dir = str(ipc_dir)
        self.ignored: Counter[str] = Counter()  # datagrams that were not answered, by reason
        self._path = f"{self.socket_dir}/{kineto_ipc.ENDPOINT}"
        self._clock = clock
        self._slots = Slots()
        self._lock = threading.Lock()
        self._attested: dict[str, tuple[int, int]] = {}  # client name → (kernel's pid, pid it may state)
        self._socket: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._inode = 0

    # --- ProfilerDaemon --------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._thread is not None:
            return
        _check_directory(self.socket_dir)
        remove_dead_clients(self.socket_dir, DEAD_SOCKET_AGE_S)
        listening = _bind(self._path)
        _listening.add(listening)
        self._inode = os.lstat(self._path).st_ino
        wake_reader, self._wake = socket.socketpair()
        self._socket = listening
        self._thread = threading.Thread(
            target=self._serve, args=(listening, wake_reader), name="sameshot-broker", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        if self._thread is None or self._wake is None or self._socket is None:
            return
        self._wake.close()  # the thread sees end of file; it never blocks for long, so neither does this
        self._thread.join()
        self._thread = None
        self._socket.close()
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:  # not a successor's
                os.unlink(self._path)

    async def trigger(self, requests: Sequence[TriggerRequest]) -> list[TriggerFact]:
        with self._lock:
            return self._slots.ask(requests, self._clock())

    async def facts(self, capture_id: str) -> list[TriggerFact]:
        with self._lock:
            return self._slots.facts(capture_id, self._clock())

    async def withdraw(self, capture_id: str, target_ids: Sequence[str]) -> list[TriggerFact]:
        with self._lock:
            return self._slots.withdraw(capture_id, target_ids, self._clock())

    async def registered(self) -> dict[tuple[int, int], float | None]:
        with self._lock:
            return {key: age / NS_PER_S for key, age in self._slots.ages_ns(self._clock()).items()}

    # --- the thread ------------------------------------------------------------------------------------------

    def _serve(self, listening: socket.socket, wake: socket.socket) -> None:
        swept = time.monotonic()
        with selectors.DefaultSelector() as selector, wake:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(SWEEP_EVERY_S)}
                if wake in ready:
                    return
                if listening in ready:
                    try:
                        self._receive(listening)
                    except Exception:  # one worker's message must not cost all workers their daemon
                        self.ignored["internal_error"] += 1
                        _log.exception("A worker's message could not be handled.")
                if time.monotonic() - swept > SWEEP_EVERY_S:
                    swept = time.monotonic()
                    self._sweep()

    def _receive(self, listening: socket.socket) -> None:
        try:
            data, ancillary, _, address = listening.recvmsg(kineto_ipc.MAX_DATAGRAM, _ANCILLARY)
        except OSError:
            self.ignored["receive_error"] += 1
            return
        try:
            message = kineto_ipc.decode(data)
            client = self._client_name(address)
        except kineto_ipc.Malformed:
            self.ignored["malformed"] += 1
            return
        sent_at, kernel_pid = _ancillary(ancillary)
        if not self._may_state(client, kernel_pid, message.pid):
            self.ignored["foreign_pid"] += 1
            return
        if isinstance(message, kineto_ipc.Context):
            self._answer(listening, client, kineto_ipc.encode_context_reply(1))
        else:
            self._poll(listening, client, message, sent_at)

    def _poll(self, listening: socket.socket, client: str, poll: kineto_ipc.Poll, sent_at: int | None) -> None:
        with self._lock:  # held over the send: a withdrawal comes either before it or after it
            age = 0 if sent_at is None else max(0, time.time_ns() - sent_at)
            now = self._clock()
            answerable = age <= ANSWER_WITHIN_NS
            free = answerable and kineto_ipc.Wants.ACTIVITIES in poll.wants
            offer = self._slots.poll((poll.job_id, poll.pid), client, free, now - age)
            if not answerable:
                self.ignored["too_old_to_answer"] += 1
                return
            if self._answer(listening, client, kineto_ipc.encode_reply(offer.text if offer else "")) and offer:
                self._slots.handed_over(offer, now)

    def _answer(self, listening: socket.socket, client: str, reply: bytes) -> bool:
        try:
            listening.sendto(reply, socket.MSG_DONTWAIT, self._address_of(client))
        except OSError:  # gone, or its queue is full; it asks again if it lives
            self.ignored["unreachable"] += 1
            return False
        return True

    def _address_of(self, client: str) -> str:
        """Where a client is reached from here. A cluster's agent goes through a directory descriptor instead."""
        return f"{self.socket_dir}/{client}"

    def _client_name(self, address: object) -> str:
        """The client's own name. Only sockets that are named like Kineto's, in our directory, are ever answered.

        A worker that spells the directory in another way (`/dir/` for `/dir`) would abort when it reads our answer; it
        gets none, is never registered, and trains on.
        """
        if isinstance(address, str):
            directory, _, name = address.rpartition("/")
            if directory == self.socket_dir and _CLIENT.fullmatch(name):
                return name
        raise kineto_ipc.Malformed(f"an answer to {address!r} is not possible")

    def _may_state(self, client: str, kernel_pid: int, stated: int) -> bool:
        """Whether the process that the kernel names as the sender really has this pid, in its own namespace.

        True where the kernel can't say (the sender is not visible from here): then nothing was attested.
        """
        if kernel_pid <= 0:
            return True
        if self._attested.get(client) != (kernel_pid, stated):
            own = _pid_in_its_namespace(kernel_pid)
            if own is not None and own != stated:
                return False
            if len(self._attested) > 10_000:
                self._attested.clear()
            self._attested[client] = (kernel_pid, stated)
        return True

    def _sweep(self) -> None:
        remove_dead_clients(self.socket_dir, DEAD_SOCKET_AGE_S)


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
    if _is_alive(path):
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
        listening.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        listening.setblocking(False)
        listening.bind(path)
        os.chmod(path, 0o666)  # workers may run as other users; the directory decides who gets here
        if listening.getsockname() != path:
            raise SameshotError(
                f"The daemon's socket is named {listening.getsockname()!r} instead of {path!r}; an answer under that "
                "name would abort the training processes, so nothing was served."
            )
    except OSError as error:
        listening.close()
        raise UsageError(f"No daemon socket at {path}: {error.strerror or error}.") from None
    except BaseException:
        listening.close()
        raise
    return listening


def _is_alive(path: str) -> bool:
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
                    _CLIENT.fullmatch(entry.name)
                    and stat.S_ISSOCK(before.st_mode)
                    and time.time() - before.st_mtime >= older_than_s
                    and not _is_alive(entry.path)
                    and os.lstat(entry.path).st_ino == before.st_ino
                ):
                    os.unlink(entry.path)
                    removed.append(entry.name)
    return removed


def _ancillary(messages: list[tuple[int, int, bytes]]) -> tuple[int | None, int]:
    """(when the kernel took the datagram, in ns of CLOCK_REALTIME, None if unknown; the sender's pid, 0 if unknown)."""
    sent_at, pid = None, 0
    for level, kind, data in messages:
        if level != socket.SOL_SOCKET:
            continue
        if kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            sent_at = seconds * NS_PER_S + nanoseconds
        elif kind == socket.SCM_CREDENTIALS and len(data) >= _UCRED.size:
            pid = _UCRED.unpack_from(data)[0]
    return sent_at, pid


def _pid_in_its_namespace(pid: int) -> int | None:
    """The innermost number of `pid` (proc(5), NSpid); None where it can't be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError, IndexError):
        pass
    return None
