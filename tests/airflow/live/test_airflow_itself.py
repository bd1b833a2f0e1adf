"""The Airflow that the other tests here rely on: it runs tasks, defers them, and nothing of it is left behind."""

from __future__ import annotations

import os
import subprocess

from airflow_lab import Lab
from airflow_server import PARTS
from live import wait_for


def test_a_task_that_waits_on_a_trigger_is_resumed(lab: Lab) -> None:
    lab.server.wait_dag("waiting")
    run = lab.api.trigger("waiting", {"seconds": 3})
    lab.api.wait_task("waiting", run, "wait", "deferred")
    lab.api.wait_run("waiting", run, "success")
    assert lab.api.xcom("waiting", run, "wait") == "waited"
    assert "trigger completed" in lab.api.log("waiting", run, "wait")


def pids(lab: Lab) -> set[int]:
    return {process.pid for process in lab.server.strays()}


def test_each_process_of_it_can_be_found_again(lab: Lab) -> None:
    assert {lab.server.processes[part].pid for part in PARTS} <= pids(lab)
    assert os.getpid() not in pids(lab)
    # Some of their children live for a moment only.
    wait_for(lambda: {child.pid for part in PARTS for child in lab.server.children(part)} <= pids(lab), "all are found")

    # Even one that has left the process group of whoever started it.
    with subprocess.Popen(["sleep", "60"], env=lab.server.environment, start_new_session=True) as lost:
        assert lost.pid in pids(lab)
        lost.kill()
    assert lost.pid not in pids(lab)
