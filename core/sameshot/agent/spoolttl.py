"""What nobody came for leaves the spool after a while, and never without a word.

What can stay there: bytes of a target whose archive failed to the end (the failure says where they are), files of a
capture whose record can't be read, and drafts of an agent that was killed while it wrote. A person may want the first;
nobody ever comes back for the others. After the TTL, counted from the last time that anything of it changed, all of it
goes. What is still to be delivered is never touched, however old: it has deadlines of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sameshot.agent.capturebook import Capture, CaptureBook, Target, is_delivered
from sameshot.agent.journal import Journal

log = logging.getLogger(__name__)

TTL_S = 7 * 24 * 3_600.0
LONGEST_PAUSE_S = 3_600.0
_DRAFTS = (".probe-*", ".*.tmp")


class SpoolTtl:
    """`lost_files` and `lost_bytes` count what went without ever having been archived. `clock` is CLOCK_REALTIME, s."""

    def __init__(
        self, book: CaptureBook, journal: Journal, spool: Path, ttl_s: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.lost_files = 0
        self.lost_bytes = 0
        self._book = book
        self._journal = journal
        self._spool = spool
        self._ttl_s = ttl_s
        self._clock = clock

    @property
    def pause_s(self) -> float:
        """Between two looks, and before the first: a node's clock may be wrong just after its start."""
        return min(LONGEST_PAUSE_S, self._ttl_s / 4)

    def kept(self) -> int:
        """Targets that have ended, and whose traces are here and in no archive. One `lstat` each."""
        return sum(target.raw.exists() for _, target in self._ended() if not is_delivered(target.fact))

    def sweep(self) -> None:
        """Remove what is older than the TTL. Blocks on the disk; what can't be removed is left for the next time."""
        for capture, target in self._ended():
            self._sweep_target(capture, target)
        for folder in _children(self._spool / "captures"):
            if self._book.get(folder.name) is None:
                self._sweep_unknown(folder)
        for pattern in _DRAFTS:
            for draft in self._spool.glob(pattern):
                if self._is_old([draft]):
                    _remove([draft])

    def _ended(self) -> Iterator[tuple[Capture, Target]]:
        for capture in self._book:
            for target in list(capture.targets.values()):
                if target.fact.state.terminal:
                    yield capture, target

    def _sweep_target(self, capture: Capture, target: Target) -> None:
        found = _children(target.folder)
        rest = [path for path in found if path.name != "status.json"]
        if not rest or not self._is_old(found):
            return
        size = _remove(rest)
        if is_delivered(target.fact):
            return  # it is in the archive; only the room was not given back
        self.lost_files += len(rest)
        self.lost_bytes += size
        failure = target.fact.failure
        why = "" if failure is None else failure.reason.value
        log.warning(
            "spool: %d bytes of %s in capture %s of %s are removed; they were never archived (%s), for %.1f days",
            size, target.id, capture.id, capture.record.job, why, self._ttl_s / 86_400,
        )  # fmt: skip
        self._journal.record("expired", capture.id, target.id, why)

    def _sweep_unknown(self, folder: Path) -> None:
        """Of a capture that was never accepted as a whole, or whose record is damaged."""
        found = [folder, *_below(folder)]
        if not self._is_old(found):
            return
        size = sum(_size(path) for path in found if not path.is_dir())
        files = [path.name for path in found if not path.is_dir()]
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            self.lost_files += len(files)
            self.lost_bytes += size
            log.warning("spool: %s is removed: no capture of this agent's, %d bytes, files %s", folder, size, files[:9])
            self._journal.record("expired", folder.name, detail="unknown")

    def _is_old(self, paths: Iterable[Path]) -> bool:
        """Whether nothing of it has changed for so long: neither what is in it, nor (a rename) where it is."""
        newest = max((_changed_at(path) for path in paths), default=0.0)
        return self._clock() - newest > self._ttl_s


def _changed_at(path: Path) -> float:
    try:
        status = path.lstat()
    except OSError:
        return 0.0  # it is gone
    return max(status.st_mtime, status.st_ctime)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _below(folder: Path) -> list[Path]:
    return [Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]


def _remove(paths: Iterable[Path]) -> int:
    """Bytes that are free again."""
    freed = 0
    for path in paths:
        size = _size(path)
        with contextlib.suppress(FileNotFoundError):
            try:
                path.unlink()
                freed += size
            except OSError as error:
                log.warning("spool: not removed path=%s why=%r", path, str(error))
    return freed
