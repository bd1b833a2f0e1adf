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
from sameshot.steps.follow import ENDED_GRACE_S, archived, lost, served
from sameshot.steps.preflight import dialled
from sameshot.steps.request import CaptureRequest

ANSWER_S = 5.0
"""So long one look may take for each of the two whom it asks: engines give a poll some ten seconds."""
_MOST_REMEMBERED = 1000


class Glance(msgspec.Struct, frozen=True):
    """`view` None: nobody could say how it stands, and `trouble` says why. That proves nothing about the capture."""

    view: CaptureView | None
    trouble: str = ""


class Glances:
    """Looks at captures. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._gone_since: dict[str, float] = {}

    async def look(self, request: CaptureRequest, capture_id: str, manifest_uri: str = "") -> Glance:
        """How the capture of a `pinned` request stands: what its coordinator says, else the manifest in the archive.

        One that neither of them knows is UNKNOWN: lost. Where the job has gone, the archive is given some time before
        that is said. Raises what asking again can't mend: Denied, UsageError, ManifestError.
        """
        gone = self._gone_since.pop(capture_id, None)
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                dialled(request.address, caller=request.caller, uid=request.uid) as client,
            ):
                return Glance(await client.get(capture_id))
        except TimeoutError:
            return await _in_archive(capture_id, manifest_uri, f"The coordinator did not answer within {ANSWER_S:g} s.")
        except UnknownCapture as error:
            seen, none = await _looked_up(capture_id, manifest_uri, str(error))
            why = "Neither the coordinator nor the archive knows"
            if not none:
                return seen
            return Glance(lost(request, capture_id, await served(request), why, manifest_uri=manifest_uri))
        except NoSuchJob as error:
            seen, none = await _looked_up(capture_id, manifest_uri, str(error))
            if not none:
                return seen
            self._remember(capture_id, self._clock() if gone is None else gone)
            if self._clock() - self._gone_since[capture_id] < ENDED_GRACE_S:
                return seen
            why = "The coordinator is gone with its job, and the archive does not know"
            return Glance(lost(request, capture_id, await served(request), why, manifest_uri=manifest_uri))
        except SameshotError as error:
            if not isinstance(error, TryAgain) and type(error) is not SameshotError:
                raise
            return await _in_archive(capture_id, manifest_uri, str(error))

    def _remember(self, capture_id: str, since: float) -> None:
        while len(self._gone_since) >= _MOST_REMEMBERED:
            del self._gone_since[next(iter(self._gone_since))]
        self._gone_since[capture_id] = since


async def _in_archive(capture_id: str, manifest_uri: str, trouble: str) -> Glance:
    return (await _looked_up(capture_id, manifest_uri, trouble))[0]


async def _looked_up(capture_id: str, manifest_uri: str, trouble: str) -> tuple[Glance, bool]:
    """What the archive knows; and whether it said that there is nothing, or there is no place to look at."""
    if not manifest_uri:
        return Glance(None, trouble), True
    try:
        async with asyncio.timeout(ANSWER_S):
            return Glance(await archived(capture_id, manifest_uri)), False
    except NotFound:
        return Glance(None, trouble), True
    except (StorageError, TimeoutError) as error:
        unsure = str(error) or f"the archive did not answer within {ANSWER_S:g} s"
        return Glance(None, f"{trouble} {unsure}"), False
