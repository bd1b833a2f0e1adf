"""What both clients share: requests out, values in. No I/O."""

from __future__ import annotations

import os
import pwd
from typing import Any, Literal

import msgspec

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.views import MAX_MESSAGE_BYTES, CaptureView, JobDescription, WorkersView, by_rank
from sameshot.errors import UsageError
from sameshot.model import CapturePolicy, CaptureSpec, JobRef, TargetFact

OnFailed = Literal["NEW", "RETURN"]

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
CALL_TIMEOUT_S = 30.0
# A coordinator that is being restarted is back within this time; `wait` bridges it.
PATIENCE_S = 10.0


def metadata(caller: str | None) -> tuple[tuple[str, str], ...]:
    return (("x-sameshot-caller", caller or os_user()),)


def os_user() -> str:
    """The operating system's user, not what the environment claims."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def start_request(spec: CaptureSpec, request_key: str | None, on_failed: OnFailed) -> pb.StartCaptureRequest:
    if on_failed not in ("NEW", "RETURN"):
        raise UsageError(f"on_failed is {on_failed!r}; it must be NEW or RETURN.")
    request = pb.StartCaptureRequest(request_key=request_key or "", on_failed=on_failed)
    to_proto(spec, request.spec)
    return request


def selector(capture_id: str | None, request_key: str | None) -> pb.CaptureSelector:
    if bool(capture_id) == bool(request_key):
        raise UsageError("Name a capture by its id or by its request key, and not by both.")
    return pb.CaptureSelector(capture_id=capture_id or "", request_key=request_key or "")


def capture(message: pb.Capture) -> CaptureView:
    return from_proto(message, CaptureView)


def captures(message: pb.ListCapturesResponse) -> list[CaptureView]:
    return [capture(each) for each in message.captures]


def workers(message: pb.ListJobWorkersResponse) -> WorkersView:
    return from_proto(message, WorkersView)


def description(message: pb.DescribeResponse) -> JobDescription:
    return JobDescription(
        job=from_proto(message.job, JobRef),
        series=message.series,
        version=message.version,
        backend=message.backend,
        archive=message.archive,
        policy=msgspec.json.decode(message.policy_json, type=CapturePolicy, strict=True),
    )


class Assembly:
    """Whole views from a stream of snapshots and deltas."""

    def __init__(self) -> None:
        self._targets: dict[str, TargetFact] = {}

    def add(self, update: pb.CaptureUpdate) -> CaptureView | None:
        """The capture as it is now; None while pieces of a large one are still on their way."""
        view = capture(update.capture)
        if not update.delta:
            self._targets.clear()
        news = [from_proto(each, TargetFact) for each in update.changed] if update.delta else view.targets
        self._targets.update((fact.target_id, fact) for fact in news)
        if len(self._targets) != view.expected:
            return None
        return msgspec.structs.replace(view, targets=tuple(sorted(self._targets.values(), key=by_rank)))
