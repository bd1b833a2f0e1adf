"""The capture's container and the exit task's, run as the compiled IR states them, against a scripted node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp_containers import IR, Container, Ran

from sameshot.client import AsyncClient
from sameshot.model import CaptureState, FailureReason, TargetState
from sameshot.steps.begin import begin
from sameshot.steps.contract import KFP
from support.coordination import in_loop, until
from support.fake_agent import deliver, failing, stay
from support.step_requests import by_rank, request, training

PAGE = (Path(__file__).parents[2] / "docs" / "kfp.md").read_text()
CAPTURE, CANCEL = Container(IR, "capture"), Container(IR, "cancel")


def asked(client: AsyncClient, **more: Any) -> dict[str, Any]:
    """As the driver has replaced the placeholders: this run, this task."""
    own = {"address": client.address, "run_id": "run-1", "task_name": "capture", "key": "profile", "duration": "1s"}
    return {**own, "caller": "ana", **more}


async def captured(folder: Path, inputs: dict[str, Any]) -> Ran:
    return await asyncio.to_thread(CAPTURE.run, folder, inputs, SAMESHOT_RUNTIME_DIR=str(folder / "runs"))


async def cancelled(folder: Path, address: str, state: str = "FAILED", **more: Any) -> Ran:
    status = {"state": state, "pipelineTaskName": "exit-handler-1", "pipelineJobResourceName": "run-1"}
    inputs = {"address": address, "run_id": "run-1", "caller": "ana", "status": status, **more}
    return await asyncio.to_thread(CANCEL.run, folder, inputs, SAMESHOT_RUNTIME_DIR=str(folder / "runs"))


@in_loop
async def test_a_capture_gives_parameters_metrics_and_a_copy_of_the_manifest(tmp_path: Path) -> None:
    async with training(tmp_path) as (_agent, client):
        ran = await captured(tmp_path, asked(client))
        view = await client.get(request_key="kfp/run-1/capture/profile")
        assert (ran.code, ran.parameters["request_key"]) == (0, "kfp/run-1/capture/profile")
        original = Path(view.manifest_uri.removeprefix("file://")).read_bytes()
        digest = json.loads(original)["sha256"]
        assert ran.parameters == {
            "capture_id": view.capture_id,
            "request_key": "kfp/run-1/capture/profile",
            "manifest_uri": view.manifest_uri,
            "manifest_sha256": digest,
            "outcome": "SUCCEEDED",
            "expected": 2,
            "archived": 2,
            "missing": "",
            "shards": ["0/2", "1/2"],
            "warning": ran.parameters["warning"],
            "message": ran.parameters["message"],
        }
        assert hashlib.sha256(ran.files["manifest"]).digest() == hashlib.sha256(original).digest()
        about = ran.metadata["manifest"]
        assert (about["manifest_uri"], about["manifest_sha256"]) == (view.manifest_uri, digest)
        assert (about["outcome"], about["capture_id"]) == ("SUCCEEDED", view.capture_id)
        assert about["job"] == f"{view.job.namespace}/{view.job.name}"
        numbers = ran.metadata["metrics"]
        assert (numbers["expected"], numbers["archived"]) == (2.0, 2.0)
        assert all(isinstance(value, float) for value in numbers.values())


@in_loop
async def test_a_retried_task_finds_its_capture_and_every_other_task_makes_its_own(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        first = await captured(tmp_path, asked(client))
        agent.workers = []  # a retry is answered even when the job has ended since
        again = await captured(tmp_path / "again", asked(client))
        assert (again.code, again.parameters) == (0, first.parameters)
    ids = {first.parameters["capture_id"]}
    async with training(tmp_path) as (_, client):
        for at, other in enumerate(({"key": "0/2"}, {"key": "1/2"}, {"task_name": "capture-2"}, {"run_id": "run-2"})):
            ran = await captured(tmp_path / str(at), asked(client, **other))
            assert ran.code == 0, ran.log
            ids.add(ran.parameters["capture_id"])
    assert len(ids) == 5


@in_loop
async def test_a_terminated_task_leaves_its_capture_to_a_retry_and_the_exit_task_ends_it(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)

        async def interrupted(folder: Path) -> Ran:
            looks = agent.calls.count("GetFacts")
            process = CAPTURE.start(folder, asked(client))
            await until(
                lambda: agent.calls.count("GetFacts") > looks + 2 and "COLLECTING" in (folder / "log").read_text()
            )
            process.send_signal(signal.SIGTERM)  # to the container's first process only, as Kubernetes does
            return await asyncio.to_thread(CAPTURE.ended, folder, process)

        ran = await interrupted(tmp_path / "1")
        view = await client.get(request_key="kfp/run-1/capture/profile")
        assert ran.code == 143
        assert f"Capture {view.capture_id} goes on" in ran.log
        assert (view.state, view.cancel_requested) == (CaptureState.COLLECTING, False)
        again = await interrupted(tmp_path / "2")
        assert f"Capture {view.capture_id} goes on" in again.log

        other = await begin(request(client, "kfp/run-2/capture/profile"))
        ended = await cancelled(tmp_path / "3", client.address)
        assert (ended.code, ended.parameters["cancelled"]) == (0, [view.capture_id])
        assert (await client.get(view.capture_id)).state is CaptureState.CANCELLED
        assert not (await client.get(other.capture_id)).cancel_requested  # of another run
        ended = await cancelled(tmp_path / "4", client.address)
        assert (ended.code, ended.parameters["cancelled"]) == (0, [])


@in_loop
async def test_a_run_that_is_ended_by_hand_leaves_its_capture_which_the_pages_command_cancels(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        process = CAPTURE.start(tmp_path, asked(client), SAMESHOT_RUNTIME_DIR=str(tmp_path / "runs"))
        await until(lambda: "COLLECTING" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)  # pods are stopped, and no exit task may come after them
        assert (await asyncio.to_thread(CAPTURE.ended, tmp_path, process)).code == 143
        view = await client.get(request_key="kfp/run-1/capture/profile")
        assert (view.state, view.cancel_requested) == (CaptureState.COLLECTING, False)

        (command,) = re.findall(r"`sameshot (step cancel --address ADDRESS --key kfp/RUN/.*)`", PAGE)
        argv = command.replace("ADDRESS", client.address).replace("RUN", "run-1").split()
        ran = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sameshot.cli.main", *argv, "--caller", "ana",
            env={**os.environ, "SAMESHOT_RUNTIME_DIR": str(tmp_path / "runs")},
        )  # fmt: skip
        assert await asyncio.wait_for(ran.wait(), 60) == 0
        assert (await client.get(view.capture_id)).state is CaptureState.CANCELLED
        retried = await captured(tmp_path / "retried", asked(client, timeout="1s"))  # in the UI, of the same run
        assert retried.code == 7
        assert (await client.get(request_key="kfp/run-1/capture/profile")).capture_id != view.capture_id


@in_loop
async def test_an_exit_task_with_a_key_ends_captures_of_that_key_only(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        mine = await begin(request(client, "kfp/run-1/capture/a%2Fb"))
        others = [
            await begin(request(client, key)) for key in ("kfp/run-1/capture/b", "kfp/run-11/capture/a%2Fb", "a/b")
        ]
        ended = await cancelled(tmp_path, client.address, key="a/b")
        assert ended.parameters["cancelled"] == [mine.capture_id], ended.log
        for each in others:
            assert not (await client.get(each.capture_id)).cancel_requested
        ended = await cancelled(tmp_path, client.address)
        assert ended.parameters["cancelled"] == [others[0].capture_id]


@in_loop
async def test_an_exit_task_finds_captures_whose_keys_were_too_long_to_be_kept_whole(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        mine, other = ("picture " * 100 + end for end in ("a", "b"))
        views = {}
        for key in (mine, other):
            made = KFP.request_key(run_id="run-1", task_name="capture", key=key)
            assert key[-200:] not in made
            views[key] = await begin(request(client, made))
        foreign = await begin(request(client, KFP.request_key(run_id="run-2", task_name="capture", key=mine)))
        ended = await cancelled(tmp_path / "1", client.address, key=mine)
        assert ended.parameters["cancelled"] == [views[mine].capture_id], ended.log
        ended = await cancelled(tmp_path / "2", client.address)
        assert ended.parameters["cancelled"] == [views[other].capture_id], ended.log
        assert not (await client.get(foreign.capture_id)).cancel_requested


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED"])  # the first of kfp.local, the others of backends
def test_an_exit_task_asks_nobody_when_all_went_well(tmp_path: Path, state: str) -> None:
    @in_loop
    async def test() -> None:
        async with training(tmp_path) as (agent, client):
            agent.script = stay(TargetState.QUEUED)
            view = await begin(request(client, "kfp/run-1/capture/profile"))
            ended = await cancelled(tmp_path, client.address, state)
            assert (ended.code, ended.parameters["cancelled"]) == (0, []), ended.log
            assert "All went well" in ended.parameters["message"]
            assert not (await client.get(view.capture_id)).cancel_requested

    test()


@pytest.mark.parametrize("state", ["FAILED", "CANCELED", "RUNNING", "UNKNOWN"])
def test_an_exit_task_looks_after_all_else(tmp_path: Path, state: str) -> None:
    @in_loop
    async def test() -> None:
        async with training(tmp_path) as (agent, client):
            agent.script = stay(TargetState.QUEUED)
            view = await begin(request(client, "kfp/run-1/capture/profile"))
            ended = await cancelled(tmp_path, client.address, state)
            assert ended.parameters["cancelled"] == [view.capture_id], ended.log

    test()


@pytest.mark.full  # the silent coordinator is given the 10 s in which one is restarted
@in_loop
async def test_an_exit_task_says_what_it_does_not_know(tmp_path: Path) -> None:
    nobody = await cancelled(tmp_path / "1", "local:nobody")
    assert (nobody.code, nobody.parameters["cancelled"]) == (0, [])
    assert "nobody" in nobody.parameters["message"]
    silent = await cancelled(tmp_path / "2", "127.0.0.1:1")
    assert silent.code == 75
    assert "not known whether a capture of this run goes on" in silent.log


@in_loop
async def test_a_partial_capture_fails_the_task_unless_its_ranks_are_enough(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.WORKER_EXITED, "it ended"))
        ran = await captured(tmp_path / "1", asked(client))
        assert (ran.code, (tmp_path / "1" / "kfp" / "outputs").exists()) == (3, False)
        assert "rank 1: WORKER_EXITED, it ended" in ran.log
        enough = await captured(tmp_path / "2", asked(client, min_ranks=1.0))  # numbers are doubles on the wire
        assert enough.code == 0, enough.log
        given = enough.parameters
        assert (given["outcome"], given["missing"], given["shards"]) == ("PARTIAL", "1", ["0/1"])
        assert "WORKER_EXITED" in given["warning"]
        assert (await captured(tmp_path / "3", asked(client, min_ranks=2.0))).code == 3


@in_loop
async def test_a_skipped_capture_leaves_the_rest_of_the_pipeline_with_nothing_to_do(tmp_path: Path) -> None:
    nobody = {"address": "local:nobody", "run_id": "run-1", "task_name": "capture", "key": "profile"}
    ran = await captured(tmp_path, {**nobody, "if_unavailable": "skip"})
    assert ran.code == 0, ran.log
    assert (ran.parameters["capture_id"], ran.parameters["outcome"]) == ("", "")
    (shard,) = ran.parameters["shards"]  # never an empty loop
    of = {name: ran.parameters[name] for name in ("manifest_uri", "manifest_sha256")} | {"results": str(tmp_path / "r")}
    for name, more in (("analyze-rank", {"shard": shard}), ("reduce", {}), ("compare", {})):
        done = await asyncio.to_thread(Container(IR, name).run, tmp_path / name, {**of, **more})
        assert done.code == 0, done.log
        assert not any(done.parameters.values())
        if name != "analyze-rank":
            assert b"Nothing was captured" in done.files["report"]
    assert not (tmp_path / "r").exists()
    assert (await captured(tmp_path / "strict", nobody)).code == 6


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"key": ""}, 2),
        ({"duration": "soon"}, 2),
        ({"if_busy": "maybe"}, 2),
        ({"attempt": 3.0}, 6),
        ({"job": "--result"}, 6),
    ],
)
def test_what_can_not_be_done_is_the_steps_own_exit_code(tmp_path: Path, inputs: dict[str, Any], code: int) -> None:
    @in_loop
    async def test() -> None:
        async with training(tmp_path) as (agent, client):
            ran = await captured(tmp_path, asked(client, **inputs))
            assert ran.code == code, ran.log
            assert "Traceback" not in ran.log
            assert "Dispatch" not in agent.calls

    test()
