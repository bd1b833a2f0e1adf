"""The state machine of targets and captures: pure functions over facts, without I/O and without a clock of its own.

    PENDING → DISPATCHED → QUEUED → CONSUMED → ANNOUNCED → VERIFIED → ARCHIVED
                                                              any of them → FAILED(reason)

A state's name is the strongest fact that was really observed. Facts may be lost, repeated and reordered on their way:
`merge` only ever strengthens, a terminal state stays, and a claim without its proof (ARCHIVED without an artifact) is
not a fact. Time enters as an argument, in seconds of whatever monotonic clock the caller uses, so tests move it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sameshot.model import CaptureState, Failure, FailureReason, Outcome, TargetFact, TargetState

# Once a file was announced its target has its own allowance (docs/architecture.md): a fixed part, and a rate that
# the slowest sane node and network reach.
ALLOWANCE_FIXED_S = 60.0
ALLOWANCE_BYTES_PER_S = 20e6
ALLOWANCE_CAP_S = 1800.0


class Deadlines(msgspec.Struct, frozen=True):
    """When one target is given up, on the coordinator's monotonic clock."""

    announce_by: float  # a final file must have been seen by then
    deliver_by: float | None = None  # announced: verified and archived by then


class Contact(msgspec.Struct, frozen=True):
    """When the agent of a target last answered, and whether it ever did for this capture."""

    last_answer: float | None = None

    def silent_since(self, moment: float) -> bool:
        """True when nothing has been heard at or after `moment`."""
        return self.last_answer is None or self.last_answer < moment


def merge(known: TargetFact, seen: TargetFact, *, strongest_claim: TargetState = TargetState.CONSUMED) -> TargetFact:
    """The strongest of two facts about one target.

    `strongest_claim` is what the back end can observe before a file appears: anything above it that is not about a
    file is lowered to it, because nobody can have seen it.
    """
    if known.target_id != seen.target_id:
        raise ValueError(f"facts about two targets: {known.target_id} and {seen.target_id}")
    seen = _lowered(seen, strongest_claim)
    if known.state.terminal or seen.state < known.state or not _proven(seen):
        return known
    return msgspec.structs.replace(
        seen,
        identity=known.identity if known.identity.registration else seen.identity,
        late_start=known.late_start if seen.late_start is None else seen.late_start,
        announced_bytes=known.announced_bytes if seen.announced_bytes is None else seen.announced_bytes,
    )


def fail(known: TargetFact, reason: FailureReason, detail: str) -> TargetFact:
    """Give up a target, unless it is terminal already."""
    if known.state.terminal:
        return known
    failure = Failure(reason=reason, detail=detail, last_state=known.state)
    return msgspec.structs.replace(known, state=TargetState.FAILED, failure=failure, artifact=None, note="")


def allowance_s(announced_bytes: int) -> float:
    """How long verifying and archiving a file of this size may take."""
    return min(ALLOWANCE_FIXED_S + announced_bytes / ALLOWANCE_BYTES_PER_S, ALLOWANCE_CAP_S)


def expire(known: TargetFact, deadlines: Deadlines, contact: Contact, now: float) -> TargetFact:
    """Decide, at `now`, whether the time of this target is over, and what that proves.

    MISSING needs an agent that answered after the announce deadline and still had no file; from an agent that does
    not answer nothing is known, so its targets are AGENT_UNREACHABLE.
    """
    if known.state.terminal:
        return known
    if known.state < TargetState.ANNOUNCED:
        return _expire_unannounced(known, deadlines.announce_by, contact, now)
    if deadlines.deliver_by is None or now < deadlines.deliver_by:
        return known
    if contact.silent_since(deadlines.deliver_by - ALLOWANCE_FIXED_S / 2):
        return fail(known, FailureReason.AGENT_UNREACHABLE, _silence(known, contact, now))
    if known.state is TargetState.ANNOUNCED:
        return fail(
            known,
            FailureReason.VERIFY_TIMEOUT,
            "The trace was announced but not verified within its allowance; its bytes stay in the node's spool.",
        )
    return fail(
        known,
        FailureReason.ARCHIVE_TIMEOUT,
        "The trace was verified but not archived within its allowance; its bytes stay in the node's spool.",
    )


# How long past the announce deadline we wait for one last answer before calling the agent unreachable.
LAST_ANSWER_GRACE_S = 3.0

_WAITING_FOR: dict[str, tuple[FailureReason, str]] = {
    "NOT_MATCHED": (
        FailureReason.NOT_MATCHED,
        "The profiler daemon never knew this process; see `sameshot doctor` on its node.",
    ),
    "BUSY": (
        FailureReason.BUSY,
        "The profiler of this process was taken by another request until the deadline; try again later.",
    ),
}


def _expire_unannounced(known: TargetFact, announce_by: float, contact: Contact, now: float) -> TargetFact:
    if now < announce_by:
        return known
    if contact.silent_since(announce_by):
        if now < announce_by + LAST_ANSWER_GRACE_S:
            return known
        return fail(known, FailureReason.AGENT_UNREACHABLE, _silence(known, contact, now))
    if known.state is TargetState.DISPATCHED and known.note in _WAITING_FOR:
        return fail(known, *_WAITING_FOR[known.note])
    return fail(
        known,
        FailureReason.MISSING,
        f"No trace file appeared by the announce deadline; the last thing seen was {known.state.name}.",
    )


def converged(targets: Sequence[TargetFact]) -> bool:
    """Every target is archived or has an explicit failure. A capture without targets has not converged."""
    return bool(targets) and all(target.state.terminal for target in targets)


def outcome(targets: Sequence[TargetFact], *, cancelled: bool) -> Outcome:
    """How a converged capture ended. Raises ValueError before convergence: there is no outcome yet."""
    if not converged(targets):
        raise ValueError("a capture has no outcome before it has converged")
    if cancelled:
        return Outcome.CANCELLED
    archived = sum(target.state is TargetState.ARCHIVED for target in targets)
    if archived == len(targets):
        return Outcome.SUCCEEDED
    return Outcome.PARTIAL if archived else Outcome.FAILED


_ORDER = {
    CaptureState.WAITING: 0,
    CaptureState.DISPATCHING: 1,
    CaptureState.COLLECTING: 2,
    CaptureState.PUBLISHING: 3,
}


def advance(known: CaptureState, seen: CaptureState) -> CaptureState:
    """Capture states never go back, and a terminal one stays."""
    if known.terminal or (not seen.terminal and _ORDER[seen] < _ORDER[known]):
        return known
    return seen


def _proven(fact: TargetFact) -> bool:
    """A terminal claim carries its proof; a claim that is not terminal carries none."""
    return (fact.artifact is not None) == (fact.state is TargetState.ARCHIVED) and (fact.failure is not None) == (
        fact.state is TargetState.FAILED
    )


def _lowered(fact: TargetFact, strongest_claim: TargetState) -> TargetFact:
    if strongest_claim < fact.state < TargetState.ANNOUNCED:
        return msgspec.structs.replace(fact, state=strongest_claim)
    return fact


def _silence(known: TargetFact, contact: Contact, now: float) -> str:
    where = known.identity.node or "its node"
    heard = (
        "it never answered for this capture"
        if contact.last_answer is None
        else f"its last answer is {now - contact.last_answer:.1f} s old"
    )
    return (
        f"The agent of {where} does not answer ({heard}); the last thing known was {known.state.name}. A trace may "
        "still be in the node's spool."
    )
