"""What waits in the triggerer: it survives restarts, ends at its deadline, and cancels only what a person ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.client.local import JobInfo, write_job_file
from sameshot.model import CaptureState, JobRef, TargetState
from support.airflow_task import FakeJob, fake_job, fire
from support.fake_agent import deliver, stay

CAPTURE = "sameshot_airflow.triggers.capture.SameshotCaptureTrigger"
JOB = "sameshot_airflow.triggers.job.SameshotJobTrigger"

# As they stand in the metadata database of someone who has deferred tasks and upgrades. Never edit; add new ones.
STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "capture, version 1": (
        CAPTURE,
        {
            "request": {
                "address": "127.0.0.1:1",
                "request_key": "airflow/profile/manual__1/capture/-1/2",
                "spec": {
                    "duration_ms": 1000,
                    "activities": ["cpu", "cuda"],
                    "with_stack": False,
                    "record_shapes": False,
                    "profile_memory": False,
                    "with_flops": False,
                    "warmup_ms": 1000,
                    "start_delay_ms": None,
                },
                "job": "train",
                "uid": "b1946ac92492d2347c6235b4d2611184",
                "attempt": 0,
                "caller": "ana",
                "min_ranks": 1,
                "if_unavailable": "wait",
                "timeout_s": 600.0,
            },
            "capture_id": "c12d0357c011b9e44d54e82693f9b156",
            "manifest_uri": "file:///archive/local/train/0/c12d0357c011b9e44d54e82693f9b156/manifest.json",
            "deadline": 1796020000.5,
            "version": 1,
        },
    ),
    "job, version 1": (
        JOB,
        {
            "request": {"address": "local:train", "request_key": "airflow/p/r/t/-1/0", "if_unavailable": "wait"},
            "deadline": 1796020000.5,
            "whole": False,
            "all_ranks": True,
            "version": 1,
        },
    ),
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        yield job


def following(job: FakeJob, key: str = "k", *, for_s: float = 60.0, **changes: Any) -> Any:
    """A trigger for a new capture."""
    from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

    view = job.start(key)
    request = {"address": job.client.address, "request_key": key, "caller": "ana", "timeout_s": for_s, **changes}
    return SameshotCaptureTrigger(
        request=request, capture_id=view.capture_id, manifest_uri=view.manifest_uri, deadline=time.time() + for_s
    )


def stored(trigger: Any) -> Any:
    """The same trigger in another triggerer: out of the metadata database, with Airflow's own serialisation."""
    from airflow.models.trigger import Trigger
    from airflow.sdk._shared.module_loading import import_string

    row = Trigger.from_object(trigger)
    return import_string(row.classpath)(**row.kwargs)


def interrupted(job: FakeJob, trigger: Any, *, until: str, message: str | None = None) -> None:
    """Run it as the triggerer does, until its capture is in that state; then cancel it and let it clean up."""

    async def run() -> None:
        async def events() -> None:
            async for _ in trigger.run():
                raise AssertionError("it fired")

        task = asyncio.create_task(events())
        async for view in job.client.watch(trigger.capture_id):
            if view.state.value == until:
                break
        task.cancel(message)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if message is not None:
            await trigger.on_kill()
        await trigger.cleanup()

    job.background.call(run())


# ---- the way to an event


def test_it_fires_once_with_the_result(job: FakeJob) -> None:
    event = fire(job, following(job))
    assert event["kind"] == "done"
    assert (event["result"]["outcome"], event["result"]["archived"]) == ("SUCCEEDED", 2)


def test_an_event_is_small(job: FakeJob) -> None:
    assert len(json.dumps(fire(job, following(job)))) < 2048


def test_at_its_deadline_it_cancels_the_capture_and_says_so(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    trigger = following(job, for_s=0.5)
    event = fire(job, trigger)
    assert event["kind"] == "timeout"
    assert event["result"]["capture_id"] == trigger.capture_id
    assert "Not done within 0.5 s" in event["result"]["message"]
    assert job.get(trigger.capture_id).state is CaptureState.CANCELLED


def test_the_deadline_is_absolute(job: FakeJob) -> None:
    """A triggerer that was away for long does not begin to count anew."""
    job.agent.script = stay(TargetState.QUEUED)
    trigger = following(job, for_s=600.0)
    trigger.deadline = time.time() - 5
    assert fire(job, stored(trigger), timeout_s=20)["kind"] == "timeout"


def test_a_capture_that_ended_while_no_triggerer_ran_is_found(job: FakeJob) -> None:
    trigger = following(job, for_s=0.1)
    job.wait_state(trigger.capture_id, CaptureState.SUCCEEDED)
    assert fire(job, stored(trigger))["kind"] == "done"


def test_a_capture_that_nobody_knows_is_an_event_too(job: FakeJob) -> None:
    trigger = following(job)
    fire(job, trigger)
    trigger.capture_id, trigger.manifest_uri = "0" * 32, ""
    event = fire(job, trigger)
    assert (event["kind"], event["result"]["outcome"]) == ("done", "UNKNOWN")
    assert event["result"]["exit_code"] == 5


def test_a_request_that_can_not_be_read_is_an_event_too(job: FakeJob) -> None:
    trigger = following(job)
    trigger.request["min_ranks"] = "many"
    event = fire(job, trigger)
    assert (event["kind"], event["error"]) == ("error", "UsageError")


# ---- restarts


def test_a_restart_of_the_triggerer_cancels_nothing(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    trigger = following(job)
    interrupted(job, trigger, until="COLLECTING")
    view = job.get(trigger.capture_id)
    assert view.state is CaptureState.COLLECTING
    assert not view.cancel_requested

    job.agent.script = deliver
    event = fire(job, stored(trigger))
    assert event["kind"] == "done"
    assert event["result"]["capture_id"] == trigger.capture_id
    assert len(job.captures()) == 1


def test_triggers_survive_the_metadata_database(job: FakeJob) -> None:
    from sameshot_airflow.triggers.job import SameshotJobTrigger

    trigger = following(job, min_ranks=1)
    again = stored(trigger)
    assert again.serialize() == trigger.serialize()
    assert again.serialize()[0] == CAPTURE
    assert fire(job, again)["result"]["capture_id"] == trigger.capture_id

    waiting = SameshotJobTrigger(request=trigger.request, deadline=time.time() + 60, whole=True, all_ranks=False)
    again = stored(waiting)
    assert again.serialize() == waiting.serialize()
    assert again.serialize()[0] == JOB
    assert fire(job, again) == {"kind": "ready"}


@pytest.mark.parametrize("name", list(STORED))
def test_stored_triggers_of_earlier_versions_load(name: str) -> None:
    from airflow.sdk._shared.module_loading import import_string

    from sameshot.steps.request import CaptureRequest

    classpath, kwargs = STORED[name]
    trigger = import_string(classpath)(**kwargs)
    assert trigger.serialize() == (classpath, kwargs)
    CaptureRequest.of(trigger.request)


@pytest.mark.parametrize("name", list(STORED))
def test_arguments_that_are_not_known_are_no_reason_to_fail(name: str) -> None:
    from airflow.sdk._shared.module_loading import import_string

    classpath, kwargs = STORED[name]
    trigger = import_string(classpath)(**kwargs, poll_interval=5, channel="x")
    assert trigger.serialize() == (classpath, kwargs)


def test_the_least_that_a_trigger_was_ever_given_is_enough(job: FakeJob) -> None:
    from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

    full = following(job)
    trigger = SameshotCaptureTrigger(request=full.request, capture_id=full.capture_id)
    assert fire(job, trigger)["kind"] == "done"


# ---- a person ends the task


def test_a_persons_mark_cancels_the_capture_by_its_id(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    trigger, other = following(job), following(job, "another task")
    interrupted(job, trigger, until="COLLECTING", message="__airflow_user_action__")
    view = job.wait_state(trigger.capture_id, CaptureState.CANCELLED)
    assert "2 of 2 configs were withdrawn" in view.withdrawn
    assert not job.get(other.capture_id).cancel_requested


def test_of_two_jobs_of_one_name_a_persons_mark_reaches_the_right_one(
    job: FakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was started again has its name, another uid, and a coordinator of its own."""
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    job.agent.script = stay(TargetState.QUEUED)
    view = job.start("k")
    for folder, uid, coordinator in (("r1", view.job.uid, job.client.address), ("r2", "f" * 32, "127.0.0.1:1")):
        (root / folder).mkdir()
        write_job_file(
            root / folder,
            JobInfo(
                job=JobRef("local", "train", uid), series="s", coordinator=coordinator, archive="/a", pid=os.getpid()
            ),
        )
    trigger = following(job, "k")
    trigger.request |= {"address": "local:train", "uid": view.job.uid, "job": "train"}
    job.background.call(trigger.on_kill())
    assert job.get(view.capture_id).state is CaptureState.CANCELLED


def test_a_late_kill_of_a_cleared_attempt_does_not_touch_the_next_ones_capture(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    old = following(job, "airflow/profile/r/capture/-1/0")
    new = following(job, "airflow/profile/r/capture/-1/1")  # a clear has raised max_tries, and the task began again
    job.background.call(old.on_kill())
    job.wait_state(old.capture_id, CaptureState.CANCELLED)
    job.agent.script = deliver
    assert fire(job, new)["kind"] == "done"


def test_nor_that_of_the_same_key(job: FakeJob) -> None:
    """As after a clear of a running task, which keeps its key: the first capture is cancelled, the second is n = 2."""
    job.agent.script = stay(TargetState.QUEUED)
    old = following(job, "k")
    job.background.call(old.on_kill())
    job.wait_state(old.capture_id, CaptureState.CANCELLED)
    new = following(job, "k")
    assert new.capture_id != old.capture_id
    job.background.call(old.on_kill())  # again, late
    assert not job.get(new.capture_id).cancel_requested
    job.agent.script = deliver
    assert fire(job, new)["result"]["n"] == 2


def test_a_kill_that_is_cancelled_itself_is_carried_out_all_the_same(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triggerer cancels the trigger's task again at each of its rounds, until it has ended."""
    from sameshot_airflow import stop

    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slowly(*_: object) -> bool:
        asked.set()
        await may_answer.wait()
        return True

    monkeypatch.setattr(stop, "by_a_person", slowly)
    job.agent.script = stay(TargetState.QUEUED)
    trigger = following(job)
    trigger._task_instance = types.SimpleNamespace()

    async def killed() -> None:
        task = asyncio.ensure_future(trigger.on_kill())
        await asked.wait()
        task.cancel("__airflow_user_action__")
        with pytest.raises(asyncio.CancelledError):
            await task
        may_answer.set()

    job.background.call(killed())
    job.wait_state(trigger.capture_id, CaptureState.CANCELLED)


def test_a_kill_of_a_finished_capture_changes_nothing(job: FakeJob) -> None:
    trigger = following(job)
    before = fire(job, trigger)["result"]
    job.background.call(trigger.on_kill())
    assert fire(job, trigger)["result"] == before


def test_a_kill_is_bounded_when_the_coordinator_is_away(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from sameshot_airflow import settle

    monkeypatch.setattr(settle, "CANCEL_WAIT_S", 0.5)
    trigger = following(job)
    trigger.request["address"] = "127.0.0.1:1"
    begun = time.monotonic()
    job.background.call(trigger.on_kill())
    assert time.monotonic() - begun < 5


# ---- the event loop


IMPORTED = """
import asyncio, sys, threading
from sameshot_airflow.triggers.capture import SameshotCaptureTrigger
from sameshot_airflow.triggers.job import SameshotJobTrigger

HEAVY = ("grpc", "sameshot.steps.finish", "sameshot.steps.ready", "sameshot.client")
imported = {}

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in HEAVY:
            imported.setdefault(name, threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watch)
assert not set(HEAVY) & set(sys.modules), "they are loaded with the trigger"
request = {"address": "127.0.0.1:1", "request_key": "k", "timeout_s": 0.1}
trigger = {
    "capture": lambda: SameshotCaptureTrigger(request=request, capture_id="0" * 32, deadline=1.0),
    "job": lambda: SameshotJobTrigger(request=request, deadline=1.0, whole=True),
}[sys.argv[1]]()

async def run():
    task = asyncio.create_task(anext(trigger.run()))
    async with asyncio.timeout(60):
        while "grpc" not in sys.modules:
            await asyncio.sleep(0.02)
    task.cancel()

asyncio.run(run())
assert "grpc" in imported
assert not any(imported.values()), f"in the event loop: {imported}"
"""


@pytest.mark.parametrize("kind", ["capture", "job"])
def test_what_a_trigger_needs_is_imported_beside_the_event_loop(kind: str) -> None:
    """In a process of its own, as in a triggerer that has just been started: nothing is loaded yet."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED, kind], capture_output=True, text=True, timeout=90, env=dict(os.environ)
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_waiting_never_blocks_the_event_loop(job: FakeJob) -> None:
    """The triggerer warns of 0.2 s; all its triggers share one loop."""
    job.agent.script = stay(TargetState.QUEUED)
    triggers = [following(job, f"k{n}", for_s=3.0) for n in range(3)]
    longest = 0.0

    async def watch_the_loop() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    async def run() -> None:
        meter = asyncio.create_task(watch_the_loop())
        tasks = [asyncio.create_task(anext(trigger.run())) for trigger in triggers]
        await asyncio.sleep(0.5)
        job.agent.script = deliver
        for task in tasks:
            assert (await task).payload["kind"] == "done"
        meter.cancel()

    job.background.call(run())
    assert longest < 0.2
