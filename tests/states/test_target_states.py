"""Whatever is observed in whatever order: captures converge by their deadline and never claim what nobody saw."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot import states
from sameshot.model import (
    Artifact,
    CaptureState,
    Columns,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    Outcome,
    RawBytes,
    TargetFact,
    TargetState,
    WaitsFor,
)
from sameshot.profiler.daemon import CAPABILITIES, BackendName
from sameshot.states import Contact, Deadlines

IDENTITY = Identity(rank=0, node="node-0", registration="r0")
NEW = TargetFact("node-0/main/0", IDENTITY)


def artifact(**changes: object) -> Artifact:
    fields = {
        "uri": "node-0/trace.json.gz",
        "size": 10,
        "sha256": "0" * 64,
        "encoding": Encoding.GZIP,
        "raw_size": 100,
        "raw_sha256": "1" * 64,
        "window_start_ns": 1,
        "window_end_ns": 2,
    }
    return Artifact(**(fields | changes))  # type: ignore[arg-type]


def fact(state: TargetState, **changes: object) -> TargetFact:
    """A fact with its proof, unless changed."""
    proof: dict[str, object] = {}
    if state is TargetState.ARCHIVED:
        proof["artifact"] = artifact()
    if state is TargetState.FAILED:
        proof["failure"] = Failure(FailureReason.EMPTY, "no event", TargetState.CONSUMED)
    return msgspec.structs.replace(NEW, state=state, **(proof | changes))


no_deadline = settings(deadline=None)  # the machine may be busy
proofs = st.sampled_from(["right", "none", "other", "both"])


@st.composite
def observations(draw: st.DrawFn) -> TargetFact:
    """Honest facts and lies: any state, with the right proof, without, with the other kind, with both."""
    state = draw(st.sampled_from(TargetState))
    proof = draw(proofs)
    good = Failure(FailureReason.EMPTY, "no event", draw(st.sampled_from(TargetState)))
    archived, failed = state is TargetState.ARCHIVED, state is TargetState.FAILED
    if proof == "other":
        archived, failed = failed, archived
    if proof == "none":
        archived = failed = False
    if proof == "both":
        archived = failed = True
    return TargetFact(
        NEW.target_id,
        draw(st.sampled_from([IDENTITY, Identity(), Identity(rank=0, registration="another")])),
        state=state,
        note=draw(st.sampled_from(["", "BUSY", "NOT_MATCHED"])),
        artifact=draw(st.sampled_from([artifact(), artifact(uri="../../x"), artifact(sha256="short")]))
        if archived
        else None,
        failure=good if failed else None,
        announced_bytes=draw(st.none() | st.integers(-1, 1 << 50)),
        last_poll_age_s=draw(st.none() | st.floats(0, 10)),
    )


backends = st.sampled_from(BackendName)


@no_deadline
@given(st.lists(observations()), backends)
def test_states_never_go_back_and_terminal_ones_stay(seen: list[TargetFact], backend: BackendName) -> None:
    known = NEW
    for each in seen:
        after = states.merge(known, each, strongest_claim=CAPABILITIES[backend].strongest_claim)
        assert after.state >= known.state
        if known.state.terminal:
            assert after == known
        known = after


@no_deadline
@given(st.lists(observations()), backends)
def test_no_back_end_claims_what_it_cannot_observe(seen: list[TargetFact], backend: BackendName) -> None:
    capabilities = CAPABILITIES[backend]
    known = NEW
    for each in seen:
        known = states.merge(
            known, each, strongest_claim=capabilities.strongest_claim, sees_polls=capabilities.sees_polls
        )
        claims = [known.state] + ([known.failure.last_state] if known.failure else [])
        for claim in claims:
            assert claim <= capabilities.strongest_claim or claim >= TargetState.ANNOUNCED
        if not capabilities.sees_polls:
            assert known.last_poll_age_s is None


@no_deadline
@given(st.lists(observations()))
def test_archived_always_has_a_sound_artifact_and_failed_a_reason(seen: list[TargetFact]) -> None:
    known = NEW
    for each in seen:
        known = states.merge(known, each)
        assert (known.artifact is not None) == (known.state is TargetState.ARCHIVED)
        assert (known.failure is not None) == (known.state is TargetState.FAILED)
        if known.artifact is not None:
            assert known.artifact == artifact()
            assert known.identity.registration == "r0"


HONEST = [fact(state) for state in TargetState if state is not TargetState.FAILED]


@no_deadline
@given(st.permutations(HONEST * 2), st.sets(st.sampled_from(range(12)), max_size=10))
def test_losing_repeating_and_reordering_facts_never_changes_what_the_strongest_of_them_says(
    seen: list[TargetFact], lost: set[int]
) -> None:
    arrived = [each for index, each in enumerate(seen) if index not in lost]
    known = NEW
    for each in arrived:
        known = states.merge(known, each)
    assert known.state is max(each.state for each in arrived)


@no_deadline
@given(
    st.lists(st.tuples(observations(), st.floats(0, 200), st.booleans()), max_size=20),
    st.floats(1, 100),
)
def test_every_target_is_decided_by_the_last_deadline(
    steps: list[tuple[TargetFact, float, bool]], announce_by: float
) -> None:
    """Facts come, or not, and the agent answers, or not, at any times: in the end there is an outcome."""
    now, known, contact, deadlines = 0.0, NEW, Contact(), Deadlines(announce_by)
    for seen, passed, answers in steps:
        now += passed
        if answers:
            contact = Contact(now)
            known = states.merge(known, seen)
            deadlines = deadlines.noting(known, now)
        known = states.expire(known, deadlines, contact, now)
    last = max(announce_by, now) + states.ALLOWANCE_CAP_S + 2 * states.LAST_ANSWER_GRACE_S
    known = states.expire(known, deadlines, contact, last)
    assert known.state.terminal


@no_deadline
@given(st.lists(st.lists(observations(), max_size=6), min_size=1, max_size=5), st.booleans())
def test_succeeded_only_when_every_target_is_archived(histories: list[list[TargetFact]], cancelled: bool) -> None:
    targets = []
    for index, history in enumerate(histories):
        known = msgspec.structs.replace(NEW, target_id=f"t{index}")
        for seen in history:
            known = states.merge(known, msgspec.structs.replace(seen, target_id=f"t{index}"))
        targets.append(states.expire(known, Deadlines(0.0), Contact(), 1e6))
    if not states.converged(targets):
        targets = [states.fail(each, FailureReason.MISSING, "") for each in targets]
    archived = [each.state is TargetState.ARCHIVED for each in targets]
    ended = states.outcome(targets, cancelled=cancelled)
    expected = Outcome.SUCCEEDED if all(archived) else Outcome.PARTIAL if any(archived) else Outcome.FAILED
    assert ended is (Outcome.CANCELLED if cancelled else expected)


def test_there_is_no_outcome_before_convergence_and_none_without_targets() -> None:
    for targets in ([], [NEW], [fact(TargetState.ARCHIVED), fact(TargetState.VERIFIED)]):
        assert not states.converged(targets)
        with pytest.raises(ValueError):
            states.outcome(targets, cancelled=False)


def test_facts_about_two_targets_are_never_merged() -> None:
    with pytest.raises(ValueError):
        states.merge(NEW, TargetFact("another"))


def test_a_fact_about_another_incarnation_counts_only_as_a_failure() -> None:
    other = Identity(rank=0, registration="r1")
    assert states.merge(NEW, fact(TargetState.ARCHIVED, identity=other)) == NEW
    failed = states.merge(NEW, fact(TargetState.FAILED, identity=other))
    assert failed.state is TargetState.FAILED
    assert failed.identity == IDENTITY


def test_raw_bytes_that_could_not_stand_in_a_manifest_are_dropped_and_the_failure_stays() -> None:
    failure = Failure(FailureReason.INVALID, "json at byte 7", raw=RawBytes("../elsewhere", 1, "0" * 64))
    merged = states.merge(NEW, fact(TargetState.FAILED, failure=failure))
    assert (merged.state, merged.failure.raw) == (TargetState.FAILED, None)


def test_columns_are_judged_like_the_trace_itself() -> None:
    columns = Columns("/absolute", 1, "0" * 64, "v1")
    assert states.merge(NEW, fact(TargetState.ARCHIVED, artifact=artifact(columns=columns))) == NEW


ANSWERED = Contact(last_answer=101.0)
NEVER = Contact()


@pytest.mark.parametrize(
    ("known", "contact", "reason"),
    [
        (fact(TargetState.QUEUED), ANSWERED, FailureReason.MISSING),
        (fact(TargetState.DISPATCHED, note="BUSY"), ANSWERED, FailureReason.BUSY),
        (fact(TargetState.DISPATCHED, note="BUSY: another config waits"), ANSWERED, FailureReason.BUSY),
        (fact(TargetState.DISPATCHED, note="NOT_MATCHED"), ANSWERED, FailureReason.NOT_MATCHED),
        (fact(TargetState.QUEUED, note="BUSY"), ANSWERED, FailureReason.MISSING),
        (fact(TargetState.CONSUMED), NEVER, FailureReason.AGENT_UNREACHABLE),
        (fact(TargetState.CONSUMED), Contact(99.0), FailureReason.AGENT_UNREACHABLE),
    ],
)
def test_what_the_announce_deadline_proves(known: TargetFact, contact: Contact, reason: FailureReason) -> None:
    deadlines = Deadlines(announce_by=100.0)
    assert states.expire(known, deadlines, contact, 99.9) == known
    given_up = states.expire(known, deadlines, contact, 110.0)
    assert given_up.failure.reason is reason
    assert given_up.failure.last_state is known.state


def test_what_a_target_waits_for_is_one_word_for_writers_and_readers() -> None:
    assert WaitsFor.in_note("BUSY: another config waits") is WaitsFor.BUSY
    assert WaitsFor.in_note("it is not BUSY") is None
    for waits in WaitsFor:
        known = fact(TargetState.DISPATCHED, note=waits)
        failure = states.expire(known, Deadlines(100.0), ANSWERED, 110.0).failure
        assert failure == Failure(waits.reason, states.WAITED_IN_VAIN[waits], TargetState.DISPATCHED)


def test_an_agent_has_a_moment_after_the_deadline_for_one_last_answer() -> None:
    known, deadlines = fact(TargetState.CONSUMED), Deadlines(announce_by=100.0)
    ends = 100.0 + states.LAST_ANSWER_GRACE_S
    assert states.expire(known, deadlines, Contact(99.0), ends - 0.1) == known
    assert states.expire(known, deadlines, Contact(99.0), ends).state is TargetState.FAILED


@pytest.mark.parametrize(
    ("state", "reason"),
    [(TargetState.ANNOUNCED, FailureReason.VERIFY_TIMEOUT), (TargetState.VERIFIED, FailureReason.ARCHIVE_TIMEOUT)],
)
def test_once_announced_a_target_has_its_own_allowance_and_is_never_missing(
    state: TargetState, reason: FailureReason
) -> None:
    known = fact(state, announced_bytes=2_000_000_000)
    deadlines = Deadlines(announce_by=10.0).noting(known, 9.0)
    assert deadlines.deliver_by(known) == pytest.approx(9.0 + 60 + 100)
    assert states.expire(known, deadlines, Contact(168.0), 168.9) == known
    assert states.expire(known, deadlines, Contact(169.5), 170.0).failure.reason is reason
    silent = states.expire(known, deadlines, Contact(100.0), 169.0 + states.LAST_ANSWER_GRACE_S)
    assert silent.failure.reason is FailureReason.AGENT_UNREACHABLE


def test_the_allowance_starts_with_the_first_announcement_and_is_capped() -> None:
    deadlines = Deadlines(announce_by=10.0).noting(fact(TargetState.ANNOUNCED), 5.0)
    assert deadlines.noting(fact(TargetState.VERIFIED), 50.0).announced_at == 5.0
    assert states.allowance_s(1 << 60) == states.ALLOWANCE_CAP_S
    assert states.allowance_s(-5) == states.ALLOWANCE_FIXED_S


def test_capture_states_never_go_back() -> None:
    for known in CaptureState:
        for seen in CaptureState:
            after = states.advance(known, seen)
            if known.terminal:
                assert after is known
            else:
                assert after in (known, seen)
                assert states.advance(after, known) is after
