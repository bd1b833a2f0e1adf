"""Each field of the DAGs' forms takes what makes sense and refuses the rest, before a run is made.

Airflow validates a run's conf with the schemas of the serialized DAG: so does this test, with Airflow's own Param, and
what a schema lets through is what the capture can read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from sameshot.steps.options import milliseconds

FOLDER = Path(__file__).parents[2] / "dags"
NAMES = ("capture_every_armed_job", "profile_on_demand", "profile_on_schedule")
DURATIONS = ("2s", "500ms", "1.5s", " 15 m ", "2h", "1min", "90")
NO_DURATIONS = ("soon", "never", "", "0", "0s", "0.0ms", "-2s", "2 days", "2s 3s", "s", "1e3", 2, None, True, ["2s"])
ACTIVITIES = (["cpu"], ["cuda", "cpu"], ["xpu", "mtia"])
NO_ACTIVITIES = ([], ["gpu"], ["cpu", "cpu"], [""], [None], "cpu", None)
COUNTS, NO_COUNTS = (None, 1, 4096), (0, -1, 1.5, "2", "all", True)
FLAGS, NO_FLAGS = (True, False), ("perhaps", "true", 1, None)
ACTIONS, NO_ACTIONS = ("fail", "skip", "wait"), ("shout", "", "FAIL", None, True)
GOOD_AND_BAD: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "job": ((None, "", "bert", "Llama-3.1_8b", "b"), ("two words", "../bert", "-x", "a/b", "x.", 7, ["bert"])),
    "labels": (({}, {"team": "nlp", "tier": "prod"}), ("team=nlp", ["team"], {"floor": 2}, {"team": None}, None)),
    "duration": (DURATIONS, NO_DURATIONS),
    "timeout": (DURATIONS, NO_DURATIONS),
    "activities": (ACTIVITIES, NO_ACTIVITIES),
    "with_stack": (FLAGS, NO_FLAGS),
    "record_shapes": (FLAGS, NO_FLAGS),
    "min_ranks": (COUNTS, NO_COUNTS),
    "if_unavailable": (ACTIONS, NO_ACTIONS),
    "if_busy": (ACTIONS, NO_ACTIONS),
    "threshold": ((0.1, 1, 1e-6, 5), (0, -0.1, "a tenth", "0.1", None, True)),
}


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    bag = DagBag(str(FOLDER), bundle_path=FOLDER, bundle_name="dags")
    assert not bag.import_errors
    return dict(bag.dags)


def refused(dag: DAG, conf: dict[str, Any]) -> bool:
    """By the params of the DAG as the API server has it, in the way a triggered run is validated."""
    params = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params.deep_merge(conf)
    try:
        params.validate()
    except (ParamValidationError, ValueError):
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_every_field_takes_what_makes_sense_and_refuses_the_rest(name: str, dags: dict[str, DAG]) -> None:
    dag = dags[name]
    assert not refused(dag, {})
    assert set(dag.params) <= set(GOOD_AND_BAD)
    for field in dag.params:
        good, bad = GOOD_AND_BAD[field]
        assert [value for value in good if refused(dag, {field: value})] == [], field
        assert [value for value in bad if not refused(dag, {field: value})] == [], field


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_that_a_form_takes_can_be_read(text: str) -> None:
    assert milliseconds(text) > 0
