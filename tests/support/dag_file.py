"""A DAG file run from beginning to end in this process, with a real metadata database: `dag.test()`.

with dag_file(airflow_home, SOURCE) as dags:
    run = run_dag(dags["nightly"], {"param": 1})
    assert run.states == {"capture": "success", "ranks[0]": "success"}
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG


@dataclass(frozen=True)
class DagRun:
    """By task id, with the map index in brackets where there is one."""

    state: str
    states: dict[str, str]
    results: dict[str, Any]
    labels: dict[str, str]  # of mapped tasks, as the UI shows them
    xcoms: dict[str, dict[str, Any]]  # all of a task's, links too


class Pushed:
    """Stands where Airflow's task instance is, for operators that are executed without Airflow; keeps the XComs."""

    def __init__(self, map_index: int = -1) -> None:
        self.map_index = map_index
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@contextlib.contextmanager
def dag_file(home: Path, source: str) -> Iterator[dict[str, DAG]]:
    """The DAGs of a file with this text, which lies in Airflow's folder of DAGs meanwhile."""
    path = home / "dags" / f"dags_{uuid.uuid4().hex}.py"
    path.write_text(source)
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        yield {each.dag_id: each for each in vars(module).values() if isinstance(each, DAG)}
    finally:
        path.unlink()
        sys.modules.pop(path.stem, None)


def run_dag(dag: DAG, conf: dict[str, Any] | None = None) -> DagRun:
    """Run all of it, triggers too; tasks run in this process, one after another."""
    run = dag.test(run_conf=conf or {})
    states, results, labels, xcoms = {}, {}, {}, {}
    for task in run.get_task_instances():
        name = task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"
        states[name] = str(getattr(task.state, "value", task.state))
        results[name] = task.xcom_pull(task_ids=task.task_id, map_indexes=task.map_index)
        xcoms[name] = _xcoms(task)
        if task.rendered_map_index is not None:
            labels[name] = task.rendered_map_index
    return DagRun(str(run.state.value), states, results, labels, xcoms)


def _xcoms(task: Any) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    mine = (
        XComModel.dag_id == task.dag_id,
        XComModel.run_id == task.run_id,
        XComModel.task_id == task.task_id,
        XComModel.map_index == task.map_index,
    )
    with create_session() as session:
        return {found.key: found.value for found in session.scalars(select(XComModel).where(*mine))}
