"""One link to each node agent, and what it said last.

Every call has its own timeout and nothing is shared between links but the event loop: the budget of a dead node is its
own. What a node last said about its workers is kept, so that a node that fell silent can be held to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import msgspec

from sameshot.api import sameshot_pb2 as pb
from sameshot.api import skew
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import AgentStub
from sameshot.api.status import from_rpc, is_answer
from sameshot.api.transport import Endpoint, aio_channel
from sameshot.coordinator.clock import Clock
from sameshot.coordinator.directory import AgentAt
from sameshot.errors import SameshotError, Unreachable
from sameshot.model import JobRef, TargetFact, Worker
from sameshot.profiler.daemon import CAPABILITIES, BackendName, Capabilities

# Longer than any call: what is on its way by a connection that was replaced ends by itself.
_LINGER_S = 60.0

Connect = Callable[[str], Endpoint]
"""How the agent at an address is called."""

Answer = TypeVar("Answer")


class Listing(msgspec.Struct, frozen=True):
    """Who is registered on a node; `asked_at` is the moment of the question.

    `unregistered` says of every place on that node where nobody registered what may be the reason.
    """

    node: str
    backend: str
    poll_interval_s: float
    workers: tuple[Worker, ...]
    asked_at: float
    unregistered: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """What an agent knows about one capture; not `known`: it never accepted it, or lost it."""

    known: bool
    targets: tuple[TargetFact, ...]
    asked_at: float


class AgentLink:
    """`key` never changes, `address` follows the agent: one that was restarted elsewhere is the same one."""

    def __init__(
        self,
        at: AgentAt,
        job: JobRef,
        clock: Clock,
        default_backend: BackendName,
        connect: Connect = Endpoint,
        find: Callable[[str], AgentAt | None] = lambda key: None,
        heard: Callable[[Listing], None] = lambda listing: None,
    ) -> None:
        self.key = at.key
        self.address = at.address
        self.remark = at.remark  # what the directory says is wrong with it
        self.listing: Listing | None = None
        self.answered_at: float | None = None  # the last question that was answered, be it with a refusal
        self.trouble = ""  # why nothing was heard since then
        self._job = to_proto(job, pb.JobRef())
        self._clock = clock
        self._default_backend = default_backend
        self._connect = connect
        self._find = find
        self._heard = heard
        self._endpoint: Endpoint | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: AgentStub | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.move(at)

    def move(self, at: AgentAt) -> None:
        """Call it there from now on; calls that are on their way are left alone."""
        self.address, self.remark = at.address, at.remark
        endpoint = self._connect(at.address) if at.address else None
        if endpoint == self._endpoint:
            return
        if self._channel is not None:
            closing = asyncio.ensure_future(self._channel.close(_LINGER_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._endpoint = endpoint
        self._channel = None if endpoint is None else aio_channel(endpoint)
        self._stub = None if self._channel is None else AgentStub(self._channel)  # type: ignore[no-untyped-call]

    @property
    def node(self) -> str:
        return self.listing.node if self.listing else ""

    @property
    def name(self) -> str:
        if self.node:
            return f"The agent of {self.node}" + (f" ({self.address})" if self.address else "")
        return f"The agent at {self.address}" if self.address else f"The agent of {self.key}"

    @property
    def answers(self) -> bool:
        return self.answered_at is not None and not self.trouble

    @property
    def connected(self) -> bool:
        """Something at the address speaks our protocol, be it slowly."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def capabilities(self) -> Capabilities:
        """What this agent's back end can see: nothing stronger is believed."""
        backend = self.listing.backend if self.listing else ""
        return CAPABILITIES[BackendName(backend) if backend in set(BackendName) else self._default_backend]

    async def list_workers(self, timeout_s: float) -> Listing:
        asked_at = self._clock.monotonic()
        answer: pb.ListWorkersResponse = await self._call(
            "ListWorkers", pb.ListWorkersRequest(job=self._job), timeout_s
        )
        workers = tuple(map(skew.worker, answer.workers))
        listing = Listing(
            answer.node, answer.backend, answer.poll_interval_s, workers, asked_at, tuple(answer.unregistered)
        )
        if self.listing is None or self.listing.asked_at <= asked_at:
            self.listing = listing
            self._heard(listing)
        return listing

    async def known_captures(self, capture_ids: Sequence[str], timeout_s: float) -> frozenset[str]:
        """Those of `capture_ids` that this agent has accepted before, possibly for an earlier coordinator."""
        request = pb.KnownCapturesRequest(job=self._job, capture_ids=capture_ids)
        answer: pb.KnownCapturesResponse = await self._call("KnownCaptures", request, timeout_s)
        return frozenset(answer.capture_ids)

    async def dispatch(self, request: pb.DispatchRequest, timeout_s: float) -> Facts:
        request.job.CopyFrom(self._job)
        return await self._facts("Dispatch", request, timeout_s)

    async def facts(self, capture_id: str, timeout_s: float) -> Facts:
        request = pb.FactsRequest(job=self._job, capture_id=capture_id)
        return await self._facts("GetFacts", request, timeout_s)

    async def withdraw(self, capture_id: str, reason: str, timeout_s: float, *, only: Sequence[str] = ()) -> Facts:
        """Take back what no worker has fetched: of the whole capture here, or of the targets in `only`."""
        request = pb.WithdrawRequest(job=self._job, capture_id=capture_id, reason=reason, target_ids=only)
        return await self._facts("Withdraw", request, timeout_s)

    async def publish(self, capture_id: str, manifest: bytes, timeout_s: float) -> str:
        """Hand the manifest over for a conditional put; returns its URI. Raises AlreadyExists for another one."""
        request = pb.PublishManifestRequest(job=self._job, capture_id=capture_id, manifest=manifest)
        answer: pb.PublishManifestResponse = await self._call("PublishManifest", request, timeout_s)
        return answer.uri

    async def close(self) -> None:
        for closing in self._closing:
            closing.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _facts(self, method: str, request: Any, timeout_s: float) -> Facts:
        asked_at = self._clock.monotonic()
        answer: pb.CaptureFacts = await self._call(method, request, timeout_s)
        return Facts(answer.known, tuple(map(skew.target_fact, answer.targets)), asked_at)

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        asked_at = self._clock.monotonic()
        if self._stub is None:
            self._look_again()
        if self._stub is None:
            self.trouble = self.remark
            raise Unreachable(f"{self.name} can't be asked: {self.remark}.")
        try:
            answer = await getattr(self._stub, method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            translated = from_rpc(error, self.name)
            if is_answer(error):
                self.answered_at, self.trouble = asked_at, ""
            else:
                self.trouble = str(translated).removeprefix(f"{self.name} ").rstrip(".")
                self._look_again()
                if self.remark:
                    self.trouble += f"; {self.remark}"
            raise translated from None
        self.answered_at = asked_at
        self.trouble = ""
        return answer

    def _look_again(self) -> None:
        """It may be somewhere else by now."""
        if (at := self._find(self.key)) is not None:
            self.move(at)


async def ask_all(
    links: Iterable[AgentLink], question: Callable[[AgentLink], Awaitable[Answer]]
) -> dict[str, Answer | SameshotError]:
    """Ask all at once; each answer, or the error instead of it, by the link's key."""

    async def one(link: AgentLink) -> Answer | SameshotError:
        try:
            return await question(link)
        except SameshotError as error:
            return error

    asked = list(links)
    answers = await asyncio.gather(*(one(link) for link in asked))
    return {link.key: answer for link, answer in zip(asked, answers, strict=True)}


async def ask_most(
    links: Iterable[AgentLink], question: Callable[[AgentLink], Awaitable[Answer]], quiet_s: float = 0.1
) -> dict[str, Answer]:
    """Ask all at once, and wait for as long as answers keep coming.

    Once half of the questions have ended and then nothing more has come for a moment (`quiet_s`, or a fifth of the time
    that it took so far; a quarter of that where nobody who is left has even taken the connection), whoever is left is
    left out: a few dead nodes cost nearly nothing. Each question must have a timeout of its own.
    """
    tasks = {asyncio.ensure_future(question(link)): link for link in links}
    left, news = set(tasks), asyncio.Event()
    began = last = time.monotonic()

    def ended(task: asyncio.Future[Answer]) -> None:
        nonlocal last
        last = time.monotonic()
        left.discard(task)
        news.set()

    for task in tasks:
        task.add_done_callback(ended)
    try:
        while left:
            ends_in = None
            if (len(tasks) - len(left)) * 2 >= len(tasks):
                moment = max(quiet_s, (last - began) / 5)
                if not any(tasks[task].connected for task in left):
                    moment /= 4
                ends_in = last + moment - time.monotonic()
                if ends_in <= 0:
                    break
            news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), ends_in)
    finally:
        late = list(left)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return {
        link.key: task.result() for task, link in tasks.items() if not task.cancelled() and task.exception() is None
    }
