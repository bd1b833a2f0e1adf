"""A peer one minor version newer: what it says that we don't know is kept in its words, and never taken for success."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sameshot.api import sameshot_pb2 as pb
from sameshot.api import skew
from sameshot.api.convert import to_proto
from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient, wire
from sameshot.coordinator.service import CoordinatorService
from sameshot.errors import SameshotError
from sameshot.model import (
    Activity,
    BoundBy,
    CapturePolicy,
    CaptureState,
    Failure,
    FailureReason,
    Identity,
    Nobody,
    Outcome,
    Phase,
    TargetFact,
    TargetState,
)
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating, in_loop
from support.fake_agent import JOB, FakeAgent, failing, worker


def failed_target(**changes: object) -> pb.Target:
    failure = Failure(FailureReason.EMPTY, "too hot", TargetState.QUEUED)
    message = to_proto(TargetFact("t", Identity(rank=0), TargetState.FAILED, failure=failure), pb.Target())
    for name, value in changes.items():
        setattr(message.failure, name, value)
    return message


def archived_target(encoding: str) -> pb.Target:
    message = to_proto(TargetFact("t", Identity(rank=0), TargetState.ARCHIVED), pb.Target())
    message.artifact.uri, message.artifact.encoding, message.artifact.sha256 = "t/trace", encoding, "0" * 64
    return message


def test_an_unknown_reason_is_a_failure_in_its_own_words() -> None:
    fact = skew.target_fact(failed_target(reason="MELTED"))
    assert (fact.state, fact.failure.reason) == (TargetState.FAILED, FailureReason.REFUSED)
    assert fact.failure.detail == "MELTED: too hot"
    assert fact.failure.last_state is TargetState.QUEUED


def test_a_known_reason_stays_what_it_is() -> None:
    assert skew.target_fact(failed_target()).failure == Failure(FailureReason.EMPTY, "too hot", TargetState.QUEUED)


def test_an_unknown_state_says_nothing_and_is_named() -> None:
    message = archived_target("gzip")
    message.state = 99  # type: ignore[assignment]
    fact = skew.target_fact(message)
    assert (fact.state, fact.artifact) == (TargetState.PENDING, None)
    assert "99" in fact.note


def test_a_trace_in_an_unknown_encoding_is_not_an_artifact_that_we_can_vouch_for() -> None:
    assert skew.target_fact(archived_target("gzip")).state is TargetState.ARCHIVED
    fact = skew.target_fact(archived_target("brotli"))
    assert (fact.state, fact.artifact) == (TargetState.FAILED, None)
    assert "brotli" in fact.failure.detail


def test_an_unknown_binding_is_the_weakest_one() -> None:
    message = to_proto(TargetFact("t", Identity(rank=0)), pb.Target())
    message.identity.bound_by = "signature"
    assert skew.target_fact(message).identity.bound_by is BoundBy.PATH


def test_a_worker_in_an_unknown_phase_is_a_candidate_and_hides_no_other_worker() -> None:
    answer = pb.ListJobWorkersResponse(job=to_proto(JOB, pb.JobRef()))
    for rank in (0, 1):
        to_proto(worker(rank=rank, world_size=2), answer.workers.add())
    answer.workers[0].registration.phase = "hibernating"
    phases = [each.registration.phase for each in skew.workers_view(answer).workers]
    assert phases == [Phase.CANDIDATE, Phase.CONFIRMED]


def test_a_capture_in_an_unknown_state_has_not_ended_and_says_why() -> None:
    message = to_proto(CaptureView(capture_id="0" * 32, job=JOB, spec=SPEC), pb.Capture())
    message.state = "REPLICATING"
    message.spec.activities.append("npu")
    view = wire.capture(message)
    assert (view.state, view.outcome) == (CaptureState.COLLECTING, None)
    assert view.spec.activities == SPEC.activities == (Activity.CPU, Activity.CUDA)
    assert "REPLICATING" in view.note
    assert "npu" in view.note


def test_why_nobody_was_asked_is_read_where_it_is_told_and_an_unknown_reason_says_nothing_of_the_workers() -> None:
    message = to_proto(CaptureView(capture_id="0" * 32, job=JOB, state=CaptureState.FAILED), pb.Capture())
    assert not message.HasField("nobody")
    assert wire.capture(message).nobody is None  # an older coordinator
    for known in Nobody:
        message.nobody = known
        assert wire.capture(message).nobody is known
    message.nobody = "EVICTED"
    view = wire.capture(message)
    assert (view.state, view.nobody) == (CaptureState.FAILED, Nobody.SILENT)
    assert "EVICTED" in view.note


def test_limits_of_a_newer_policy_are_left_out_and_a_malformed_one_is_our_error() -> None:
    told = msgspec.to_builtins(CapturePolicy(max_duration_ms=7)) | {"max_bytes": 1}
    assert skew.capture_policy(msgspec.json.encode(told)) == CapturePolicy(max_duration_ms=7)
    for broken in (b"", b'{"max_duration_ms": "long"}', b"[]"):
        with pytest.raises(SameshotError, match="can't be understood"):
            skew.capture_policy(broken)


@in_loop
async def test_get_watch_wait_and_describe_work_with_a_newer_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real coordinator whose answers are made newer on their way out."""

    def newer(capture: pb.Capture) -> None:
        for target in capture.targets:
            if target.state == pb.FAILED:
                target.failure.reason = "MELTED"

    get, watch, describe = CoordinatorService.GetCapture, CoordinatorService.WatchCapture, CoordinatorService.Describe

    async def newer_get(self, request, context):  # type: ignore[no-untyped-def]
        answer = await get(self, request, context)
        newer(answer)
        return answer

    async def newer_watch(self, request, context):  # type: ignore[no-untyped-def]
        async for update in watch(self, request, context):
            newer(update.capture)
            for target in update.changed:
                if target.state == pb.FAILED:
                    target.failure.reason = "MELTED"
            yield update

    async def newer_describe(self, request, context):  # type: ignore[no-untyped-def]
        answer = await describe(self, request, context)
        answer.policy_json = msgspec.json.encode(msgspec.json.decode(answer.policy_json) | {"max_bytes": 1})
        return answer

    monkeypatch.setattr(CoordinatorService, "GetCapture", newer_get)
    monkeypatch.setattr(CoordinatorService, "WatchCapture", newer_watch)
    monkeypatch.setattr(CoordinatorService, "Describe", newer_describe)
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent, coordinating(tmp_path, [agent]) as client:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = failing(FailureReason.EMPTY, "too hot")
        started = await client.start_capture(SPEC)
        waited = await client.wait(started.capture_id)
        got = await client.get(started.capture_id)
        policy = (await client.describe()).policy
    assert waited.outcome is got.outcome is Outcome.FAILED
    assert waited.targets[0].failure.detail == got.targets[0].failure.detail == "MELTED: too hot"
    assert policy == CapturePolicy()


@in_loop
async def test_waiting_for_an_end_that_we_do_not_know_ends_with_an_error_and_not_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = CoordinatorService.WatchCapture

    async def newer_watch(self, request, context):  # type: ignore[no-untyped-def]
        async for update in watch(self, request, context):
            if update.capture.state == "SUCCEEDED":
                update.capture.state = "SUPERSEDED"
            yield update

    monkeypatch.setattr(CoordinatorService, "WatchCapture", newer_watch)
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent, coordinating(tmp_path, [agent]) as client:
        agent.workers = [worker(rank=0, world_size=1)]
        started = await client.start_capture(SPEC)
        with pytest.raises(SameshotError, match="SUPERSEDED"):
            await client.wait(started.capture_id)
        assert isinstance(client, AsyncClient)
