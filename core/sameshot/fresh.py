"""What is made of files, made anew once one of them was replaced.

The kubelet replaces files by exchanging a link to their folder; so what a path leads to now is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Fresh(Generic[_T]):
    """`value` is what `read` made of the files when it last could. Raises what `read` does."""

    def __init__(self, read: Callable[[], _T], *paths: Path) -> None:
        self._read, self._paths = read, paths
        self._stamp = self._now()
        self.value = read()

    def look(self) -> bool:
        """Whether `value` is a new one. Raises as `read` does, or FileNotFoundError where a file is there no more: then
        the old one stays, and the next look tries again."""
        now = self._now()
        if now == self._stamp:
            return False
        if not now:
            raise FileNotFoundError(f"{' or '.join(map(str, self._paths))} is not there any more")
        self.value = self._read()
        self._stamp = now
        return True

    def _now(self) -> tuple[int, ...]:
        """Empty: one is not there."""
        try:
            stats = [each.stat() for each in self._paths]
        except OSError:
            return ()
        return tuple(number for each in stats for number in (each.st_mtime_ns, each.st_ino, each.st_size))
