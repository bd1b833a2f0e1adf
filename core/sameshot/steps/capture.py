"""The capture step: one request becomes one capture, waited for, judged, and told in a small result.

    result = capture(request)                  # all of it; engines that wait in their own way use its parts:
                                               # `begin`, `follow`, and `finish` or its `result_of`
    accept(result)                             # raises unless it is good enough

Nothing here cancels a capture but the deadline: whoever is cancelled, killed or restarted begins again with the same
request key and finds the capture that runs or has run.
"""

from __future__ import annotations

import time

from sameshot.client import CaptureView
from sameshot.errors import DeadlinePassed, JobBusy, NoSuchJob, of_exit_code
from sameshot.steps.begin import begin_when_clear, pinned
from sameshot.steps.finish import finish, give_up, skipped
from sameshot.steps.follow import Seen
from sameshot.steps.preflight import Say, action_for
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult
from sameshot.steps.store import wait


async def run(request: CaptureRequest, progress: Say | None = None, seen: Seen | None = None) -> CaptureResult:
    """Start (or find) the capture, wait for it, judge it. However it ended is told in the result.

    Raises what kept it from being started, unless the request wants that skipped; whoever cancels the coroutine leaves
    the capture running. `seen` is called with each view of it.
    """
    deadline = time.time() + request.timeout_s
    try:
        view = await begin_when_clear(request, deadline=deadline, progress=progress, seen=seen)
    except (NoSuchJob, JobBusy) as error:
        if action_for(request, error) is Action.SKIP:
            return skipped(request, error)
        raise
    except DeadlinePassed as passed:
        late: CaptureView = passed.view
        return await give_up(pinned(request, late), late.capture_id, late.manifest_uri, passed, progress, deadline)
    return await finish(
        pinned(request, view),
        view.capture_id,
        manifest_uri=view.manifest_uri,
        deadline=deadline,
        progress=progress,
        seen=seen,
    )


def capture(request: CaptureRequest, progress: Say | None = None, seen: Seen | None = None) -> CaptureResult:
    """`run` for callers without an event loop."""
    return wait(run(request, progress, seen))


def accept(result: CaptureResult) -> CaptureResult:
    """The result, if the step is content with it; else raises the error of its exit code, with its message."""
    if result.exit_code == 0:
        return result
    raise of_exit_code(result.exit_code)(result.message)
