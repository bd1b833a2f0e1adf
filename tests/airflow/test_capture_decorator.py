"""`@task.sameshot_capture`: options that a function decides when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.airflow_task import FakeJob, Instance, fake_job, fire


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        yield job


def decorated(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    from airflow.sdk import DAG, task

    with DAG("profile", schedule=None, params={"evil": "{{ run_id }}"}) as dag:
        task.sameshot_capture(task_id="capture", **options)(function)(*args)
    return dag.get_task("capture")


def test_the_function_gives_options_and_the_decorator_the_others(job: FakeJob) -> None:
    def chosen(ranks: int, dag_run: Any = None) -> dict[str, object]:
        assert dag_run.run_id == "manual__1"  # the context is there, as for every decorated task
        return {"job": "train", "min_ranks": ranks, "duration": "{{ 1 + 1 }}s"}

    task = Instance(decorated(chosen, 2, duration="9s", with_stack=True))
    ended = task.run()
    assert ended.state == "deferred"
    assert (ended.rendered["duration"], ended.rendered["min_ranks"]) == ("2s", 2)  # what the UI shows
    (view,) = job.captures()
    assert (view.spec.duration_ms, view.spec.with_stack) == (2000, True)
    assert ended.trigger().request["min_ranks"] == 2
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "success"
    assert ended.xcoms["return_value"]["capture_id"] == view.capture_id


def test_it_is_called_once_and_not_again_after_the_wait(job: FakeJob) -> None:
    calls = []

    def counted() -> dict[str, object]:
        calls.append(1)
        return {"if_unavailable": "wait"}

    armed, job.agent.workers = job.agent.workers, []
    task = Instance(decorated(counted))
    waiting = task.run()
    job.agent.workers = armed
    ended = task.resume(waiting, fire(job, waiting.trigger()))
    assert task.resume(ended, fire(job, ended.trigger())).state == "success"
    assert calls == [1]


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_changes_nothing(job: FakeJob, nothing: Any) -> None:
    assert Instance(decorated(lambda: nothing, duration="3s")).run().state == "deferred"
    (view,) = job.captures()
    assert view.spec.duration_ms == 3000


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"durration": "1s"}, "returned no options of a capture: durration; known are activities, "),
        ({"retries": 3}, "returned no options of a capture: retries"),
        ("2s", "returned str, not a dict of capture options"),
        ({"duration": "soon"}, "duration: 'soon' is not a duration"),
    ],
)
def test_what_is_no_option_fails_for_good(job: FakeJob, returned: Any, says: str) -> None:
    ended = Instance(decorated(lambda: returned), max_tries=2).run()
    assert ended.state == "failed"
    assert says in str(ended.error)
    assert not job.captures()


def test_templates_are_rendered_once(job: FakeJob) -> None:
    """A template's text may come from outside; what it says must not become a template itself."""
    seen = []

    def chosen(text: str) -> None:
        seen.append(text)

    ended = Instance(decorated(chosen, "{{ params.evil }}", uid="{{ params.evil }}")).run()
    assert seen == ["{{ run_id }}"]
    assert "and uid {{ run_id }} was asked for" in str(ended.error)
