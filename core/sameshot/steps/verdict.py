"""Is this capture good enough? One answer for the command line and for every engine. Pure.

Only what was proven counts: a capture whose manifest is not in the archive is not over, whatever its state says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sameshot.errors import CaptureCancelled, CaptureFailed, NoSuchJob, PartialCapture, TryAgain, UnknownCapture
from sameshot.model import Outcome

if TYPE_CHECKING:  # the client brings grpc, and a verdict needs none
    from sameshot.client import CaptureView

EXIT_CODES = {
    Outcome.SUCCEEDED: 0,
    Outcome.PARTIAL: PartialCapture.exit_code,
    Outcome.FAILED: CaptureFailed.exit_code,
    Outcome.UNKNOWN: UnknownCapture.exit_code,
    Outcome.CANCELLED: CaptureCancelled.exit_code,
}


class Verdict(msgspec.Struct, frozen=True):
    """`exit_code` 0: go on, with `warning` where something is missing all the same."""

    exit_code: int
    message: str
    warning: str = ""


def exit_code(view: CaptureView) -> int:
    """0 only for a fully successful capture whose manifest really is in the archive."""
    if view.outcome is None:
        return TryAgain.exit_code  # it is not over, as far as can be told
    if view.outcome is Outcome.UNKNOWN or view.published:
        return EXIT_CODES[view.outcome]
    if not had_targets(view):
        return NoSuchJob.exit_code if view.outcome is Outcome.FAILED else EXIT_CODES[view.outcome]
    return TryAgain.exit_code


def had_targets(view: CaptureView) -> bool:
    """False for a capture that ended without any: no worker was there to be asked, or it was cancelled before. Such a
    capture has no manifest and never will."""
    return view.expected > 0
