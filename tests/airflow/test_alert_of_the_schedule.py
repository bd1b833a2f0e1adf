"""Who is told of regressions by profile_on_schedule is told of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

FILE = Path(__file__).parents[2] / "dags" / "profile_on_schedule.py"
PLACE = "ON_REGRESSION: list[Any] = []"


def told_of(exception: object) -> list[Any]:
    """What two notifiers in the file are told when `alert` failed with this."""
    told: list[Any] = []
    source = FILE.read_text()
    assert PLACE in source
    module = {"__name__": "edited", "TOLD": told}
    exec(compile(source.replace(PLACE, "ON_REGRESSION = [TOLD.append, TOLD.append]"), str(FILE), "exec"), module)
    dag = module["dag"]
    assert isinstance(dag, DAG)
    context = {"exception": exception}
    for callback in dag.get_task("profile.alert").on_failure_callback:
        callback(context)
    assert all(each is context for each in told)
    return told


def test_a_regression_is_told_to_everybody() -> None:
    assert len(told_of(AirflowFailException("bert: Regression against capture c1"))) == 2


@pytest.mark.parametrize("exception", [AirflowException("The conn_id `x` isn't defined"), KeyError("verdict"), "lost"])
def test_another_failure_of_the_alert_is_told_to_nobody(exception: object) -> None:
    assert told_of(exception) == []


def test_as_shipped_nobody_is_told() -> None:
    module: dict[str, Any] = {"__name__": "shipped"}
    exec(compile(FILE.read_text(), str(FILE), "exec"), module)
    assert list(module["dag"].get_task("profile.alert").on_failure_callback or []) == []
