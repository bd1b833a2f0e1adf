"""One capture as it is known now: what was asked for, how far it has come, and who is woken when that changes.

`capture.CaptureRun` writes it; watchers, the book and the service read it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import msgspec

from sameshot import states
from sameshot.api.views import CaptureView
from sameshot.coordinator.plan import Frozen
from sameshot.coordinator.targets import TargetSet
from sameshot.model import CaptureSpec, CaptureState, JobRef, Nobody


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, and under which id. Without a request key `n` is 1."""

    capture_id: str
    caller: str
    request_key: str
    n: int
    spec: CaptureSpec


class CaptureRecord:
    def __init__(
        self, request: Request, *, job: JobRef, series: str, backend: str, accepted_at_ns: int, manifest_uri: str
    ) -> None:
        self.request = request
        self.targets = TargetSet()
        self.accepted_at_ns = accepted_at_ns
        self.start_at_ns: int | None = None
        self.frozen: Frozen | None = None
        self.frozen_at_ns: int | None = None
        self.converged_at_ns: int | None = None
        self.common_window_ns: int | None = None
        self.nobody: Nobody | None = None  # why it ended without targets
        self.published = False
        self.manifest_uri = manifest_uri
        self.cancelled = False  # a cancel was accepted
        self.withdrawn = ""  # what it really did
        self.settled = asyncio.Event()  # converged; only the manifest may still be on its way
        self.ended = asyncio.Event()  # the outcome stands
        self.news = asyncio.Event()  # for whoever runs the capture: look again
        self._job = job
        self._series = series
        self._backend = backend
        self._state = CaptureState.WAITING
        self._note = ""
        self._watchers: set[asyncio.Event] = set()

    @property
    def capture_id(self) -> str:
        return self.request.capture_id

    @property
    def state(self) -> CaptureState:
        return self._state

    @property
    def note(self) -> str:
        return self._note

    def view(self, *, targets: bool = True) -> CaptureView:
        facts = self.targets.facts
        return CaptureView(
            capture_id=self.request.capture_id,
            job=self._job,
            series=self._series,
            caller=self.request.caller,
            request_key=self.request.request_key,
            n=self.request.n,
            spec=self.request.spec,
            state=self._state,
            note=self._note,
            backend=self._backend,
            world_size=self.frozen.world_size if self.frozen else None,
            generation=self.frozen.generation if self.frozen else "",
            accepted_at_ns=self.accepted_at_ns,
            start_at_ns=self.start_at_ns,
            common_window_ns=self.common_window_ns,
            frozen_at_ns=self.frozen_at_ns,
            converged_at_ns=self.converged_at_ns,
            published=self.published,
            manifest_uri=self.manifest_uri,
            cancel_requested=self.cancelled,
            withdrawn=self.withdrawn,
            expected=len(facts),
            archived=sum(fact.artifact is not None for fact in facts),
            failed=sum(fact.failure is not None for fact in facts),
            targets=facts if targets else (),
            nobody=self.nobody,
        )

    async def cancel(self) -> None:
        """Ask for the end; returns once the capture has ended. Changes nothing after convergence."""
        if not self.settled.is_set():
            self.cancelled = True
            self.changed()
        await self.ended.wait()

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set at every change, for as long as the block lasts."""
        event = asyncio.Event()
        self._watchers.add(event)
        try:
            yield event
        finally:
            self._watchers.discard(event)

    # ---- news

    def move(self, state: CaptureState) -> None:
        """Never back, and never out of a terminal state."""
        moved = states.advance(self._state, state)
        if moved is not self._state:
            self._state = moved
            self.changed()
            if moved.terminal:
                self.ended.set()

    def say(self, note: str) -> None:
        if note != self._note:
            self._note = note
            self.changed()

    def changed(self) -> None:
        self.news.set()
        for watcher in self._watchers:
            watcher.set()
