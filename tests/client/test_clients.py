"""Both clients against a real coordinator, and what `import sameshot` costs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import grpc
import msgspec
import pytest

import sameshot
from sameshot import errors
from sameshot.api import sameshot_pb2 as pb
from sameshot.api import status
from sameshot.api.convert import to_proto
from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient, Client, connect, wire
from sameshot.coordinator import service
from sameshot.errors import InvalidSpec, NoSuchJob, TryAgain, UnknownCapture, Unreachable, UsageError
from sameshot.model import CaptureSpec, Identity, Outcome, TargetFact, TargetState
from sameshot.storage import Storage
from support.coordination import QUICK, SPEC, coordinating, in_loop
from support.fake_agent import JOB, FakeAgent, deliver, stay, worker


def test_importing_sameshot_loads_nothing_heavy() -> None:
    script = (
        "import sys, sameshot; "
        "print([name for name in ('grpc', 'google.protobuf', 'torch', 'pandas', 'kubernetes', 'msgspec', 'asyncio')"
        " if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_every_public_name_of_sameshot_is_really_there() -> None:
    for name in sameshot.__all__:
        assert getattr(sameshot, name).__name__ == name
        assert name in dir(sameshot)
    with pytest.raises(AttributeError, match="nonsense"):
        sameshot.nonsense  # noqa: B018


def test_the_two_clients_are_twins() -> None:
    def face(of: type) -> dict[str, list[str]]:
        return {
            name: [each for each in inspect.signature(method).parameters if each != "timeout_s"]
            for name, method in vars(of).items()
            if not name.startswith("_") and callable(method)
        }

    assert face(Client) == face(AsyncClient)


@in_loop
async def test_the_blocking_client_does_everything_from_another_thread(tmp_path: Path) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=rank, world_size=3) for rank in (0, 1)]
        async with coordinating(tmp_path, [agent]) as other:

            def use() -> None:
                with connect(other.address, caller="ana") as client:
                    assert (client.describe().job, client.describe().series) == (JOB, "nightly")
                    workers = client.workers()
                    assert [each.registration.rank for each in workers.workers] == [0, 1]
                    assert (workers.world_size, workers.missing_ranks) == (3, (2,))
                    assert workers.agents[0].reachable
                    started = client.start_capture(SPEC, "key")
                    views = list(client.watch(started.capture_id))
                    assert views[-1] == client.wait(request_key="key") == client.get(started.capture_id)
                    assert views[-1].outcome is Outcome.PARTIAL
                    assert client.manifest(started.capture_id) == client.manifest(request_key="key")
                    assert [each.capture_id for each in client.captures()] == [started.capture_id]
                    assert client.cancel(started.capture_id).state is views[-1].state
                    with pytest.raises(UnknownCapture):
                        client.get("0" * 32)
                    with pytest.raises(InvalidSpec):
                        client.start_capture(msgspec.structs.replace(SPEC, duration_ms=0))
                    with pytest.raises(UsageError):
                        client.get(started.capture_id, request_key="key")
                    with pytest.raises(UsageError):
                        client.start_capture(SPEC, on_failed="AGAIN")  # type: ignore[arg-type]

            await asyncio.to_thread(use)


@in_loop
async def test_waiting_ends_with_the_callers_patience_and_the_capture_goes_on(tmp_path: Path) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = stay(TargetState.QUEUED)
        async with coordinating(tmp_path, [agent]) as other:

            def use() -> str:
                with connect(other.address) as client:
                    started = client.start_capture(SPEC)
                    with pytest.raises(TryAgain, match="goes on"):
                        client.wait(started.capture_id, timeout_s=0.5)
                    return started.capture_id

            capture_id = await asyncio.to_thread(use)
            agent.script = deliver
            assert (await other.wait(capture_id)).outcome is Outcome.SUCCEEDED


def test_a_coordinator_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with connect(f"unix:{tmp_path}/nothing.sock") as client, pytest.raises(Unreachable, match=r"nothing\.sock"):
        client.describe()


@in_loop
async def test_workers_of_a_silent_node_are_shown_as_last_seen(tmp_path: Path) -> None:
    timings = msgspec.structs.replace(QUICK, freeze_s=0.3)
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        async with coordinating(tmp_path, [agent], timings=timings) as client:
            assert (await client.workers()).workers[0].alive
            agent.frozen.clear()
            listed = await client.workers()
            agent.frozen.set()
    assert not listed.workers[0].alive
    assert "does not answer" in listed.workers[0].note
    assert not listed.agents[0].reachable
    assert "did not answer in time" in listed.agents[0].detail


@in_loop
async def test_an_agent_that_says_no_has_answered(tmp_path: Path) -> None:
    async with FakeAgent("node-0", Storage.open(str(tmp_path))) as agent:
        agent.refuse["ListWorkers"] = NoSuchJob("no worker of this job was ever here")
        async with coordinating(tmp_path, [agent]) as client:
            listed = await client.workers()
            failed = await client.wait((await client.start_capture(SPEC)).capture_id)
    assert listed.agents[0].reachable
    assert "ever here" in listed.agents[0].detail
    assert "ever here" in failed.note
    assert "no answer" not in failed.note


@in_loop
async def test_another_jobs_uid_is_refused(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as client:
        request = wire.start_request(SPEC, None, "NEW")
        to_proto(msgspec.structs.replace(JOB, uid="another"), request.job)
        with pytest.raises(NoSuchJob, match="another"):
            await client._call(client._stub.StartCapture, request)


@pytest.mark.parametrize("kind", [each for each in status.CODES if each is not errors.TraceError])
def test_every_error_keeps_its_class_across_the_wire(kind: type[errors.SameshotError]) -> None:
    class Failed(grpc.RpcError):
        def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
            self.metadata = metadata

        def code(self) -> grpc.StatusCode:
            return status.code_of(kind("why"))

        def details(self) -> str:
            return "why"

        def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
            return self.metadata

    told = status.from_rpc(Failed(((status.ERROR_KEY, kind.__name__),)), "The peer")
    assert (type(told), str(told)) == (kind, "why")
    older = status.from_rpc(Failed(((status.ERROR_KEY, "FromTheFuture"),)), "The peer")
    assert "The peer" in str(older)


def view_of(targets: int, state: TargetState) -> CaptureView:
    facts = tuple(TargetFact(f"t{rank}", Identity(rank=rank), state) for rank in range(targets))
    return CaptureView(capture_id="0" * 32, job=JOB, spec=CaptureSpec(), expected=targets, targets=facts)


def test_a_large_job_is_watched_in_pieces_that_make_the_whole_again() -> None:
    view = view_of(4096, TargetState.QUEUED)
    updates = service._updates(view, view.targets, whole=True)
    assert len(updates) > 1
    assert all(update.ByteSize() < 1 << 20 for update in updates)
    assembly = wire.Assembly()
    views = [assembly.add(pb.CaptureUpdate.FromString(update.SerializeToString())) for update in updates]
    assert views[:-1] == [None] * (len(updates) - 1)
    assert views[-1] == view


def test_deltas_change_only_what_they_name_and_a_new_snapshot_forgets_the_rest() -> None:
    assembly = wire.Assembly()
    first = view_of(3, TargetState.QUEUED)
    for update in service._updates(first, first.targets, whole=True):
        assembly.add(update)
    news = msgspec.structs.replace(first.targets[1], state=TargetState.ANNOUNCED)
    (update,) = service._updates(first, (news,), whole=False)
    changed = assembly.add(update)
    assert [each.state for each in changed.targets] == [TargetState.QUEUED, TargetState.ANNOUNCED, TargetState.QUEUED]
    smaller = view_of(2, TargetState.QUEUED)
    (update,) = service._updates(smaller, smaller.targets, whole=True)
    assert assembly.add(update) == smaller
