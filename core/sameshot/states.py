"""The state machine of targets and captures: pure functions over facts, without I/O and without a clock of its own.

    PENDING → DISPATCHED → QUEUED → CONSUMED → ANNOUNCED → VERIFIED → ARCHIVED
                                                              any of them → FAILED(reason)

A state's name is the strongest fact that was really observed. Facts may be lost, repeated and reordered on their way:
`merge` only ever strengthens, a terminal state stays, and a claim without its proof (ARCHIVED without an artifact) is
not a fact. Time enters as an argument, in seconds of whatever monotonic clock the caller uses, so tests move it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from sameshot.model import (
    Artifact,
    CaptureState,
    Failure,
    FailureReason,
    Outcome,
    TargetFact,
    TargetState,
    WaitsFor,
    path_problem,
)

# Once a file was announced its target has its own allowance (docs/architecture.md): a fixed part, and a rate that
# the slowest sane node and network reach.
ALLOWANCE_FIXED_S = 60.0
ALLOWANCE_BYTES_PER_S = 20e6
ALLOWANCE_CAP_S = 1800.0

# How long past a deadline we wait for one last answer before calling the agent unreachable.
LAST_ANSWER_GRACE_S = 5.0


class Deadlines(msgspec.Struct, frozen=True):
    """When one target is given up, on the coordinator's monotonic clock."""

    announce_by: float  # a final file must have been seen by then
    announced_at: float | None = None  # when its announcement was first heard of; the delivery's allowance starts here

    def noting(self, fact: TargetFact, now: float) -> Deadlines:
        """Start the delivery's allowance with the first fact that a file is there. Never restarted."""
        if self.announced_at is not None or fact.state < TargetState.ANNOUNCED:
            return self
        return msgspec.structs.replace(self, announced_at=now)

    def deliver_by(self, fact: TargetFact) -> float | None:
        """Verified and archived by then; None before the announcement. It moves only when the size becomes known."""
        return None if self.announced_at is None else self.announced_at + allowance_s(fact.announced_bytes or 0)


class Contact(msgspec.Struct, frozen=True):
    """When the agent of a target last answered for this capture: the moment of the *question*, for that is how old
    its answer may be. `trouble` is what went wrong since, in words."""

    last_answer: float | None = None
    trouble: str = ""

    def silent_since(self, moment: float) -> bool:
        """True when nothing is known of `moment` or later."""
        return self.last_answer is None or self.last_answer < moment


def merge(
    known: TargetFact,
    seen: TargetFact,
    *,
    strongest_claim: TargetState = TargetState.CONSUMED,
    sees_polls: bool = True,
) -> TargetFact:
    """The strongest of two facts about one target.

    `strongest_claim` is what the back end can observe before a file appears: anything above it that is not about a
    file is lowered to it, and so is a failure's `last_state`, because nobody can have seen it. A fact about another
    registration than the frozen one is no fact about this target, unless it says that the target failed (it was
    replaced).
    """
    if known.target_id != seen.target_id:
        raise ValueError(f"facts about two targets: {known.target_id} and {seen.target_id}")
    seen = _lowered(seen, strongest_claim)
    if known.state.terminal or seen.state < known.state or not _proven(seen) or _of_another(known, seen):
        return known
    return msgspec.structs.replace(
        seen,
        identity=known.identity if known.identity.registration else seen.identity,
        late_start=known.late_start if seen.late_start is None else seen.late_start,
        announced_bytes=known.announced_bytes if seen.announced_bytes is None else seen.announced_bytes,
        last_poll_age_s=seen.last_poll_age_s if sees_polls else None,
    )


def fail(known: TargetFact, reason: FailureReason, detail: str) -> TargetFact:
    """Give up a target, unless it is terminal already."""
    if known.state.terminal:
        return known
    failure = Failure(reason=reason, detail=detail, last_state=known.state)
    return msgspec.structs.replace(known, state=TargetState.FAILED, failure=failure, artifact=None, note="")


def allowance_s(announced_bytes: int) -> float:
    """How long verifying and archiving a file of this size may take."""
    return min(ALLOWANCE_FIXED_S + max(announced_bytes, 0) / ALLOWANCE_BYTES_PER_S, ALLOWANCE_CAP_S)


def expire(known: TargetFact, deadlines: Deadlines, contact: Contact, now: float) -> TargetFact:
    """Decide, at `now`, whether the time of this target is over, and what that proves.

    MISSING needs an agent that answered after the announce deadline and still had no file; from an agent that does
    not answer nothing is known, so its targets are AGENT_UNREACHABLE. The same holds for the two later deadlines.
    """
    if known.state.terminal:
        return known
    announced = known.state >= TargetState.ANNOUNCED
    deadline = deadlines.noting(known, now).deliver_by(known) if announced else deadlines.announce_by
    if deadline is None or now < deadline:
        return known
    if contact.silent_since(deadline):
        return known if now < deadline + LAST_ANSWER_GRACE_S else _unreachable(known, contact, now)
    return fail(known, *_overdue(known))


def _overdue(known: TargetFact) -> tuple[FailureReason, str]:
    """What it proves that a target's agent answered after the deadline and had nothing more than this."""
    if known.state is TargetState.VERIFIED:
        return (
            FailureReason.ARCHIVE_TIMEOUT,
            "The trace was verified but not archived within its allowance; its bytes stay in the node's spool.",
        )
    if known.state is TargetState.ANNOUNCED:
        return (
            FailureReason.VERIFY_TIMEOUT,
            "The trace was announced but not verified within its allowance; its bytes stay in the node's spool.",
        )
    if known.state is TargetState.DISPATCHED and (waits := WaitsFor.in_note(known.note)):
        return waits.reason, WAITED_IN_VAIN[waits]
    waiting = f" ({known.note.rstrip('.')})" if known.note else ""
    return (
        FailureReason.MISSING,
        f"No trace file appeared by the announce deadline; the last thing seen was {known.state.name}{waiting}.",
    )


# Also used by agents, who say it of their own deadline.
WAITED_IN_VAIN = {
    WaitsFor.NOT_MATCHED: "The profiler daemon never knew this process; see `sameshot doctor` on its node.",
    WaitsFor.BUSY: "The profiler of this process was taken by another request until the deadline; try again later.",
}


def _unreachable(known: TargetFact, contact: Contact, now: float) -> TargetFact:
    where = known.identity.node or "its node"
    heard = (
        "it never answered for this capture"
        if contact.last_answer is None
        else f"its last answer is {now - contact.last_answer:.1f} s old"
    )
    trouble = f": {contact.trouble}" if contact.trouble else ""
    return fail(
        known,
        FailureReason.AGENT_UNREACHABLE,
        f"The agent of {where} does not answer ({heard}{trouble}); the last thing known was {known.state.name}. A "
        "trace may still be in the node's spool.",
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


def frees_slot(target: TargetFact) -> bool:
    """Nothing more is expected of the worker: its file is there, or it was given up."""
    return target.state >= TargetState.ANNOUNCED


_SHA256 = re.compile(r"[0-9a-f]{64}")


def _proven(fact: TargetFact) -> bool:
    """A terminal claim carries its proof; a claim that is not terminal carries none."""
    if (fact.failure is not None) != (fact.state is TargetState.FAILED):
        return False
    if (fact.artifact is not None) != (fact.state is TargetState.ARCHIVED):
        return False
    return fact.artifact is None or _sound(fact.artifact)


def _sound(artifact: Artifact) -> bool:
    """The artifact could stand in a manifest: one target's bad claim must not spoil the whole receipt."""
    files: list[tuple[str | None, int, str]] = [(artifact.uri, artifact.size, artifact.sha256)]
    files.append((None, artifact.raw_size, artifact.raw_sha256))
    if artifact.columns is not None:
        files.append((artifact.columns.uri, artifact.columns.size, artifact.columns.sha256))
    return artifact.window_start_ns <= artifact.window_end_ns and all(_is_file(*each) for each in files)


def _is_file(uri: str | None, size: int, sha256: str) -> bool:
    return (uri is None or path_problem(uri) is None) and size >= 0 and _SHA256.fullmatch(sha256) is not None


def _of_another(known: TargetFact, seen: TargetFact) -> bool:
    ours, theirs = known.identity.registration, seen.identity.registration
    return ours is not None and theirs is not None and ours != theirs and seen.state is not TargetState.FAILED


def _lowered(fact: TargetFact, strongest_claim: TargetState) -> TargetFact:
    """Without what the back end can't have seen, and without a file that could not stand in a manifest."""

    def lower(state: TargetState) -> TargetState:
        return strongest_claim if strongest_claim < state < TargetState.ANNOUNCED else state

    failure = fact.failure
    if failure is not None:
        raw = failure.raw if failure.raw and _is_file(failure.raw.uri, failure.raw.size, failure.raw.sha256) else None
        failure = msgspec.structs.replace(failure, last_state=lower(failure.last_state), raw=raw)
    return msgspec.structs.replace(fact, state=lower(fact.state), failure=failure)
