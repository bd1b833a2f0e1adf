"""What a retry keeps of a request key and a person's clear changes, in Airflow's own database; which runs are past."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sameshot_airflow.keys import past, request_key

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def context(**changes: Any) -> dict[str, Any]:
    ti = {"dag_id": "profile", "run_id": "manual__1", "task_id": "capture", "map_index": -1, "max_tries": 2}
    return {"ti": SimpleNamespace(**{**ti, **changes})}


def test_the_key_names_the_task_instance() -> None:
    assert request_key(context()) == "airflow/profile/manual__1/capture/-1/2"
    assert request_key(context(map_index=None)) == request_key(context())


@pytest.mark.parametrize("part", ["dag_id", "run_id", "task_id", "map_index", "max_tries"])
def test_each_part_makes_another_key(part: str) -> None:
    assert request_key(context(**{part: 7})) != request_key(context())


def test_the_attempt_does_not() -> None:
    assert request_key(context(try_number=2)) == request_key(context(try_number=1))


# ---- what Airflow makes of max_tries


class Stored:
    """The task `capture`, with two retries, of a run in Airflow's database."""

    def __init__(self, dag_id: str) -> None:
        from airflow.dag_processing.collection import update_dag_parsing_results_in_db
        from airflow.models.dagbundle import DagBundleModel
        from airflow.sdk import DAG, BaseOperator
        from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        with DAG(dag_id, schedule=None) as dag:
            BaseOperator(task_id="capture", retries=2)
        self.dag_id = dag_id
        with create_session() as session:
            session.merge(DagBundleModel(name="tests"))
            session.flush()
            update_dag_parsing_results_in_db(
                "tests", None, [LazyDeserializedDAG.from_dag(dag)], {}, None, set(), session=session
            )
        self.dag = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        with create_session() as session:
            self.dag.create_dagrun(
                run_id="manual__1",
                run_after=NOW,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )

    @contextlib.contextmanager
    def task_instance(self) -> Iterator[Any]:
        """It, and the session in which it is changed."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            ti = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == self.dag_id)).one()
            ti.task = self.dag.get_task("capture")
            yield ti, session

    def key(self) -> str:
        with self.task_instance() as (ti, _):
            return request_key({"ti": ti})

    def set(self, state: str, try_number: int) -> None:
        with self.task_instance() as (ti, _):
            ti.state, ti.try_number = state, try_number

    def clear(self) -> None:
        from airflow.models.taskinstance import clear_task_instances

        with self.task_instance() as (ti, session):
            clear_task_instances([ti], session)


def test_a_retry_keeps_the_key(airflow_database: Path) -> None:
    stored = Stored("retried")
    first = stored.key()
    assert first == "airflow/retried/manual__1/capture/-1/2"
    stored.set("running", 1)
    with stored.task_instance() as (ti, session):
        ti.handle_failure("the coordinator was away", session=session)
    with stored.task_instance() as (ti, _):
        assert ti.state == "up_for_retry"
    assert stored.key() == first
    stored.set("deferred", 2)
    assert stored.key() == first


@pytest.mark.parametrize("state", ["deferred", "success", "failed", "skipped"])
def test_a_persons_clear_changes_it(airflow_database: Path, state: str) -> None:
    stored = Stored(f"cleared_{state}")
    keys = [stored.key()]
    for attempt in (1, 2, 3):  # a new picture each time
        stored.set(state, attempt)
        stored.clear()
        keys.append(stored.key())
    assert len(set(keys)) == 4


def test_a_clear_of_a_running_task_may_keep_it(airflow_database: Path) -> None:
    """Then Airflow ends the worker, whose `on_kill` cancels the capture, and the same key gives a new one."""
    stored = Stored("cleared_running")
    first = stored.key()
    stored.set("running", 1)
    stored.clear()
    with stored.task_instance() as (ti, _):
        assert ti.state == "restarting"
    assert stored.key() == first


# ---- runs of the past


def run(run_type: str, **changes: Any) -> dict[str, Any]:
    """A run of an hourly DAG that begins on time, with `changes`."""
    values = {
        "run_id": f"{run_type}__1",
        "run_type": run_type,
        "run_after": NOW,
        "start_date": NOW + timedelta(seconds=5),
        "data_interval_start": NOW - timedelta(hours=1),
        "data_interval_end": NOW,
        "clear_number": 0,
        **{name: value for name, value in changes.items() if name != "catchup"},
    }
    return {"dag_run": SimpleNamespace(**values), "dag": SimpleNamespace(catchup=changes.get("catchup", False))}


LAST_WEEK = {"run_after": NOW - timedelta(days=7)}
DAILY = {"data_interval_start": NOW - timedelta(days=1), "run_after": NOW - timedelta(hours=20)}


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(run("scheduled"), id="on time"),
        pytest.param(run("scheduled", catchup=True), id="on time, of a DAG with catchup"),
        pytest.param(run("scheduled", **LAST_WEEK), id="the one late run of a DAG without catchup"),
        pytest.param(
            run("scheduled", catchup=True, run_after=NOW - timedelta(minutes=50)), id="the scheduler was late"
        ),
        pytest.param(run("scheduled", catchup=True, **DAILY), id="late by less than its interval"),
        pytest.param(run("scheduled", catchup=True, clear_number=1, **LAST_WEEK), id="cleared by a person"),
        pytest.param(run("manual", catchup=True, **LAST_WEEK), id="triggered by a person, with an old date"),
        pytest.param(run("asset_triggered", catchup=True, **LAST_WEEK), id="triggered by an asset"),
        pytest.param(run("operator_triggered", catchup=True, **LAST_WEEK), id="triggered by another DAG"),
        pytest.param(
            run("manual", run_after=NOW, data_interval_start=None, data_interval_end=None, start_date=None),
            id="without any date",
        ),
    ],
)
def test_a_run_of_now(context: dict[str, Any]) -> None:
    assert past(context) == ""


@pytest.mark.parametrize(
    ("context", "says"),
    [
        pytest.param(run("backfill"), "Run backfill__1 belongs to a backfill.", id="backfill"),
        pytest.param(run("backfill", clear_number=1), "Run backfill__1 belongs to a backfill.", id="cleared backfill"),
        pytest.param(
            run("scheduled", catchup=True, **LAST_WEEK),
            "Run scheduled__1 was due at 2026-11-23 12:00 and began at 2026-11-30 12:00: it catches up.",
            id="catchup",
        ),
        pytest.param(
            run("scheduled", catchup=True, data_interval_start=None, data_interval_end=None, **LAST_WEEK),
            "Run scheduled__1 was due at 2026-11-23 12:00 and began at 2026-11-30 12:00: it catches up.",
            id="catchup without an interval",
        ),
    ],
)
def test_a_run_of_the_past(context: dict[str, Any], says: str) -> None:
    assert past(context) == says


def test_airflow_names_its_run_types_as_we_do() -> None:
    from airflow.sdk.api.datamodels._generated import DagRunType

    assert {"backfill", "scheduled"} < {each.value for each in DagRunType}
    assert past(run(DagRunType.BACKFILL))
