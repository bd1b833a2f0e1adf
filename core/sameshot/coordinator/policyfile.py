"""The capture policy in force, from a file that is read anew whenever it has changed."""

from __future__ import annotations

import logging
from pathlib import Path

from sameshot.coordinator.configfile import read_policy
from sameshot.errors import UsageError
from sameshot.fresh import Fresh
from sameshot.model import CapturePolicy

log = logging.getLogger(__name__)


class PolicyFile:
    """A file that can't be read changes nothing: the last good policy stays, and `trouble` says so."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError where the first one is not good."""
        self.trouble = ""
        self._file = Fresh(lambda: read_policy(path), path)

    def __call__(self) -> CapturePolicy:
        before = self._file.value
        try:
            if self._file.look():
                self.trouble = ""
                if self._file.value != before:
                    log.info("policy changed: %s", self._file.value)
        except (UsageError, OSError) as error:
            if str(error) != self.trouble:
                log.error("%s. The policy that was in force stays.", f"{error}".rstrip("."))
            self.trouble = str(error)
        return self._file.value
