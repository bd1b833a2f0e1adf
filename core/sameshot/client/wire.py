"""What both clients share: requests out, values in. No I/O."""

from __future__ import annotations

import os
import pwd
from typing import Literal

import grpc
import msgspec

from sameshot.api import sameshot_pb2 as pb
from sameshot.api import skew
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.status import from_rpc
from sameshot.api.transport import CALLER_KEY, Endpoint
from sameshot.api.views import CaptureView, JobDescription, WorkersView, by_rank
from sameshot.errors import OtherAttempt, SameshotError, UsageError
from sameshot.model import CaptureSpec, JobRef, TargetFact, check_caller

OnFailed = Literal["NEW", "RETURN"]

CALL_TIMEOUT_S = 30.0
# A coordinator that is being restarted is back within this time; `wait` bridges it.
PATIENCE_S = 10.0
# In a cluster its pod may move, and the way to it may lead through an API server that is being upgraded.
PATIENCE_IN_A_CLUSTER_S = 120.0


def patience_s(to: Endpoint) -> float:
    """So long who follows a capture waits for a coordinator that does not answer."""
    return PATIENCE_IN_A_CLUSTER_S if to.kept else PATIENCE_S


def metadata(caller: str | None) -> tuple[tuple[str, str], ...]:
    """Raises UsageError for a caller that can't be sent."""
    return ((CALLER_KEY, check_caller(caller or os_user())),)


def os_user() -> str:
    """The operating system's user, not what the environment claims."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def start_request(
    spec: CaptureSpec, request_key: str | None, on_failed: OnFailed, only_if_free: bool = False, family: str = ""
) -> pb.StartCaptureRequest:
    if on_failed not in ("NEW", "RETURN"):
        raise UsageError(f"on_failed is {on_failed!r}; it must be NEW or RETURN.")
    request = pb.StartCaptureRequest(
        request_key=request_key or "", on_failed=on_failed, only_if_free=only_if_free, family=family
    )
    to_proto(spec, request.spec)
    return request


def selector(capture_id: str | None, request_key: str | None) -> pb.CaptureSelector:
    if bool(capture_id) == bool(request_key):
        raise UsageError("Name a capture by its id or by its request key, and not by both.")
    return pb.CaptureSelector(capture_id=capture_id or "", request_key=request_key or "")


def capture(message: pb.Capture) -> CaptureView:
    return skew.capture_view(message)


def captures(message: pb.ListCapturesResponse) -> list[CaptureView]:
    return [capture(each) for each in message.captures]


def workers(message: pb.ListJobWorkersResponse) -> WorkersView:
    return skew.workers_view(message)


def description(message: pb.DescribeResponse, to: Endpoint) -> JobDescription:
    if message.retired and to.failed is not None:
        to.failed(OtherAttempt(message.retired))  # whoever found the way should look for another
    return JobDescription(
        job=from_proto(message.job, JobRef),
        series=message.series,
        version=message.version,
        backend=message.backend,
        archive=message.archive,
        policy=skew.capture_policy(message.policy_json),
        pause_ms=message.pause_ms,
        registered=message.registered if message.HasField("registered") else None,
        world_size=message.world_size if message.HasField("world_size") else None,
        unsettled=message.unsettled,
        caller=message.caller,
        retired=message.retired,
    )


def failed(error: grpc.RpcError, who: str, to: Endpoint) -> SameshotError:
    """The typed error that a call to `who` met."""
    met = from_rpc(error, who)
    return met if to.failed is None else to.failed(met)


def ended_without_outcome(last: CaptureView | None) -> SameshotError:
    """The coordinator has nothing more to say about a capture, and we can't tell how it ended."""
    return SameshotError(
        "The coordinator ended the stream without an answer; ask again."
        if last is None
        else f"Capture {last.capture_id} ended in a way that this client doesn't know{last.note and f': {last.note}'}; "
        "client and coordinator must be at most one minor version apart."
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
        news = [skew.target_fact(each) for each in update.changed] if update.delta else view.targets
        self._targets.update((fact.target_id, fact) for fact in news)
        if len(self._targets) != view.expected:
            return None
        return msgspec.structs.replace(view, targets=tuple(sorted(self._targets.values(), key=by_rank)))
