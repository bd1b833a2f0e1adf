"""The seam to whoever knows the job's node agents: a list or a file on one machine, pods in a cluster (`podagents`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:  # a coordinator of one machine knows no pods
    from sameshot.coordinator.podwords import PodsSeen


class AgentAt(msgspec.Struct, frozen=True):
    """One agent. `key` is what it is known by for as long as the coordinator lives: its node in a cluster, else its
    address. `address` is empty where it can't be called now; `remark` says why, or what else is wrong with it."""

    key: str
    address: str
    remark: str = ""


class AgentDirectory(Protocol):
    """Asked at every capture and every look, so agents may come and go. No answer ever waits for a server."""

    def agents(self) -> Sequence[AgentAt]:
        """Those that the job's workers may be with."""
        ...

    def find(self, key: str) -> AgentAt | None:
        """Where that agent is now, be it with a worker of this job or not; None: nobody knows (any more)."""
        ...

    def pods(self) -> PodsSeen | None:
        """What is known about the job's pods; None: there are none on this machine."""
        ...

    @property
    def trouble(self) -> str:
        """Why it can't be said at all who is there; empty: it can."""
        ...


class _Named:
    """Agents that somebody named by their addresses."""

    def addresses(self) -> Sequence[str]:
        raise NotImplementedError

    def agents(self) -> Sequence[AgentAt]:
        return [AgentAt(each, each) for each in self.addresses()]

    def find(self, key: str) -> AgentAt | None:
        return AgentAt(key, key)

    def pods(self) -> PodsSeen | None:
        return None

    @property
    def trouble(self) -> str:
        return ""


class FixedAgents(_Named):
    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))

    def addresses(self) -> Sequence[str]:
        return self._addresses


class AgentsFile(_Named):
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
