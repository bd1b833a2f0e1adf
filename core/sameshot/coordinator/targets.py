"""The targets of one capture in memory: what is known about each, who is responsible for it, and when it changed.

Until the set is closed it holds what was dispatched so far; closing it keeps the plan's targets and forgets the rest.
Deciding is `sameshot.states`' part; this only keeps the books.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from sameshot import states
from sameshot.api.views import by_rank
from sameshot.coordinator.plan import Planned
from sameshot.model import FailureReason, Registration, TargetFact
from sameshot.profiler.daemon import Capabilities
from sameshot.states import Contact, Deadlines


@dataclasses.dataclass(slots=True)
class Track:
    """One target. `revision` is that of the set when the fact last changed."""

    fact: TargetFact
    agent: str | None
    deadlines: Deadlines
    revision: int


class TargetSet:
    def __init__(self) -> None:
        self.revision = 0
        self.closed = False
        self._tracks: list[Track] = []
        self._by_agent: dict[str, dict[str, Track]] = {}

    # ---- building the set

    def propose(self, agent: str, registrations: Iterable[Registration], deadlines: Deadlines) -> None:
        """These workers are about to be dispatched."""
        mine = self._by_agent.setdefault(agent, {})
        for registration in registrations:
            fact = TargetFact(registration.target_id, registration.identity)
            mine[fact.target_id] = Track(fact, agent, deadlines, self._changed())
            self._tracks.append(mine[fact.target_id])

    def close(self, planned: Iterable[Planned], deadlines: Deadlines) -> None:
        """From now on the set is exactly the plan's; what was observed meanwhile about its targets is kept."""
        tracks = []
        for each in planned:
            known = self._by_agent.get(each.agent or "", {}).get(each.fact.target_id)
            if known is None or known.fact.identity.registration != each.fact.identity.registration:
                known = Track(each.fact, each.agent, deadlines, 0)
            known.revision = self._changed()
            tracks.append(known)
        self._tracks = sorted(tracks, key=lambda track: by_rank(track.fact))
        self._by_agent = {}
        for track in self._tracks:
            if track.agent is not None:
                self._by_agent.setdefault(track.agent, {})[track.fact.target_id] = track
        self.closed = True

    # ---- observing

    def merge(self, agent: str, facts: Iterable[TargetFact], capabilities: Capabilities, now: float) -> bool:
        """Take in what an agent says about its own targets; anything else it says is ignored. True: news."""
        mine = self._by_agent.get(agent, {})
        before = self.revision
        for seen in facts:
            if (track := mine.get(seen.target_id)) is not None:
                merged = states.merge(
                    track.fact,
                    seen,
                    strongest_claim=capabilities.strongest_claim,
                    sees_polls=capabilities.sees_polls,
                )
                self._set(track, merged, now)
        return self.revision != before

    def expire(self, contacts: Mapping[str, Contact], now: float) -> bool:
        """Give up what is overdue. True: news."""
        before = self.revision
        for track in self._tracks:
            if not track.fact.state.terminal:
                contact = contacts.get(track.agent or "", Contact())
                self._set(track, states.expire(track.fact, track.deadlines, contact, now), now)
        return self.revision != before

    def fail(
        self, reason: FailureReason, detail: Callable[[TargetFact], str], now: float, *, agent: str | None = None
    ) -> None:
        """Give up everything that is not terminal (of one agent, or of all)."""
        for track in self._tracks:
            if agent is None or track.agent == agent:
                self._set(track, states.fail(track.fact, reason, detail(track.fact)), now)

    # ---- asking

    @property
    def facts(self) -> tuple[TargetFact, ...]:
        """Sorted by rank."""
        facts = (track.fact for track in self._tracks)
        return tuple(facts) if self.closed else tuple(sorted(facts, key=by_rank))

    def since(self, revision: int) -> tuple[TargetFact, ...]:
        """What changed after that revision."""
        return tuple(track.fact for track in self._tracks if track.revision > revision)

    @property
    def converged(self) -> bool:
        return self.closed and bool(self._tracks) and all(track.fact.state.terminal for track in self._tracks)

    def open(self, agent: str) -> list[TargetFact]:
        """Targets of one agent that are not terminal."""
        tracks = self._by_agent.get(agent, {}).values()
        return [track.fact for track in tracks if not track.fact.state.terminal]

    def of(self, agent: str) -> dict[str, TargetFact]:
        return {target_id: track.fact for target_id, track in self._by_agent.get(agent, {}).items()}

    def agents(self) -> tuple[str, ...]:
        """Agents that are responsible for a target."""
        return tuple(self._by_agent)

    def holding_slot(self, *, but: Callable[[str], bool] = lambda agent: False) -> int:
        """Targets whose worker is still expected to record, not counting those of agents that `but` names."""
        return sum(not states.frees_slot(track.fact) and not but(track.agent or "") for track in self._tracks)

    def _set(self, track: Track, fact: TargetFact, now: float) -> None:
        if fact is not track.fact and fact != track.fact:
            track.fact = fact
            track.deadlines = track.deadlines.noting(fact, now)
            track.revision = self._changed()

    def _changed(self) -> int:
        self.revision += 1
        return self.revision
