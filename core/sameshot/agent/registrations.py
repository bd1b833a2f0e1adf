"""Who trains on this node: registrations on disk, judged by the record locks that their processes hold.

The hook writes `<dir>/workers/<uuid>.json` and holds a POSIX record lock on `<uuid>.lock` for the life of the process.
The lock is liveness, across pid namespaces and however the process ended; we only ever *ask* who holds it
(F_OFD_GETLK), because taking it, even for a moment, could make the worker's own attempt fail. Files are other people's:
see `safefs`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from sameshot.agent import safefs
from sameshot.agent.discovery import WorkerDir, WorkerDirs
from sameshot.errors import InvalidSpec
from sameshot.model import REGISTRATION_SCHEMA, JobRef, Phase, Registration, Worker, check_name

MAX_REGISTRATION_BYTES = 64 << 10
MAX_ENTRIES = 4096  # registrations of one directory; a worker that writes more only harms itself
MAX_NAMES = 4 * MAX_ENTRIES  # names looked at: locks, and drafts of what is being written
MAX_BYTES = 16 << 20  # of all registrations of one directory; a real one has 1 kB
WORKERS = "workers"
FORGET_AFTER_S = 3_600.0
MAX_REMEMBERED = 10_000
MAX_REPORTED, MAX_REPORTED_DIRS = 50, 1_000

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
# struct flock of 64-bit Linux (fcntl(2)): l_type, l_whence, l_start, l_len, l_pid; OFD requests want l_pid 0.
_FLOCK = struct.Struct("@hhqqi4x")

log = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True):
    """A registration with where it was found and who wrote it."""

    worker: Worker
    where: WorkerDir
    uid: int
    gid: int

    @property
    def registration(self) -> Registration:
        return self.worker.registration


class Lock(msgspec.Struct, frozen=True):
    """Whether a worker's lock is held; `holder` is its pid as seen from here, 0 where it can't be told."""

    held: bool
    holder: int = 0


class Registrations:
    """Reads all directories anew at every call: nothing is remembered that the disk would contradict."""

    def __init__(self, dirs: WorkerDirs, node: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dirs = dirs
        self._node = node
        self._clock = clock
        self._reported: OrderedDict[str, set[str]] = OrderedDict()  # directory → names that were reported
        self._ended_since: dict[str, float] = {}  # uuid → when it was first seen dead
        self._lock = threading.Lock()  # for the two above: jobs are looked at in threads, at the same time

    def all(self) -> list[Known]:
        """Every readable registration of this node, dead ones too, newest first within one logical worker."""
        return self._in(self._dirs.current())

    def of(self, job: JobRef) -> list[Known]:
        """The same of one job. Directories of other jobs are not even looked into: they can't slow this one down."""
        mine = [where for where in self._dirs.current() if where.job is None or where.job == job]
        return [known for known in self._in(mine) if known.registration.job == job]

    def _in(self, dirs: Sequence[WorkerDir]) -> list[Known]:
        found = judge(known for where in dirs for known in self._read_dir(where))
        self._forget(found)
        return found

    def _forget(self, found: Sequence[Known]) -> None:
        """Remove the files of workers that ended long ago and were replaced since; a restarted job leaves many.

        The last one in its place stays: it names who is missing.
        """
        now = self._clock()
        with self._lock:
            ended = self._note(found, now)
        places: set[tuple[Any, ...]] = set()
        for known in found:
            uuid, place = known.registration.uuid, _logical_worker(known)
            if place in places and now - ended.get(uuid, now) > FORGET_AFTER_S:
                with contextlib.suppress(OSError, safefs.Unsafe), safefs.directory(known.where.path, WORKERS) as fd:
                    if not read_lock(fd, uuid, owner_uid=known.uid).held:
                        with self._lock:
                            self._ended_since.pop(uuid, None)
                        os.unlink(f"{uuid}.json", dir_fd=fd)
                        os.unlink(f"{uuid}.lock", dir_fd=fd)
            places.add(place)

    def _note(self, found: Sequence[Known], now: float) -> dict[str, float]:
        """Since when those that ended are known to have ended."""
        ended = self._ended_since
        for known in found:
            if known.worker.alive:
                ended.pop(known.registration.uuid, None)
            else:
                ended.setdefault(known.registration.uuid, now)
        while len(ended) > MAX_REMEMBERED:
            del ended[next(iter(ended))]
        return {uuid: ended[uuid] for known in found if (uuid := known.registration.uuid) in ended}

    def _read_dir(self, where: WorkerDir) -> Iterable[Known]:
        try:
            with safefs.directory(where.path, WORKERS) as fd:
                names, more = _names(fd)
                if more:
                    self._refuse(where, WORKERS, f"more than {MAX_ENTRIES} registrations, or {MAX_NAMES} names in all")
                found, left = [], MAX_BYTES
                for name in names:
                    known, size = self._read(fd, where, name)
                    left -= size
                    if left < 0:
                        self._refuse(where, WORKERS, f"its registrations are larger than {MAX_BYTES} bytes in all")
                        break
                    if known is not None:
                        found.append(known)
                return found
        except FileNotFoundError:
            return []
        except (OSError, safefs.Unsafe) as error:
            self._refuse(where, WORKERS, str(error))
            return []

    def _read(self, dir_fd: int, where: WorkerDir, name: str) -> tuple[Known | None, int]:
        """(the registration, None for one that is refused or gone; bytes that were read for it)."""
        data = b""
        try:
            data, status = safefs.read_small(dir_fd, name, limit=MAX_REGISTRATION_BYTES, owner_uid=where.owner_uid)
            registration = _decode(data, name.removesuffix(".json"))
            registration = self._with_own_knowledge(registration, where)
            lock = read_lock(dir_fd, registration.uuid, owner_uid=status.st_uid)
        except FileNotFoundError:
            return None, len(data)  # it went away between the listing and now
        except (OSError, safefs.Unsafe, InvalidSpec, msgspec.MsgspecError) as error:
            self._refuse(where, name, str(error))
            return None, len(data)
        alive, note = is_alive(registration, lock)
        known = Known(Worker(registration, alive=alive, note=note), where, status.st_uid, status.st_gid)
        return known, len(data)

    def _with_own_knowledge(self, registration: Registration, where: WorkerDir) -> Registration:
        """A process may be mistaken, or lie, about where it runs; whoever found the directory knows.

        One that claims to be in another pod than the one it lies in was carried there: it is nobody's here.
        """
        if where.pod_uid is not None and registration.pod_uid not in (None, where.pod_uid):
            raise InvalidSpec(f"it claims to be of pod {registration.pod_uid[:60]!r}, and lies in {where.pod_uid}")
        return _check_names(
            msgspec.structs.replace(
                registration,
                node=where.node or registration.node or self._node,
                pod=where.pod or registration.pod,
                pod_uid=where.pod_uid or registration.pod_uid,
                job=where.job or registration.job,
            )
        )

    def _refuse(self, where: WorkerDir, name: str, why: str) -> None:
        """Say it once; of one directory only so often, and without an end for nobody else."""
        with self._lock:
            said = self._reported.setdefault(str(where.path), set())
            self._reported.move_to_end(str(where.path))
            while len(self._reported) > MAX_REPORTED_DIRS:
                self._reported.popitem(last=False)
            fresh = name not in said and len(said) < MAX_REPORTED
            if fresh:
                said.add(name)
        if fresh:
            log.warning("registration refused dir=%s name=%r why=%r", where.path, name[:80], why)


def _decode(data: bytes, expected_uuid: str) -> Registration:
    registration = msgspec.json.decode(data, type=Registration)
    if registration.schema != REGISTRATION_SCHEMA:
        raise InvalidSpec(f"its schema is {registration.schema[:60]!r}, this agent reads {REGISTRATION_SCHEMA}")
    if registration.uuid != expected_uuid or not _UUID.fullmatch(registration.uuid):
        raise InvalidSpec("its uuid is not its file's name")
    for number, what in (
        (registration.rank, "rank"),
        (registration.local_rank, "local rank"),
        (registration.pid, "pid"),
    ):
        if number is not None and not 0 <= number < 2**31:
            raise InvalidSpec(f"its {what} is {number}")
    if not 0 <= registration.job.attempt < 2**31 or not 0 <= registration.kineto_job_id < 2**63:
        raise InvalidSpec("its attempt or Kineto job id is out of range")
    return registration


def _check_names(registration: Registration) -> Registration:
    check_name(registration.container, "Container")
    check_name(registration.job.namespace, "Namespace")
    check_name(registration.job.name, "Job")
    return registration


def _names(dir_fd: int) -> tuple[list[str], bool]:
    """(names of registrations, at most `MAX_ENTRIES`; whether there may be more)."""
    names: list[str] = []
    with os.scandir(dir_fd) as entries:
        for seen, entry in enumerate(entries):
            if seen >= MAX_NAMES or len(names) >= MAX_ENTRIES:
                return sorted(names), True
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                names.append(entry.name)
    return sorted(names), False


def read_lock(dir_fd: int, uuid: str, *, owner_uid: int | None) -> Lock:
    """Who holds the lock file of this worker. A lock file that is gone is held by nobody."""
    try:
        fd = safefs.open_regular(dir_fd, f"{uuid}.lock", owner_uid=owner_uid)
    except FileNotFoundError:
        return Lock(held=False)
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, holder = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        return Lock(held=kind != fcntl.F_UNLCK, holder=max(holder, 0))
    finally:
        os.close(fd)


def is_alive(registration: Registration, lock: Lock) -> tuple[bool, str]:
    """(alive, why not). Where the holder is visible from here it must be the very process that registered."""
    if not lock.held:
        return False, "its process has ended"
    if lock.holder and (ticks := start_ticks(lock.holder)) is not None and ticks != registration.start_ticks:
        return False, f"its lock is held by another process (pid {lock.holder})"
    return True, ""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc(5), stat field 22); None where it can't be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def judge(found: Iterable[Known]) -> list[Known]:
    """Decide which registration is the current one of each logical worker (pod, container, local rank)."""
    groups: dict[tuple[Any, ...], list[Known]] = {}
    for known in found:
        groups.setdefault(_logical_worker(known), []).append(known)
    return [_with_verdict(known, group) for group in groups.values() for known in sorted(group, key=_newest_first)]


def _logical_worker(known: Known) -> tuple[Any, ...]:
    one = known.registration
    # Without a local rank only the rank tells workers of one container apart.
    place: tuple[Any, ...] = ("local rank", one.local_rank)
    if one.local_rank is None:
        place = ("rank", one.rank) if one.rank is not None else ("uuid", one.uuid)
    return (str(known.where.path), one.pod_uid, one.container, one.job, *place)


def _newest_first(known: Known) -> tuple[int, int]:
    return (-known.registration.registered_at_ns, -known.registration.start_ticks)


def _with_verdict(known: Known, group: Sequence[Known]) -> Known:
    current, note = _verdict(known, [other for other in group if other.worker.alive])
    return msgspec.structs.replace(known, worker=msgspec.structs.replace(known.worker, current=current, note=note))


def _verdict(known: Known, living: Sequence[Known]) -> tuple[bool, str]:
    one = known.registration
    if not known.worker.alive:
        return False, known.worker.note
    # Children inherit RANK; of two processes for one local rank the ancestor is the trainer.
    for other in living:
        if other is not known and other.registration.pid in one.ancestors:
            return False, f"it is a child process of the worker with pid {other.registration.pid}"
    rivals = [
        other
        for other in living
        if not any(third is not other and third.registration.pid in other.registration.ancestors for third in living)
    ]
    if (newest := min(rivals, key=_newest_first, default=known)) is not known:
        return False, f"it was replaced by the worker with pid {newest.registration.pid}"
    if one.phase is Phase.EXITING:
        return False, "its process is ending"
    if one.torch_version is None:  # a window that begins while torch is being imported is empty, or lost (measured)
        return False, "it is still importing torch"
    if one.rank is None:
        return False, "its rank is not known yet"
    return True, ""
