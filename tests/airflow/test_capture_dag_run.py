"""A DAG that captures a really running torchrun job, run by `dag.test()` with its triggers in line."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sameshot.client import connect
from support.live import running_job

DAG_FILE = """
from airflow.sdk import DAG, task

from sameshot_airflow.assets import captures
from sameshot_airflow.operators.capture import SameshotCaptureOperator
from sameshot_airflow.sensors.job import SameshotJobSensor

with DAG("dag_run_of_captures", schedule=None, params={"job": "live"}) as dag:
    ready = SameshotJobSensor(task_id="ready", job="{{ params.job }}", timeout=60)
    capture = SameshotCaptureOperator(
        task_id="capture", job="{{ params.job }}", duration="500ms", warmup="0s", activities="cpu"
    )
    each = SameshotCaptureOperator.partial(
        task_id="each", duration="500ms", warmup="0s", activities="cpu", if_unavailable="skip"
    ).expand(job=["live", "gone"])

    @task.sameshot_capture(warmup="0s", trigger_rule="none_failed")
    def chosen(params=None):
        return {"job": params["job"], "duration": "300ms", "activities": ["cpu"]}

    @task
    def told(result):
        return result["manifest_uri"]

    ready >> capture >> each >> chosen()
    told(capture.output)
"""


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_dag_captures_a_running_job(
    airflow_home: Path, airflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="ss-", dir="/tmp") as folder:
        runtime = Path(folder) / "r"
        runtime.mkdir(mode=0o700)
        monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(runtime))
        monkeypatch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps({"conn_type": "sameshot", "login": "ana"}))
        path = airflow_home / "dags" / "dag_run_of_captures.py"
        path.write_text(DAG_FILE)
        try:
            with running_job(Path(folder), nodes=1, setup={"name": "live"}, script_args=("--pause", "0.05")):
                run = loaded(path).test()
                with connect("local:live") as client:
                    asked = [client.get(view.capture_id) for view in client.captures()][::-1]
                outcomes = states(run)
        finally:
            path.unlink()
    assert outcomes == {
        ("ready", -1): "success",
        ("capture", -1): "success",
        ("each", 0): "success",
        ("each", 1): "skipped",
        ("chosen", -1): "success",
        ("told", -1): "success",
    }
    assert [view.outcome for view in asked] == ["SUCCEEDED"] * 3
    assert [view.spec.duration_ms for view in asked] == [500, 500, 300]
    assert [view.request_key for view in asked] == [
        f"airflow/dag_run_of_captures/{run.run_id.replace('/', '%2F')}/{task}/0"
        for task in ("capture/-1", "each/0", "chosen/-1")
    ]


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag


def states(run: Any) -> dict[tuple[str, int], str]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id))
        return {(ti.task_id, ti.map_index): ti.state for ti in found}
