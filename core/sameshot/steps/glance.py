"""One look at a capture, for engines that poll: how it stands now, or why nobody can say just now.

    glances = Glances()
    seen = await glances.look(request, capture_id, manifest_uri)      # as often as the engine asks
    if seen.view is not None and is_over(seen.view): …

What `follow` knows from watching without a break, a poll can't: how long the job has been gone already. That alone is
remembered here; a process that was restarted starts to count anew, and loses nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from sameshot.client import CaptureView
from sameshot.errors import NoSuchJob, NotFound, SameshotError, StorageError, TryAgain, UnknownCapture
from sameshot.model import JobRef
from sameshot.steps.follow import ENDED_GRACE_S, archived_as, asked_for, lost, served
from sameshot.steps.lately import Since
from sameshot.steps.preflight import dialled
from sameshot.steps.request import CaptureRequest

ANSWER_S = 3.0
"""So long the coordinator and then the archive may take to answer: engines give a whole poll some ten seconds, and an
answer takes milliseconds."""
LOOK_S = 2 * ANSWER_S + 0.5
"""So long one look takes at most."""
_NAME_S = 0.5  # for what a lost capture's job is called


class Glance(msgspec.Struct, frozen=True):
    """`view` None: nobody could say how it stands, and `trouble` says why. That proves nothing about the capture.

    `sha256` is the manifest's, where it was read for this.
    """

    view: CaptureView | None
    trouble: str = ""
    sha256: str | None = None


class Glances:
    """Looks at captures. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._gone = Since(clock)

    async def look(self, request: CaptureRequest, capture_id: str, manifest_uri: str = "") -> Glance:
        """How the capture of a `pinned` request stands: what its coordinator says, else the manifest in the archive.

        One that neither of them knows is UNKNOWN: lost. Where the job has gone, the archive is given some time before
        that is said. Takes `LOOK_S` at most. Raises what asking again can't mend: Denied, UsageError, ManifestError.
        """
        lost_because = ""
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as client,
            ):
                view = await client.get(capture_id)
        except TimeoutError:
            trouble = f"The coordinator at {request.address} did not answer within {ANSWER_S:g} s."
        except UnknownCapture as error:
            trouble, lost_because = str(error), "Neither the coordinator nor the archive knows"
        except NoSuchJob as error:
            trouble = str(error)
            if self._gone.seconds(capture_id) >= ENDED_GRACE_S:
                lost_because = "The coordinator is gone with its job, and the archive does not know"
        except SameshotError as error:
            # One that is none of our errors was said by a proxy, or by a coordinator that was just being ended.
            if not isinstance(error, TryAgain) and type(error) is not SameshotError:
                raise
            trouble = str(error)
        else:
            self._gone.forget(capture_id)
            return Glance(view)
        if (seen := await _in_archive(capture_id, manifest_uri, trouble)) is not None:
            return seen
        if not lost_because:
            return Glance(None, trouble)
        job = await _name(request)
        return Glance(lost(request, capture_id, job, lost_because, manifest_uri=manifest_uri))


async def _in_archive(capture_id: str, manifest_uri: str, trouble: str) -> Glance | None:
    """What the archive knows; without a view where it could not say. None: it has nothing, or there is no place to look
    at."""
    if not manifest_uri:
        return None
    try:
        async with asyncio.timeout(ANSWER_S):
            view, sha256 = await archived_as(capture_id, manifest_uri)
    except NotFound:
        return None
    except (StorageError, TimeoutError) as error:
        unsure = str(error) or f"The archive did not answer within {ANSWER_S:g} s."
        return Glance(None, f"{trouble} {unsure}")
    return Glance(view, sha256=sha256)


async def _name(request: CaptureRequest) -> JobRef:
    try:
        async with asyncio.timeout(_NAME_S):
            return await served(request)
    except TimeoutError:
        return asked_for(request)
