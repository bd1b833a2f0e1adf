"""The capture policy in force, from a file that is read anew whenever it has changed."""

from __future__ import annotations

import logging
from pathlib import Path

from sameshot.coordinator.configfile import read_policy
from sameshot.errors import UsageError
from sameshot.model import CapturePolicy

log = logging.getLogger(__name__)


class PolicyFile:
    """A file that can't be read changes nothing: the last good policy stays, and `trouble` says so.

    A ConfigMap's file is a link that the kubelet exchanges; so the file that it leads to is looked at.
    """

    def __init__(self, path: Path) -> None:
        """Raises UsageError where the first one is not good."""
        self.trouble = ""
        self._path = path
        self._stamp = self._look()
        self._policy = read_policy(path)

    def __call__(self) -> CapturePolicy:
        stamp = self._look()
        if stamp != self._stamp:
            try:
                if not stamp:
                    raise UsageError(f"The capture policy {self._path} is not there any more.")
                policy = read_policy(self._path)
            except UsageError as error:
                if str(error) != self.trouble:
                    log.error("%s The policy that was in force stays.", error)
                self.trouble = str(error)
            else:
                if policy != self._policy:
                    log.info("policy changed: %s", policy)
                self.trouble, self._policy, self._stamp = "", policy, stamp
        return self._policy

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size
