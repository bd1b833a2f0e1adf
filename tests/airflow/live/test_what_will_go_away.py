"""That no process of Airflow complains of our files means something: it would be in its log."""

from __future__ import annotations

from airflow_lab import Lab
from live import wait_for

FILE = "uses_what_goes_away"


def test_what_a_file_uses_that_will_go_away_is_found_in_the_logs(lab: Lab) -> None:
    run = lab.run(FILE)
    lab.api.wait_run(FILE, run, "success")

    def blamed() -> str:
        return "\n".join(lab.server.warnings_about(lab.server.dags / f"{FILE}.py"))

    # As the DAG processor parses it, and as a worker runs it.
    wait_for(lambda: "dag_processor" in blamed() and "used in a task" in blamed(), "both are found", 30)
    assert "airflow.exceptions.AirflowSkipException is deprecated" in blamed()
    assert lab.server.warnings_about(lab.server.dags / "waiting.py") == []
