"""The sensor: a job that runs, is armed, and has all of its ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sameshot.model import TargetState
from support.airflow_task import FakeJob, Instance, fake_job, fire
from support.fake_agent import stay


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch, ranks=3) as job:
        yield job


def sensor(**options: Any) -> Any:
    from airflow.sdk import DAG

    from sameshot_airflow.sensors.job import SameshotJobSensor

    with DAG("profile", schedule=None):
        return SameshotJobSensor(task_id="ready", **{"timeout": 30, **options})


def test_a_job_that_is_ready_is_no_reason_to_wait(job: FakeJob) -> None:
    assert Instance(sensor()).run().state == "success"
    assert not job.captures()


def test_a_rank_that_is_not_registered_is_waited_for_without_a_worker(job: FakeJob) -> None:
    armed, job.agent.workers = job.agent.workers, job.agent.workers[:2]
    task = Instance(sensor())
    ended = task.run()
    assert ended.state == "deferred"
    threading.Timer(0.5, lambda: setattr(job.agent, "workers", armed)).start()
    event = fire(job, ended.trigger())
    assert event == {"kind": "ready"}
    assert task.resume(ended, event).state == "success"


def test_or_not_if_one_is_enough(job: FakeJob) -> None:
    job.agent.workers = job.agent.workers[:1]
    assert Instance(sensor(all_ranks=False)).run().state == "success"


@pytest.mark.parametrize("missing", ["not armed", "ended", "another job"])
def test_whatever_keeps_the_job_from_being_ready_is_waited_for(job: FakeJob, missing: str) -> None:
    if missing == "not armed":
        job.agent.workers = []
    elif missing == "ended":
        job.end()
    options = {"job": "bert"} if missing == "another job" else {}
    assert Instance(sensor(**options)).run().state == "deferred"


def test_a_job_that_is_being_captured_is_ready(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    job.start()
    assert Instance(sensor()).run().state == "success"


def test_in_vain_it_fails_without_a_retry_and_says_what_was_missing(job: FakeJob) -> None:
    job.agent.workers = job.agent.workers[:2]
    task = Instance(sensor(timeout=0.5), max_tries=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "failed"
    assert "The job was not ready in time. 1 of 3 ranks of job train are not registered: 2." in str(ended.error)


def test_or_skips_with_soft_fail(job: FakeJob) -> None:
    job.agent.workers = []
    task = Instance(sensor(timeout=0.5, soft_fail=True))
    ended = task.run()
    assert task.resume(ended, fire(job, ended.trigger())).state == "skipped"


@pytest.mark.parametrize(("soft", "state"), [(False, "failed"), (True, "skipped")])
def test_where_no_triggerer_runs_the_scheduler_ends_the_wait(job: FakeJob, soft: bool, state: str) -> None:
    job.agent.workers = []
    task = Instance(sensor(timeout=600, soft_fail=soft), max_tries=2)
    ended = task.run()
    assert timedelta(minutes=14) < ended.message.trigger_timeout < timedelta(minutes=16)
    assert task.run(next_method="__fail__", next_kwargs={"error": "Trigger timeout"}).state == state


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    ("options", "state"),
    [({}, "failed"), ({"soft_fail": True}, "skipped"), ({"never_fail": True}, "skipped")],
    ids=["hard", "soft", "never"],
)
def test_what_can_not_be_asked_at_all_fails_or_skips_as_sensors_do(
    job: FakeJob, deferrable: bool, options: dict[str, bool], state: str
) -> None:
    ended = Instance(sensor(attempt="{{ 'last' }}", deferrable=deferrable, **options), max_tries=2).run()
    assert ended.state == state


def test_a_first_look_that_breaks_is_the_triggerers_to_repeat_with_silent_fail(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, context: Any) -> bool:
        raise OSError("a worker without a network")

    for options, state in (
        ({}, "up_for_retry"),
        ({"never_fail": True}, "skipped"),
        ({"silent_fail": True}, "deferred"),
    ):
        task = sensor(**options)
        monkeypatch.setattr(type(task), "poke", broken)
        assert Instance(task, max_tries=2).run().state == state


def test_without_deferral_it_pokes(job: FakeJob) -> None:
    armed, job.agent.workers = job.agent.workers, []
    threading.Timer(0.5, lambda: setattr(job.agent, "workers", armed)).start()
    assert Instance(sensor(deferrable=False, poke_interval=0.1)).run().state == "success"


def test_or_gives_its_slot_back_between_pokes(job: FakeJob) -> None:
    job.agent.workers = []
    assert Instance(sensor(deferrable=False, mode="reschedule")).run().state == "up_for_reschedule"
