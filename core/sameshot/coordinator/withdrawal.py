"""What a cancel really did. Cancellation is logical: it never claims more than the back end can do.

A config that no worker has fetched can be taken back by our own broker, never from stock dynolog; a window that is
being recorded can't be stopped by anyone.
"""

from __future__ import annotations

from sameshot.coordinator.links import AgentLink, Facts
from sameshot.coordinator.targets import TargetSet
from sameshot.model import FailureReason, TargetFact, TargetState


class Withdrawal:
    """Made before the agents are asked; told of every answer; then `words` and `detail` say what happened."""

    def __init__(self, targets: TargetSet) -> None:
        self._targets = targets
        self._before = {fact.target_id for fact in targets.facts if not fact.state.terminal}
        self._unsent = {
            fact.target_id for fact in targets.facts if fact.state is TargetState.PENDING and not fact.state.terminal
        }
        self._withdrawn: set[str] = set()
        self._unanswered: set[str] = set()
        self._fetched: set[str] = set()
        self._stuck: set[str] = set()  # could not be taken back

    def answered(self, link: AgentLink, answer: Facts | None) -> None:
        """What an agent said to the cancel, already merged; None: it did not answer."""
        for fact in self._targets.of(link.key).values():
            if fact.target_id not in self._before or fact.state is TargetState.ARCHIVED:
                continue
            if answer is None:
                self._unanswered.add(fact.target_id)
            elif not answer.known:
                self._unsent.add(fact.target_id)
            elif fact.failure is not None and fact.failure.reason is not FailureReason.CANCELLED:
                continue  # it failed meanwhile, for a reason of its own
            elif (reached := _reached(fact)) >= TargetState.CONSUMED:
                self._fetched.add(fact.target_id)
            elif fact.state is TargetState.FAILED and (reached < TargetState.QUEUED or link.capabilities.can_withdraw):
                self._withdrawn.add(fact.target_id)
            else:
                self._stuck.add(fact.target_id)

    @property
    def leaves_recordings(self) -> bool:
        """Some worker may have its config, so its profiler is possibly taken until the window ends."""
        if self._stuck or self._unanswered:
            return True
        return any(
            fact.target_id in self._fetched and _reached(fact) < TargetState.ANNOUNCED for fact in self._targets.facts
        )

    def words(self) -> str:
        """One or two sentences for the capture."""
        unsent = len(self._unsent - self._withdrawn - self._unanswered - self._stuck)
        asked = len(self._before) - unsent
        archived = sum(
            fact.target_id in self._before and fact.state is TargetState.ARCHIVED for fact in self._targets.facts
        )
        parts = [f"{len(self._withdrawn)} of {asked} configs were withdrawn before any worker fetched them"]
        if unsent:
            parts.append(f"{unsent} were never sent")
        if self._stuck:
            parts.append(f"{len(self._stuck)} could not be taken back and may still be recorded")
        if self._fetched:
            parts.append(f"{len(self._fetched)} were already fetched: what they record stays on the node")
        if archived:
            parts.append(f"{archived} were archived meanwhile")
        if self._unanswered:
            parts.append(f"of {len(self._unanswered)} nothing is known, their agents did not answer")
        return "; ".join(parts) + "."

    def detail(self, fact: TargetFact) -> str:
        """The sentence for one target that fails because of the cancel."""
        if fact.target_id in self._withdrawn:
            return "The capture was cancelled, and the config was withdrawn before the worker fetched it."
        if fact.target_id in self._stuck:
            return (
                "The capture was cancelled, but its config could not be taken back: the worker may still record a "
                "window that nobody collects."
            )
        if fact.target_id in self._unanswered:
            return "The capture was cancelled; the agent did not answer, so it may still be recorded."
        if fact.target_id in self._unsent:
            return "The capture was cancelled before this worker was asked."
        return f"The capture was cancelled while this target was {fact.state.name}; its bytes stay on the node."


def _reached(fact: TargetFact) -> TargetState:
    """How far a target had come when its agent gave it up for us, or how far it is."""
    if fact.failure is not None and fact.failure.reason is FailureReason.CANCELLED:
        return fact.failure.last_state
    return fact.state
