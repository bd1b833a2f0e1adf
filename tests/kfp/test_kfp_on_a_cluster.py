"""The containers of a run in a cluster: the job by its name, the run's own account, whatever mounts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_parts import captured_by_an_engine
from kfp_containers import IR, Container


@pytest.mark.full
def test_a_run_s_containers_capture_and_cancel_as_the_run_s_account(tmp_path: Path) -> None:
    with captured_by_an_engine(tmp_path, "pipeline-runner") as (job, environment):
        address = f"kube:{job.job.namespace}/llama"
        own = {"address": address, "run_id": "run-1", "task_name": "capture", "key": "profile", "duration": "1s"}
        ran = Container(IR, "capture").run(tmp_path, own, **environment)
        assert (ran.code, ran.parameters["outcome"], ran.parameters["archived"]) == (0, "SUCCEEDED", 2)
        status = {"state": "FAILED", "pipelineTaskName": "exit-handler-1", "pipelineJobResourceName": "run-1"}
        exit_task = Container(IR, "cancel").run(
            tmp_path, {"address": address, "run_id": "run-1", "status": status}, **environment
        )
        assert exit_task.code == 0
        assert "No capture of this run goes on." in exit_task.parameters["message"]
        assert job.captured_by() == ["pipeline-runner"]
