"""What a waiting capture holds of Airflow, and what Airflow's own mishaps do to it: nothing."""

from __future__ import annotations

import os
import signal

import psutil
from airflow_lab import Lab
from live import wait_for

from sameshot.model import CaptureState

DAG = "one_capture"


def deferred(lab: Lab, dag_id: str = DAG, **conf: object) -> str:
    """A run whose capture is being recorded, with its task deferred."""
    run = lab.run(dag_id, **conf)
    lab.api.wait_task(dag_id, run, "capture", "deferred")
    return run


def assert_one_good_capture(lab: Lab, dag_id: str, run: str, capture_id: str) -> None:
    """Asked for once, archived once, whole, and what the task returned."""
    (view,) = lab.captures_for(run)
    assert view.capture_id == capture_id
    assert (view.state, view.n, view.archived, view.cancel_requested) == (CaptureState.SUCCEEDED, 1, 2, False)
    assert lab.in_archive(run) == [capture_id]
    assert lab.api.xcom(dag_id, run, "capture")["capture_id"] == capture_id


def test_a_waiting_capture_leaves_its_slot_to_others(lab: Lab) -> None:
    lab.api.make_pool("one_slot", 1)
    run = deferred(lab, "capture_in_a_pool", duration="8s")
    pool = lab.api.pool("one_slot")
    assert (pool["open_slots"], pool["running_slots"], pool["deferred_slots"]) == (1, 0, 1)

    # The same pool's only slot runs somebody else's task to its end, and no process is left to wait.
    other = lab.run("in_the_slot")
    lab.api.wait_run("in_the_slot", other, "success", timeout_s=20)
    assert lab.api.task("capture_in_a_pool", run, "capture")["state"] == "deferred"
    assert not lab.captures_for(run)[0].state.terminal

    capture_id = lab.wait_capture(run).capture_id
    lab.api.wait_run("capture_in_a_pool", run, "success")
    assert_one_good_capture(lab, "capture_in_a_pool", run, capture_id)


def test_a_killed_triggerer_is_replaced_and_the_same_capture_followed(lab: Lab) -> None:
    run = deferred(lab, duration="8s")
    capture_id = lab.wait_capture(run).capture_id
    wait_for(lambda: f"following capture {capture_id}" in lab.api.log(DAG, run, "capture"), "the trigger follows it")
    lab.server.kill("triggerer")
    lab.server.start("triggerer")
    lab.api.wait_run(DAG, run, "success")
    assert lab.api.log(DAG, run, "capture").count(f"following capture {capture_id}") == 2
    assert lab.api.task(DAG, run, "capture")["try_number"] == 1
    assert_one_good_capture(lab, DAG, run, capture_id)


def test_an_orderly_restart_of_triggerer_and_scheduler_cancels_nothing(lab: Lab) -> None:
    run = deferred(lab, duration="8s")
    capture_id = lab.wait_capture(run).capture_id
    wait_for(lambda: f"following capture {capture_id}" in lab.api.log(DAG, run, "capture"), "the trigger follows it")
    lab.server.end("triggerer")
    assert "trigger completed" in lab.api.log(DAG, run, "capture")  # its cleanup has run
    lab.server.end("scheduler")
    assert not lab.captures_for(run)[0].cancel_requested
    lab.server.start("scheduler")
    lab.server.start("triggerer")
    lab.api.wait_run(DAG, run, "success")
    assert_one_good_capture(lab, DAG, run, capture_id)


def test_an_orderly_restart_of_the_scheduler_leaves_a_waiting_worker_alone(lab: Lab) -> None:
    dag_id = "capture_in_the_worker"
    run = lab.run(dag_id, duration="6s")
    capture_id = lab.wait_capture(run).capture_id
    lab.server.end("scheduler")
    assert not lab.captures_for(run)[0].cancel_requested
    lab.server.start("scheduler")
    lab.api.wait_run(dag_id, run, "success", timeout_s=120)
    assert_one_good_capture(lab, dag_id, run, capture_id)


def test_the_retry_of_a_killed_worker_finds_its_capture_again(lab: Lab) -> None:
    dag_id = "capture_in_the_worker"
    run = lab.run(dag_id, duration="8s")
    capture_id = lab.wait_capture(run).capture_id
    pid = lab.api.wait_task(dag_id, run, "capture", "running")["pid"]
    task = psutil.Process(pid)
    supervisor = task.parent()
    assert supervisor is not None
    assert {task, supervisor} <= set(lab.server.children("scheduler"))
    for process in (supervisor, task):  # without a word to anybody
        os.kill(process.pid, signal.SIGKILL)
    assert not lab.captures_for(run)[0].state.terminal

    lab.api.wait_run(dag_id, run, "success", timeout_s=120)
    assert lab.api.task(dag_id, run, "capture")["try_number"] == 2
    assert_one_good_capture(lab, dag_id, run, capture_id)


def test_a_triggerer_that_stalls_and_comes_back_cancels_nothing(lab: Lab) -> None:
    """Another one has taken over meanwhile. To the first it looks as if a person had taken the trigger away."""
    run = deferred(lab, duration="50s")  # another triggerer must have started by then
    capture_id = lab.wait_capture(run).capture_id
    following = f"following capture {capture_id}"
    wait_for(lambda: following in lab.api.log(DAG, run, "capture"), "the trigger follows it")
    with lab.server.stalled("triggerer"):
        lab.server.start("triggerer")
        wait_for(lambda: lab.api.log(DAG, run, "capture").count(following) == 2, "another one has taken over")
        assert not lab.captures_for(run)[0].state.terminal
    wait_for(lambda: "trigger completed" in lab.api.log(DAG, run, "capture"), "the first one has noticed")
    assert f"maybe in another triggerer: capture {capture_id} goes on" in lab.api.log(DAG, run, "capture")
    assert not lab.captures_for(run)[0].state.terminal
    lab.api.wait_run(DAG, run, "success")
    assert_one_good_capture(lab, DAG, run, capture_id)
