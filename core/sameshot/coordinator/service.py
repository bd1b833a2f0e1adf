"""The coordinator's gRPC face: translation only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

import sameshot
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.door import who_called
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer
from sameshot.api.status import typed, typed_stream
from sameshot.api.views import AgentStatus, CaptureView
from sameshot.coordinator.auth import Caller
from sameshot.coordinator.book import Book
from sameshot.coordinator.config import CoordinatorConfig
from sameshot.coordinator.links import Listing, ask_all
from sameshot.coordinator.plan import Seen, freeze
from sameshot.coordinator.record import CaptureRecord
from sameshot.errors import Denied, InvalidSpec, NoSuchJob, SameshotError
from sameshot.model import CaptureSpec, TargetFact

_log = logging.getLogger(__name__)

# Updates to watchers carry at most this many targets, so that no message of a large job comes near gRPC's limit.
TARGETS_PER_UPDATE = 1000
# A watcher's right is looked at again that often.
CHECK_AGAIN_S = 60.0


class CoordinatorService(CoordinatorServicer):
    """Every call has passed `auth.Doorkeeper`."""

    def __init__(self, config: CoordinatorConfig, book: Book) -> None:
        self._config = config
        self._book = book

    @typed
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        caller = _caller()
        config, book = self._config, self._book
        answer = pb.DescribeResponse(
            series=config.series,
            version=sameshot.__version__,
            backend=config.backend,
            archive=config.archive,
            policy_json=msgspec.json.encode(book.policy()),
            pause_ms=book.pause_ms(),
            unsettled=book.unsettled,
            caller=caller.name,
            retired=book.retirement.words,
        )
        book.roster.links()
        registered, world_size = book.roster.registered()
        if registered is not None:
            answer.registered = registered
        if world_size is not None:
            answer.world_size = world_size
        to_proto(config.job, answer.job)
        return answer

    @typed
    async def Retire(self, request: pb.RetireRequest, context: Any) -> pb.RetireResponse:  # noqa: N802
        caller = _caller()
        self._book.retirement.tell(request.why)
        _log.info("retired by %s: %s", caller.name, self._book.retirement.words)
        return pb.RetireResponse(unsettled=self._book.unsettled)

    @typed
    async def StartCapture(self, request: pb.StartCaptureRequest, context: Any) -> pb.StartCaptureResponse:  # noqa: N802
        caller = _caller()
        self._check_job(request)
        found, created = await self._book.start(
            caller.name,
            _spec(request),
            request.request_key,
            return_failed=request.on_failed == pb.RETURN,
            only_if_free=request.only_if_free,
            family=request.family,
        )
        answer = pb.StartCaptureResponse(created=created)
        to_proto(_view(found), answer.capture)
        return answer

    @typed
    async def GetCapture(self, request: pb.CaptureSelector, context: Any) -> pb.Capture:  # noqa: N802
        return to_proto(_view(await self._find(request)), pb.Capture())

    @typed_stream
    async def WatchCapture(  # noqa: N802
        self, request: pb.CaptureSelector, context: Any
    ) -> AsyncIterator[pb.CaptureUpdate]:
        caller = _caller()
        found = await self._book.find(caller.name, request.capture_id, request.request_key)
        if isinstance(found, CaptureView):
            for update in _updates(found, found.targets, whole=True):
                yield update
            return
        with found.watched() as changed, _checked_again(caller, changed) as denied:
            whole, closed, revision = True, False, 0
            while True:
                changed.clear()
                if denied:
                    raise denied[0]
                if found.targets.closed and not closed:
                    whole = closed = True  # targets that were dispatched but are not in the set have gone
                news = found.targets.since(0 if whole else revision)
                view, revision = found.view(), found.targets.revision
                for update in _updates(view, news, whole=whole):
                    yield update
                if view.state.terminal:
                    return
                whole = False
                await asyncio.sleep(self._config.timings.watch_s)
                await changed.wait()

    @typed
    async def ListCaptures(self, request: pb.ListCapturesRequest, context: Any) -> pb.ListCapturesResponse:  # noqa: N802
        answer = pb.ListCapturesResponse()
        for view in await self._book.captures(unsettled=request.unsettled):
            to_proto(view, answer.captures.add())
        return answer

    @typed
    async def CancelCapture(self, request: pb.CaptureSelector, context: Any) -> pb.Capture:  # noqa: N802
        found = await self._find(request)
        if isinstance(found, CaptureRecord):
            await found.cancel()
        return to_proto(_view(found), pb.Capture())

    @typed
    async def GetManifest(self, request: pb.CaptureSelector, context: Any) -> pb.ManifestResponse:  # noqa: N802
        caller = _caller()
        data, uri = await self._book.manifest(caller.name, request.capture_id, request.request_key)
        return pb.ManifestResponse(manifest=data, uri=uri)

    @typed
    async def ListWorkers(  # noqa: N802
        self, request: pb.ListJobWorkersRequest, context: Any
    ) -> pb.ListJobWorkersResponse:
        links = self._book.roster.links()
        answers = await ask_all(links, lambda link: link.list_workers(self._config.timings.freeze_s))
        answer = pb.ListJobWorkersResponse()
        seen = []
        for link in links:
            found = answers[link.key]
            silent = "" if isinstance(found, Listing) else str(found)
            status = AgentStatus(link.address or link.key, link.node, link.answers, silent)
            to_proto(status, answer.agents.add())
            workers = link.listing.workers if link.listing else None
            unregistered = found.unregistered if isinstance(found, Listing) else ()
            seen.append(Seen(link.key, link.node, workers, silent or None, unregistered))
            for worker in workers or ():
                if silent:
                    worker = msgspec.structs.replace(worker, alive=False, note="its agent does not answer")
                to_proto(worker, answer.workers.add())
        plan = freeze(seen, self._book.roster.pods(), self._book.roster.last_seen)
        to_proto(self._config.job, answer.job)
        answer.generation = plan.generation
        if plan.world_size is not None:
            answer.world_size = plan.world_size
        answer.missing_ranks.extend(plan.missing_ranks)
        return answer

    async def _find(self, request: pb.CaptureSelector) -> CaptureRecord | CaptureView:
        return await self._book.find(_caller().name, request.capture_id, request.request_key)

    def _check_job(self, request: pb.StartCaptureRequest) -> None:
        asked, served = request.job, self._config.job
        if asked.uid and (asked.uid, asked.attempt) != (served.uid, served.attempt):
            raise NoSuchJob(
                f"This coordinator serves {served} (uid {served.uid}), not attempt {asked.attempt} of uid {asked.uid}."
            )


@contextlib.contextmanager
def _checked_again(caller: Caller, changed: asyncio.Event) -> Iterator[list[Denied]]:
    """Whether the caller would still be let in, looked at again and again: what it would be refused with."""
    denied: list[Denied] = []

    async def keep_checking() -> None:
        while not denied:
            await asyncio.sleep(CHECK_AGAIN_S)
            try:
                await caller.check_again()
            except Denied as error:
                denied.append(error)
                changed.set()

    checking = asyncio.create_task(keep_checking())
    try:
        yield denied
    finally:
        checking.cancel()


def _caller() -> Caller:
    caller: Caller | None = who_called()
    assert caller is not None, "a method that is not in auth.Call"
    return caller


def _view(found: CaptureRecord | CaptureView) -> CaptureView:
    return found.view() if isinstance(found, CaptureRecord) else found


def _spec(request: pb.StartCaptureRequest) -> CaptureSpec:
    try:
        return from_proto(request.spec, CaptureSpec)
    except InvalidSpec:
        raise
    except SameshotError as error:
        raise InvalidSpec(f"The capture spec is not valid: {error}") from None


def _updates(view: CaptureView, news: tuple[TargetFact, ...], *, whole: bool) -> list[pb.CaptureUpdate]:
    """A whole snapshot, or what changed; in pieces where it is a lot."""
    bare = msgspec.structs.replace(view, targets=())
    updates = []
    for start in range(0, max(len(news), 1), TARGETS_PER_UPDATE):
        piece = news[start : start + TARGETS_PER_UPDATE]
        update = pb.CaptureUpdate(delta=not whole or start > 0)
        to_proto(bare, update.capture)
        into = update.changed if update.delta else update.capture.targets
        for fact in piece:
            to_proto(fact, into.add())
        updates.append(update)
    return updates
