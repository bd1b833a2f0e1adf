"""A trigger that is taken from its triggerer: by a person, or because another triggerer has it now."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.client import AsyncClient
from sameshot.model import CaptureSpec, CaptureState, TargetState
from sameshot.steps.contract import AIRFLOW
from support.airflow_task import FakeJob, fake_job
from support.fake_agent import deliver, stay

TI = types.SimpleNamespace(dag_id="profile", run_id="r", task_id="capture", map_index=-1)
FAMILY = "airflow/profile/r/capture/-1/"
KEY = FAMILY + "2"
WAITS = {"r": {"capture": "deferred"}}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        job.agent.script = stay(TargetState.QUEUED)
        yield job


def taken(
    job: FakeJob,
    monkeypatch: pytest.MonkeyPatch,
    states: Any,
    ti: Any = TI,
    *,
    key: str = KEY,
    family: str = FAMILY,
    later: str | None = None,
) -> CaptureState:
    """The capture's state after the trigger was taken away, while Airflow says of its tasks: `states`. `later`: the key
    of a capture that was asked for after it."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

    asked = []

    def get_task_states(**question: Any) -> Any:
        asked.append(question)
        if isinstance(states, Exception):
            raise states
        return states

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    view = job.start(key)
    if later is not None:
        job.start(later)
    request = {"address": job.client.address, "request_key": key, "family": family, "caller": "ana"}
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
    assert not taken(job, monkeypatch, WAITS, later="airflow/profile/another run/capture/-1/3").terminal


def test_of_mapped_tasks_its_own_state_counts(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    third = types.SimpleNamespace(**{**vars(TI), "map_index": 2})
    key, family = "airflow/profile/r/capture/2/0", "airflow/profile/r/capture/2/"
    assert not taken(job, monkeypatch, {"r": {"capture_2": "deferred"}}, third, key=key, family=family).terminal


def test_one_that_waits_again_was_cleared(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(job, monkeypatch, WAITS, later=FAMILY + "3") is CaptureState.CANCELLED


@pytest.mark.parametrize("over", [False, True], ids=["still running", "in the archive"])
def test_a_clear_of_long_ago_proves_nothing(job: FakeJob, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    """The captures from before are listed for days; it is this attempt's that another triggerer follows now."""
    if over:
        job.agent.script = deliver
    old = job.start(FAMILY + "1")
    if over:
        job.wait_state(old.capture_id, CaptureState.SUCCEEDED)
        job.agent.script = stay(TargetState.QUEUED)
    assert not taken(job, monkeypatch, WAITS).terminal


def test_nor_does_the_same_key_another_mapped_task_or_another_caller(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def by_ben() -> None:
        async with AsyncClient(job.client.address, caller="ben") as client:
            await client.start_capture(CaptureSpec(duration_ms=1000), FAMILY + "3")

    key, family = "airflow/profile/r/capture/1/2", "airflow/profile/r/capture/1/"
    ti = types.SimpleNamespace(**{**vars(TI), "map_index": 1})
    waits = {"r": {"capture_1": "deferred"}}
    assert not taken(
        job, monkeypatch, waits, ti, key=key, family=family, later="airflow/profile/r/capture/11/3"
    ).terminal
    view = job.start(KEY)
    job.background.call(by_ben())
    assert not taken(job, monkeypatch, WAITS).terminal
    assert not job.get(view.capture_id).state.terminal


def test_where_keys_are_too_long_to_tell_tasks_apart_the_capture_is_spared(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"dag_id": "d" * 250, "run_id": "r" * 250, "task_id": "t", "map_index": -1}
    old, new = (AIRFLOW.request_key(**parts, max_tries=each) for each in (1, 2))
    assert AIRFLOW.family(**parts) == ""
    assert not taken(job, monkeypatch, WAITS, key=old, family="", later=new).terminal


@pytest.mark.parametrize("states", [{}, {"r": {}}, OSError("no supervisor"), TimeoutError("silence")])
def test_who_cannot_tell_obeys(job: FakeJob, monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    assert taken(job, monkeypatch, states) is CaptureState.CANCELLED
