"""For the test that shows that such uses are noticed, when a file is parsed and when a task runs."""

from __future__ import annotations

import warnings

from airflow.exceptions import AirflowSkipException  # its home is airflow.sdk.exceptions
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import RemovedInAirflow4Warning

with DAG("uses_what_goes_away", schedule=None):

    @task
    def use() -> None:
        warnings.warn("used in a task", RemovedInAirflow4Warning, stacklevel=1)
        raise AirflowSkipException

    use()
