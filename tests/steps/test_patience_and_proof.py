"""How long one waits for whom, and what is taken for proof: each with the moment in which it makes a difference."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import msgspec
import pytest

from sameshot import manifest
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from sameshot.client import CaptureView
from sameshot.client.local import JobInfo, write_job_file
from sameshot.errors import NotFound, StorageError
from sameshot.manifest import Manifest
from sameshot.model import CaptureState, Outcome, TargetState
from sameshot.steps import follow as following
from sameshot.steps.archive import read_manifest
from sameshot.steps.begin import begin, pinned
from sameshot.steps.capture import run
from sameshot.steps.finish import finish, result_of
from sameshot.steps.follow import follow
from sameshot.steps.request import CaptureRequest
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating, in_loop, until, until_view
from support.fake_agent import JOB, FakeAgent, deliver, stay, worker
from support.step_requests import request, training


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    return root


def announce(root: Path, run_id: str, uid: str, coordinator: str) -> None:
    (root / run_id).mkdir()
    job = msgspec.structs.replace(JOB, uid=uid)
    write_job_file(root / run_id, JobInfo(job=job, series="s", coordinator=coordinator, archive="/a", pid=os.getpid()))


# ---- proof


@in_loop
async def test_another_captures_manifest_in_the_place_of_this_ones_is_no_proof(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        first = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        second = await client.wait((await client.start_capture(SPEC, "k2")).capture_id)
        there = Path(urlsplit(first.manifest_uri).path)
        there.write_bytes(Path(urlsplit(second.manifest_uri).path).read_bytes())  # whole, and valid in itself
        result = await result_of(request(client), first)
    assert (result.exit_code, result.manifest_sha256, result.shards) == (4, None, ())
    assert "is of capture" in result.message


@in_loop
async def test_a_run_is_about_the_job_that_it_began_with(tmp_path: Path, root: Path) -> None:
    """Another job of the same name starts meanwhile: from then on the address alone would not do."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        announce(root, "r1", JOB.uid, client.address)
        seen: list[CaptureView] = []
        task = asyncio.create_task(run(request(client, address="local:train"), None, seen.append))
        await until(lambda: seen and seen[-1].targets)
        announce(root, "r2", "2" * 32, f"unix:{tmp_path}/none")
        agent.script = deliver
        result = await task
    assert (result.exit_code, result.outcome, result.job) == (0, Outcome.SUCCEEDED, JOB)
    assert result.manifest_sha256 is not None


@in_loop
async def test_a_manifest_is_read_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 4096 ranks takes more than half a second, and a triggerer follows many captures in one loop."""
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        decode, threads = manifest.decode, []

        def noted(data: bytes) -> Manifest:
            threads.append(threading.get_ident())
            return decode(data)

        monkeypatch.setattr(manifest, "decode", noted)
        assert (await read_manifest(done.manifest_uri)).capture.capture_id == done.capture_id
        assert threads
        assert threading.get_ident() not in threads


@in_loop
async def test_what_has_ended_before_the_deadline_is_not_cancelled_after_it(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        started = await begin(request(client))
        await until_view(client, started.capture_id, lambda view: view.state.terminal)
        lines: list[str] = []
        early = await finish(request(client), started.capture_id, deadline=time.time(), progress=lines.append)
        assert (early.exit_code, early.outcome, early.timed_out) == (75, Outcome.SUCCEEDED, False)
        assert not [line for line in lines if "Cancelling" in line]


# ---- patience


@in_loop
async def test_a_coordinator_that_is_away_for_a_moment_still_begins_the_capture(tmp_path: Path) -> None:
    where = f"unix:{tmp_path}/c.sock"
    async with FakeAgent("node-0", Storage.open(str(tmp_path / "archive"))) as agent:
        agent.workers = [worker(rank=0, world_size=1)]
        task = asyncio.create_task(begin(CaptureRequest(address=where, request_key="k1", spec=SPEC, caller="ana")))
        done, _ = await asyncio.wait([task], timeout=1)
        assert not done
        async with coordinating(tmp_path / "archive", [agent], listen=where) as client:
            assert (await task).capture_id == (await client.get(request_key="k1")).capture_id


@in_loop
async def test_the_archive_is_asked_when_the_patience_with_a_coordinator_is_over_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
    monkeypatch.setattr(following, "PATIENCE_S", 1.5)
    gone, began = CaptureRequest(address="127.0.0.1:1", request_key="k1", spec=SPEC), time.monotonic()
    assert (await follow(gone, done.capture_id, manifest_uri=done.manifest_uri)).published
    assert 1.4 < time.monotonic() - began < 30


@in_loop
async def test_a_job_that_has_ended_may_still_publish_for_a_while(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is over, and its manifest is on its way: a capture is not lost yet."""
    async with training(tmp_path) as (_, client):
        done = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
    folder = Path(urlsplit(done.manifest_uri).path).parent
    folder.rename(tmp_path / "later")
    looks, read = [], following.read_manifest

    async def counted(uri: str) -> Manifest:
        looks.append(uri)
        return await read(uri)

    monkeypatch.setattr(following, "read_manifest", counted)
    ended = pinned(CaptureRequest(address="local:train", request_key="k1", spec=SPEC, timeout_s=60), done)
    task = asyncio.create_task(follow(ended, done.capture_id, manifest_uri=done.manifest_uri))
    await until(lambda: len(looks) >= 2)
    assert not task.done()
    (tmp_path / "later").rename(folder)
    assert (await task).outcome is Outcome.SUCCEEDED


class Flickering(CoordinatorServicer):
    """Away for `s` seconds, there for one view, away for as long again, and then the capture is over."""

    def __init__(self, s: float) -> None:
        self.s, self.until, self.shown = s, time.monotonic() + s, 0

    async def WatchCapture(self, request: pb.CaptureSelector, context: Any) -> AsyncIterator[pb.CaptureUpdate]:  # noqa: N802
        if time.monotonic() < self.until:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        self.shown, self.until = self.shown + 1, time.monotonic() + self.s
        over = self.shown == 2
        state = CaptureState.SUCCEEDED if over else CaptureState.WAITING
        view = CaptureView(capture_id="0" * 32, job=JOB, state=state, published=over, manifest_uri="m")
        update = pb.CaptureUpdate()
        to_proto(view, update.capture)
        yield update


@in_loop
async def test_each_silence_has_the_whole_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    async def asked(uri: str) -> None:
        looks.append(uri)
        raise NotFound(uri)

    monkeypatch.setattr(following, "read_manifest", asked)
    monkeypatch.setattr(following, "PATIENCE_S", 4.0)
    monkeypatch.setattr(following, "_LONGEST_PAUSE_S", 0.3)
    server, coordinator = grpc.aio.server(), Flickering(2.5)
    add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        asked_for = CaptureRequest(address=f"127.0.0.1:{port}", request_key="k1", timeout_s=60)
        assert (await follow(asked_for, "0" * 32, manifest_uri="m")).published
    finally:
        await server.stop(None)
    assert coordinator.shown == 2
    assert looks == []
