"""Ready-made task groups: from a running job to a report, in one call.

with DAG("nightly", schedule="0 3 * * *", catchup=False):
    bert = profile_job("bert", duration="2s", min_ranks=60, compare_threshold=0.1)
    bert >> publish(bert.reduce.output)        # a @task that is given a dict: report_uri, headline, trend, …

    profile_jobs(find_jobs(), duration="2s")   # every job whose name a task found, mapped
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import TaskGroup, TriggerRule, task_group

from sameshot_airflow.operators.analyze import (
    SameshotAnalyzeOperator,
    SameshotAnalyzeRankOperator,
    SameshotReduceOperator,
    SameshotShardsOperator,
)
from sameshot_airflow.operators.base import DEFAULT_CONN_ID
from sameshot_airflow.operators.capture import SameshotCaptureOperator
from sameshot_airflow.operators.compare import OnRegression, SameshotCompareOperator

if TYPE_CHECKING:
    from airflow.sdk import XComArg
    from airflow.sdk.definitions._internal.node import DAGNode


# fmt: off
OF_ALL_TASKS = frozenset((
    "depends_on_past", "email", "email_on_failure", "email_on_retry", "executor", "executor_config",
    "execution_timeout", "max_retry_delay", "on_execute_callback", "on_failure_callback", "on_retry_callback",
    "on_skipped_callback", "on_success_callback", "owner", "pool", "pool_slots", "priority_weight", "queue",
    "resources", "retries", "retry_delay", "retry_exponential_backoff", "retry_policy", "run_as_user",
    "wait_for_downstream", "weight_rule",
))
# fmt: on
"""Arguments of every operator that say how a task is run: given to a group, they hold for all of its tasks."""


class ProfileJob(TaskGroup):
    """The task group of `profile_job`; its parts are tasks of the DAG like any other."""

    @property
    def capture(self) -> SameshotCaptureOperator:
        """`.output` is a `CaptureResult`."""
        return cast("SameshotCaptureOperator", self["capture"])

    @property
    def reduce(self) -> SameshotReduceOperator | SameshotAnalyzeOperator:
        """The task that writes the report; `.output` is an `AnalysisResult`."""
        return cast("SameshotReduceOperator | SameshotAnalyzeOperator", self["reduce"])

    @property
    def compare(self) -> SameshotCompareOperator:
        """`.output` is a `CompareResult`. Raises NodeNotFound in a group without a `compare_threshold`."""
        return cast("SameshotCompareOperator", self["compare"])


def profile_job(
    job: Any,
    *,
    group_id: str | None = None,
    min_ranks: int | str | None = None,
    fan_out: bool = True,
    results_uri: str | None = None,
    sameshot_conn_id: str = DEFAULT_CONN_ID,
    history: bool = True,
    image: Any = None,
    commit: Any = None,
    fetch_pattern: str | None = None,
    compare_threshold: float | str | None = None,
    on_regression: OnRegression | str = OnRegression.FAIL,
    if_regressed: str | Iterable[str] = (),
    otherwise: str | Iterable[str] = (),
    max_active_ranks: int | None = None,
    default_args: Mapping[str, Any] | None = None,
    tooltip: str = "",
    **capture: Any,
) -> ProfileJob:
    """Capture a running job, analyse its ranks in mapped tasks, and write the report and a row of history.

        capture → shards → analyze (one mapped task per rank) → reduce [→ compare]

    Every task reads the same manifest, by its digest. A capture that is skipped skips all the rest; one that fails
    leaves the rest not run (upstream_failed). With `min_ranks` a task of `analyze` that fails for good does not:
    `reduce` runs once all have ended, counts its ranks as missing and judges whether the others are enough. Can be
    used any number of times in a DAG, and in a task group that is mapped itself if `fan_out` is False.

    :param job: the job's name, or a template or an XComArg for it.
    :param group_id: default: `profile_` and the name of the job; `profile_job` where that is not known yet.
    :param min_ranks: so many ranks are good enough, captured and analysed, with a warning; default: all are needed.
    :param fan_out: False: one task, `reduce`, analyses all ranks. Airflow can't map a task within a group that is
        mapped.
    :param results_uri: where results are written; default: that of the connection.
    :param history: whether the series' history gets a row.
    :param image: the image that was trained with, for the history. `commit`, too.
    :param fetch_pattern: a regular expression for the annotations that fetch the next batch.
    :param compare_threshold: compare with the previous capture of the series; this rise of the step time (0.1 is ten
        percent), if it is more than noise, is a regression. Default: nothing is compared.
    :param on_regression: `fail`, `report` or `branch`, with `if_regressed` and `otherwise`: see
        `SameshotCompareOperator`. The tasks named are downstream of this group.
    :param max_active_ranks: at most so many mapped tasks of one DAG run at a time.
    :param default_args: for all tasks of the group: `retries`, `pool`, `queue`, `executor_config`, …
    :param capture: what of this says how tasks are run (`OF_ALL_TASKS`) is for all tasks of the group. Everything else
        goes to `SameshotCaptureOperator`: `duration`, `activities`, `if_unavailable`, …, `outlets`.
    """
    if wrong := sorted({"task_id", "trigger_rule", "map_index_template"} & capture.keys()):
        raise ValueError(f"{', '.join(wrong)}: each task of profile_job has its own; set it on one, `group.capture`.")
    report = {
        "min_ranks": min_ranks,
        "history": history,
        "image": image,
        "commit": commit,
        "fetch_pattern": fetch_pattern,
    }
    reduced: SameshotReduceOperator | SameshotAnalyzeOperator
    shared = {name: capture.pop(name) for name in sorted(OF_ALL_TASKS & capture.keys())}
    arguments: Any = {**(default_args or {}), **shared}
    with ProfileJob(group_id=group_id or _group_id(job), default_args=arguments, tooltip=tooltip) as group:
        picture = SameshotCaptureOperator(
            task_id="capture", job=job, min_ranks=min_ranks, sameshot_conn_id=sameshot_conn_id, **capture
        )
        finished: dict[str, Any] = {
            "capture": picture.output,
            "results_uri": results_uri,
            "sameshot_conn_id": sameshot_conn_id,
        }
        if fan_out:
            shards = SameshotShardsOperator(task_id="shards", capture=picture.output)
            ranks = SameshotAnalyzeRankOperator.partial(
                task_id="analyze",
                map_index_template="ranks {{ task.shard }}",
                max_active_tis_per_dagrun=max_active_ranks,
                fetch_pattern=fetch_pattern,
                **finished,
            ).expand(shard=shards.output)
            reduced = SameshotReduceOperator(
                task_id="reduce",
                trigger_rule=TriggerRule.ALL_SUCCESS if min_ranks is None else TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
                **finished,
                **report,
            )
            ranks >> reduced
        else:
            reduced = SameshotAnalyzeOperator(task_id="reduce", **finished, **report)
        if compare_threshold is not None:
            compared = SameshotCompareOperator(
                task_id="compare",
                min_ranks=min_ranks,
                threshold=compare_threshold,
                on_regression=on_regression,
                if_regressed=if_regressed,
                otherwise=otherwise,
                **finished,
            )
            reduced >> compared
    return cast("ProfileJob", group)


def profile_jobs(jobs: Sequence[str] | XComArg, *, group_id: str = "profile_jobs", **options: Any) -> DAGNode:
    """`profile_job` mapped over jobs: a list of names, or the output of a task that finds them.

    Each job is captured, analysed (in one task, `reduce`) and compared on its own: one that fails or is skipped keeps
    nothing from the others.

    :param options: those of `profile_job`, without `fan_out`, `if_regressed` and `otherwise`.
    """

    if impossible := sorted({"fan_out", "if_regressed", "otherwise"} & options.keys()):
        raise ValueError(f"{group_id}: a group that is mapped over jobs can't have {', '.join(impossible)}.")

    @task_group(group_id=group_id)
    def each_job(job: Any) -> None:
        group = profile_job(job, group_id="job", fan_out=False, **options)
        for each in group:
            each.map_index_template = "{{ task.capture.job.name }}"
        group.capture.map_index_template = "{{ task.job }}"

    return each_job.expand(job=jobs)


def _group_id(job: object) -> str:
    if not isinstance(job, str) or "{" in job:
        return "profile_job"
    return "profile_" + re.sub(r"[^\w-]", "-", job, flags=re.ASCII)
