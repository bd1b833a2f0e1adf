"""Publishing a manifest through a healthy agent: only agents may write to the archive.

The bytes are made once and offered again and again, so an attempt whose answer was lost is recognised as our own. A
different manifest under that name is never overwritten: the capture then ends without a published one and says whose
stands there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from sameshot import manifest
from sameshot.api.views import CaptureView
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import Timings
from sameshot.coordinator.links import AgentLink, Roster
from sameshot.coordinator.receipt import Receipts, receipt_of
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
    def __init__(self, roster: Roster, receipts: Receipts, clock: Clock, timings: Timings) -> None:
        self._roster = roster
        self._receipts = receipts
        self._clock = clock
        self._timings = timings

    def uri(self, capture_id: str) -> str:
        return self._receipts.uri(capture_id)

    async def publish(self, final: CaptureView) -> AsyncIterator[Progress]:
        """Yields once the outcome may be told: published, impossible, or not yet (then goes on, and yields again)."""
        try:
            data = receipt_of(final)
        except ManifestError as error:
            yield Progress(False, True, note=f"No manifest can be published, the facts contradict each other: {error}")
            return
        give_up_at = self._clock.monotonic() + self._timings.publish_within_s
        told = False
        while True:
            progress = await self._round(final, data)
            if progress.over:
                yield progress
                return
            if not told and self._clock.monotonic() >= give_up_at:
                told = True
                yield progress
            await self._clock.sleep(self._timings.publish_retry_s if told else self._timings.poll_s)

    async def _round(self, final: CaptureView, data: bytes) -> Progress:
        trouble = "no agent is known"
        for link in sorted(self._roster.links(), key=_most_recent)[:_TRIED_PER_ROUND]:
            try:
                uri = await link.publish(final.capture_id, data, self._timings.publish_call_s)
            except AlreadyExists as error:
                return Progress(False, True, note=await self._whose(final, error))
            except SameshotError as error:
                trouble = str(error)
            else:
                return Progress(True, True, uri=uri or self.uri(final.capture_id))
        return Progress(
            False,
            False,
            note=f"The manifest is not published yet, and this is tried again while the coordinator lives: {trouble}",
        )

    async def _whose(self, final: CaptureView, error: AlreadyExists) -> str:
        uri = self.uri(final.capture_id)
        try:
            there = await self._receipts.read(final.capture_id)
            read = manifest.decode(there) if there is not None else None
        except SameshotError as unreadable:
            return f"Another manifest stands at {uri} and was not overwritten; it can't be read: {unreadable}"
        if read is None:
            return f"Another manifest was met and not overwritten: {error}"
        return (
            f"Another manifest stands at {uri} and was not overwritten: a capture by {read.capture.caller} that "
            f"converged at {read.capture.converged_at} as {read.capture.outcome}."
        )


def _most_recent(link: AgentLink) -> tuple[bool, float]:
    return not link.answers, -(link.answered_at or 0.0)
