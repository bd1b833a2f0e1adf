"""The connector as it is deployed, by `pyflyte serve connector`, called as propeller calls it; and local execution."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte_connector import ConnectorProcess, output_of, output_prefix, phase
from live import LiveJob, running_job, wait_for

from sameshot.model import CaptureState
from sameshot_flyte import Capture, capture
from support.coordination import in_loop

pytestmark = [pytest.mark.full, pytest.mark.live]

SHORT: dict[str, str | int | bool] = {"duration": "500ms", "warmup": "0s", "activities": "cpu"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    """Runs of these tests stay among themselves, under a path that is short enough for Kineto's sockets."""
    folder = tempfile.mkdtemp(prefix="ss-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESHOT_RUNTIME_DIR", folder)
        with running_job(tmp_path_factory.mktemp("job"), nodes=1, script_args=("--pause", "0.02")) as running:
            yield running
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(job: LiveJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectorProcess]:
    with ConnectorProcess(tmp_path_factory.mktemp("connector")) as served:
        yield served


def inputs(job: LiveJob, **more: str | int | bool) -> dict[str, str | int | bool]:
    return {"address": job.local.address, **SHORT, **more}


def of(meta: bytes) -> str:
    return str(json.loads(meta)["capture_id"])


def check_traces(job: LiveJob, found: Capture) -> None:
    """Every rank's trace is in the archive, and the manifest is the one whose digest was told."""
    with job.local.client() as client:
        view = client.get(found.capture_id)
    assert sorted(job.traces_of(view)) == [0, 1]
    assert json.loads(job.manifest_of(view).read_bytes())["sha256"] == found.manifest_sha256
    assert (found.outcome, found.expected, found.archived, found.shards) == ("SUCCEEDED", 2, 2, ["0/2", "1/2"])


@in_loop
async def test_a_connector_that_is_killed_and_started_again_finds_the_capture_and_tells_its_output(
    job: LiveJob, server: ConnectorProcess
) -> None:
    async with server.calls() as flyte:
        meta = await flyte.create(inputs(job), execution="killed")
        again = await flyte.create(inputs(job), execution="killed")
        retried = await flyte.create(inputs(job), execution="killed", attempt=1)
        mapped = await flyte.create(inputs(job), execution="killed", index=1)
    assert of(meta) == of(again) == of(retried) != of(mapped)

    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)

    async with server.calls() as flyte:
        seen = await flyte.ended(meta)
        assert phase(seen) == "SUCCEEDED", seen.message
        found = await output_of(seen)
        assert found.capture_id == of(meta)
        await asyncio.to_thread(check_traces, job, found)
        assert await output_of(await flyte.ended(retried)) == found
        assert (await output_of(await flyte.ended(mapped))).capture_id == of(mapped)
        await flyte.delete(meta)  # too late to change anything
        assert phase(await flyte.get(meta)) == "SUCCEEDED"


@in_loop
async def test_what_is_deleted_twice_is_cancelled_once_and_a_lost_one_is_worth_a_retry(
    job: LiveJob, server: ConnectorProcess
) -> None:
    async with server.calls() as flyte:
        meta = await flyte.create(inputs(job, duration="10s"), execution="deleted")
        await flyte.delete(meta)
        await flyte.delete(meta)
        seen = await flyte.ended(meta)
        assert (phase(seen), "was cancelled" in seen.message) == ("FAILED", True), seen.message
        with job.local.client() as client:
            assert client.get(of(meta)).state is CaptureState.CANCELLED

        other = json.loads(meta) | {"capture_id": "f" * 32, "manifest_uri": ""}
        lost = await flyte.get(json.dumps(other).encode())
        assert (phase(lost), f"capture {'f' * 32} any more" in lost.message) == ("RETRYABLE_FAILED", True)


@in_loop
async def test_a_deadline_that_passes_cancels_the_capture_and_is_worth_a_retry(
    job: LiveJob, server: ConnectorProcess
) -> None:
    async with server.calls() as flyte:
        meta = await flyte.create(inputs(job, duration="10s", timeout="3s"), execution="late")
        seen = await flyte.ended(meta)
        assert phase(seen) == "RETRYABLE_FAILED"
        assert seen.message.startswith("Not done within 3 s. "), seen.message
        with job.local.client() as client:
            assert client.get(of(meta)).state is CaptureState.CANCELLED


@in_loop
async def test_a_job_that_is_not_there_fails_is_skipped_or_is_waited_for(
    job: LiveJob, server: ConnectorProcess
) -> None:
    async with server.calls() as flyte:
        gone = {"address": "local:nobody", **SHORT}
        failed = await flyte.get(await flyte.create(gone))
        assert (phase(failed), "nobody" in failed.message) == ("RETRYABLE_FAILED", True)
        skipped = await flyte.get(await flyte.create(gone | {"if_unavailable": "skip"}))
        assert phase(skipped) == "SUCCEEDED"
        assert (await output_of(skipped)).manifest_uri == ""
        assert (await output_of(skipped)).message.startswith("Skipped: ")
        waiting = await flyte.create(gone | {"if_unavailable": "wait", "timeout": "2s"})
        assert phase(await flyte.get(waiting)) == "WAITING_FOR_RESOURCES"
        late = await flyte.ended(waiting)
        assert (phase(late), late.message.startswith("Waited in vain for 2 s.")) == ("RETRYABLE_FAILED", True)


@in_loop
async def test_nodes_of_the_same_id_in_two_sub_workflows_have_two_pictures(
    job: LiveJob, server: ConnectorProcess
) -> None:
    async with server.calls() as flyte:
        metas = [
            await flyte.create(inputs(job), execution="nested", prefix=output_prefix(outer, "n0", execution="nested"))
            for outer in ("n1", "n2")
        ]
        found = [await output_of(await flyte.ended(meta)) for meta in metas]
        assert len({each.capture_id for each in found}) == 2


# ---- local execution


def test_the_task_runs_locally_from_a_call_to_its_typed_output(job: LiveJob) -> None:
    first = capture(address=job.local.address, **SHORT)
    assert isinstance(first, Capture)
    check_traces(job, first)
    assert first.request_key.startswith("flyte/local/local/")
    second = capture(address=job.local.address, **SHORT)  # another call is another picture, in the same process
    assert isinstance(second, Capture)
    assert second.capture_id != first.capture_id


def test_a_local_failure_is_raised_with_its_words(job: LiveJob) -> None:
    with pytest.raises(Exception, match=r"Failed to run the task sameshot\.capture with error: duration: 'soon'"):
        capture(address=job.local.address, duration="soon")


INTERRUPTED = """
import threading, time
from flytekit.core.context_manager import FlyteContextManager
from sameshot_flyte import SameshotConnector, capture

EARLIER = 2
cancel = SameshotConnector.delete

async def told(self, resource_meta, **more):
    print("ASKED TO CANCEL", flush=True)
    await cancel(self, resource_meta, **more)

def tell():
    while len(FlyteContextManager.signal_handlers) <= EARLIER:
        time.sleep(0.05)
    print("the task waits", flush=True)

SameshotConnector.delete = told
threading.Thread(target=tell, daemon=True).start()
for _ in range(EARLIER):
    capture(address=ADDRESS, duration="300ms", warmup="0s", activities="cpu")
capture(address=ADDRESS, duration="10s", warmup="0s", activities="cpu", caller="ctrl-c")
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_cancels_the_capture_that_runs_and_ends_the_process_with_an_error(
    job: LiveJob, tmp_path: Path, times: int
) -> None:
    program, log = tmp_path / "run.py", tmp_path / "log"
    program.write_text(INTERRUPTED.replace("ADDRESS", repr(job.local.address)))
    with log.open("wb") as output, job.local.client() as client:
        process = subprocess.Popen([sys.executable, str(program)], stdout=output, stderr=output)
        try:
            wait_for(lambda: "the task waits" in log.read_text(), "the task waits", 60)
            (begun,) = [each for each in client.captures(unsettled=True) if each.caller == "ctrl-c"]
            for _ in range(times):
                process.send_signal(signal.SIGINT)
            assert process.wait(60) == 1, log.read_text()[-3000:]
        finally:
            process.kill()
        assert client.get(begun.capture_id).state is CaptureState.CANCELLED, log.read_text()[-3000:]
    assert times > 1 or log.read_text().count("ASKED TO CANCEL") == 1  # of all that flytekit has a handler for
