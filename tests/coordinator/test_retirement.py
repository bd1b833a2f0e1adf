"""A coordinator whose time is over: what it still answers, what it refuses, and with which words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import msgspec
import pytest
from coordination import QUICK, SPEC, JumpClock, coordinating, in_loop, until, until_view
from coordinator_cluster import OPERATOR, Cluster
from fake_agent import JOB, FakeAgent, stay, worker

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.sameshot_pb2_grpc import CoordinatorStub
from sameshot.api.status import from_rpc
from sameshot.api.transport import Endpoint, aio_channel
from sameshot.client import AsyncClient
from sameshot.coordinator import CoordinatorConfig, CoordinatorServer
from sameshot.coordinator.retirement import Retirement
from sameshot.errors import JobEnded, OtherAttempt, SameshotError, TryAgain, UsageError
from sameshot.kube import names
from sameshot.model import Outcome, TargetState
from sameshot.storage import Storage


async def retire(to: Endpoint, why: int) -> int:
    async with aio_channel(to) as channel:
        stub = CoordinatorStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer: pb.RetireResponse = await stub.Retire(pb.RetireRequest(why=why), timeout=10)
        except grpc.RpcError as error:
            raise from_rpc(error, "it") from None
        return answer.unsettled


@pytest.mark.parametrize(
    ("why", "error", "code"),
    [
        (pb.FINISHED, JobEnded, grpc.StatusCode.FAILED_PRECONDITION),
        (pb.SUPERSEDED, OtherAttempt, grpc.StatusCode.FAILED_PRECONDITION),
        (pb.REPLACED, TryAgain, grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["finished", "superseded", "replaced"],
)
@in_loop
async def test_a_retired_coordinator_takes_no_new_capture_and_keeps_what_it_has(
    tmp_path: Path, why: int, error: type[SameshotError], code: grpc.StatusCode
) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        deliver, agent.script = agent.script, stay(TargetState.QUEUED)
        async with coordinating(tmp_path, [agent]) as client:
            to = Endpoint(client.address)
            assert (await client.describe()).retired == ""
            running = await client.start_capture(SPEC, "running")
            await until_view(client, running.capture_id, lambda view: view.state == "COLLECTING")
            assert await retire(to, why) == 1
            with pytest.raises(error, match="Nothing was started") as caught:
                await client.start_capture(SPEC, "another")
            assert type(caught.value) is error
            with pytest.raises(error):
                await client.start_capture(SPEC)
            assert (await client.start_capture(SPEC, "running")).capture_id == running.capture_id
            about = await client.describe()
            assert (about.retired, about.unsettled) == (str(caught.value), 1)
            agent.script = deliver
            view = await client.wait(running.capture_id)
            assert (view.outcome, view.published) == (Outcome.SUCCEEDED, True)
            assert (await client.start_capture(SPEC, "running")).capture_id == running.capture_id
            assert await retire(to, why) == 0
            async with aio_channel(to) as channel:
                stub = CoordinatorStub(channel)  # type: ignore[no-untyped-call]
                with pytest.raises(grpc.RpcError) as status:
                    await stub.StartCapture(pb.StartCaptureRequest(spec=pb.CaptureSpec(duration_ms=1000,
                                            activities=["cpu"])), timeout=10)  # fmt: skip
            assert status.value.code() is code


def test_of_several_reasons_the_later_attempt_is_told_first_and_only_a_replacement_passes() -> None:
    clock, later = JumpClock(), [None, 3]
    retirement = Retirement(JOB, clock, lambda: later[0])
    assert (retirement.refusal(), retirement.words) == (None, "")
    retirement.tell(pb.REPLACED)
    clock.jump(59)
    assert type(retirement.refusal()) is TryAgain
    clock.jump(2)
    assert retirement.refusal() is None, "whoever wanted to replace it has not done so"
    retirement.tell(pb.REPLACED)
    retirement.tell(pb.FINISHED)
    assert type(retirement.refusal()) is JobEnded
    later.reverse()
    assert "runs as attempt 3 by now, and this coordinator serves attempt 0" in retirement.words
    later.reverse()
    assert type(retirement.refusal()) is JobEnded, "what is seen holds for as long as it is seen"
    retirement.tell(pb.SUPERSEDED)
    assert type(retirement.refusal()) is OtherAttempt
    clock.jump(10_000)
    assert type(retirement.refusal()) is OtherAttempt


@pytest.mark.parametrize("why", [0, 77])
def test_a_reason_that_is_not_known_retires_nobody(why: int) -> None:
    retirement = Retirement(JOB, JumpClock())
    with pytest.raises(UsageError):
        retirement.tell(why)
    assert retirement.words == ""


@in_loop
async def test_a_coordinator_that_sees_pods_of_a_later_attempt_refuses_before_anybody_tells_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 1)
        async with cluster.coordinator(job) as coordinator, cluster.client(job) as client:
            done = await client.start_capture(SPEC, "key")
            assert (await client.wait(done.capture_id)).outcome is Outcome.SUCCEEDED
            cluster.pod(job, "llama-0", "b", labels={"jobset.sigs.k8s.io/restart-attempt": "2"})
            await until(lambda: coordinator.directory.later_attempt == 2)
            with pytest.raises(OtherAttempt, match="attempt 2 by now"):
                await client.start_capture(SPEC, "other")
            assert (await client.start_capture(SPEC, "key")).capture_id == done.capture_id
            assert [each.key for each in coordinator.server.roster.links()] == ["a"], "its node is not ours to ask"
            cluster.api.delete("pods", "ml", "llama-0")
            await until(lambda: coordinator.directory.later_attempt is None)
            again = await client.start_capture(SPEC, "other")
            assert (await client.wait(again.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_describe_tells_the_operator_who_is_registered_and_what_is_under_way(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        async with cluster.coordinator(job, series="nightly") as coordinator:
            token = cluster.api.token_for(OPERATOR, audience=names.audience_of(job))
            async with AsyncClient(cluster.endpoint(job, token)) as operator:
                before = await operator.describe()
                assert (before.registered, before.world_size, before.caller) == (None, None, OPERATOR)
                assert (before.series, before.unsettled, before.retired) == ("nightly", 0, "")
                await cluster.node("a", [0, 1], job, 4)
                agent = await cluster.node("b", [2], job, 4)
                await until(lambda: len(coordinator.server.roster.last_seen) == 3)
                about = await operator.describe()
                assert (about.registered, about.world_size) == (3, 4)
                agent.workers = [msgspec.structs.replace(agent.workers[0], alive=False)]
                await until(lambda: coordinator.server.roster.registered() == (2, 4))
                assert (await operator.describe()).registered == 2


@in_loop
async def test_at_the_end_captures_that_run_are_waited_for_and_new_ones_sent_to_the_next_coordinator(
    tmp_path: Path,
) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        deliver, agent.script = agent.script, stay(TargetState.QUEUED)
        server = CoordinatorServer(
            CoordinatorConfig(job=JOB, archive=str(tmp_path), agents=(agent.address,), timings=QUICK)
        )
        async with AsyncClient(await server.start()) as client:
            running = await client.start_capture(SPEC)
            await until(lambda: "GetFacts" in agent.calls)
            draining = asyncio.create_task(server.drain(60))
            with pytest.raises(TryAgain, match="about to be replaced"):
                await _refused(lambda: client.start_capture(SPEC))
            assert not draining.done()
            agent.script = deliver
            view = await client.wait(running.capture_id)
            assert (view.outcome, view.published) == (Outcome.SUCCEEDED, True)
            await draining
        await server.stop()


async def _refused(call: Callable[[], Awaitable[object]]) -> None:
    """Again until it is: the drain begins in a task of its own."""
    for _ in range(100):
        await call()
