"""Announce: see a trace under its final name and take it into the spool, whatever else the agent is busy with.

A thread of its own with a cadence of its own. Per round and target it does a handful of system calls (O(files), never
O(bytes), never waiting for a disk), so reading gigabytes elsewhere delays nobody's announcement. Kineto writes
`X.json.tmp` and renames it when it is done (measured); only the final name is looked at, and only the one with the pid
of the expected worker. What stands there is moved, not copied: a deleted pod does not take the bytes along.

A worker whose lock is free will write nothing more: after one more look at its folder it has exited.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sameshot.agent import registrations, safefs
from sameshot.agent.journal import Journal
from sameshot.model import Registration

log = logging.getLogger(__name__)

CAPTURES = "captures"
IF_CRASHED = "If it crashed (SIGSEGV) as its window ended: torch before 2.14 can, see docs/troubleshooting.md."
STOP_WITHIN_S = 5.0  # a look that hangs in a file system does not hold the agent's end


class Watch(msgspec.Struct, frozen=True):
    """One expected file: `root/parts…/file_name`, owned by `uid`, to be moved to `destination`."""

    capture_id: str
    target_id: str
    registration: Registration
    root: Path
    parts: tuple[str, ...]
    file_name: str
    uid: int
    destination: Path
    announce_by_ns: int  # CLOCK_REALTIME, like the next: a file that can't be taken is given up then
    give_up_at_ns: int  # until then a file that was not seen may still come
    most_bytes: int | None = None  # a larger file is no trace of this window; it stays where its owner must pay for it

    @property
    def key(self) -> tuple[str, str]:
        return (self.capture_id, self.target_id)

    @property
    def where(self) -> Path:
        return self.root.joinpath(*self.parts, self.file_name)


class Sight(enum.Enum):
    ANNOUNCED = "announced"  # the file is in the spool
    UNSAFE = "unsafe"  # something else stood there; it was not touched
    HINDERED = "hindered"  # it can't be taken at the moment (or, without detail, now it could be); looked at again
    STUCK = "stuck"  # it could not be taken in time
    EXITED = "exited"  # the worker is gone and left no file
    GAVE_UP = "gave_up"  # it is too late for a file


class Sighting(msgspec.Struct, frozen=True):
    """`size` of the file, where it was seen."""

    watch: Watch
    sight: Sight
    detail: str = ""
    size: int | None = None


class NotMoved(OSError):
    """The file stands there finished, and the spool does not take it."""

    def __init__(self, error: OSError, size: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.size = size


class Announcer:
    """`on_sighting` is called in the announcing thread and must return at once."""

    def __init__(
        self,
        period_s: float,
        on_sighting: Callable[[Sighting], None],
        journal: Journal,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._period_s = period_s
        self._on_sighting = on_sighting
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, str], Watch] = {}
        self._dead: set[tuple[str, str]] = set()  # workers whose lock was free at the last look
        self._troubles: dict[tuple[str, str], str] = {}  # why a file could not be taken at the last look
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.looks = 0  # rounds so far

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="sameshot-announce", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)

    def watch(self, watch: Watch) -> None:
        with self._lock:
            self._watches[watch.key] = watch

    def forget(self, capture_id: str, target_id: str) -> None:
        with self._lock:
            self._drop((capture_id, target_id))

    def look(self) -> list[Sighting]:
        """One round over everything that is expected. The thread calls it once per period."""
        self.looks += 1
        with self._lock:
            watches = list(self._watches.values())
        found = []
        for watch in watches:
            sighting = self._look_at(watch)
            if sighting is None:
                continue
            with self._lock:
                if watch.key not in self._watches:
                    continue  # forgotten meanwhile
                if sighting.sight is not Sight.HINDERED:
                    self._drop(watch.key)
            self._journal.record(
                sighting.sight.value, watch.capture_id, watch.target_id, sighting.detail, look=self.looks
            )
            found.append(sighting)
        return found

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.is_set():
            try:
                for sighting in self.look():
                    self._on_sighting(sighting)
            except Exception:
                log.exception("a look failed; the next one follows")  # this thread must outlive any surprise
            due = max(due + self._period_s, time.monotonic())
            self._ending.wait(due - time.monotonic())

    def _look_at(self, watch: Watch) -> Sighting | None:
        try:
            size = take(watch)
        except safefs.Unsafe as error:
            return Sighting(watch, Sight.UNSAFE, f"At {watch.where}: {error}. It was left untouched.")
        except OSError as error:
            return self._hindered(watch, error)
        if size is not None:
            return Sighting(watch, Sight.ANNOUNCED, size=size)
        if self._troubles.pop(watch.key, ""):
            return Sighting(watch, Sight.HINDERED)
        if self._clock() > watch.give_up_at_ns:
            return Sighting(watch, Sight.GAVE_UP, f"No file {watch.where} appeared.")
        if is_alive(watch):
            self._dead.discard(watch.key)
        elif watch.key not in self._dead:
            self._dead.add(watch.key)  # it may have finished its file between our look and its end: look once more
        else:
            pid = watch.registration.pid
            return Sighting(watch, Sight.EXITED, f"Process {pid} ended before its trace appeared. {IF_CRASHED}")
        return None

    def _hindered(self, watch: Watch, error: OSError) -> Sighting | None:
        """Said at once and, as a full disk (say) may be mended, looked at again until the announce deadline.

        The verdict must come then, not later: whoever dispatched would otherwise report that no file appeared.
        """
        if isinstance(error, NotMoved):
            detail = f"{watch.where} appeared but can't be moved into the spool: {error.strerror}. It was left there."
        else:
            detail = f"{watch.where.parent} can't be looked into: {error.strerror}."
        size = error.size if isinstance(error, NotMoved) else None
        if error.errno == errno.EXDEV or self._clock() > watch.announce_by_ns:
            return Sighting(watch, Sight.STUCK, detail, size)
        if self._troubles.get(watch.key) == detail:
            return None
        self._troubles[watch.key] = detail
        return Sighting(watch, Sight.HINDERED, detail, size)

    def _drop(self, key: tuple[str, str]) -> None:
        self._watches.pop(key, None)
        self._dead.discard(key)
        self._troubles.pop(key, None)


def take(watch: Watch) -> int | None:
    """Move the finished file into the spool; its size, or None where there is none.

    Raises `Unsafe` where something else than a plain file of the expected user stands there (it stays), `NotMoved`
    where the move fails, another OSError where it can't be looked at.
    """
    try:
        with (
            safefs.directory(watch.root, *watch.parts) as source,
            safefs.held(source, watch.file_name) as seen,
        ):
            safefs.check_regular(seen, owner_uid=watch.uid)
            _check_size(watch, seen)
            return _move(watch, source, seen)
    except FileNotFoundError:
        return None


def _move(watch: Watch, source: int, seen: os.stat_result) -> int:
    name = watch.destination.name
    with contextlib.ExitStack() as stack:
        try:
            spool = stack.enter_context(safefs.directory(watch.destination.parent))
        except OSError as error:
            raise NotMoved(error, seen.st_size) from error
        try:
            os.rename(watch.file_name, name, src_dir_fd=source, dst_dir_fd=spool)
        except FileNotFoundError:
            raise  # it went away since we looked
        except OSError as error:
            raise NotMoved(error, seen.st_size) from error
        moved = os.lstat(name, dir_fd=spool)
        # Between the look and the move the worker may have put something else there. A rename follows no link, so
        # nothing happened to what it may have pointed at; but it must not pass for a trace.
        try:
            if not os.path.samestat(seen, moved):
                raise safefs.Unsafe("the file was exchanged while it was being taken")
            _check_size(watch, moved)
        except safefs.Unsafe:
            _give_back(name, spool, source)
            raise
        return moved.st_size


def _check_size(watch: Watch, status: os.stat_result) -> None:
    if watch.most_bytes is not None and status.st_size > watch.most_bytes:
        raise safefs.Unsafe(f"it is {status.st_size} bytes long, and no window like this one fills that much")


def _give_back(name: str, spool: int, source: int) -> None:
    """To where it came from, under a name that nobody can have taken. In the spool it would count for nobody."""
    try:
        os.rename(name, f".refused-{os.urandom(8).hex()}", src_dir_fd=spool, dst_dir_fd=source)
    except OSError:
        os.rename(name, f"{name}.refused", src_dir_fd=spool, dst_dir_fd=spool)


def is_alive(watch: Watch) -> bool:
    """Whether the lock of this worker is held by the process that registered."""
    try:
        with safefs.directory(watch.root, registrations.WORKERS) as folder:
            lock = registrations.read_lock(folder, watch.registration.uuid, owner_uid=watch.uid)
    except FileNotFoundError:
        return False  # its directory is gone, and the pod with it
    except (OSError, safefs.Unsafe):
        return True  # in doubt it lives; the announce deadline decides
    return registrations.is_alive(watch.registration, lock)[0]


def leftover_written_ns(watch: Watch) -> int | None:
    """When the unfinished file of this window was last written (CLOCK_REALTIME); None where there is none."""
    with contextlib.suppress(OSError, safefs.Unsafe), safefs.directory(watch.root, *watch.parts) as folder:
        return os.lstat(f"{watch.file_name}.tmp", dir_fd=folder).st_mtime_ns
    return None


def discard_leftover(watch: Watch) -> None:
    """Remove the unfinished file of a window that nobody will ever write to again."""
    with contextlib.suppress(OSError, safefs.Unsafe), safefs.directory(watch.root, *watch.parts) as folder:
        os.unlink(f"{watch.file_name}.tmp", dir_fd=folder)
