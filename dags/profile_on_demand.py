"""A picture of one training job now: captured on every rank, analysed in mapped tasks, and reported.

Trigger it from the UI, which shows its params as a form; by the REST API (`POST /dags/profile_on_demand/dagRuns` with
`conf`); or with `airflow dags trigger profile_on_demand --conf '{"job": "bert"}'`. The report is linked at the task
`profile_job.reduce`. Where the series has an earlier capture, `profile_job.compare` says what has become slower since;
it never fails for that.

The connection comes from the environment of the DAG processor and the workers (`SAMESHOT_CONN_ID`); parsing asks
neither Airflow's database nor a cluster.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Param

from sameshot_airflow.task_groups import profile_job

CONNECTION = os.environ.get("SAMESHOT_CONN_ID", "sameshot_default")
RANKS_AT_ONCE = 4  # mapped tasks of one run that analyse at a time
A_DURATION = r"^(?=.*[1-9])\s*\d+(\.\d+)?\s*(ms|s|m|min|h)?\s*$"  # 500ms, 2s, 15m; seconds without a unit

with DAG(
    dag_id="profile_on_demand",
    description="Capture and analyse one running training job now",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["sameshot", "profiling"],
    params={
        "job": Param(
            None,
            type=["null", "string"],
            pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$",
            title="Job",
            description="Its name. Empty: the only one that the connection shows.",
        ),
        "duration": Param(
            "2s",
            type="string",
            pattern=A_DURATION,
            title="Window",
            description="How long to record: 500ms, 2s. A job's policy limits it.",
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
        "with_stack": Param(
            False,
            type="boolean",
            title="Python stacks",
            description="Record Python functions, too: large traces, short windows.",
        ),
        "record_shapes": Param(
            False, type="boolean", title="Shapes", description="Record the shapes of operators' inputs."
        ),
        "min_ranks": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Ranks at least",
            description="Be content with so many verified traces; empty: every rank is needed.",
        ),
        "if_unavailable": Param(
            "fail",
            type="string",
            enum=["fail", "skip", "wait"],
            title="If the job is not there",
            description="It has ended, is not armed or has restarted as another attempt.",
            section="If it can't be captured now",
        ),
        "if_busy": Param(
            "wait",
            type="string",
            enum=["fail", "skip", "wait"],
            title="If the job is busy",
            description="Somebody else's capture of it is running.",
            section="If it can't be captured now",
        ),
        "timeout": Param(
            "15m",
            type="string",
            pattern=A_DURATION,
            title="Time allowed",
            description="For the capture, waiting included; then it is cancelled: 90s, 15m.",
            section="If it can't be captured now",
        ),
        "threshold": Param(
            0.1,
            type="number",
            exclusiveMinimum=0,
            title="Threshold",
            description="A regression is a step that takes longer by more than this share of it: 0.1 is a tenth.",
            section="Compared with the series' previous capture",
        ),
    },
) as dag:
    profile_job(
        "{{ params.job }}",
        duration="{{ params.duration }}",
        activities="{{ params.activities }}",
        with_stack="{{ params.with_stack }}",
        record_shapes="{{ params.record_shapes }}",
        min_ranks="{{ params.min_ranks }}",
        if_unavailable="{{ params.if_unavailable }}",
        if_busy="{{ params.if_busy }}",
        timeout="{{ params.timeout }}",
        compare_threshold="{{ params.threshold }}",
        on_regression="report",
        max_active_ranks=RANKS_AT_ONCE,
        sameshot_conn_id=CONNECTION,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    )
