"""Is this capture good enough? One answer for the command line and for every engine. Pure.

Only what was proven counts: a capture whose manifest is not in the archive is not over, whatever its state says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sameshot.errors import (
    CaptureCancelled,
    CaptureFailed,
    JobEnded,
    NoSuchJob,
    NotArmed,
    PartialCapture,
    SameshotError,
    TryAgain,
    UnknownCapture,
    Unreachable,
)
from sameshot.model import Nobody, Outcome, TargetFact
from sameshot.steps.results import TEXT_LIMIT, ranges, shortened

if TYPE_CHECKING:  # the client brings grpc, and a verdict needs none
    from sameshot.client import CaptureView

EXIT_CODES = {
    Outcome.SUCCEEDED: 0,
    Outcome.PARTIAL: PartialCapture.exit_code,
    Outcome.FAILED: CaptureFailed.exit_code,
    Outcome.UNKNOWN: UnknownCapture.exit_code,
    Outcome.CANCELLED: CaptureCancelled.exit_code,
}
_NOBODY: dict[Nobody | None, type[SameshotError]] = {
    Nobody.ENDED: JobEnded,
    Nobody.NOT_ARMED: NotArmed,
    Nobody.SILENT: Unreachable,
    Nobody.BROKEN: SameshotError,
    None: NoSuchJob,  # an older coordinator does not say which
}
_IN_WORDS = 2  # so many targets are named with their reason
_LONGEST_LIST = 60  # characters of the ranks inside a sentence
_LONGEST_REASON = 70


class Verdict(msgspec.Struct, frozen=True):
    """`exit_code` 0: go on, with `warning` where something is missing all the same."""

    exit_code: int
    message: str
    warning: str = ""


def judge(view: CaptureView, min_ranks: int | None = None) -> Verdict:
    """Whether the capture is what was asked for, and what to say of it.

    `min_ranks`: a PARTIAL capture with at least so many verified traces is good enough; None: all are needed.
    """
    code = exit_code(view)
    if code == PartialCapture.exit_code:
        return _partial(view, min_ranks)
    if code == 0:
        return Verdict(0, _all_there(view), _narrow_window(view))
    return Verdict(code, shortened(_why_not(view, code)))


def exit_code(view: CaptureView) -> int:
    """0 only for a fully successful capture whose manifest really is in the archive."""
    if view.outcome is None:
        return TryAgain.exit_code  # it is not over, as far as can be told
    if view.outcome is Outcome.UNKNOWN or view.published:
        return EXIT_CODES[view.outcome]
    if never_published(view):
        return CaptureFailed.exit_code
    if not had_targets(view):
        if view.outcome is Outcome.FAILED:
            return nobody(view).exit_code
        cancelled = view.outcome is Outcome.CANCELLED
        return (CaptureCancelled if cancelled else CaptureFailed).exit_code  # there is no success without a trace
    return TryAgain.exit_code


def had_targets(view: CaptureView) -> bool:
    """False for a capture that ended without any: no worker was there to be asked, or it was cancelled before. Such a
    capture has no manifest and never will."""
    return view.expected > 0


def nobody(view: CaptureView) -> type[SameshotError]:
    """Of a capture that FAILED without targets: the error that says why. JobEnded and NotArmed only where every node
    said so; plain NoSuchJob where an older coordinator tells no reason, and what it means is not known."""
    why = view.nobody
    if why is None and view.converged_at_ns is None:
        why = Nobody.BROKEN  # it never came to an end of its own: older coordinators show it by this alone
    return _NOBODY[why]


def never_published(view: CaptureView) -> bool:
    """The capture has ended with targets, and its coordinator has given up publishing it for good: there is no place
    where its manifest will be. Nothing is to be waited for, and the same key gives the same capture."""
    return view.state.terminal and had_targets(view) and not view.published and not view.manifest_uri


def missing(view: CaptureView, limit: int = TEXT_LIMIT) -> str:
    """The ranks without a verified trace; targets by their id where no rank is known. Bounded."""
    lost = _lost(view)
    ranks = ranges((each.identity.rank for each in lost if each.identity.rank is not None), limit)
    others = [each.target_id for each in lost if each.identity.rank is None]
    return shortened(", ".join(filter(None, (ranks, *others))), limit)


def _partial(view: CaptureView, min_ranks: int | None) -> Verdict:
    said = _missing_in_words(view)
    if min_ranks is None:
        return Verdict(PartialCapture.exit_code, said)
    if view.archived < min_ranks:
        have = f"{view.archived} verified traces are fewer than the {min_ranks} asked for. "
        return Verdict(PartialCapture.exit_code, shortened(have + said))
    narrow = _narrow_window(view)
    warning = f"{shortened(said, TEXT_LIMIT - len(narrow) - 1)} {narrow}" if narrow else said
    return Verdict(0, f"{view.archived} of {view.expected} ranks have a verified trace.", warning)


def _all_there(view: CaptureView) -> str:
    return f"All {view.expected} ranks of {view.job.name} have a verified trace."


def _narrow_window(view: CaptureView) -> str:
    """A capture in which the ranks hardly overlap is complete, and yet worth a warning."""
    if view.common_window_ns is None or view.common_window_ns * 2 >= view.spec.duration_ms * 1_000_000:
        return ""
    return (
        f"The traces have only {view.common_window_ns / 1e6:.0f} ms of {view.spec.duration_ms} ms in common; "
        "findings across ranks are weak, or off."
    )


def _why_not(view: CaptureView, code: int) -> str:
    if view.outcome is None:
        return f"Capture {view.capture_id} is {view.state.value}: it has not ended. {view.note}".strip()
    if view.outcome is Outcome.FAILED and not had_targets(view):
        return f"Nothing was captured of {view.job.name}: {view.note or 'no worker of it was there to be asked.'}"
    if never_published(view):
        kept = f"{view.archived} of {view.expected} traces are archived"
        return (
            f"Capture {view.capture_id} ended as {view.state.value}, {kept}, and no manifest of it will ever be "
            f"published: {view.note or 'its coordinator does not say why'}"
        )
    if code == TryAgain.exit_code:
        return (
            f"Capture {view.capture_id} ended as {view.state.value}, and its manifest is not published: "
            f"{view.note or 'no agent answers'}"
        )
    if view.outcome is Outcome.UNKNOWN:
        return view.note or f"Capture {view.capture_id} is known to no coordinator and not to the archive."
    if view.outcome is Outcome.CANCELLED:
        kept = f"{view.archived} of {view.expected} traces are kept" if view.archived else "no trace is kept"
        return f"Capture {view.capture_id} was cancelled; {kept}. {view.withdrawn}".strip()
    return _missing_in_words(view)


def _missing_in_words(view: CaptureView) -> str:
    """All missing ranks as ranges, and of the first few the reason."""
    lost = _lost(view)
    text = (
        f"{view.expected - view.archived} of {view.expected} ranks of {view.job.name} have no verified trace: "
        f"{missing(view, _LONGEST_LIST)}."
    )
    reasons = [_reason(each) for each in lost[:_IN_WORDS]]
    if more := len(lost) - len(reasons):
        reasons.append(f"{more} more in the manifest")
    return shortened(f"{text} {'; '.join(reasons)}." if lost else text)


def _reason(fact: TargetFact) -> str:
    rank = fact.target_id if fact.identity.rank is None else f"rank {fact.identity.rank}"
    if fact.failure is None:
        return f"{rank}: {fact.state.name}"
    return f"{rank}: {shortened(f'{fact.failure.reason.value}, {fact.failure.detail}', _LONGEST_REASON).rstrip('.')}"


def _lost(view: CaptureView) -> list[TargetFact]:
    return [each for each in view.targets if each.artifact is None]
