"""What a task's context says about the picture that is wanted: the same one again, a new one, or one of the past."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sameshot.steps.contract import AIRFLOW

LATE = timedelta(hours=1)
"""A run of a DAG with `catchup` that begins so much after its time (or by its data interval's length, where that is
more) is one of the past: catching up."""


def request_key(context: Mapping[str, Any]) -> str:
    """`airflow/<dag>/<run>/<task>/<map index>/<max tries>`, under which the task asks for its capture.

    `max_tries` is what tells a retry from a new request: the scheduler leaves it alone when it retries a task, and a
    clear by a person sets it to the tries so far plus the task's `retries` (`clear_task_instances` in
    airflow/models/taskinstance.py, the same from 3.1 to 3.3), which is more than before. In two cases it is not:

    - A task that is cleared while a worker runs it may keep it; then its `on_kill` has cancelled the capture, and the
      same key gives a new one.
    - `retries` was lowered in the DAG file before the clear, by as much as there were tries: then the cleared task
      finds the capture of before again, and its log says of what time that is. Nothing else that a task is told
      tells such a clear from a retry (the run's `clear_number` also counts clears of other tasks). Clear it once more.
    """
    return AIRFLOW.request_key(**_task(context), max_tries=context["ti"].max_tries)


def family(context: Mapping[str, Any]) -> str:
    """How all request keys of one task of one run begin, those from before a clear, too; empty where ids are so long
    that keys don't hold them whole."""
    return AIRFLOW.family(**_task(context))


def _task(context: Mapping[str, Any]) -> dict[str, Any]:
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}


def past(context: Mapping[str, Any]) -> str:
    """Why this run stands for a time that has passed, in a sentence; empty for a run of now.

    That is every run of a backfill, and a scheduled run that a DAG with `catchup=True` makes up for. Runs that a
    person, an asset or another DAG triggered are of now whatever date they carry, as is a run whose tasks a person
    has cleared, and the one run that a DAG without catchup starts late.
    """
    run = context["dag_run"]
    kind = str(getattr(run.run_type, "value", run.run_type))
    if kind == "backfill":
        return f"Run {run.run_id} belongs to a backfill."
    if kind != "scheduled" or not context["dag"].catchup or run.clear_number:
        return ""
    due, begun = run.run_after, run.start_date or datetime.now(UTC)
    start, end = run.data_interval_start, run.data_interval_end
    allowed = max(LATE, end - start) if start and end else LATE
    if begun - due <= allowed:
        return ""
    return f"Run {run.run_id} was due at {due:%Y-%m-%d %H:%M} and began at {begun:%Y-%m-%d %H:%M}: it catches up."
