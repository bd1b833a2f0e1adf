"""The seam to whoever knows the job's node agents: a list or a file on one machine, pods in a cluster later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class AgentDirectory(Protocol):
    """Asked at every capture and every look, so agents may come and go."""

    def addresses(self) -> Sequence[str]: ...


class FixedAgents:
    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))

    def addresses(self) -> Sequence[str]:
        return self._addresses


class AgentsFile:
    """One address a line; the file may not exist yet and may grow."""

    def __init__(self, path: Path, also: Sequence[str] = ()) -> None:
        self._path = path
        self._also = tuple(also)

    def addresses(self) -> Sequence[str]:
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            lines = []
        return tuple(dict.fromkeys((*self._also, *(line.strip() for line in lines if line.strip()))))
