"""The client for event loops (triggerers, connectors); the twin of `sync`, where the methods are explained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

import grpc

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.sameshot_pb2_grpc import CoordinatorStub
from sameshot.api.transport import Endpoint, aio_channel
from sameshot.api.views import CaptureView, JobDescription, WorkersView
from sameshot.client import wire
from sameshot.client.pool import give_back, lent
from sameshot.errors import TryAgain, Unreachable
from sameshot.model import CaptureSpec


class AsyncClient:
    """One job's coordinator, for `async with`."""

    def __init__(self, to: str | Endpoint, *, caller: str | None = None) -> None:
        self._to = Endpoint(to) if isinstance(to, str) else to
        self.address = self._to.address
        self._who = self._to.called or f"The coordinator at {self.address}"
        self._metadata = wire.metadata(caller)
        self._closed = False
        self._channel = lent(self._to) if self._to.kept else aio_channel(self._to)
        self._stub: Any = CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]

    async def describe(self) -> JobDescription:
        return wire.description(await self._call(self._stub.Describe, pb.DescribeRequest()), self._to)

    async def workers(self) -> WorkersView:
        return wire.workers(await self._call(self._stub.ListWorkers, pb.ListJobWorkersRequest()))

    async def start_capture(
        self,
        spec: CaptureSpec,
        request_key: str | None = None,
        on_failed: wire.OnFailed = "NEW",
        *,
        only_if_free: bool = False,
        family: str = "",
    ) -> CaptureView:
        request = wire.start_request(spec, request_key, on_failed, only_if_free, family)
        answer: pb.StartCaptureResponse = await self._call(self._stub.StartCapture, request)
        return wire.capture(answer.capture)

    async def get(self, capture_id: str | None = None, *, request_key: str | None = None) -> CaptureView:
        return wire.capture(await self._call(self._stub.GetCapture, wire.selector(capture_id, request_key)))

    async def captures(self, *, unsettled: bool = False) -> list[CaptureView]:
        return wire.captures(await self._call(self._stub.ListCaptures, pb.ListCapturesRequest(unsettled=unsettled)))

    async def cancel(self, capture_id: str | None = None, *, request_key: str | None = None) -> CaptureView:
        return wire.capture(await self._call(self._stub.CancelCapture, wire.selector(capture_id, request_key)))

    async def manifest(self, capture_id: str | None = None, *, request_key: str | None = None) -> bytes:
        answer: pb.ManifestResponse = await self._call(self._stub.GetManifest, wire.selector(capture_id, request_key))
        return answer.manifest

    async def watch(
        self, capture_id: str | None = None, *, request_key: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[CaptureView, None]:
        call = self._stub.WatchCapture(
            wire.selector(capture_id, request_key), metadata=self._metadata, timeout=timeout_s
        )
        assembly = wire.Assembly()
        try:
            async for update in call:
                if (view := assembly.add(update)) is not None:
                    yield view
        except grpc.RpcError as error:
            raise wire.failed(error, self._who, self._to) from None
        finally:
            call.cancel()

    async def follow(
        self, capture_id: str | None = None, *, request_key: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[CaptureView, None]:
        loop = asyncio.get_running_loop()
        ends = None if timeout_s is None else loop.time() + timeout_s
        gone_at: float | None = None
        while True:
            left = None if ends is None else max(ends - loop.time(), 0.0)
            try:
                view = None
                async with contextlib.aclosing(
                    self.watch(capture_id, request_key=request_key, timeout_s=left)
                ) as updates:
                    async for view in updates:
                        gone_at = None
                        yield view
                        if view.state.terminal:
                            return
                raise wire.ended_without_outcome(view)
            except Unreachable:
                now = loop.time()
                if ends is not None and now >= ends:
                    raise TryAgain(f"The capture has not ended within {timeout_s:g} s; it goes on.") from None
                gone_at = now if gone_at is None else gone_at
                if now - gone_at > wire.patience_s(self._to):
                    raise
                await asyncio.sleep(0.2)

    async def wait(self, capture_id: str | None = None, *, request_key: str | None = None) -> CaptureView:
        """Until the capture has ended; bound it with `asyncio.timeout`."""
        async with contextlib.aclosing(self.follow(capture_id, request_key=request_key)) as updates:
            async for view in updates:
                if view.state.terminal:
                    return view
        raise wire.ended_without_outcome(None)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._to.kept:
            await give_back(self._to, self._channel)
        else:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=wire.CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise wire.failed(error, self._who, self._to) from None
