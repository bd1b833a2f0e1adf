"""What to tell a person who waits: a few lines for each change of a capture, never one for every look. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sameshot.model import TargetFact
from sameshot.steps.results import shortened

if TYPE_CHECKING:
    from sameshot.client import CaptureView

_NAMED = 8  # so many failed ranks get a line of their own


def news(before: CaptureView | None, now: CaptureView) -> list[str]:
    """What `now` says that `before` did not."""
    lines = []
    if before is None or _head(before) != _head(now):
        lines.append(_head(now))
    failed = _failed(now)
    known = _failed(before) if before is not None else {}
    fresh = [fact for target_id, fact in failed.items() if target_id not in known]
    room = max(_NAMED - len(known), 0)
    lines += [_failure(fact) for fact in fresh[:room]]
    return lines


def _head(view: CaptureView) -> str:
    counts = f", {view.archived} of {view.expected} archived" if view.expected else ""
    failed = f", {view.failed} failed" if view.failed else ""
    unpublished = ", not published" if view.state.terminal and view.expected and not view.published else ""
    note = f" ({shortened(view.note)})" if view.note else ""
    return f"capture {view.capture_id} of {view.job.name}: {view.state.value}{counts}{failed}{unpublished}{note}"


def _failed(view: CaptureView) -> dict[str, TargetFact]:
    return {fact.target_id: fact for fact in view.targets if fact.failure is not None}


def _failure(fact: TargetFact) -> str:
    assert fact.failure is not None
    who = fact.target_id if fact.identity.rank is None else f"rank {fact.identity.rank} ({fact.target_id})"
    return f"  {who}: {fact.failure.reason.value}: {shortened(fact.failure.detail)}"
