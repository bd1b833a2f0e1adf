"""Cancelling a capture as a task of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.model import CaptureState, TargetState
from support.airflow_task import FakeJob, Instance, fake_job
from support.fake_agent import deliver, stay


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        yield job


def cancel(**options: Any) -> Any:
    from airflow.sdk import DAG

    from sameshot_airflow.operators.cancel import SameshotCancelOperator

    with DAG("profile", schedule=None):
        return SameshotCancelOperator(task_id="tidy", **options)


def test_it_cancels_the_capture_of_that_id_and_no_other_and_says_what_that_did(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    mine, other = job.start("k"), job.start("another")
    job.wait_state(mine.capture_id, CaptureState.COLLECTING)
    ended = Instance(cancel(capture_id="{{ params.id }}", params={"id": mine.capture_id})).run()
    assert ended.state == "success"
    assert ended.xcoms["return_value"]["state"] == "CANCELLED"
    assert "2 of 2 configs were withdrawn" in ended.xcoms["return_value"]["withdrawn"]
    assert job.get(mine.capture_id).state is CaptureState.CANCELLED
    assert not job.get(other.capture_id).cancel_requested


def test_what_is_over_stays_what_it_is(job: FakeJob) -> None:
    job.agent.script = deliver
    view = job.start("k")
    job.wait_state(view.capture_id, CaptureState.SUCCEEDED)
    of = {"capture_id": view.capture_id, "job": {"namespace": "local", "name": "train", "uid": view.job.uid}}
    for options in ({"capture_id": view.capture_id}, {"capture": of}, {"capture": str(of)}):
        ended = Instance(cancel(**options)).run()
        assert (ended.state, ended.xcoms["return_value"]["state"]) == ("success", "SUCCEEDED")
        assert ended.xcoms["return_value"]["was_over"]
    ended = Instance(cancel(capture_id="0" * 32)).run()
    assert (ended.state, ended.xcoms["return_value"]["state"]) == ("success", "UNKNOWN")


def test_where_nothing_was_captured_there_is_nothing_to_cancel(job: FakeJob) -> None:
    assert Instance(cancel(capture={"message": "Skipped: the job has ended."})).run().state == "skipped"
    assert Instance(cancel(capture_id="{{ '' }}"), max_tries=2).run().state == "failed"
    with pytest.raises(ValueError, match="either by `capture` or by `capture_id`"):
        cancel()


def test_it_may_be_a_teardown() -> None:
    assert cancel(capture_id="0" * 32).as_teardown().is_teardown
