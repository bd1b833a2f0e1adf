"""A scripted node agent that speaks the real Agent protocol over loopback, so that only the node is pretended.

    async with FakeAgent("node-0", archive, job) as agent:
        agent.workers = [worker(job, rank=0, world_size=2, node="node-0"), …]
        agent.script = deliver            # what GetFacts says about each target: see below

A script maps a dispatched target and the number of looks so far to a fact. Artifacts are real files in the archive.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc
import msgspec

from sameshot import manifest
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.sameshot_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from sameshot.api.status import typed
from sameshot.api.transport import SERVER_OPTIONS, ServerTls, bind
from sameshot.errors import AlreadyExists, SameshotError
from sameshot.model import (
    Artifact,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    JobRef,
    Phase,
    Registration,
    TargetFact,
    TargetState,
    Worker,
)
from sameshot.storage import Storage

JOB = JobRef("local", "train", "b1946ac92492d2347c6235b4d2611184", 0)


def worker(
    *,
    rank: int,
    world_size: int,
    node: str = "node-0",
    local_rank: int | None = None,
    job: JobRef = JOB,
    alive: bool = True,
    current: bool = True,
    phase: Phase = Phase.CONFIRMED,
    registered_at_ns: int = 1,
    **more: Any,
) -> Worker:
    """One registered rank; the local rank is the rank, so several can share a node."""
    registration = Registration(
        uuid=more.pop("uuid", None) or uuid.uuid4().hex,
        pid=more.pop("pid", 1000 + rank),
        start_ticks=1,
        job=job,
        phase=phase,
        rank=rank,
        local_rank=rank if local_rank is None else local_rank,
        world_size=world_size,
        node=node,
        registered_at_ns=registered_at_ns,
        **more,
    )
    registration = msgspec.structs.replace(registration, job_name=f"sameshot/{registration.uuid}")
    return Worker(registration, alive=alive, current=current)


Script = Callable[["FakeAgent", TargetFact, int], TargetFact]


def deliver(agent: FakeAgent, target: TargetFact, looks: int) -> TargetFact:
    """One state further at every look, to the end."""
    state = TargetState(min(TargetState.QUEUED + looks, TargetState.ARCHIVED))
    if state is TargetState.ARCHIVED:
        return msgspec.structs.replace(target, state=state, artifact=agent.artifact(target))
    return msgspec.structs.replace(
        target, state=state, announced_bytes=1000 if state >= TargetState.ANNOUNCED else None
    )


def stay(state: TargetState, note: str = "") -> Script:
    """This far and no further."""
    return lambda agent, target, looks: msgspec.structs.replace(target, state=state, note=note)


def failing(reason: FailureReason, detail: str = "scripted") -> Script:
    return lambda agent, target, looks: msgspec.structs.replace(
        target, state=TargetState.FAILED, failure=Failure(reason, detail, TargetState.QUEUED)
    )


class _Accepted:
    def __init__(self, request: pb.DispatchRequest, targets: dict[str, TargetFact]) -> None:
        self.request = request
        self.targets = targets
        self.looks = 0
        self.at = time.monotonic()
        self.facts: dict[str, TargetFact] = {}


class FakeAgent(AgentServicer):
    def __init__(
        self,
        node: str,
        archive: Storage | None = None,
        *,
        listen: str = "127.0.0.1:0",
        tls: ServerTls | None = None,
        interceptors: Sequence[Any] = (),
    ) -> None:
        self.node = node
        self.archive = archive
        self.workers: list[Worker] = []
        self.script: Script = deliver
        self.backend = "broker"
        self.keeps_queued = False  # nothing can be taken back: stock dynolog, or a broker that is away
        self.poll_interval_s = 1.0
        self.accepted: dict[str, _Accepted] = {}
        self.withdrawn: list[tuple[str, ...]] = []  # the targets that each Withdraw named; none: the whole capture
        self.known: set[str] = set()  # survives `forget`, as an agent's disk does
        self.calls: list[str] = []
        self.frozen = asyncio.Event()
        self.frozen.set()  # clear it to freeze: calls are taken and never answered
        self.refuse: dict[str, SameshotError] = {}
        self.delay: dict[str, asyncio.Event] = {}
        self.address = ""
        self._listen = listen
        self._tls = tls
        self._interceptors = interceptors
        self._server: Any = None

    async def start(self) -> Self:
        self._server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=self._interceptors)
        add_AgentServicer_to_server(self, self._server)
        self.address = bind(self._server, self._listen, "a scripted agent", self._tls)
        self._listen = self.address
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(grace=0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def forget(self) -> None:
        """As after a restart that lost everything but the accepted ids."""
        self.accepted.clear()

    def artifact(self, target: TargetFact) -> Artifact:
        data = target.target_id.encode()
        digest = hashlib.sha256(data).hexdigest()
        return Artifact(
            uri=f"{target.target_id}/trace.json.gz",
            size=len(data),
            sha256=digest,
            encoding=Encoding.GZIP,
            raw_size=len(data),
            raw_sha256=digest,
            window_start_ns=10**18,
            window_end_ns=10**18 + 2 * 10**9,
        )

    # ---- the protocol

    @typed
    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.ListWorkersResponse:
        await self._called("ListWorkers")
        answer = pb.ListWorkersResponse(node=self.node, backend=self.backend, poll_interval_s=self.poll_interval_s)
        for each in self.workers:
            to_proto(each, answer.workers.add())
        return answer

    @typed
    async def Dispatch(self, request: pb.DispatchRequest, context: Any) -> pb.CaptureFacts:
        await self._called("Dispatch")
        identities = {each.registration.uuid: each.registration.identity for each in self.workers}
        if request.capture_id not in self.accepted:
            targets = {
                each.target_id: TargetFact(
                    each.target_id, identities.get(each.registration, Identity()), TargetState.DISPATCHED
                )
                for each in request.targets
            }
            self.accepted[request.capture_id] = _Accepted(request, targets)
            self.known.add(request.capture_id)
        return self._facts(request.capture_id, look=False)

    @typed
    async def GetFacts(self, request: pb.FactsRequest, context: Any) -> pb.CaptureFacts:
        await self._called("GetFacts")
        return self._facts(request.capture_id, look=True)

    @typed
    async def Withdraw(self, request: pb.WithdrawRequest, context: Any) -> pb.CaptureFacts:
        await self._called("Withdraw")
        self.withdrawn.append(tuple(request.target_ids))
        accepted = self.accepted.get(request.capture_id)
        for target_id, fact in (accepted.facts if accepted else {}).items():
            if request.target_ids and target_id not in request.target_ids:
                continue
            if fact.state < (TargetState.QUEUED if self.keeps_queued else TargetState.CONSUMED):
                failure = Failure(FailureReason.CANCELLED, "withdrawn", fact.state)
                accepted.facts[target_id] = msgspec.structs.replace(fact, state=TargetState.FAILED, failure=failure)
        answer = pb.CaptureFacts(capture_id=request.capture_id, known=accepted is not None)
        for fact in accepted.facts.values() if accepted else ():
            to_proto(fact, answer.targets.add())
        return answer

    @typed
    async def KnownCaptures(self, request: pb.KnownCapturesRequest, context: Any) -> pb.KnownCapturesResponse:
        await self._called("KnownCaptures")
        return pb.KnownCapturesResponse(capture_ids=[each for each in request.capture_ids if each in self.known])

    @typed
    async def PublishManifest(self, request: pb.PublishManifestRequest, context: Any) -> pb.PublishManifestResponse:
        await self._called("PublishManifest")
        assert self.archive is not None
        key = manifest.manifest_key(from_proto(request.job, JobRef), request.capture_id)
        try:
            await self.archive.put_new(key, request.manifest)
        except AlreadyExists:
            if await self.archive.get(key) != request.manifest:
                raise
            return pb.PublishManifestResponse(uri=self.archive.uri(key), already_there=True)
        return pb.PublishManifestResponse(uri=self.archive.uri(key))

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        await self.frozen.wait()
        if name in self.delay:
            await self.delay[name].wait()
        if name in self.refuse:
            raise self.refuse[name]

    def _facts(self, capture_id: str, *, look: bool) -> pb.CaptureFacts:
        accepted = self.accepted.get(capture_id)
        answer = pb.CaptureFacts(capture_id=capture_id, known=accepted is not None)
        if accepted is not None:
            accepted.looks += look
            for target in accepted.targets.values():
                fact = self.script(self, target, accepted.looks)
                if accepted.facts.get(target.target_id, target).state < TargetState.ARCHIVED:
                    accepted.facts[target.target_id] = fact
                to_proto(accepted.facts[target.target_id], answer.targets.add())
        return answer
