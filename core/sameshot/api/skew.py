"""Reading messages of a peer that is one minor version newer: a value that this version doesn't know is never success.

What can be kept is kept in the peer's own words. Requests are not read with this: what is asked for must be understood.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto
from sameshot.api.views import CaptureView, WorkersView
from sameshot.errors import SameshotError
from sameshot.model import (
    Activity,
    BoundBy,
    CapturePolicy,
    CaptureState,
    Encoding,
    FailureReason,
    Nobody,
    Phase,
    TargetFact,
    TargetState,
    Worker,
)

M = TypeVar("M", bound=Message)

_TARGET_STATES = frozenset(int(each) for each in TargetState)


def target_fact(message: pb.Target) -> TargetFact:
    """An unknown reason is a REFUSED in its own words; an unknown state says nothing, so it is PENDING."""
    try:
        return from_proto(message, TargetFact)
    except SameshotError:
        return from_proto(_mended_target(message), TargetFact)


def worker(message: pb.Worker) -> Worker:
    """A registration in an unknown phase has reached no phase that we could rely on: it is a candidate."""
    if message.registration.phase not in set(Phase):
        message = _copy(message)
        message.registration.phase = Phase.CANDIDATE
    return from_proto(message, Worker)


def workers_view(message: pb.ListJobWorkersResponse) -> WorkersView:
    bare = _copy(message)
    del bare.workers[:]
    found = tuple(worker(each) for each in message.workers)
    return msgspec.structs.replace(from_proto(bare, WorkersView), workers=found)


def capture_view(message: pb.Capture) -> CaptureView:
    """A capture in an unknown state has not ended as far as we can tell; its note names the state."""
    try:
        return from_proto(message, CaptureView)
    except SameshotError:
        return from_proto(_mended_capture(message), CaptureView)


def capture_policy(policy_json: bytes) -> CapturePolicy:
    """Limits that this version doesn't know are left out: the coordinator enforces them, not we."""
    try:
        told = msgspec.json.decode(policy_json, type=dict[str, Any])
        known = {name: told[name] for name in CapturePolicy.__struct_fields__ if name in told}
        return msgspec.convert(known, CapturePolicy)
    except msgspec.MsgspecError as error:
        raise SameshotError(
            f"The coordinator's policy can't be understood ({error}); client and coordinator must be at most one minor "
            "version apart."
        ) from None


def _mended_target(message: pb.Target) -> pb.Target:
    mended = _copy(message)
    if mended.HasField("identity") and mended.identity.bound_by not in set(BoundBy):
        mended.identity.bound_by = BoundBy.PATH
    if mended.HasField("failure"):
        failure = mended.failure
        if failure.last_state not in _TARGET_STATES:
            failure.last_state = pb.PENDING
        if failure.reason not in set(FailureReason):
            failure.detail = f"{failure.reason}: {failure.detail}"
            failure.reason = FailureReason.REFUSED
    if mended.HasField("artifact") and mended.artifact.encoding not in set(Encoding):
        encoding, uri = mended.artifact.encoding, mended.artifact.uri
        mended.ClearField("artifact")
        mended.state = pb.FAILED
        mended.failure.reason = FailureReason.REFUSED
        mended.failure.detail = f"Archived at {uri} in an encoding that this version doesn't know: {encoding}."
        mended.failure.last_state = pb.VERIFIED
    if mended.state not in _TARGET_STATES:
        mended.note = f"{mended.note} (in state {mended.state}, which this version doesn't know)".strip()
        mended.state = pb.PENDING
        mended.ClearField("artifact")
        mended.ClearField("failure")
    return mended


def _mended_capture(message: pb.Capture) -> pb.Capture:
    mended = _copy(message)
    if mended.state not in set(CaptureState):
        mended.note = f"{mended.note} (in state {mended.state}, which this version doesn't know)".strip()
        mended.state = CaptureState.COLLECTING
    unknown = [each for each in mended.spec.activities if each not in set(Activity)]
    if unknown:
        mended.note = f"{mended.note} (records {', '.join(unknown)}, which this version doesn't know)".strip()
        known = [each for each in mended.spec.activities if each not in unknown]
        mended.spec.activities[:] = known or [Activity.CPU]
    if mended.HasField("nobody") and mended.nobody not in set(Nobody):
        mended.note = f"{mended.note} (nobody was asked for a reason that this version doesn't know: {mended.nobody})"
        mended.nobody = Nobody.SILENT  # nothing is known of the workers, so nothing may be concluded
    targets = [_mended_target(each) for each in mended.targets]
    del mended.targets[:]
    mended.targets.extend(targets)
    return mended


def _copy(message: M) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
