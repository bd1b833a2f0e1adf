"""A capture of every job that a connection to a cluster shows."""

from __future__ import annotations

from airflow.sdk import DAG, task

from sameshot_airflow.hooks.sameshot import SameshotHook
from sameshot_airflow.operators.capture import SameshotCaptureOperator

CONNECTION = "sameshot_cluster"

with DAG("capture_in_a_cluster", schedule=None):

    @task
    def find_jobs() -> list[dict[str, str]]:
        return [{"job": each.name, "uid": each.uid} for each in SameshotHook(CONNECTION).jobs({"team": "nlp"})]

    SameshotCaptureOperator.partial(
        task_id="capture", duration="1s", activities="cpu", sameshot_conn_id=CONNECTION
    ).expand_kwargs(find_jobs())
