"""A trigger that is taken from its triggerer: by a person, or because another triggerer has it now."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.model import CaptureState, TargetState
from support.airflow_task import FakeJob, fake_job
from support.fake_agent import stay

TI = types.SimpleNamespace(dag_id="profile", run_id="r", task_id="capture", map_index=-1)
KEY = "airflow/profile/r/capture/-1/0"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        job.agent.script = stay(TargetState.QUEUED)
        yield job


def taken(job: FakeJob, monkeypatch: pytest.MonkeyPatch, states: Any, ti: Any = TI) -> CaptureState:
    """The capture's state after the trigger was taken away, while Airflow says of its tasks: `states`."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

    asked = []

    def get_task_states(**question: Any) -> Any:
        asked.append(question)
        if isinstance(states, Exception):
            raise states
        return states

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    view = job.start(KEY)
    request = {"address": job.client.address, "request_key": KEY, "caller": "ana"}
    trigger = SameshotCaptureTrigger(request=request, capture_id=view.capture_id)
    trigger._task_instance = ti
    job.background.call(trigger.on_kill())
    expected = {"dag_id": "profile", "run_ids": ["r"], "task_ids": ["capture"], "map_index": ti.map_index}
    assert asked[0] == expected
    return job.get(view.capture_id).state


@pytest.mark.parametrize("state", ["failed", "success", None, "scheduled", "running"])
def test_a_task_that_is_no_longer_deferred_was_taken_by_a_person(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    assert taken(job, monkeypatch, {"r": {"capture": state}}) is CaptureState.CANCELLED


def test_one_that_still_waits_has_another_triggerer(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.start("airflow/profile/another run/capture/-1/1")
    assert not taken(job, monkeypatch, {"r": {"capture": "deferred"}}).terminal


def test_of_mapped_tasks_its_own_state_counts(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    third = types.SimpleNamespace(**{**vars(TI), "map_index": 2})
    assert not taken(job, monkeypatch, {"r": {"capture_2": "deferred"}}, third).terminal


def test_one_that_waits_again_was_cleared(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.start("airflow/profile/r/capture/-1/1")
    assert taken(job, monkeypatch, {"r": {"capture": "deferred"}}) is CaptureState.CANCELLED


@pytest.mark.parametrize("states", [{}, {"r": {}}, OSError("no supervisor"), TimeoutError("silence")])
def test_who_cannot_tell_obeys(job: FakeJob, monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    assert taken(job, monkeypatch, states) is CaptureState.CANCELLED
