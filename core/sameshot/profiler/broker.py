"""Our own daemon for Kineto's UNIX-datagram protocol: sees every poll, knows what was fetched, can take back the rest.

It runs in a thread of its own. Kineto waits 90 ms for an answer; one that comes later stays in the worker's socket, is
read one poll too late, and so is every answer after it, for the rest of the worker's life. So the broker must not wait
for an event loop, and it never answers a poll that has grown old: the kernel's own receive time (SO_TIMESTAMPNS)
decides, and an unanswered poll costs nothing, since the worker asks again. What else could harm the training process
is ruled out where the socket is bound (`place`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sameshot.profiler import kineto_ipc
from sameshot.profiler.daemon import BackendName, TriggerFact, TriggerRequest
from sameshot.profiler.place import CLIENT, SO_TIMESTAMPNS, HostPlace, IpcPlace
from sameshot.profiler.slots import NS_PER_S, Slots

ANSWER_WITHIN_NS = 50_000_000  # Kineto reads for 90 ms; the difference is for the way there
SWEEP_EVERY_S = 60.0
_log = logging.getLogger(__name__)

_TIMESPEC = struct.Struct("@qq")
_UCRED = struct.Struct("=iii")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size) + socket.CMSG_SPACE(_UCRED.size)

_listening: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child that outlives its parent must not look like a living daemon."""
    for inherited in _listening:
        inherited.close()


os.register_at_fork(after_in_child=_close_inherited)


class Broker:
    """The back end `broker`, in `place` (a path: that directory of this machine, spelt exactly as `str(path)`).

    `clock` gives CLOCK_REALTIME in ns. `per_second` bounds how many datagrams are read: who sends more waits, and
    nobody else pays for it. `start` raises what `IpcPlace.bind` raises.
    """

    name = BackendName.BROKER

    def __init__(
        self, place: IpcPlace | Path, *, per_second: float | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._place = HostPlace(place) if isinstance(place, Path) else place
        self.socket_dir = self._place.worker_dir
        self.ignored: Counter[str] = Counter()  # datagrams that were not answered, by reason
        self._pace = None if per_second is None else Pace(per_second)
        self._clock = clock
        self._slots = Slots()
        self._lock = threading.Lock()
        self._attested: dict[str, tuple[int, int]] = {}  # client name → (kernel's pid, pid it may state)
        self._socket: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None

    # --- ProfilerDaemon --------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._thread is not None:
            return
        listening = await asyncio.to_thread(self._place.bind)
        _listening.add(listening)
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
        await asyncio.to_thread(self._place.close)

    def intact(self) -> bool:
        """Whether workers still find this daemon; False asks for `close` and `start`, which forget no request."""
        return self._thread is not None and self._thread.is_alive() and self._place.intact()

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
        ending = select.poll()  # select() knows no descriptor above 1,023
        ending.register(wake, select.POLLIN)
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
                    self._place.sweep()
                if self._pace is not None and (pause_s := self._pace.pause_s(time.monotonic())) > 0:
                    self.ignored["throttled"] += 1
                    if ending.poll(math.ceil(1000 * pause_s)):
                        return

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
            self._place.send(listening, reply, client)
        except OSError:  # gone, or its queue is full; it asks again if it lives
            self.ignored["unreachable"] += 1
            return False
        return True

    def _client_name(self, address: object) -> str:
        """The client's own name. Only sockets that are named like Kineto's, in our directory, are ever answered.

        A worker that spells the directory in another way (`/dir/` for `/dir`) would abort when it reads our answer; it
        gets none, is never registered, and trains on.
        """
        if isinstance(address, str):
            directory, _, name = address.rpartition("/")
            if directory == self.socket_dir and CLIENT.fullmatch(name):
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


class Pace:
    """At most `per_second` on the long run, and as many at once after a pause."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._at: float | None = None

    def pause_s(self, now: float) -> float:
        """One more came at `now` (any monotonic clock): how long to wait before the next may be looked at."""
        since = 0.0 if self._at is None else now - self._at
        self._at = now
        self._left = min(self._per_second, self._left + since * self._per_second) - 1
        return max(0.0, -self._left / self._per_second)


def _ancillary(messages: list[tuple[int, int, bytes]]) -> tuple[int | None, int]:
    """(when the kernel took the datagram, in ns of CLOCK_REALTIME, None if unknown; the sender's pid, 0 if unknown)."""
    sent_at, pid = None, 0
    for level, kind, data in messages:
        if level != socket.SOL_SOCKET:
            continue
        if kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
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
