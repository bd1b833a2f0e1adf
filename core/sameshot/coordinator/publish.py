"""Publishing a manifest through a healthy agent: only agents may write to the archive.

The bytes are made once and offered again and again, so an attempt whose answer was lost is recognised as our own. A
different manifest under that name is never overwritten: the capture then ends without a published one and says whose
stands there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from sameshot import manifest
from sameshot.api.views import CaptureView
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import Timings
from sameshot.coordinator.links import AgentLink
from sameshot.coordinator.manifests import Manifests, manifest_of
from sameshot.coordinator.roster import Roster
from sameshot.errors import AlreadyExists, ManifestError, SameshotError

# In one round only this many agents are tried, those first that answered last.
_TRIED_PER_ROUND = 8


class Progress(msgspec.Struct, frozen=True):
    """The capture may end now, and this is what became of its manifest. Not `over`: we go on trying."""

    published: bool
    over: bool
    uri: str = ""
    note: str = ""


class Publisher:
    def __init__(self, roster: Roster, manifests: Manifests, clock: Clock, timings: Timings) -> None:
        self._roster = roster
        self._manifests = manifests
        self._clock = clock
        self._timings = timings

    def uri(self, capture_id: str) -> str:
        return self._manifests.uri(capture_id)

    async def publish(self, final: CaptureView) -> AsyncIterator[Progress]:
        """Yields once the outcome may be told: published, impossible, or not yet (then goes on, and yields again)."""
        try:
            data = manifest_of(final)
        except ManifestError as error:
            yield Progress(False, True, note=f"No manifest can be published, the facts contradict each other: {error}")
            return
        timings = self._timings
        give_up_at = self._clock.monotonic() + timings.publish_within_s
        told = False
        progress = _not_yet(["no agent has answered yet"])
        while True:
            ends_at = self._clock.monotonic() + timings.publish_call_s if told else give_up_at
            progress = await self._round(final, data, ends_at) or progress
            if progress.over:
                yield progress
                return
            if not told and self._clock.monotonic() + timings.poll_s >= give_up_at:
                told = True
                yield progress
            await self._clock.sleep(timings.publish_retry_s if told else timings.poll_s)

    async def _round(self, final: CaptureView, data: bytes, ends_at: float) -> Progress | None:
        """Offer it to one agent after the other, the next one as soon as one fails or takes long.

        Whoever is asked goes on meanwhile: the put is conditional, so it does no harm when two of them get through.
        None: the time was over before silence could mean anything, so nothing new is known.
        """
        began = self._clock.monotonic()
        waiting = sorted(self._roster.known(), key=_most_recent)[:_TRIED_PER_ROUND]
        asked: set[asyncio.Task[str]] = set()
        troubles = [] if waiting else ["no agent is known"]
        try:
            while waiting or asked:
                left_s = ends_at - self._clock.monotonic()
                if left_s <= 0:
                    if ends_at - began < self._timings.publish_stagger_s:
                        return None
                    troubles.append(f"{len(asked)} agents do not answer")
                    break
                if waiting:
                    offer = waiting.pop(0).publish(final.capture_id, data, self._timings.publish_call_s)
                    asked.add(asyncio.create_task(offer))
                    left_s = min(left_s, self._timings.publish_stagger_s) if waiting else left_s
                for answer in await self._answers(asked, left_s):
                    asked.discard(answer)
                    try:
                        return Progress(True, True, uri=answer.result() or self.uri(final.capture_id))
                    except AlreadyExists as error:
                        return Progress(False, True, note=await self._whose(final, error))
                    except SameshotError as error:
                        troubles.append(str(error))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return _not_yet(troubles)

    async def _answers(self, asked: set[asyncio.Task[str]], at_most_s: float) -> set[asyncio.Task[str]]:
        """Those that have answered, as soon as one has; none after the time."""
        passing = asyncio.create_task(self._clock.sleep(at_most_s))
        try:
            await asyncio.wait({*asked, passing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()
        return {each for each in asked if each.done()}

    async def _whose(self, final: CaptureView, error: AlreadyExists) -> str:
        uri = self.uri(final.capture_id)
        try:
            there = await self._manifests.read(final.capture_id)
            read = manifest.decode(there) if there is not None else None
        except SameshotError as unreadable:
            return f"Another manifest stands at {uri} and was not overwritten; it can't be read: {unreadable}"
        if read is None:
            return f"Another manifest was met and not overwritten: {error}"
        return (
            f"Another manifest stands at {uri} and was not overwritten: a capture by {read.capture.caller} that "
            f"converged at {read.capture.converged_at} as {read.capture.outcome}."
        )


def _not_yet(troubles: list[str]) -> Progress:
    why = "; ".join(dict.fromkeys(each.rstrip(".") for each in troubles))
    note = f"The manifest is not published yet, and this is tried again while the coordinator lives: {why}."
    return Progress(False, False, note=note)


def _most_recent(link: AgentLink) -> tuple[bool, float]:
    return not link.answers, -(link.answered_at or 0.0)
