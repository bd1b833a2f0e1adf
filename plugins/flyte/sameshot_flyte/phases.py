"""From the state of a capture to the phase of a Flyte task: the one table, for both generations of Flyte. Pure.

Names and meaning of the phases are those of `flyteidl.core.TaskExecution.Phase`, which flyteidl2 kept:
RETRYABLE_FAILED is tried again as often as the task's `retries` say, FAILED is not. ABORTED is never said, not even of
a cancelled capture: both back ends make a FAILED of it and drop our message (flyteplugins, webapi/connector/plugin.go,
`Status`, in flyte 1.16.8 and 2.0.43). They show messages of phases before RUNNING and of failures, none of RUNNING.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from sameshot.model import CaptureState
from sameshot.steps.contract import retryable
from sameshot.steps.results import CaptureResult


class Phase(enum.StrEnum):
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    QUEUED = "QUEUED"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    RETRYABLE_FAILED = "RETRYABLE_FAILED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"

    @property
    def terminal(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.RETRYABLE_FAILED, Phase.FAILED, Phase.ABORTED)


UNDER_WAY: Mapping[CaptureState, Phase] = {
    CaptureState.WAITING: Phase.QUEUED,
    CaptureState.DISPATCHING: Phase.INITIALIZING,
    CaptureState.COLLECTING: Phase.RUNNING,
    CaptureState.PUBLISHING: Phase.RUNNING,
    # Ended, and yet not over: what was not published is not proven.
    CaptureState.SUCCEEDED: Phase.RUNNING,
    CaptureState.PARTIAL: Phase.RUNNING,
    CaptureState.FAILED: Phase.RUNNING,
    CaptureState.CANCELLED: Phase.RUNNING,
    CaptureState.UNKNOWN: Phase.RUNNING,
}
"""Of a capture that is not over (`steps.follow.is_over`)."""
NOT_BEGUN = Phase.WAITING_FOR_RESOURCES
"""What the request wants to wait for stands in the way."""


def ended(result: CaptureResult) -> Phase:
    """Of a capture that is over, judged (so `min_ranks` is in it). Skipped as asked for is a success, somebody's cancel
    a failure that is not tried again."""
    if result.exit_code == 0:
        return Phase.SUCCEEDED
    if result.timed_out:  # it was we who cancelled: another attempt may have the time
        return Phase.RETRYABLE_FAILED
    return refused(result.exit_code)


def refused(exit_code: int) -> Phase:
    """Of a capture that was never begun, or can't be followed, by the exit code of the error."""
    return Phase.RETRYABLE_FAILED if retryable(exit_code) else Phase.FAILED
