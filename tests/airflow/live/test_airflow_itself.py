"""The Airflow that the other tests here rely on: it runs tasks, defers them, and nothing of it is left behind."""

from __future__ import annotations

import os
import subprocess

from airflow_lab import Lab
from airflow_server import PARTS


def test_a_task_that_waits_on_a_trigger_is_resumed(lab: Lab) -> None:
    lab.server.wait_dag("waiting")
    run = lab.api.trigger("waiting", {"seconds": 3})
    lab.api.wait_task("waiting", run, "wait", "deferred")
    lab.api.wait_run("waiting", run, "success")
    assert lab.api.xcom("waiting", run, "wait") == "waited"
    assert "trigger completed" in lab.api.log("waiting", run, "wait")


def test_each_process_of_it_can_be_found_again(lab: Lab) -> None:
    found = {process.pid for process in lab.server.strays()}
    assert {lab.server.processes[part].pid for part in PARTS} <= found
    assert {child.pid for part in PARTS for child in lab.server.children(part)} <= found
    assert os.getpid() not in found

    # Even one that has left the process group of whoever started it.
    with subprocess.Popen(["sleep", "60"], env=lab.server.environment, start_new_session=True) as lost:
        assert lost.pid in {process.pid for process in lab.server.strays()}
        lost.kill()
    assert lost.pid not in {process.pid for process in lab.server.strays()}
