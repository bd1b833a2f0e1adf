"""A capture as a task: run by Airflow's task runner against a real coordinator, resumed as the scheduler would."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sameshot.errors import Denied
from sameshot.model import CaptureState, FailureReason, TargetFact, TargetState
from support.airflow_task import FakeJob, Instance, fake_job, fire
from support.coordination import coordinating
from support.fake_agent import FakeAgent, deliver, failing, stay


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    with fake_job(tmp_path, monkeypatch) as job:
        yield job


def capture(**options: Any) -> Any:
    from airflow.sdk import DAG

    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("profile", schedule=None, catchup=options.pop("catchup", False)):
        return SameshotCaptureOperator(task_id="capture", **{"duration": "1s", "retries": 2, **options})


def rank_1_fails(agent: FakeAgent, target: TargetFact, looks: int) -> TargetFact:
    script = failing(FailureReason.WORKER_EXITED, "pid 7 is gone") if target.identity.rank == 1 else deliver
    return script(agent, target, looks)


def result(ended: Any) -> dict[str, Any]:
    return ended.xcoms["return_value"]  # type: ignore[no-any-return]


# ---- the way of a capture


def test_the_task_is_deferred_while_the_capture_runs_and_comes_back_with_its_result(job: FakeJob) -> None:
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    assert ended.state == "deferred"
    (view,) = job.captures()
    assert view.request_key == "airflow/profile/manual__1/capture/-1/2"
    assert (view.caller, view.spec.duration_ms) == ("ana", 1000)
    # the triggerer is to follow this very job attempt, and as the same caller
    asked = ended.trigger().request
    pinned = (view.job.name, view.job.uid, view.job.attempt, "ana")
    assert (asked["job"], asked["uid"], asked["attempt"], asked["caller"]) == pinned

    ended = task.resume(ended, fire(job, ended.trigger()))

    assert ended.state == "success"
    found = result(ended)
    assert (found["capture_id"], found["outcome"], found["archived"]) == (view.capture_id, "SUCCEEDED", 2)
    assert found["shards"] == ["0/2", "1/2"]
    manifest = Path(found["manifest_uri"].removeprefix("file://"))
    assert json.loads(manifest.read_bytes())["sha256"] == found["manifest_sha256"]


def test_its_result_is_small_and_plain(job: FakeJob) -> None:
    task = Instance(capture())
    ended = task.run()
    found = result(task.resume(ended, fire(job, ended.trigger())))
    text = json.dumps(found)
    assert len(text) < 2048
    assert "__classname__" not in text  # nothing that only Airflow's own serialisation can read


def test_a_capture_is_announced_as_an_event_of_the_series(job: FakeJob) -> None:
    task = Instance(capture())
    ended = task.run()
    assert not ended.events
    ended = task.resume(ended, fire(job, ended.trigger()))
    (event,) = ended.events
    assert event["source_alias_name"] == "sameshot_captures"
    assert event["dest_asset_key"]["uri"] == "sameshot://local/nightly"
    assert event["extra"]["manifest_uri"] == result(ended)["manifest_uri"]


def test_without_deferral_the_worker_waits(job: FakeJob) -> None:
    ended = Instance(capture(deferrable=False)).run()
    assert ended.state == "success"
    assert result(ended)["outcome"] == "SUCCEEDED"


def test_options_may_be_templates(job: FakeJob) -> None:
    options = {
        "job": "{{ params.job }}",
        "duration": "{{ params.seconds }}s",
        "activities": "{{ params.activities }}",
        "with_stack": "{{ params.stacks }}",
        "min_ranks": "{{ params.ranks }}",
        "params": {"job": "train", "seconds": 2, "activities": ["cpu"], "stacks": True, "ranks": None},
    }
    assert Instance(capture(**options)).run().state == "deferred"
    (view,) = job.captures()
    assert (view.spec.duration_ms, view.spec.activities, view.spec.with_stack) == (2000, ("cpu",), True)


def test_a_template_that_says_nonsense_fails_for_good_and_names_the_option(job: FakeJob) -> None:
    task = capture(duration="{{ params.long }}", params={"long": "soon"})  # which parses
    ended = Instance(task, max_tries=2).run()
    assert ended.state == "failed"
    assert "duration: 'soon' is not a duration" in str(ended.error)
    assert not job.captures()


def test_what_a_mapped_task_is_given_fails_for_good_if_it_is_nonsense_and_names_the_option(job: FakeJob) -> None:
    from airflow.sdk import DAG

    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("profile", schedule=None):
        mapped = SameshotCaptureOperator.partial(task_id="capture", retries=2).expand(duration=["1s", "soon"])
    for index, state in ((0, "deferred"), (1, "failed")):
        task = Instance(mapped.unmap({"duration": ["1s", "soon"][index]}), max_tries=2, map_index=index)
        ended = task.run()
        assert ended.state == state
    assert "duration: 'soon' is not a duration" in str(ended.error)
    assert len(job.captures()) == 1


@pytest.mark.parametrize("name", ["1e3", "0x10", "True", "[1]"])
@pytest.mark.parametrize("option", ["job", "uid"])
def test_a_name_that_native_rendering_takes_for_a_value_is_an_error_and_never_another_name(
    job: FakeJob, name: str, option: str
) -> None:
    from airflow.sdk import DAG

    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("profile", schedule=None, render_template_as_native_obj=True, params={"name": name}):
        task = SameshotCaptureOperator(task_id="capture", retries=2, **{option: "{{ params.name }}"})
        quoted = SameshotCaptureOperator(task_id="quoted", retries=2, **{option: "'{{ params.name }}'"})
    ended = Instance(task, max_tries=2).run()
    assert ended.state == "failed"
    assert str(ended.error).startswith(f"{option}: ")
    assert "quotes around it keep the text" in str(ended.error)
    assert f"and {option} {name} was asked for" in str(Instance(quoted, max_tries=2).run().error)  # the very name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"duration": "2 parsecs"}, "duration: '2 parsecs' is not a duration"),
        ({"duration": timedelta(microseconds=1)}, "duration: .* is not a duration"),
        ({"duration": "2h"}, "A window of 7200000 ms is out of range"),
        ({"activities": "gpu"}, "'gpu'"),
        ({"with_stack": "maybe"}, "with_stack: 'maybe' is neither true nor false"),
        ({"warmup": "1500ms"}, "A warm-up of 1500 ms is impossible"),
        ({"min_ranks": "all"}, "min_ranks: 'all' is not a whole number"),
        ({"min_ranks": 0}, "min_ranks is 0"),
        ({"if_busy": "shout"}, "if_busy: 'shout' is not one of fail, skip, wait"),
        ({"timeout": "0s"}, "A timeout of 0.0 s is impossible"),
        ({"allow_backfill": "perhaps"}, "allow_backfill: 'perhaps' is neither"),
    ],
    ids=str,
)
def test_nonsense_in_a_dag_file_is_an_error_when_it_is_parsed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^capture: .*{says}"):
        capture(**options)


# ---- retries and clears


def test_a_retry_finds_the_running_capture_again(job: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    first = Instance(capture(), max_tries=2).run()
    assert "again" not in capsys.readouterr().out
    second = Instance(capture(), max_tries=2, try_number=2).run()
    (view,) = job.captures()
    asked = datetime.fromtimestamp(view.accepted_at_ns // 10**9, UTC)
    assert (
        f"Found the capture of {asked:%Y-%m-%d %H:%M:%S} UTC again (same request key): {view.capture_id}."
        in capsys.readouterr().out
    )
    assert (first.state, second.state) == ("deferred", "deferred")
    assert second.trigger().capture_id == first.trigger().capture_id
    assert len(job.captures()) == 1


def test_a_retry_after_success_is_done_at_once(job: FakeJob) -> None:
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    before = task.resume(ended, fire(job, ended.trigger()))
    again = Instance(capture(), max_tries=2, try_number=2).run()
    assert again.state == "success"
    assert result(again) == result(before)


def test_a_retry_after_a_failed_capture_makes_a_new_one(job: FakeJob) -> None:
    job.agent.script = failing(FailureReason.MISSING)
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "up_for_retry"
    assert "no verified trace" in str(ended.error)

    job.agent.script = deliver
    task = Instance(capture(), max_tries=2, try_number=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "success"
    assert result(ended)["n"] == 2
    assert [view.state for view in job.captures()] == [CaptureState.FAILED, CaptureState.SUCCEEDED]


def test_a_cleared_task_asks_for_a_new_picture(job: FakeJob) -> None:
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    old = result(task.resume(ended, fire(job, ended.trigger())))
    task = Instance(capture(), max_tries=3, try_number=2)  # what a clear makes of it: see test_keys
    ended = task.run()
    assert ended.state == "deferred"
    new = result(task.resume(ended, fire(job, ended.trigger())))
    assert new["capture_id"] != old["capture_id"]
    assert (new["n"], old["n"]) == (1, 1)


def test_mapped_tasks_have_a_capture_each(job: FakeJob) -> None:
    ids = {Instance(capture(), map_index=index).run().trigger().capture_id for index in range(3)}
    assert len(ids) == len(job.captures()) == 3


def test_the_same_key_with_other_options_fails_for_good(job: FakeJob) -> None:
    Instance(capture(), max_tries=2).run()
    ended = Instance(capture(duration="2s"), max_tries=2, try_number=2).run()
    assert ended.state == "failed"
    assert len(job.captures()) == 1


# ---- not all ranks


def test_a_partial_capture_fails_for_good_and_names_the_missing_ranks(job: FakeJob) -> None:
    job.agent.script = rank_1_fails
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "failed"  # the same key would give the same capture
    assert "rank 1: WORKER_EXITED, pid 7 is gone" in str(ended.error)
    assert result(ended)["missing"] == "1"  # kept, for links and for people
    assert not ended.events


def test_with_min_ranks_a_partial_capture_passes_with_a_warning(
    job: FakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.agent.script = rank_1_fails
    task = Instance(capture(min_ranks=1))
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "success"
    assert result(ended)["outcome"] == "PARTIAL"
    assert "rank 1: WORKER_EXITED" in result(ended)["warning"]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "[warning" in line and "WORKER_EXITED" in line]
    assert result(ended)["warning"] in line
    (event,) = ended.events
    assert event["extra"]["outcome"] == "PARTIAL"


def test_fewer_than_min_ranks_are_not_enough(job: FakeJob) -> None:
    job.agent.script = rank_1_fails
    task = Instance(capture(min_ranks=2), max_tries=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "failed"
    assert "1 verified traces are fewer than the 2 asked for" in str(ended.error)


# ---- the job can't be captured now


def end(job: FakeJob) -> None:
    job.end()


def disarm(job: FakeJob) -> None:
    job.agent.workers = []


def nothing(job: FakeJob) -> None:
    pass


UNAVAILABLE = [
    pytest.param(end, {}, "Job train has ended", id="ended"),
    pytest.param(disarm, {}, "No worker of job train is registered", id="not armed"),
    pytest.param(nothing, {"attempt": 7}, "serves job local/train/0, with attempt 0, and attempt 7", id="attempt"),
    pytest.param(nothing, {"job": "bert"}, "with job train, and job bert", id="another job"),
]


@pytest.mark.parametrize(("change", "options", "says"), UNAVAILABLE)
def test_a_job_that_is_not_available_fails_the_task(job: FakeJob, change: Any, options: Any, says: str) -> None:
    change(job)
    ended = Instance(capture(**options), max_tries=2).run()
    assert ended.state == "up_for_retry"  # it may be back by then
    assert says in str(ended.error)
    assert not job.captures()


@pytest.mark.parametrize(("change", "options", "says"), UNAVAILABLE)
def test_or_skips_it(job: FakeJob, change: Any, options: Any, says: str) -> None:
    change(job)
    ended = Instance(capture(if_unavailable="skip", **options), max_tries=2).run()
    assert ended.state == "skipped"
    assert says in result(ended)["message"]
    assert "capture_id" not in result(ended)
    assert not job.captures()


@pytest.mark.parametrize(("change", "options", "says"), UNAVAILABLE)
def test_or_is_waited_for_without_a_worker(job: FakeJob, change: Any, options: Any, says: str) -> None:
    change(job)
    ended = Instance(capture(if_unavailable="wait", **options), max_tries=2).run()
    assert ended.state == "deferred"
    assert type(ended.trigger()).__name__ == "SameshotJobTrigger"
    assert not job.captures()


def test_a_job_that_was_waited_for_is_captured(job: FakeJob) -> None:
    armed, job.agent.workers = job.agent.workers, []
    task = Instance(capture(if_unavailable="wait"))
    waiting = task.run()
    threading.Timer(0.2, lambda: setattr(job.agent, "workers", armed)).start()
    event = fire(job, waiting.trigger())
    assert event == {"kind": "ready"}
    ended = task.resume(waiting, event)
    assert ended.state == "deferred"
    assert ended.trigger().deadline == waiting.trigger().deadline  # the wait counts
    assert task.resume(ended, fire(job, ended.trigger())).state == "success"


def test_waiting_for_a_job_ends_at_the_deadline(job: FakeJob) -> None:
    job.agent.workers = []
    task = Instance(capture(if_unavailable="wait", timeout="1s"), max_tries=2)
    ended = task.run()
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "up_for_retry"
    assert "Waited in vain for 1 s. No worker of job train is registered" in str(ended.error)


def test_without_deferral_the_worker_waits_for_the_job(job: FakeJob) -> None:
    armed, job.agent.workers = job.agent.workers, []
    threading.Timer(0.5, lambda: setattr(job.agent, "workers", armed)).start()
    assert Instance(capture(if_unavailable="wait", deferrable=False)).run().state == "success"


@pytest.fixture
def away(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> str:
    """The connection leads to an address where no coordinator listens yet, and that is no restart any more."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    connection = {"conn_type": "sameshot", "host": "127.0.0.1", "port": port, "login": "ana"}
    monkeypatch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps(connection))
    monkeypatch.setattr("sameshot.steps.patience.PATIENCE_S", 0.2)
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("action", ["fail", "skip"])
def test_a_coordinator_that_is_away_is_not_taken_for_a_job_that_has_gone(
    away: str, deferrable: bool, action: str
) -> None:
    ended = Instance(capture(if_unavailable=action, deferrable=deferrable), max_tries=2).run()
    assert ended.state == "up_for_retry"
    assert "can't be reached" in str(ended.error)


def test_a_coordinator_that_is_away_is_waited_for_without_a_worker(away: str) -> None:
    ended = Instance(capture(if_unavailable="wait"), max_tries=2).run()
    assert ended.state == "deferred"
    assert type(ended.trigger()).__name__ == "SameshotJobTrigger"


def test_or_by_the_worker_without_deferral(job: FakeJob, away: str, tmp_path: Path) -> None:
    threading.Timer(
        1.0, lambda: job.background.enter(coordinating(tmp_path / "later", [job.agent], listen=away))
    ).start()
    assert Instance(capture(if_unavailable="wait", deferrable=False)).run().state == "success"


def test_a_job_that_is_being_captured_is_queued_for_by_default(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    other = job.start()
    task = Instance(capture())
    ended = task.run()
    assert ended.state == "deferred"
    assert job.get(ended.trigger().capture_id).state is CaptureState.WAITING
    job.agent.script = deliver
    assert task.resume(ended, fire(job, ended.trigger())).state == "success"
    assert job.get(other.capture_id).state is CaptureState.SUCCEEDED


@pytest.mark.parametrize("action", ["skip", "fail"])
def test_a_cleared_task_is_not_in_its_own_way(job: FakeJob, action: str) -> None:
    """Its earlier attempt's capture is still being cancelled, or ends by itself: the new one takes its turn."""
    job.agent.script = stay(TargetState.QUEUED)
    old = Instance(capture(if_busy=action), max_tries=2).run().trigger().capture_id
    job.wait_state(old, CaptureState.COLLECTING)
    task = Instance(capture(if_busy=action), max_tries=3, try_number=2)
    ended = task.run()
    assert ended.state == "deferred"
    assert job.get(ended.trigger().capture_id).state is CaptureState.WAITING
    other = Instance(capture(if_busy=action), max_tries=2, map_index=3).run()  # another task of the same run
    assert other.state == {"skip": "skipped", "fail": "up_for_retry"}[action]
    job.agent.script = deliver
    assert task.resume(ended, fire(job, ended.trigger())).state == "success"


@pytest.mark.parametrize(("action", "state"), [("skip", "skipped"), ("fail", "up_for_retry")])
def test_or_not(job: FakeJob, action: str, state: str) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    other = job.start()
    ended = Instance(capture(if_busy=action), max_tries=2).run()
    assert ended.state == state
    said = result(ended)["message"] if state == "skipped" else str(ended.error)
    assert f"Job train is being captured by ana: capture {other.capture_id}" in said
    assert len(job.captures()) == 1


def test_denied_is_not_tried_again(job: FakeJob) -> None:
    from sameshot_airflow.failures import failure
    from sameshot_airflow.settle import failed

    task = Instance(capture(), max_tries=2)
    ended = task.resume(task.run(), failed(Denied("Caller ana may not watch captures of train.")))
    assert ended.state == "failed"
    assert str(ended.error) == str(failure(Denied("Caller ana may not watch captures of train.")))


def test_without_a_login_the_worker_is_named_as_the_caller_so_that_the_triggerer_is_none_else(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sameshot.client.wire import os_user

    host, _, port = job.client.address.rpartition(":")
    connection = {"conn_type": "sameshot", "host": host, "port": int(port)}
    monkeypatch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps(connection))
    assert Instance(capture()).run().trigger().request["caller"] == os_user()
    job.agent.workers = []
    assert Instance(capture(if_unavailable="wait"), map_index=1).run().trigger().request["caller"] == os_user()


# ---- the past


def test_a_backfill_is_refused_with_the_reason(job: FakeJob) -> None:
    long_ago = datetime(2025, 1, 1, tzinfo=UTC)
    ended = Instance(capture(), run_type="backfill", run_after=long_ago, max_tries=2).run()
    assert ended.state == "failed"
    assert "belongs to a backfill. One can't photograph the past: nothing was captured" in str(ended.error)
    assert not job.captures()


def test_unless_it_is_allowed(job: FakeJob) -> None:
    assert Instance(capture(allow_backfill=True), run_type="backfill").run().state == "deferred"


# ---- endings from outside


def test_the_deadline_cancels_the_capture_and_says_what_was_kept(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    task = Instance(capture(timeout="1s"), max_tries=2)
    ended = task.run()
    event = fire(job, ended.trigger())
    assert event["kind"] == "timeout"
    (view,) = job.captures()
    assert view.state is CaptureState.CANCELLED
    ended = task.resume(ended, event)
    assert ended.state == "up_for_retry"
    assert "Not done within 1 s" in str(ended.error)
    assert "no trace is kept" in str(ended.error)

    job.agent.script = deliver
    task = Instance(capture(timeout="1s"), max_tries=2, try_number=2)
    ended = task.run()
    assert ended.trigger().capture_id != view.capture_id
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert (ended.state, result(ended)["n"]) == ("success", 2)


def test_a_triggerer_that_dies_between_the_cancel_and_its_word_takes_no_retry_away(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    task = Instance(capture(timeout="1s"), max_tries=2)
    ended = task.run()
    fire(job, ended.trigger())  # the capture is cancelled; the event is lost with the triggerer
    event = fire(job, ended.trigger())
    assert event["kind"] == "timeout"
    ended = task.resume(ended, event)
    assert ended.state == "up_for_retry"
    assert "Not done within 1 s" in str(ended.error)


# Where no triggerer runs, the scheduler takes a deferred task back; this is all that it says then.
GIVEN_UP = {"next_method": "__fail__", "next_kwargs": {"error": "Trigger timeout"}}


@pytest.mark.parametrize("available", [True, False], ids=["the capture", "the job"])
def test_the_scheduler_ends_a_wait_that_no_triggerer_ends(job: FakeJob, available: bool) -> None:
    if not available:
        job.agent.workers = []
    ended = Instance(capture(timeout="10m", if_unavailable="wait"), max_tries=2).run()
    assert ended.state == "deferred"
    after = ended.message.trigger_timeout
    assert timedelta(minutes=14) < after < timedelta(minutes=16)  # a triggerer that runs is always earlier


def test_a_wait_that_the_scheduler_ended_is_tried_again_and_its_capture_goes_on(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    first = Instance(capture(), max_tries=2).run()
    ended = Instance(capture(), max_tries=2).run(**GIVEN_UP)
    assert ended.state == "up_for_retry"
    assert "No triggerer followed this task to its deadline" in str(ended.error)
    assert not job.get(first.trigger().capture_id).cancel_requested
    assert Instance(capture(), max_tries=1, try_number=2).run(**GIVEN_UP).state == "failed"

    job.agent.script = deliver
    job.wait_state(first.trigger().capture_id, CaptureState.SUCCEEDED)
    ended = Instance(capture(), max_tries=2, try_number=2).run()
    assert (ended.state, result(ended)["capture_id"]) == ("success", first.trigger().capture_id)


def test_the_deadline_also_holds_for_a_waiting_worker(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    ended = Instance(capture(timeout="1s", deferrable=False), max_tries=2).run()
    assert ended.state == "up_for_retry"
    assert "Not done within 1 s" in str(ended.error)
    assert [view.state for view in job.captures()] == [CaptureState.CANCELLED]


def test_a_shorter_execution_timeout_counts(job: FakeJob) -> None:
    ended = Instance(capture(execution_timeout=timedelta(seconds=60))).run()
    (view,) = job.captures()
    left = ended.trigger().deadline - view.accepted_at_ns / 1e9
    assert 50 < left < 70


def test_somebody_elses_cancel_is_not_answered_with_a_retry(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    task = Instance(capture(), max_tries=2)
    ended = task.run()
    job.background.call(job.client.cancel(ended.trigger().capture_id))
    ended = task.resume(ended, fire(job, ended.trigger()))
    assert ended.state == "failed"
    assert "was cancelled" in str(ended.error)


def test_a_task_that_is_ended_while_it_waits_cancels_its_capture(job: FakeJob) -> None:
    """As Airflow does it: a SIGTERM to the process, handled in the middle of the task's own event loop."""
    job.agent.script = stay(TargetState.QUEUED)

    async def kill_when_it_runs() -> None:
        while not (views := await job.client.captures()) or views[0].state is not CaptureState.COLLECTING:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=lambda: job.background.call(kill_when_it_runs()))
    killer.start()
    ended = Instance(capture(deferrable=False), max_tries=2).run()
    killer.join(10)
    (view,) = job.captures()
    assert view.state is CaptureState.CANCELLED
    assert "was cancelled" in str(ended.error)
    assert (
        ended.state == "up_for_retry"
    )  # Airflow ignores it if a person marked the task; a worker's shutdown is retried


def test_ended_before_it_began_a_capture_it_cancels_none(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    other = job.start()
    task = capture()
    asked: list[float] = []
    monkeypatch.setattr(type(task), "_cancel", lambda self, wait_s: asked.append(wait_s))
    task.on_kill()
    assert not asked
    assert job.get(other.capture_id).state is not CaptureState.CANCELLED


def test_ended_while_it_begins_it_cancels_what_it_has_begun(job: FakeJob) -> None:
    job.agent.script = stay(TargetState.QUEUED)
    task = Instance(capture(), max_tries=2)
    ti = task.runtime()
    ti.task.on_kill()  # nothing is known yet; the call to the coordinator is under way
    with pytest.raises(Exception, match="was ended while it began capture"):
        ti.task._capture(ti.get_template_context(), ti.task.request(ti.get_template_context()), 2e9)
    assert [view.state for view in job.captures()] == [CaptureState.CANCELLED]
