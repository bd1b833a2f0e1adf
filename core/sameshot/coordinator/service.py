"""The coordinator's gRPC face: translation only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

import sameshot
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer
from sameshot.api.status import typed, typed_stream
from sameshot.api.views import AgentStatus, CaptureView
from sameshot.coordinator.auth import Authenticator
from sameshot.coordinator.book import Book
from sameshot.coordinator.config import CoordinatorConfig
from sameshot.coordinator.links import Listing, ask_all
from sameshot.coordinator.plan import Seen, freeze
from sameshot.coordinator.record import CaptureRecord
from sameshot.errors import InvalidSpec, NoSuchJob, SameshotError
from sameshot.model import CaptureSpec, TargetFact

# Updates to watchers carry at most this many targets, so that no message of a large job comes near gRPC's limit.
TARGETS_PER_UPDATE = 1000


class CoordinatorService(CoordinatorServicer):
    def __init__(self, config: CoordinatorConfig, book: Book, authenticator: Authenticator) -> None:
        self._config = config
        self._book = book
        self._authenticator = authenticator

    @typed
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        config = self._config
        answer = pb.DescribeResponse(
            series=config.series,
            version=sameshot.__version__,
            backend=config.backend,
            archive=config.archive,
            policy_json=msgspec.json.encode(config.policy),
            pause_ms=self._book.pause_ms(),
        )
        to_proto(config.job, answer.job)
        return answer

    @typed
    async def StartCapture(self, request: pb.StartCaptureRequest, context: Any) -> pb.StartCaptureResponse:  # noqa: N802
        caller = await self._authenticator.caller(context)
        self._check_job(request)
        found, created = await self._book.start(
            caller,
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
        return to_proto(_view(await self._find(request, context)), pb.Capture())

    @typed_stream
    async def WatchCapture(  # noqa: N802
        self, request: pb.CaptureSelector, context: Any
    ) -> AsyncIterator[pb.CaptureUpdate]:
        found = await self._find(request, context)
        if isinstance(found, CaptureView):
            for update in _updates(found, found.targets, whole=True):
                yield update
            return
        with found.watched() as changed:
            whole, closed, revision = True, False, 0
            while True:
                changed.clear()
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
        await self._authenticator.caller(context)
        answer = pb.ListCapturesResponse()
        for view in await self._book.captures(unsettled=request.unsettled):
            to_proto(view, answer.captures.add())
        return answer

    @typed
    async def CancelCapture(self, request: pb.CaptureSelector, context: Any) -> pb.Capture:  # noqa: N802
        found = await self._find(request, context)
        if isinstance(found, CaptureRecord):
            await found.cancel()
        return to_proto(_view(found), pb.Capture())

    @typed
    async def GetManifest(self, request: pb.CaptureSelector, context: Any) -> pb.ManifestResponse:  # noqa: N802
        caller = await self._authenticator.caller(context)
        data, uri = await self._book.manifest(caller, request.capture_id, request.request_key)
        return pb.ManifestResponse(manifest=data, uri=uri)

    @typed
    async def ListWorkers(  # noqa: N802
        self, request: pb.ListJobWorkersRequest, context: Any
    ) -> pb.ListJobWorkersResponse:
        await self._authenticator.caller(context)
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

    async def _find(self, request: pb.CaptureSelector, context: Any) -> CaptureRecord | CaptureView:
        caller = await self._authenticator.caller(context)
        return await self._book.find(caller, request.capture_id, request.request_key)

    def _check_job(self, request: pb.StartCaptureRequest) -> None:
        asked, served = request.job, self._config.job
        if asked.uid and (asked.uid, asked.attempt) != (served.uid, served.attempt):
            raise NoSuchJob(
                f"This coordinator serves {served} (uid {served.uid}), not attempt {asked.attempt} of uid {asked.uid}."
            )


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
