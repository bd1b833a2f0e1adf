"""Whole captures under arbitrary observations: the set of targets is driven as a coordinator drives it, by chance.

Several agents report honestly, lie, repeat themselves, fall silent, forget, refuse; time passes; a cancel may come. The
machine's own invariants hold after every step, and at the last deadline there is an outcome.
"""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sameshot import states
from sameshot.coordinator.plan import Planned
from sameshot.coordinator.targets import TargetSet
from sameshot.model import (
    Artifact,
    CaptureState,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    Outcome,
    TargetFact,
    TargetState,
)
from sameshot.profiler.daemon import CAPABILITIES, BackendName
from sameshot.states import Contact, Deadlines
from support.fake_agent import worker

ANNOUNCE_BY = 30.0


def artifact(target_id: str, sha256: str = "0" * 64) -> Artifact:
    return Artifact(
        uri=f"{target_id}/trace.json.gz",
        size=10,
        sha256=sha256,
        encoding=Encoding.GZIP,
        raw_size=100,
        raw_sha256="1" * 64,
        window_start_ns=1,
        window_end_ns=2,
    )


class WholeCapture(RuleBasedStateMachine):
    @initialize(
        backends=st.lists(st.sampled_from(BackendName), min_size=1, max_size=3),
        per_agent=st.integers(1, 2),
        uncovered=st.integers(0, 1),
        dispatched_early=st.booleans(),
    )
    def begin(self, backends: list[BackendName], per_agent: int, uncovered: int, dispatched_early: bool) -> None:
        self.now = 0.0
        self.targets = TargetSet()
        self.state = CaptureState.DISPATCHING
        self.cancelled = False
        self.backends = {f"agent-{index}": backend for index, backend in enumerate(backends)}
        self.contacts = {address: Contact() for address in self.backends}
        self.owner: dict[str, str] = {}
        self.proven: set[str] = set()  # targets whose agent really said: archived, with this sound artifact
        self.before: dict[str, TargetFact] = {}
        deadlines = Deadlines(ANNOUNCE_BY)
        size = len(backends) * per_agent + uncovered
        planned, rank = [], 0
        for address in self.backends:
            mine = []
            for local in range(per_agent):
                mine.append(worker(rank=rank, world_size=size, node=address, local_rank=local).registration)
                rank += 1
            if dispatched_early:
                left_out = worker(rank=0, world_size=99, node=address, local_rank=9).registration
                self.targets.propose(address, [*mine, left_out], deadlines)
            planned += [Planned(TargetFact(each.target_id, each.identity), address) for each in mine]
            self.owner |= {each.target_id: address for each in mine}
        for missing in range(rank, size):
            failure = Failure(FailureReason.NEVER_REGISTERED, "never", TargetState.PENDING)
            fact = TargetFact(f"rank/{missing}", Identity(rank=missing), TargetState.FAILED, failure=failure)
            planned.append(Planned(fact))
        self.targets.close(planned, deadlines)
        self.size = size
        self.state = states.advance(self.state, CaptureState.COLLECTING)

    # ---- what may happen

    def report(self, address: str, seen: TargetFact, times: int = 1) -> None:
        """Lost answers are those that never come; repeated ones come twice."""
        self.contacts[address] = Contact(self.now)
        for _ in range(times):
            self.targets.merge(address, [seen], CAPABILITIES[self.backends[address]], self.now)

    def seen(self, data: st.DataObject, target_id: str, state: TargetState, registration: str | None) -> TargetFact:
        proof = Failure(FailureReason.EMPTY, "no event", data.draw(st.sampled_from(TargetState)))
        return TargetFact(
            target_id,
            Identity(registration=registration),
            state,
            note=data.draw(st.sampled_from(["", "BUSY", "NOT_MATCHED"])),
            artifact=artifact(target_id) if state is TargetState.ARCHIVED else None,
            failure=proof if state is TargetState.FAILED else None,
            announced_bytes=data.draw(st.none() | st.integers(-1, 1 << 50)),
            last_poll_age_s=data.draw(st.none() | st.floats(0, 10)),
        )

    @rule(data=st.data(), state=st.sampled_from(TargetState), named=st.booleans(), times=st.integers(1, 2))
    def its_agent_reports(self, data: st.DataObject, state: TargetState, named: bool, times: int) -> None:
        """In any order: a fact that is older than what is known is told as readily as a newer one."""
        known = data.draw(st.sampled_from([fact for fact in self.targets.facts if fact.target_id in self.owner]))
        seen = self.seen(data, known.target_id, state, known.identity.registration if named else None)
        if state is TargetState.ARCHIVED:
            self.proven.add(known.target_id)
        self.report(self.owner[known.target_id], seen, times)

    @rule(data=st.data(), state=st.sampled_from(TargetState))
    def its_agent_speaks_of_another_incarnation(self, data: st.DataObject, state: TargetState) -> None:
        target_id = data.draw(st.sampled_from(sorted(self.owner)))
        self.report(self.owner[target_id], self.seen(data, target_id, state, "another"))

    @rule(data=st.data(), state=st.sampled_from(TargetState))
    def an_agent_speaks_of_a_target_that_is_not_its_own(self, data: st.DataObject, state: TargetState) -> None:
        address = data.draw(st.sampled_from(sorted(self.backends)))
        others = [fact for fact in self.targets.facts if self.owner.get(fact.target_id) != address]
        if others:
            known = data.draw(st.sampled_from(others))
            self.report(address, self.seen(data, known.target_id, state, known.identity.registration))

    @rule(
        data=st.data(),
        state=st.sampled_from(TargetState),
        claim=st.sampled_from(["no proof", "both proofs", "no digest", "a path"]),
    )
    def its_agent_claims_what_it_does_not_prove(self, data: st.DataObject, state: TargetState, claim: str) -> None:
        target_id = data.draw(st.sampled_from(sorted(self.owner)))
        seen = self.seen(data, target_id, state, None)
        bad = {
            "no proof": {"artifact": None, "failure": None},
            "both proofs": {"artifact": artifact(target_id), "failure": Failure(FailureReason.EMPTY, "")},
            "no digest": {"artifact": artifact(target_id, "short")},
            "a path": {"artifact": msgspec.structs.replace(artifact(target_id), uri="../../elsewhere")},
        }[claim]
        if state is not TargetState.FAILED or claim != "no proof":
            self.report(self.owner[target_id], msgspec.structs.replace(seen, **bad))

    @rule(data=st.data())
    def an_agent_falls_silent(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.backends)))
        self.contacts[address] = msgspec.structs.replace(self.contacts[address], trouble="connection refused")

    @rule(data=st.data())
    def an_agent_refuses(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.backends)))
        self.targets.fail(FailureReason.REFUSED, lambda _: "not supported here", self.now, agent=address)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.targets.expire(self.contacts, self.now)

    @precondition(lambda self: not self.cancelled and not self.targets.converged)
    @rule()
    def a_cancel_comes(self) -> None:
        self.cancelled = True
        self.targets.fail(FailureReason.CANCELLED, lambda _: "cancelled", self.now)

    @precondition(lambda self: self.targets.converged)
    @rule()
    def it_is_published(self) -> None:
        self.state = states.advance(self.state, CaptureState.PUBLISHING)
        self.state = states.advance(self.state, CaptureState(self.outcome().value))

    @rule(told=st.sampled_from(CaptureState))
    def an_old_capture_state_is_told_again(self, told: CaptureState) -> None:
        if not told.terminal:
            self.state, before = states.advance(self.state, told), self.state
            assert before.terminal <= self.state.terminal

    # ---- what must hold whatever happened

    @invariant()
    def the_set_is_what_was_frozen(self) -> None:
        assert len(self.targets.facts) == self.size
        assert [fact.identity.rank for fact in self.targets.facts] == list(range(self.size))

    @invariant()
    def states_never_go_back_and_terminal_facts_stay(self) -> None:
        for fact in self.targets.facts:
            before = self.before.get(fact.target_id, fact)
            assert fact.state >= before.state
            if before.state.terminal:
                assert fact == before
        self.before = {fact.target_id: fact for fact in self.targets.facts}

    @invariant()
    def nobody_claims_what_its_back_end_cannot_see(self) -> None:
        for fact in self.targets.facts:
            if fact.target_id not in self.owner:
                continue
            capabilities = CAPABILITIES[self.backends[self.owner[fact.target_id]]]
            for claim in (fact.state, fact.failure.last_state if fact.failure else TargetState.PENDING):
                assert claim <= capabilities.strongest_claim or claim >= TargetState.ANNOUNCED
            assert capabilities.sees_polls or fact.last_poll_age_s is None

    @invariant()
    def only_what_its_own_agent_proved_is_archived(self) -> None:
        for fact in self.targets.facts:
            assert (fact.artifact is not None) == (fact.state is TargetState.ARCHIVED)
            assert (fact.failure is not None) == (fact.state is TargetState.FAILED)
            if fact.state is TargetState.ARCHIVED:
                assert fact.target_id in self.proven

    @invariant()
    def there_is_an_outcome_exactly_when_everything_is_decided(self) -> None:
        if not self.targets.converged:
            assert not all(fact.state.terminal for fact in self.targets.facts)
            assert not self.state.terminal
            return
        archived = {fact.target_id for fact in self.targets.facts if fact.state is TargetState.ARCHIVED}
        ended = self.outcome()
        assert (ended is Outcome.CANCELLED) == self.cancelled
        if ended is Outcome.SUCCEEDED:
            assert len(archived) == self.size
            assert archived <= self.proven
        if ended is Outcome.FAILED:
            assert not archived

    def outcome(self) -> Outcome:
        return states.outcome(self.targets.facts, cancelled=self.cancelled)

    def teardown(self) -> None:
        """Nobody says anything more: the last deadline decides."""
        if not hasattr(self, "targets"):
            return
        last = max(self.now, ANNOUNCE_BY) + states.ALLOWANCE_CAP_S + states.LAST_ANSWER_GRACE_S
        self.targets.expire(self.contacts, last)
        self.now = last
        assert self.targets.converged
        self.states_never_go_back_and_terminal_facts_stay()
        self.only_what_its_own_agent_proved_is_archived()
        self.there_is_an_outcome_exactly_when_everything_is_decided()


TestWholeCapture = WholeCapture.TestCase
TestWholeCapture.settings = settings(
    deadline=None, max_examples=150, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
