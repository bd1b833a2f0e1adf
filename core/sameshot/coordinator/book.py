"""The captures of one job attempt: which request is which capture, and what may start.

Idempotency needs no database. The id of a keyed capture is derived from its key, so three places together know every
capture that ever was: this coordinator's memory, the manifests in the archive, and the agents, which persist the ids
that they accepted. An id that only agents know belongs to a capture that was lost with an earlier coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from weakref import WeakValueDictionary

import msgspec

from sameshot.api.views import CaptureView, in_use
from sameshot.coordinator.capture import CaptureRun
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.config import CoordinatorConfig, Policy
from sameshot.coordinator.links import AgentLink, ask_most
from sameshot.coordinator.manifests import Manifests
from sameshot.coordinator.publish import Publisher
from sameshot.coordinator.record import CaptureRecord, Request
from sameshot.coordinator.retirement import Retirement
from sameshot.coordinator.roster import Roster
from sameshot.coordinator.slot import Slot
from sameshot.errors import (
    JobBusy,
    ManifestError,
    RequestKeyConflict,
    TryAgain,
    UnknownCapture,
    Unreachable,
    UsageError,
)
from sameshot.model import CaptureSpec, CaptureState, keyed_capture_id, unkeyed_capture_id
from sameshot.profiler.config import check_spec

_ID = re.compile(r"[0-9a-f]{32}")
_MAX_KEY = 512
_USABLE = (CaptureState.SUCCEEDED, CaptureState.PARTIAL)
# Finished captures beyond this many are forgotten here; the archive still knows those that were published.
_REMEMBERED = 64
# No further capture is accepted while this many wait for their manifest to be published.
_UNPUBLISHED = 64
# Captures are listed from the archive up to this many; beyond, use the archive's own tools.
_LISTED = 200
_CACHED = 1000  # captures that only the archive knows, without their targets


class Book:
    """Implements `capture.Surroundings`."""

    def __init__(
        self,
        config: CoordinatorConfig,
        roster: Roster,
        manifests: Manifests,
        publisher: Publisher,
        clock: Clock,
        *,
        policy: Policy,
        retirement: Retirement,
    ) -> None:
        self.job = config.job
        self.series = config.series
        self.backend = config.backend.value
        self.clock = clock
        self.timings = config.timings
        self.roster = roster
        self.publisher = publisher
        self.slot: Slot[CaptureRecord] = Slot()
        self.policy = policy
        self.retirement = retirement
        self._manifests = manifests
        self._records: dict[str, CaptureRecord] = {}  # in the order of acceptance
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._archived: dict[str, CaptureView] = {}  # without targets; a published manifest never changes
        self._last_accepted: float | None = None
        self._key_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def start(
        self,
        caller: str,
        spec: CaptureSpec,
        request_key: str,
        *,
        return_failed: bool,
        only_if_free: bool = False,
        family: str = "",
    ) -> tuple[CaptureRecord | CaptureView, bool]:
        """The capture of this request, and whether it is a new one. A retired coordinator begins none.

        `only_if_free`: none is begun, and JobBusy is raised, while a capture runs or waits that is neither of this key
        nor one of this caller's whose keys begin with `family`.

        Raises RequestKeyConflict, PolicyRefused, JobBusy, what a `Retirement` says, Unreachable while it is not known
        where the job's workers are, or StorageError where the archive can't say whether the key is known.
        """
        if not request_key:
            capture_id = unkeyed_capture_id(self.clock.wall_ns(), os.urandom(10))
            request = Request(capture_id=capture_id, caller=caller, request_key="", n=1, spec=spec)
            return self._begin(request, None, only_if_free=only_if_free), True
        _check_key(request_key)
        if not request_key.startswith(family):
            raise UsageError(f"The request key {request_key!r} does not begin with its family, {family!r}.")
        async with self._key_locks.setdefault((caller, request_key), asyncio.Lock()):
            newest, n, strangers = await self._newest(caller, request_key)
            if newest is not None:
                _same_spec(newest, spec, request_key)
                if not newest.state.terminal or newest.state in _USABLE or return_failed:
                    return self._records.get(newest.capture_id) or await self._full(newest), False
            capture_id = keyed_capture_id(self.job, caller, request_key, n)
            request = Request(capture_id=capture_id, caller=caller, request_key=request_key, n=n, spec=spec)
            return self._begin(request, strangers, only_if_free=only_if_free, family=family), True

    async def find(self, caller: str, capture_id: str, request_key: str) -> CaptureRecord | CaptureView:
        """By id, or by the caller's own request key (then its newest capture). Raises UnknownCapture."""
        if request_key and not capture_id:
            _check_key(request_key)
            known, _, _ = await self._newest(caller, request_key)
            if known is None:
                raise UnknownCapture(f"No capture of {self.job} has the request key {request_key!r} of {caller}.")
            if known.state is CaptureState.UNKNOWN:
                raise UnknownCapture(f"{known.note} Its id is {known.capture_id}.")
            return self._records.get(known.capture_id) or await self._full(known)
        if not _ID.fullmatch(capture_id):
            raise UsageError(f"{capture_id[:80]!r} is no capture id; it has 32 hex digits. Or give a request key.")
        if capture_id in self._records:
            return self._records[capture_id]
        view = await self._manifests.view(capture_id)
        if view is None:
            raise UnknownCapture(
                f"Capture {capture_id} is UNKNOWN: this coordinator of {self.job} never owned it, and the archive has "
                "no manifest of it. If it ran before the coordinator was restarted it is lost; what its agents "
                "archived is still there."
            )
        return view

    async def manifest(self, caller: str, capture_id: str, request_key: str) -> tuple[bytes, str]:
        """The published bytes. Raises TryAgain while there is none yet, UnknownCapture where there never will be."""
        found = await self.find(caller, capture_id, request_key)
        view = found.view(targets=False) if isinstance(found, CaptureRecord) else found
        if not view.published:
            if view.state.terminal and not view.expected:
                raise UnknownCapture(
                    f"Capture {view.capture_id} ended without targets, so without manifest: {view.note}"
                )
            raise TryAgain(f"Capture {view.capture_id} is {view.state} and has no published manifest yet. {view.note}")
        data = await self._manifests.read(view.capture_id)
        if data is None:
            raise UnknownCapture(f"The manifest of capture {view.capture_id} is gone from {view.manifest_uri}.")
        return data, view.manifest_uri

    async def captures(self, *, unsettled: bool = False) -> list[CaptureView]:
        """All of them, newest first, without targets; `unsettled`: only what runs or has yet to be published.

        The latter needs no look into the archive, which may be away, or not be listable with our credentials.
        """
        if unsettled:
            worked_on = [record for each, record in self._records.items() if not self._tasks[each].done()]
            return [record.view(targets=False) for record in reversed(worked_on)]
        running = [record.view(targets=False) for record in reversed(self._records.values())]
        several = asyncio.Semaphore(16)

        async def read(capture_id: str) -> CaptureView | None:
            async with several:
                with contextlib.suppress(ManifestError):
                    return await self._from_archive(capture_id)
                return None

        ids = [
            each for each in await self._manifests.capture_ids() if each not in self._records and _ID.fullmatch(each)
        ]
        older = [view for view in await asyncio.gather(*map(read, ids[-_LISTED:])) if view is not None]
        return running + sorted(older, key=lambda view: -(view.converged_at_ns or 0))

    @property
    def unsettled(self) -> int:
        """Captures that are still worked on: running, or to be published."""
        return sum(not task.done() for task in list(self._tasks.values()))  # metrics ask in a thread of their own

    def records(self) -> list[CaptureRecord]:
        """Those in memory, in the order of acceptance."""
        return list(self._records.values())

    def pause_ms(self) -> int:
        """How long the policy's interval still lets no new capture begin."""
        return self.policy().pause_ms(self._since_last_ms())

    async def close(self) -> None:
        """Stop everything at once; unfinished captures are lost by design."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ---- starting

    def _begin(
        self, request: Request, strangers: frozenset[str] | None, *, only_if_free: bool, family: str = ""
    ) -> CaptureRecord:
        """All that could refuse it is looked at and the capture entered without giving way in between (no await): so of
        many that start together each sees those that got through before it."""
        if (refusal := self.retirement.refusal()) is not None:
            raise refusal
        if trouble := self.roster.trouble:
            raise Unreachable(f"{trouble} So no worker of {self.job} is known, and nothing was started; try again.")
        check_spec(request.spec)
        policy = self.policy()
        policy.check(request.spec)
        unfinished = [record for record in reversed(self._records.values()) if not record.settled.is_set()]
        if only_if_free and (others := [each for each in unfinished if not _is_kin(request, family, each.request)]):
            raise JobBusy(in_use(self.job.name, [each.view(targets=False) for each in others]))
        policy.check_now(unfinished=len(unfinished), since_last_ms=self._since_last_ms())
        self._check_publishing()
        self._last_accepted = self.clock.monotonic()
        record = CaptureRecord(
            request,
            job=self.job,
            series=self.series,
            backend=self.backend,
            accepted_at_ns=self.clock.wall_ns(),
            manifest_uri=self._manifests.uri(request.capture_id),
        )
        run = CaptureRun(record, self, strangers)
        self._records[record.capture_id] = record
        self._tasks[record.capture_id] = asyncio.create_task(run.run(), name=f"capture {record.capture_id}")
        self._forget_old()
        return record

    def _since_last_ms(self) -> int | None:
        return None if self._last_accepted is None else int((self.clock.monotonic() - self._last_accepted) * 1000)

    def _check_publishing(self) -> None:
        """Each ended capture keeps its facts until its manifest is out: without end that would be all our memory."""
        waiting = sum(record.ended.is_set() and not self._tasks[each].done() for each, record in self._records.items())
        if waiting >= _UNPUBLISHED:
            raise TryAgain(
                f"{waiting} captures of {self.job} have ended and could not be published yet; see the note of the last "
                "one. When the archive or the agents are back they are published, and new ones accepted."
            )

    def _forget_old(self) -> None:
        """Only of captures that nobody works on any more: published, without targets, or impossible to publish."""
        done = [each for each, task in self._tasks.items() if task.done()]
        for each in done[:-_REMEMBERED]:
            del self._records[each], self._tasks[each]
        for each in list(self._archived)[:-_CACHED]:
            del self._archived[each]

    # ---- request keys

    async def _newest(self, caller: str, request_key: str) -> tuple[CaptureView | None, int, frozenset[str]]:
        """The newest capture of a key that anybody knows (a usable one ends the search), the next n that nobody
        knows, and the agents that said so."""
        newest: CaptureView | None = None
        for record in self._records.values():
            if (record.request.caller, record.request.request_key) == (caller, request_key):
                newest = record.view(targets=False)
        while newest is None or (newest.state.terminal and newest.state not in _USABLE):
            n = newest.n + 1 if newest else 1
            view, strangers = await self._anywhere(caller, request_key, n)
            if view is None:
                return newest, n, strangers
            newest = view
        return newest, newest.n + 1, frozenset()

    async def _anywhere(self, caller: str, request_key: str, n: int) -> tuple[CaptureView | None, frozenset[str]]:
        """What the archive or, failing that, the agents know of the n-th capture of a key."""
        capture_id = keyed_capture_id(self.job, caller, request_key, n)
        view = await self._from_archive(capture_id)
        if view is not None:
            return view, frozenset()
        # Only agents that answered last time are waited for; any other is asked again before it is dispatched.
        asked = [
            each for each in self.roster.links() if each.answers or (each.answered_at is None and not each.trouble)
        ]
        answers = await ask_most(asked, lambda link: self._knows(link, capture_id))
        if any(answers.values()):
            return self._lost(capture_id, caller, request_key, n), frozenset()
        return None, frozenset(answers)

    async def _knows(self, link: AgentLink, capture_id: str) -> bool:
        return bool(await link.known_captures([capture_id], self.timings.lookup_s))

    def _lost(self, capture_id: str, caller: str, request_key: str, n: int) -> CaptureView:
        return CaptureView(
            capture_id=capture_id,
            job=self.job,
            series=self.series,
            caller=caller,
            request_key=request_key,
            n=n,
            state=CaptureState.UNKNOWN,
            note="Agents have accepted this capture, but it was lost with an earlier coordinator before it converged.",
            backend=self.backend,
            manifest_uri=self._manifests.uri(capture_id),
        )

    async def _from_archive(self, capture_id: str) -> CaptureView | None:
        """Without targets."""
        if capture_id not in self._archived:
            view = await self._manifests.view(capture_id)
            if view is None:
                return None
            self._archived[capture_id] = _bare(view)
        return self._archived[capture_id]

    async def _full(self, view: CaptureView) -> CaptureView:
        """With targets, where the archive has them."""
        return (await self._manifests.view(view.capture_id) or view) if view.published else view


def _bare(view: CaptureView) -> CaptureView:
    return msgspec.structs.replace(view, targets=())


def _check_key(request_key: str) -> None:
    if len(request_key.encode()) > _MAX_KEY or not request_key.isprintable():
        raise UsageError(f"A request key has at most {_MAX_KEY} bytes of printable text.")


def _is_kin(request: Request, family: str, other: Request) -> bool:
    """The other one was asked for by the same task: under the same key, or under one of its family."""
    same = other.request_key.startswith(family) if family else other.request_key == request.request_key
    return bool(request.request_key) and other.caller == request.caller and same


def _same_spec(known: CaptureView, spec: CaptureSpec, request_key: str) -> None:
    """Of a lost capture the spec is not known, so nothing can conflict."""
    if known.state is not CaptureState.UNKNOWN and known.spec.digest != spec.digest:
        raise RequestKeyConflict(
            f"The request key {request_key!r} belongs to capture {known.capture_id}, which has another spec; use "
            "another key for another spec."
        )
