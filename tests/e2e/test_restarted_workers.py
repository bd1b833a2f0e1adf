"""torchrun restarts its workers in place: new processes, a new generation, and nothing else changes."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from live import LiveJob, running_job, wait_for

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.api.sameshot_pb2_grpc import AgentStub
from sameshot.model import CaptureSpec, CaptureState, FailureReason, Registration, TargetFact, unkeyed_capture_id

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(240)]


def test_after_an_in_place_restart_the_new_generation_is_captured_and_the_old_one_is_refused(tmp_path: Path) -> None:
    order = tmp_path / "fail"
    with running_job(
        tmp_path,
        launcher="c10d",
        launcher_args=("--max-restarts", "1"),
        # Without collectives only the failing rank fails, so only its node counts a restart. Workers then need a store
        # of their own: in the launcher's, gloo finds the addresses of the attempt before wherever the counts differ.
        script_args=("--apart", "--fail-on", "3", str(order)),
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ) as job:
        before = job.registrations()
        first = job.capture()
        assert first.state is CaptureState.SUCCEEDED, first

        order.touch()
        wait_for(lambda: replaced(job, before), "four new workers", 120)
        job.wait_training()
        after = job.registrations()
        second = job.capture()

        assert second.state is CaptureState.SUCCEEDED, second
        assert [fact.identity.rank for fact in second.targets] == [0, 1, 2, 3]
        assert {fact.identity.pid for fact in second.targets} == {one.pid for one in after.values()}
        assert second.generation != first.generation
        assert {one.restart_count for one in before.values()} == {0}
        for one in after.values():  # which is why it is information only
            assert one.restart_count == (1 if one.node == before[3].node else 0)
        for stale in before.values():
            refused = dispatch_directly(job, stale)
            assert refused.failure is not None
            assert refused.failure.reason is FailureReason.STALE_REGISTRATION
            assert stale.uuid in refused.failure.detail
        with job.local.client() as client:
            listed = {worker.registration.uuid: worker for worker in client.workers().workers}
        assert [listed[stale.uuid].alive for stale in before.values() if stale.uuid in listed] == [False] * 4
        assert job.finish() == [0, 0], job.output()[-3000:]


def replaced(job: LiveJob, before: dict[int, Registration]) -> bool:
    now = job.registrations()
    return len(now) == job.world_size and not {one.uuid for one in now.values()} & {one.uuid for one in before.values()}


def dispatch_directly(job: LiveJob, stale: Registration) -> TargetFact:
    """What the agent itself says to a caller that still believes in the old worker."""
    node = job.local.setup.nodes.index(stale.node or "")
    request = pb.DispatchRequest(
        capture_id=unkeyed_capture_id(0, stale.uuid.encode()[:10]),
        start_at_ns=time.time_ns() + 2_000_000_000,
        announce_timeout_ms=1000,
        targets=[pb.DispatchTarget(target_id=stale.target_id, registration=stale.uuid)],
    )
    to_proto(stale.job, request.job)
    to_proto(CaptureSpec(duration_ms=100), request.spec)
    with grpc.insecure_channel(f"unix:{job.local.folder.path / f'agent-{node}.sock'}") as channel:
        answer = AgentStub(channel).Dispatch(request, timeout=30)  # type: ignore[no-untyped-call]
    (fact,) = answer.targets
    return from_proto(fact, TargetFact)
