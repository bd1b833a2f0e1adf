"""The list of a node's pods on disk, so that an agent that starts while the API server is away serves what its
predecessor served."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sameshot.agent import safefs
from sameshot.kube.podlist import Armed

log = logging.getLogger(__name__)


class PodMemory:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = b""

    def read(self) -> list[Armed]:
        """What was known the last time."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Armed])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("list of pods unreadable path=%s why=%r", self._path, str(error))
        return []

    def write(self, armed: Sequence[Armed]) -> None:
        """Keep the list, where it changed. Blocks on the disk."""
        data = msgspec.json.encode(armed)
        if data != self._written:
            with contextlib.suppress(OSError):  # a full disk costs a restart during an outage, nothing else
                safefs.write_atomically(self._path, data, durable=False)
                self._written = data
