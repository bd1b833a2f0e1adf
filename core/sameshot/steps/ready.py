"""Is a job ready to be captured as a whole: armed, free for this request, and every rank registered?

The preflight asks less, on purpose: a capture of a job with a rank missing is worth having, and says which. Sensors ask
this, before a capture that is to be of all ranks.
"""

from __future__ import annotations

from sameshot.client import WorkersView
from sameshot.errors import DeadlinePassed, NoSuchJob, TryAgain
from sameshot.steps.preflight import Say, check, dialled, pauses
from sameshot.steps.request import CaptureRequest
from sameshot.steps.results import ranges


async def not_ready(request: CaptureRequest, *, all_ranks: bool = True) -> str:
    """Why a capture would not be of the whole job now, in a sentence; empty when it would. Only what waiting may mend:
    raises UsageError, Denied."""
    try:
        async with dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client:
            await check(client, request)
            return _incomplete(await client.workers()) if all_ranks else ""
    except (NoSuchJob, TryAgain) as error:
        return str(error)


async def wait_until_ready(
    request: CaptureRequest, deadline_s: float, say: Say | None = None, *, all_ranks: bool = True
) -> None:
    """Returns as soon as `not_ready` finds nothing. Raises DeadlinePassed with what it found last at `deadline_s`
    (absolute, seconds since the epoch)."""
    said = why = ""
    async for _ in pauses(deadline_s):
        why = await not_ready(request, all_ranks=all_ranks)
        if not why:
            return
        if say is not None and why != said:
            said = why
            say(f"waiting: {why}")
    raise DeadlinePassed(f"The job was not ready in time. {why}")


def _incomplete(view: WorkersView) -> str:
    job = view.job.name
    if view.world_size is None:
        return f"How many ranks job {job} has is not known yet: none of its workers has joined its process group."
    if view.missing_ranks:
        return (
            f"{len(view.missing_ranks)} of {view.world_size} ranks of job {job} are not registered: "
            f"{ranges(view.missing_ranks, 80)}."
        )
    return ""
