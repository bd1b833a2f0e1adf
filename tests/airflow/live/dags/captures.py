"""One capture each, with everything that a test wants to choose as a param of the run."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, Param, task

from sameshot_airflow.operators.capture import SameshotCaptureOperator

PARAMS = {
    "job": "live",
    "duration": "1s",
    "timeout": "2m",
    "min_ranks": Param(None, type=["null", "integer"]),
}
ASKED: dict[str, Any] = {
    "task_id": "capture",
    "job": "{{ params.job }}",
    "duration": "{{ params.duration }}",
    "timeout": "{{ params.timeout }}",
    "min_ranks": "{{ params.min_ranks }}",
    "activities": "cpu",
}

with DAG("one_capture", schedule=None, params=PARAMS):
    SameshotCaptureOperator(**ASKED)

with DAG("capture_in_a_pool", schedule=None, params=PARAMS):
    SameshotCaptureOperator(**ASKED, pool="one_slot")

with DAG("capture_in_the_worker", schedule=None, params=PARAMS):
    SameshotCaptureOperator(**ASKED, deferrable=False, retries=1, retry_delay=datetime.timedelta(seconds=1))

# The first try has too little time, its retry enough.
TRIED = ASKED | {"timeout": "{{ '4s' if ti.try_number == 1 else '2m' }}"}
with DAG("capture_that_is_retried", schedule=None, params=PARAMS):
    SameshotCaptureOperator(**TRIED, retries=1, retry_delay=datetime.timedelta(seconds=1))

with DAG("capture_in_a_short_run", schedule=None, params=PARAMS, dagrun_timeout=datetime.timedelta(seconds=20)):
    SameshotCaptureOperator(**ASKED)

# They are over: nothing is scheduled by itself, only a backfill makes runs.
for name, allowed in (("daily_capture", False), ("daily_capture_allowed", True)):
    with DAG(
        name,
        schedule="@daily",
        start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        end_date=datetime.datetime(2026, 1, 9, tzinfo=datetime.UTC),
        catchup=False,
        params=PARAMS,
    ):
        SameshotCaptureOperator(**ASKED, allow_backfill=allowed)

with DAG("in_the_slot", schedule=None):

    @task(pool="one_slot")
    def get_in() -> str:
        """Runs only while somebody else leaves the pool's only slot free."""
        return "got in"

    get_in()
