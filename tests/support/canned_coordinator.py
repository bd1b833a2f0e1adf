"""A coordinator that answers as it is told, over real loopback gRPC: for what no real one can be brought to say.

async with canned(GetCapture=view) as coordinator:               # or an error, or SILENCE
    … coordinator.address …
    coordinator.answers["GetCapture"] = Denied("no")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from sameshot.api.status import typed
from sameshot.errors import UnknownCapture

SILENCE = object()
"""The call is taken and never answered."""


class Canned(CoordinatorServicer):
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[str] = []
        self.address = ""

    @typed
    async def GetCapture(self, request: pb.CaptureSelector, context: Any) -> pb.Capture:  # noqa: N802
        return to_proto(await self._answer("GetCapture", context), pb.Capture())

    @typed
    async def CancelCapture(self, request: pb.CaptureSelector, context: Any) -> pb.Capture:  # noqa: N802
        return to_proto(await self._answer("CancelCapture", context), pb.Capture())

    @typed
    async def StartCapture(self, request: pb.StartCaptureRequest, context: Any) -> pb.StartCaptureResponse:  # noqa: N802
        answer = pb.StartCaptureResponse()
        to_proto(await self._answer("StartCapture", context), answer.capture)
        return answer

    @typed
    async def GetManifest(self, request: pb.CaptureSelector, context: Any) -> pb.ManifestResponse:  # noqa: N802
        return pb.ManifestResponse(manifest=await self._answer("GetManifest", context))

    @typed
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        told = await self._answer("Describe", context)
        if isinstance(told, pb.DescribeResponse):
            return told
        answer = pb.DescribeResponse(policy_json=b"{}")
        to_proto(told, answer.job)
        return answer

    async def WatchCapture(self, request: pb.CaptureSelector, context: Any) -> AsyncIterator[pb.CaptureUpdate]:  # noqa: N802
        """Every view that is put into the queue `answers["WatchCapture"]`."""
        self.calls.append("WatchCapture")
        while (view := await self.answers["WatchCapture"].get()) is not None:
            yield pb.CaptureUpdate(capture=to_proto(view, pb.Capture()))

    async def _answer(self, name: str, context: Any) -> Any:
        self.calls.append(name)
        answer = self.answers.get(name, UnknownCapture("nobody knows it"))
        if answer is SILENCE:
            await asyncio.Event().wait()
        if isinstance(answer, grpc.StatusCode):  # in gRPC's own words, as proxies speak
            await context.abort(answer, "stream was reset")
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.asynccontextmanager
async def canned(**answers: Any) -> AsyncIterator[Canned]:
    server, coordinator = grpc.aio.server(), Canned(**answers)
    add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    coordinator.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield coordinator
    finally:
        await server.stop(None)
