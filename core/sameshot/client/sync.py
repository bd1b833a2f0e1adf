"""The client for programs that block. `aio` is its twin; what they say and understand is `wire`'s part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.sameshot_pb2_grpc import CoordinatorStub
from sameshot.api.transport import Endpoint, channel
from sameshot.api.views import CaptureView, JobDescription, WorkersView
from sameshot.client import wire
from sameshot.errors import TryAgain, Unreachable
from sameshot.model import CaptureSpec


class Client:
    """One job's coordinator. Every method raises our typed errors: `Unreachable`, `UnknownCapture`, `PolicyRefused`,
    `JobBusy`, `RequestKeyConflict`, `InvalidSpec`, `Denied`, … A capture is named by its id or by the caller's request
    key."""

    def __init__(self, to: str | Endpoint, *, caller: str | None = None) -> None:
        """`to` as gRPC takes it (`connect` resolves other addresses); `caller` defaults to the OS user, and is not
        asked for where a token says who calls."""
        self._to = Endpoint(to) if isinstance(to, str) else to
        self.address = self._to.address
        self._who = self._to.called or f"The coordinator at {self.address}"
        self._metadata = wire.metadata(caller)
        self._channel = channel(self._to)
        self._stub: Any = CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]

    def describe(self) -> JobDescription:
        """Which job is served, and what its policy allows."""
        return wire.description(self._call(self._stub.Describe, pb.DescribeRequest()), self._to)

    def workers(self) -> WorkersView:
        """Who is registered now, asked of every agent."""
        return wire.workers(self._call(self._stub.ListWorkers, pb.ListJobWorkersRequest()))

    def start_capture(
        self,
        spec: CaptureSpec,
        request_key: str | None = None,
        on_failed: wire.OnFailed = "NEW",
        *,
        only_if_free: bool = False,
        family: str = "",
    ) -> CaptureView:
        """Start a capture, or with a known `request_key` get the running, SUCCEEDED or PARTIAL one of that key.

        After a FAILED, CANCELLED or lost one `on_failed` decides: NEW starts another, RETURN hands it back. Only a call
        with a request key may be repeated after `Unreachable`: without one it could start a second capture.

        `only_if_free`: rather than queue behind another capture, start none and raise `JobBusy`, decided in one step
        with the start, so that of many only one gets through. A capture of the same key is given all the same, and own
        ones whose keys begin with `family` don't count (empty: none). A coordinator one minor version older queues.
        """
        request = wire.start_request(spec, request_key, on_failed, only_if_free, family)
        answer: pb.StartCaptureResponse = self._call(self._stub.StartCapture, request)
        return wire.capture(answer.capture)

    def get(self, capture_id: str | None = None, *, request_key: str | None = None) -> CaptureView:
        return wire.capture(self._call(self._stub.GetCapture, wire.selector(capture_id, request_key)))

    def captures(self, *, unsettled: bool = False) -> list[CaptureView]:
        """All captures of the job, newest first, without their targets; `unsettled`: only those still worked on."""
        return wire.captures(self._call(self._stub.ListCaptures, pb.ListCapturesRequest(unsettled=unsettled)))

    def cancel(self, capture_id: str | None = None, *, request_key: str | None = None) -> CaptureView:
        """End a capture; `withdrawn` says what that really did. One that has converged stays what it is."""
        return wire.capture(self._call(self._stub.CancelCapture, wire.selector(capture_id, request_key)))

    def manifest(self, capture_id: str | None = None, *, request_key: str | None = None) -> bytes:
        """The published manifest. Raises TryAgain while there is none."""
        answer: pb.ManifestResponse = self._call(self._stub.GetManifest, wire.selector(capture_id, request_key))
        return answer.manifest

    def watch(
        self, capture_id: str | None = None, *, request_key: str | None = None, timeout_s: float | None = None
    ) -> Iterator[CaptureView]:
        """The capture now and after every change (at most two a second), up to and including its end.

        Raises Unreachable when the coordinator goes away, or after `timeout_s`.
        """
        call = self._stub.WatchCapture(
            wire.selector(capture_id, request_key), metadata=self._metadata, timeout=timeout_s
        )
        assembly = wire.Assembly()
        try:
            for update in call:
                if (view := assembly.add(update)) is not None:
                    yield view
        except grpc.RpcError as error:
            raise wire.failed(error, self._who, self._to) from None
        finally:
            call.cancel()

    def follow(
        self, capture_id: str | None = None, *, request_key: str | None = None, timeout_s: float | None = None
    ) -> Iterator[CaptureView]:
        """As `watch`, but a coordinator that is away for a moment, or the way to it, is waited for.

        Raises TryAgain after `timeout_s`; the capture itself goes on. A restarted coordinator no longer knows an
        unfinished capture (UnknownCapture).
        """
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        gone_at: float | None = None
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            try:
                view = None
                for view in self.watch(capture_id, request_key=request_key, timeout_s=left):
                    gone_at = None
                    yield view
                    if view.state.terminal:
                        return
                raise wire.ended_without_outcome(view)
            except Unreachable:
                now = time.monotonic()
                if ends is not None and now >= ends:
                    raise TryAgain(f"The capture has not ended within {timeout_s:g} s; it goes on.") from None
                gone_at = now if gone_at is None else gone_at
                if now - gone_at > wire.patience_s(self._to):
                    raise
                time.sleep(0.2)

    def wait(
        self, capture_id: str | None = None, *, request_key: str | None = None, timeout_s: float | None = None
    ) -> CaptureView:
        """Block until the capture has ended. Raises as `follow`."""
        for view in self.follow(capture_id, request_key=request_key, timeout_s=timeout_s):
            if view.state.terminal:
                return view
        raise wire.ended_without_outcome(None)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, metadata=self._metadata, timeout=wire.CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise wire.failed(error, self._who, self._to) from None
