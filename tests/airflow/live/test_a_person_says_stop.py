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
