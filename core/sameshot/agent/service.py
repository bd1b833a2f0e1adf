"""The gRPC face of an agent: translate, check whose job it is, hand over. No logic of its own.

Every method begins with `_job`, which is where a caller is bound to its own job; whatever is asked for then is looked
up by job *and* capture, never by a capture's id alone.
"""

from __future__ import annotations

from typing import Any

import sameshot
from sameshot.agent.agent import Agent
from sameshot.agent.capturebook import Capture, check_capture_id
from sameshot.agent.dispatch import Order, Wanted
from sameshot.api import sameshot_pb2 as pb
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.door import who_called
from sameshot.api.status import typed
from sameshot.errors import UsageError
from sameshot.model import CaptureSpec, JobRef, check_name

MAX_TARGETS = 1024  # of one request; a node has a handful
MAX_ANNOUNCE_TIMEOUT_MS = 24 * 3_600_000


class AgentService(sameshot_pb2_grpc.AgentServicer):
    """`service Agent` of sameshot.proto. Raises our typed errors; `typed` sends them across."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @typed
    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.ListWorkersResponse:  # noqa: N802
        job = self._job(request.job)
        workers = await self._agent.workers(job)
        config = self._agent.config
        answer = pb.ListWorkersResponse(
            node=config.node,
            version=sameshot.__version__,
            backend=config.backend.value,
            poll_interval_s=config.poll_interval_s,
            unregistered=self._agent.unregistered(job),
        )
        for worker in workers:
            to_proto(worker, answer.workers.add())
        return answer

    @typed
    async def Dispatch(self, request: pb.DispatchRequest, context: Any) -> pb.CaptureFacts:  # noqa: N802
        job = self._job(request.job)
        if not 0 < request.announce_timeout_ms <= MAX_ANNOUNCE_TIMEOUT_MS:
            raise UsageError(f"An announce timeout of {request.announce_timeout_ms} ms is out of range.")
        if request.start_at_ns <= 0:
            raise UsageError("A dispatch states when its window should begin, in ns since the epoch.")
        if len(request.targets) > MAX_TARGETS:
            raise UsageError(f"{len(request.targets)} targets in one request; at most {MAX_TARGETS} are taken.")
        order = Order(
            job=job,
            capture_id=check_capture_id(request.capture_id),
            spec=from_proto(request.spec, CaptureSpec),
            start_at_ns=request.start_at_ns,
            announce_timeout_ms=request.announce_timeout_ms,
            targets=tuple(Wanted(target.target_id, target.registration) for target in request.targets),
        )
        return _facts(order.capture_id, await self._agent.accept(order))

    @typed
    async def GetFacts(self, request: pb.FactsRequest, context: Any) -> pb.CaptureFacts:  # noqa: N802
        return _facts(request.capture_id, await self._capture(request.job, request.capture_id))

    @typed
    async def Withdraw(self, request: pb.WithdrawRequest, context: Any) -> pb.CaptureFacts:  # noqa: N802
        capture = await self._capture(request.job, request.capture_id)
        if request.target_ids:
            if capture is not None:
                await self._agent.take_back(capture, request.reason, set(request.target_ids))
        elif capture is None:
            self._agent.dispatch.cancel_early(self._job(request.job), request.capture_id, request.reason)
        else:
            await self._agent.withdraw(capture, request.reason)
        return _facts(request.capture_id, capture)

    @typed
    async def KnownCaptures(self, request: pb.KnownCapturesRequest, context: Any) -> pb.KnownCapturesResponse:  # noqa: N802
        job = self._job(request.job)
        return pb.KnownCapturesResponse(
            capture_ids=[each for each in request.capture_ids if self._agent.capture_of(job, each) is not None]
        )

    @typed
    async def PublishManifest(  # noqa: N802
        self, request: pb.PublishManifestRequest, context: Any
    ) -> pb.PublishManifestResponse:
        job = self._job(request.job)
        await self._agent.check_job(job)
        capture_id = check_capture_id(request.capture_id)
        uri, already_there = await self._agent.archive.publish(job, capture_id, request.manifest)
        self._agent.journal.record("published", capture_id, detail=uri)
        return pb.PublishManifestResponse(uri=uri, already_there=already_there)

    def _job(self, message: pb.JobRef) -> JobRef:
        """The job that is asked for. Raises Denied where its coordinator is somebody else."""
        job = from_proto(message, JobRef)
        check_name(job.namespace, "Namespace")
        check_name(job.name, "Job")
        if not job.uid or job.attempt < 0:
            raise UsageError("A job attempt needs its uid and a non-negative attempt.")
        self._agent.config.callers.check(who_called(), job)
        return job

    async def _capture(self, of: pb.JobRef, capture_id: str) -> Capture | None:
        """The capture, None where this agent never accepted it; NoSuchJob for a job that is not ours."""
        job = self._job(of)
        check_capture_id(capture_id)
        capture = self._agent.capture_of(job, capture_id)
        if capture is None:
            await self._agent.check_job(job)
        return capture


def _facts(capture_id: str, capture: Capture | None) -> pb.CaptureFacts:
    answer = pb.CaptureFacts(capture_id=capture_id, known=capture is not None)
    if capture is not None:
        for fact in capture.facts:
            to_proto(fact, answer.targets.add())
    return answer
