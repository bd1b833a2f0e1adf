"""A picture of every armed job, a few at a time.

Only captures: each publishes its manifest in the archive and an Asset event, on which DAGs that analyse can be
scheduled. Jobs are independent of each other: one that is being captured by somebody else or has ended meanwhile is
skipped, one that fails turns the run red and leaves the others alone. Without a schedule as shipped: trigger it in an
incident, or give it one.

The connection comes from the environment of the DAG processor and the workers (`SAMESHOT_CONN_ID`); parsing asks
neither Airflow's database nor a cluster.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from sameshot_airflow.hooks.sameshot import SameshotHook
from sameshot_airflow.operators.capture import SameshotCaptureOperator

CONNECTION = os.environ.get("SAMESHOT_CONN_ID", "sameshot_default")
AT_ONCE = int(os.environ.get("SAMESHOT_CAPTURES_AT_ONCE", "4"))
A_DURATION = r"^(?=.*[1-9])\s*\d+(\.\d+)?\s*(ms|s|m|min|h)?\s*$"  # 500ms, 2s, 15m; seconds without a unit

with DAG(
    dag_id="capture_every_armed_job",
    description="Capture every armed training job, a few at a time",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["sameshot", "profiling"],
    params={
        "labels": Param(
            {},
            type="object",
            additionalProperties={"type": "string"},
            title="Labels",
            description="Jobs that carry all of these; {}: every job.",
        ),
        "duration": Param(
            "2s", type="string", pattern=A_DURATION, title="Window", description="How long to record: 500ms, 2s."
        ),
        "activities": Param(
            ["cpu", "cuda"],
            type="array",
            items={"type": "string", "enum": ["cpu", "cuda", "xpu", "mtia"]},
            minItems=1,
            uniqueItems=True,
            examples=["cpu", "cuda", "xpu", "mtia"],
            title="Activities",
            description="What to record.",
        ),
        "min_ranks": Param(
            1,
            type=["null", "integer"],
            minimum=1,
            title="Ranks at least",
            description="Be content with so many verified traces of a job; empty: every rank is needed.",
        ),
    },
) as dag:

    @task(retries=2, retry_delay=timedelta(seconds=30))
    def find_jobs(labels: Any) -> list[dict[str, str]]:
        """The jobs that run now, one capture each."""
        return [{"job": found.name, "uid": found.uid} for found in SameshotHook(CONNECTION).jobs(labels)]

    SameshotCaptureOperator.partial(
        task_id="capture",
        duration="{{ params.duration }}",
        activities="{{ params.activities }}",
        min_ranks="{{ params.min_ranks }}",
        if_unavailable="skip",
        if_busy="skip",
        sameshot_conn_id=CONNECTION,
        # In Airflow 3.3 a deferred capture counts; 3.1 needs a pool that includes deferred tasks to limit them.
        max_active_tis_per_dag=AT_ONCE,
        map_index_template="{{ task.job }}",
        retries=1,
        retry_delay=timedelta(seconds=30),
    ).expand_kwargs(find_jobs(dag.param("labels")))
