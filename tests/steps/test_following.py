"""Following a capture to its proven end, whatever happens to its coordinator, and never beyond the deadline."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from sameshot.api.views import CaptureView
from sameshot.client.local import JobInfo, write_job_file
from sameshot.errors import AlreadyExists, CaptureFailed, DeadlinePassed, ManifestError, SameshotError, StorageError
from sameshot.model import CaptureState, Outcome, TargetState
from sameshot.steps import follow as following
from sameshot.steps.begin import begin, pinned
from sameshot.steps.cancel import cancel_async
from sameshot.steps.capture import accept, run
from sameshot.steps.finish import finish, result_of
from sameshot.steps.follow import follow
from sameshot.steps.request import CaptureRequest
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, stay, worker
from support.step_requests import request, training


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not answer for a moment is gone, a job that has ended is soon given up."""
    for module in ("follow", "patience"):
        monkeypatch.setattr(f"sameshot.steps.{module}.PATIENCE_S", 0.3)
    monkeypatch.setattr(following, "ENDED_GRACE_S", 0.3)
    monkeypatch.setattr(following, "_LONGEST_PAUSE_S", 0.3)


async def captured(folder: Path) -> CaptureView:
    """A finished capture, whose coordinator and agents have gone."""
    async with training(folder) as (_, client):
        return await client.wait((await client.start_capture(SPEC, "k1")).capture_id)


# ---- the deadline


@in_loop
async def test_at_the_deadline_following_ends_and_leaves_the_capture_running(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        started = await begin(request(client))
        with pytest.raises(DeadlinePassed, match="0 of 2 traces are archived") as passed:
            await follow(request(client), started.capture_id, deadline=time.time() + 0.5)
        assert passed.value.view.state is CaptureState.COLLECTING
        assert not (await client.get(started.capture_id)).cancel_requested
        assert "Withdraw" not in agent.calls


@in_loop
async def test_a_step_whose_time_is_over_cancels_its_capture_and_says_what_that_did(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        began = time.time()
        result = await run(request(client, timeout_s=2.5))
        assert time.time() - began < 20
        assert (result.exit_code, result.timed_out, result.outcome) == (7, True, Outcome.CANCELLED)
        assert result.withdrawn == "2 of 2 configs were withdrawn before any worker fetched them."
        assert result.message.startswith("Not done within 2.5 s. Capture")
        assert result.published
        assert result.manifest_sha256 is not None
        assert (await client.get(result.capture_id)).state is CaptureState.CANCELLED

        agent.script = deliver
        assert (await run(request(client))).n == 2  # a retry wants a picture


@in_loop
async def test_whoever_comes_after_the_deadline_still_learns_how_it_ended(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        result = await finish(request(client), done.capture_id, deadline=time.time() - 3600)
        assert (result.exit_code, result.timed_out) == (0, False)
        assert (await follow(request(client), done.capture_id, deadline=time.time() - 3600)).published
        assert "Withdraw" not in agent.calls


@in_loop
async def test_a_cancel_at_the_deadline_that_nobody_lived_to_tell_is_told_by_the_next_one(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        started = await begin(request(client))
        await until_view(client, started.capture_id, lambda view: view.state is CaptureState.COLLECTING)
        deadline = time.time()
        await client.cancel(started.capture_id)  # by the process that was killed right after
        result = await finish(request(client), started.capture_id, deadline=deadline)
        assert (result.exit_code, result.timed_out, result.outcome) == (7, True, Outcome.CANCELLED)
        assert result.message.startswith("Not done within 60 s. Capture")


@in_loop
async def test_a_cancel_before_the_deadline_was_somebody_elses(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        started = await begin(request(client))
        await client.cancel(started.capture_id)
        await until_view(client, started.capture_id, lambda view: view.published)
        deadline = time.time()  # the next one comes after it
        result = await finish(request(client), started.capture_id, deadline=deadline)
        assert (result.exit_code, result.timed_out) == (7, False)
        assert "Not done" not in result.message


@in_loop
async def test_a_capture_is_not_over_before_its_manifest_is_in_the_archive(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        started = await begin(request(client))
        await until_view(client, started.capture_id, lambda view: view.state.terminal)
        early = await finish(request(client), started.capture_id, deadline=time.time())
        assert (early.exit_code, early.outcome, early.published) == (75, Outcome.SUCCEEDED, False)
        assert "the bucket is away" in early.message

        waiting = asyncio.create_task(follow(request(client), started.capture_id))
        tried = agent.calls.count("PublishManifest")
        await until(lambda: agent.calls.count("PublishManifest") > tried)
        assert not waiting.done()
        agent.refuse.clear()
        view = await waiting
        assert (view.published, view.archived) == (True, 2)


@in_loop
async def test_what_will_never_be_published_is_not_waited_for(tmp_path: Path) -> None:
    """Another manifest stands in its place, and is not overwritten."""
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = AlreadyExists("there is another one")
        async with asyncio.timeout(20):  # the step's own timeout is a minute
            result = await run(request(client))
            told = await cancel_async(client.address, result.capture_id, wait_s=60)
        assert (result.exit_code, result.outcome, result.published) == (4, Outcome.SUCCEEDED, False)
        assert (result.manifest_uri, result.archived, result.timed_out) == ("", 2, False)
        assert "no manifest of it will ever be published: Another manifest was met" in result.message
        assert (told.state, told.was_over) == ("SUCCEEDED", True)
        with pytest.raises(CaptureFailed):
            accept(result)


@in_loop
async def test_a_coordinator_that_fails_while_it_publishes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("sameshot.coordinator.publish.manifest_of", broken)
    async with training(tmp_path) as (_, client):
        async with asyncio.timeout(20):
            result = await run(request(client))
        assert (result.exit_code, result.outcome, result.published) == (4, Outcome.FAILED, False)
        assert "The coordinator itself failed (ZeroDivisionError())" in result.message


@in_loop
async def test_cancelling_the_coroutine_cancels_no_capture(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        started = await begin(request(client))
        task = asyncio.create_task(finish(request(client), started.capture_id))
        await until(lambda: agent.calls.count("GetFacts") > 3)
        task.cancel()  # a triggerer that is restarted
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert not (await client.get(started.capture_id)).cancel_requested


# ---- the coordinator


class Proxy(CoordinatorServicer):
    """Between us and a coordinator: says so often that something is wrong, in gRPC's words, and then has a new peer."""

    def __init__(self, code: grpc.StatusCode, times: int, view: CaptureView) -> None:
        self.code, self.times, self.view, self.asked = code, times, view, 0

    async def WatchCapture(self, request: pb.CaptureSelector, context: Any) -> AsyncIterator[pb.CaptureUpdate]:  # noqa: N802
        self.asked += 1
        if self.asked <= self.times:
            await context.abort(self.code, "stream was reset")
        update = pb.CaptureUpdate()
        to_proto(self.view, update.capture)
        yield update


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED]
)
@in_loop
async def test_what_a_proxy_says_of_a_broken_stream_does_not_end_the_following(
    code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = CaptureView(capture_id="0" * 32, job=JOB, state=CaptureState.SUCCEEDED, published=True, manifest_uri="m")
    for times in (2, 10**6):
        server, proxy = grpc.aio.server(), Proxy(code, times, over)
        add_CoordinatorServicer_to_server(proxy, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        asked = CaptureRequest(address=f"127.0.0.1:{port}", request_key="k1", timeout_s=60)
        try:
            if times == 2:
                assert (await follow(asked, "0" * 32)).published
                assert proxy.asked == 3
            else:  # it never gets better: then that is the answer, and not before
                monkeypatch.setattr(following, "PATIENCE_S", 0.5)
                with pytest.raises(SameshotError, match=f"failed with {code.name}"):
                    await follow(asked, "0" * 32)
                assert proxy.asked > 1
        finally:
            await server.stop(None)


@in_loop
async def test_a_restarted_coordinator_is_ridden_out(tmp_path: Path) -> None:
    """What it lost is UNKNOWN and a retry starts anew; what was published it finds again."""
    where = f"unix:{tmp_path}/c.sock"
    async with FakeAgent("node-0", Storage.open(str(tmp_path / "archive"))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        agent.script = stay(TargetState.CONSUMED)
        lines: list[str] = []
        async with coordinating(tmp_path / "archive", [agent], listen=where) as client:
            asked = request(client)
            waiting = asyncio.create_task(run(asked, lines.append))
            await until(lambda: agent.accepted)
            await until(lambda: any("COLLECTING" in line for line in lines))
        await until(lambda: any(line.startswith("waiting:") for line in lines))
        assert not waiting.done()
        async with coordinating(tmp_path / "archive", [agent], listen=where):
            lost = await waiting
            assert (lost.exit_code, lost.outcome, lost.n, lost.published) == (5, Outcome.UNKNOWN, 1, False)
            assert lost.job == JOB
            assert "A retry with the same request key begins a new one." in lost.message
            agent.script = deliver
            again = await run(asked)
            assert (again.exit_code, again.n) == (0, 2)
        async with coordinating(tmp_path / "archive", [agent], listen=where):
            assert await run(asked) == again


@in_loop
async def test_when_the_coordinator_is_gone_the_manifest_in_the_archive_tells(
    tmp_path: Path, little_patience: None
) -> None:
    done = await captured(tmp_path)
    gone = CaptureRequest(address="127.0.0.1:1", request_key="k1", spec=SPEC, caller="ana")
    result = await finish(gone, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + 30)
    async with training(tmp_path) as (_, client):
        assert result == await run(request(client))  # word for word what a coordinator makes of it
    assert (result.exit_code, result.outcome, result.archived) == (0, Outcome.SUCCEEDED, 2)


@in_loop
async def test_while_there_is_no_manifest_either_it_is_looked_for_until_the_deadline(
    tmp_path: Path, little_patience: None
) -> None:
    done = await captured(tmp_path)
    folder = tmp_path / "archive" / JOB.path / done.capture_id
    folder.rename(tmp_path / "later")
    gone = CaptureRequest(address="127.0.0.1:1", request_key="k1", spec=SPEC)
    lines: list[str] = []
    waiting = asyncio.create_task(
        follow(gone, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + 60, progress=lines.append)
    )
    await until(lambda: lines)
    assert "can't be reached" in lines[0]
    (tmp_path / "later").rename(folder)  # a coordinator elsewhere has published it
    assert (await waiting).outcome is Outcome.SUCCEEDED

    folder.rename(tmp_path / "never")
    result = await finish(gone, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + 1)
    assert (result.exit_code, result.timed_out, result.outcome) == (75, False, None)
    assert "the cancel is not confirmed" in result.message


@in_loop
async def test_a_job_that_is_known_to_have_ended_is_not_waited_for(
    tmp_path: Path, little_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await captured(tmp_path)
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "runs"))
    ended = pinned(CaptureRequest(address="local:train", request_key="k1", spec=SPEC), done)
    assert (await follow(ended, done.capture_id, manifest_uri=done.manifest_uri)).outcome is Outcome.SUCCEEDED

    lost = await follow(ended, "0" * 32, manifest_uri=done.manifest_uri.replace(done.capture_id, "0" * 32))
    assert lost.state is CaptureState.UNKNOWN
    result = await result_of(ended, lost)
    assert (result.exit_code, result.job) == (5, None)  # nobody can tell its namespace any more


@in_loop
async def test_an_archive_that_does_not_answer_says_nothing_about_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def away(uri: str) -> None:
        looks.append(uri)
        raise StorageError("503")

    monkeypatch.setattr(following, "read_manifest", away)
    async with training(tmp_path) as (_, client):  # which knows no such capture, nor does its archive
        with pytest.raises(DeadlinePassed):
            await follow(request(client), "0" * 32, manifest_uri="s3://b/m.json", deadline=time.time() + 1)
        assert set(looks) == {"s3://b/m.json"}
        monkeypatch.undo()
        assert (await follow(request(client), "0" * 32)).state is CaptureState.UNKNOWN


@in_loop
async def test_another_captures_manifest_is_never_taken_for_this_ones(tmp_path: Path, little_patience: None) -> None:
    done = await captured(tmp_path)
    gone = CaptureRequest(address="127.0.0.1:1", request_key="k1", spec=SPEC)
    with pytest.raises(ManifestError, match=done.capture_id):
        await follow(gone, "0" * 32, manifest_uri=done.manifest_uri, deadline=time.time() + 30)


@in_loop
async def test_another_job_at_the_same_address_is_not_asked_for_the_digest(
    tmp_path: Path, little_patience: None
) -> None:
    """`local` may mean the next job by now: its coordinator knows nothing of the capture, the archive does."""
    done = await captured(tmp_path)
    other = msgspec.structs.replace(JOB, name="gpt", uid="2" * 32)
    async with training(tmp_path, job=other) as (_, client):
        view = await follow(request(client), done.capture_id, manifest_uri=done.manifest_uri)
        result = await result_of(request(client), view)
    assert (result.exit_code, result.job) == (0, JOB)


@in_loop
async def test_a_lost_capture_is_not_said_to_be_of_the_job_that_answers_now(tmp_path: Path) -> None:
    other = msgspec.structs.replace(JOB, name="gpt", uid="2" * 32)
    async with training(tmp_path, job=other) as (_, client):
        asked = request(client, job=JOB.name, uid=JOB.uid, attempt=JOB.attempt)
        lost = await finish(asked, "0" * 32)
        assert (lost.exit_code, lost.outcome, lost.job) == (5, Outcome.UNKNOWN, None)
        mine = await finish(request(client, job="gpt"), "0" * 32)
        assert mine.job == other


@in_loop
async def test_jobs_of_the_same_name_that_began_since_are_not_in_the_way(
    tmp_path: Path, little_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them run: which one the address means can't be said, and does not matter for the job that is pinned."""
    done = await captured(tmp_path)
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    for run_id, uid, pid in (("r1", JOB.uid, 2**22 + 1), ("r2", "2" * 32, os.getpid()), ("r3", "3" * 32, os.getpid())):
        (root / run_id).mkdir()
        job = msgspec.structs.replace(JOB, uid=uid)
        info = JobInfo(job=job, series="s", coordinator=f"unix:/tmp/{run_id}.sock", archive="/a", pid=pid)
        write_job_file(root / run_id, info)
    for address in ("local:train", "local"):
        asked = pinned(CaptureRequest(address=address, request_key="k1", spec=SPEC), done)
        result = await finish(asked, done.capture_id, manifest_uri=done.manifest_uri, deadline=time.time() + 30)
        assert (result.exit_code, result.outcome, result.job) == (0, Outcome.SUCCEEDED, JOB)
