"""Every few hours a picture of each chosen training job, held against the one before it.

For every job that carries the labels: **capture** a window on all ranks, **analyse** it (report, and a row in the
history of its series), **compare** it with the previous capture of the series, and **alert** where the time per step
grew by more than noise and more than the threshold. Jobs go their ways independently: one that has ended, is busy or
fails holds no other up, and a run that finds no job does nothing.

An alert is a failed task: the run turns red, its message names the job, says by how much a step got slower, and links
the comparison. Whatever you already use for failed tasks works; a notifier goes into `ON_REGRESSION` in the file.
The next capture is compared with the slower one, so a regression alerts once, when it begins.

The schedule, the labels and the connection come from the environment of the DAG processor and the workers (see the top
of the file): parsing asks neither Airflow's database nor a cluster. Everything else is a param: scheduled runs take the
defaults, a run by hand may change them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task, task_group

from sameshot_airflow.compat import AirflowFailException, AirflowSkipException
from sameshot_airflow.hooks.sameshot import SameshotHook
from sameshot_airflow.operators.analyze import SameshotAnalyzeOperator
from sameshot_airflow.operators.capture import SameshotCaptureOperator
from sameshot_airflow.operators.compare import SameshotCompareOperator

EVERY = timedelta(hours=float(os.environ.get("SAMESHOT_EVERY_HOURS", "6")))
# "team=vision,tier=prod": a job needs all of them. Empty: every armed job that the connection shows.
LABELS = dict(pair.strip().split("=", 1) for pair in os.environ.get("SAMESHOT_LABELS", "").split(",") if pair.strip())
CONNECTION = os.environ.get("SAMESHOT_CONN_ID", "sameshot_default")

# Called when a job regressed, and then only, with the failed alert in the context:
# `[SlackNotifier(text="{{ exception }}")]`.
ON_REGRESSION: list[Any] = []

ANALYSES_AT_ONCE = 2  # each may read its capture with several processes
A_DURATION = r"^(?=.*[1-9])\s*\d+(\.\d+)?\s*(ms|s|m|min|h)?\s*$"  # 500ms, 2s, 15m; seconds without a unit


def of_a_regression(notifier: Any) -> Callable[[Any], None]:
    """Airflow calls what is told of failures for any: the connection is missing, the worker was lost."""

    def tell(context: Any) -> None:
        if isinstance(context.get("exception"), AirflowFailException):
            notifier(context)

    return tell


with DAG(
    dag_id="profile_on_schedule",
    description="Capture, analyse and compare every chosen training job; alert on a regression",
    doc_md=__doc__,
    schedule=EVERY,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # one can't photograph the past
    max_active_runs=1,
    tags=["sameshot", "profiling"],
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    params={
        "labels": Param(
            LABELS,
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
            None,
            type=["null", "integer"],
            minimum=1,
            title="Ranks at least",
            description="Be content with so many verified traces; empty: every rank is needed.",
        ),
        "threshold": Param(
            0.1,
            type="number",
            exclusiveMinimum=0,
            title="Threshold",
            description="Alert when a step takes longer by more than this share of it: 0.1 is a tenth.",
        ),
    },
) as dag:

    @task
    def find_jobs(labels: Any) -> list[dict[str, str]]:
        """The jobs that run now, one mapped instance of `profile` each."""
        return [{"job": found.name, "uid": found.uid} for found in SameshotHook(CONNECTION).jobs(labels)]

    @task(
        retries=0, on_failure_callback=[of_a_regression(each) for each in ON_REGRESSION], map_index_template="{{ job }}"
    )
    def alert(job: str, comparison: Any) -> None:
        """Fails where the job has become slower; is skipped otherwise."""
        context: Any = get_current_context()
        context["job"] = job  # for the template above: what this mapped task is called in the UI
        said = f"{job}: {comparison['message']}"
        if comparison["verdict"] != "regressed":
            raise AirflowSkipException(said)
        uri = comparison["comparison_uri"]
        raise AirflowFailException(f"{said} Comparison: {SameshotHook(CONNECTION).report_url(uri) or uri}")

    @task_group
    def profile(job: str, uid: str) -> None:
        capture = SameshotCaptureOperator(
            task_id="capture",
            job=job,
            uid=uid,
            duration="{{ params.duration }}",
            activities="{{ params.activities }}",
            min_ranks="{{ params.min_ranks }}",
            if_unavailable="skip",  # it ended between being found and being asked
            sameshot_conn_id=CONNECTION,
            map_index_template="{{ task.job }}",
        )
        analyze = SameshotAnalyzeOperator(
            task_id="analyze",
            capture=capture.output,
            min_ranks="{{ params.min_ranks }}",
            sameshot_conn_id=CONNECTION,
            max_active_tis_per_dag=ANALYSES_AT_ONCE,
            execution_timeout=timedelta(hours=1),
            map_index_template="{{ task.capture.job.name }}",
        )
        compare = SameshotCompareOperator(
            task_id="compare",
            capture=capture.output,
            min_ranks="{{ params.min_ranks }}",
            threshold="{{ params.threshold }}",
            on_regression="report",  # in a mapped group Airflow follows no branch, so `alert` decides
            sameshot_conn_id=CONNECTION,
            execution_timeout=timedelta(hours=1),
            map_index_template="{{ task.capture.job.name }}",
        )
        analyze >> compare
        alert(job, compare.output)

    profile.expand_kwargs(find_jobs(dag.param("labels")))
