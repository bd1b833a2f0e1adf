"""A person's cancel reaches the capture, and only the one it was meant for; a timeout is one, too."""

from __future__ import annotations

from airflow_lab import Lab
from live import wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState, TargetState


def recording(lab: Lab, run: str, nth: int = 0) -> CaptureView:
    """Every worker has fetched its config: what a cancel can't take back any more."""
    return lab.job.wait_until(lab.wait_capture(run, nth=nth), TargetState.CONSUMED)


def followed(lab: Lab, run: str) -> None:
    """A triggerer has the trigger: what was never started there is told nothing either."""
    wait_for(lambda: "following capture" in lab.api.log("one_capture", run, "capture"), "the trigger follows it", 30)


def wait_cancelled(lab: Lab, run: str) -> CaptureView:
    wait_for(lambda: lab.captures_for(run)[0].state.terminal, "the capture has ended", 30)
    view = lab.captures_for(run)[0]
    dag_id = view.request_key.split("/")[1]
    assert view.state is CaptureState.CANCELLED, lab.api.story(dag_id, run)
    return view


def test_marking_a_deferred_task_failed_cancels_its_capture(lab: Lab) -> None:
    run = lab.run("one_capture", duration="20s")
    lab.api.wait_task("one_capture", run, "capture", "deferred")
    view = recording(lab, run)
    followed(lab, run)
    lab.api.set_task_state("one_capture", run, "capture", "failed")
    ended = wait_cancelled(lab, run)
    # Which kind: the workers have it already, and go on recording for nobody.
    assert "0 of 2 configs were withdrawn" in ended.withdrawn
    assert "2 were already fetched" in ended.withdrawn
    lab.api.wait_run("one_capture", run, "failed")
    wait_for(
        lambda: view.capture_id in (log := lab.api.log("one_capture", run, "capture")) and "CANCELLED" in log, "told"
    )
    assert ended.withdrawn in lab.api.log("one_capture", run, "capture")
    assert [view.n for view in lab.captures_for(run)] == [1]


def test_marking_a_running_task_failed_cancels_its_capture(lab: Lab) -> None:
    run = lab.run("capture_in_the_worker", duration="20s")
    recording(lab, run)
    lab.api.set_task_state("capture_in_the_worker", run, "capture", "failed")
    assert "2 were already fetched" in wait_cancelled(lab, run).withdrawn
    lab.api.wait_run("capture_in_the_worker", run, "failed")
    task = lab.api.task("capture_in_the_worker", run, "capture")
    assert (task["state"], task["try_number"]) == ("failed", 1)  # it was told to stop, not to try again
    assert [view.n for view in lab.captures_for(run)] == [1]


def test_what_nobody_has_fetched_yet_is_withdrawn(lab: Lab) -> None:
    """A capture that is queued behind another one has not reached any worker."""
    first = lab.run("one_capture", duration="15s")
    recording(lab, first)
    run = lab.run("one_capture", duration="8s")
    lab.api.wait_task("one_capture", run, "capture", "deferred")
    followed(lab, run)
    assert lab.wait_capture(run).state is CaptureState.WAITING
    lab.api.set_task_state("one_capture", run, "capture", "failed")
    assert "before anything was dispatched" in wait_cancelled(lab, run).withdrawn
    lab.api.wait_run("one_capture", first, "success")
    assert lab.in_archive(run) == []


def test_a_timeout_cancels_the_capture_and_says_so(lab: Lab) -> None:
    run = lab.run("one_capture", duration="20s", timeout="4s")
    lab.api.wait_run("one_capture", run, "failed")
    ended = wait_cancelled(lab, run)
    log = lab.api.log("one_capture", run, "capture")
    assert f"Not done within 4 s. Capture {ended.capture_id} was cancelled" in log
    assert ended.withdrawn in log
    assert lab.api.task("one_capture", run, "capture")["try_number"] == 1


def test_a_late_cancel_of_a_cleared_attempt_spares_the_new_one(lab: Lab) -> None:
    run = lab.run("one_capture", duration="20s")
    lab.api.wait_task("one_capture", run, "capture", "deferred")
    old = recording(lab, run)
    followed(lab, run)

    # The triggerer is held, so that it learns of the clear only when the next attempt has asked for its capture.
    with lab.server.stalled("triggerer"):
        lab.api.clear("one_capture", run, ["capture"])
        new = lab.wait_capture(run, nth=1)
        assert not lab.captures_for(run)[0].cancel_requested

    lab.api.wait_run("one_capture", run, "success")
    first, second = lab.captures_for(run)
    assert first.capture_id == old.capture_id != new.capture_id == second.capture_id
    assert first.state is CaptureState.CANCELLED
    assert (second.state, second.cancel_requested) == (CaptureState.SUCCEEDED, False)
    assert first.request_key != second.request_key
    assert (first.n, second.n) == (1, 1)
    assert lab.api.xcom("one_capture", run, "capture")["capture_id"] == second.capture_id


def test_a_late_cancel_after_a_second_clear_spares_the_newest_only(lab: Lab) -> None:
    run = lab.run("one_capture", duration="15s")
    lab.api.wait_task("one_capture", run, "capture", "deferred")
    recording(lab, run)
    followed(lab, run)
    lab.api.clear("one_capture", run, ["capture"])
    second = lab.wait_capture(run, nth=1)
    wait_for(lambda: f"following capture {second.capture_id}" in told(lab, run), "its trigger runs", 60)

    with lab.server.stalled("triggerer"):
        lab.api.clear("one_capture", run, ["capture"])
        third = lab.wait_capture(run, nth=2)
        assert not lab.captures_for(run)[1].cancel_requested

    lab.api.wait_run("one_capture", run, "success", timeout_s=120)
    views = lab.captures_for(run)
    assert [view.state for view in views] == [CaptureState.CANCELLED, CaptureState.CANCELLED, CaptureState.SUCCEEDED]
    assert [view.cancel_requested for view in views] == [True, True, False]
    assert len({view.request_key for view in views}) == 3
    assert lab.api.xcom("one_capture", run, "capture")["capture_id"] == third.capture_id


def told(lab: Lab, run: str) -> str:
    """The logs of all tries so far."""
    tries = lab.api.task("one_capture", run, "capture")["try_number"]
    return "\n".join(lab.api.log("one_capture", run, "capture", number) for number in range(1, tries + 1))


def test_a_retry_after_a_timeout_makes_a_capture_of_its_own(lab: Lab) -> None:
    dag_id = "capture_that_is_retried"
    run = lab.run(dag_id, duration="8s")
    lab.api.wait_run(dag_id, run, "success", timeout_s=120)
    assert lab.api.task(dag_id, run, "capture")["try_number"] == 2
    first, second = lab.captures_for(run)
    assert (first.state, first.n) == (CaptureState.CANCELLED, 1)
    assert (second.state, second.n, second.cancel_requested) == (CaptureState.SUCCEEDED, 2, False)
    assert first.request_key == second.request_key
    assert f"Not done within 4 s. Capture {first.capture_id} was cancelled" in lab.api.log(dag_id, run, "capture", 1)
    assert lab.api.xcom(dag_id, run, "capture")["capture_id"] == second.capture_id


def test_marking_the_whole_run_failed_cancels_its_capture(lab: Lab) -> None:
    run = lab.run("one_capture", duration="10s")
    lab.api.wait_task("one_capture", run, "capture", "deferred")
    recording(lab, run)
    followed(lab, run)
    lab.api.set_run_state("one_capture", run, "failed")
    assert "2 were already fetched" in wait_cancelled(lab, run).withdrawn


def test_a_run_that_exceeds_its_time_cancels_its_capture(lab: Lab) -> None:
    dag_id = "capture_in_a_short_run"
    run = lab.run(dag_id, duration="30s")
    lab.wait_capture(run)
    wait_for(lambda: lab.captures_for(run)[0].cancel_requested, "the capture is cancelled", 60)
    lab.api.wait_run(dag_id, run, "failed")
    assert lab.api.task(dag_id, run, "capture")["state"] == "skipped"  # what Airflow makes of the tasks
