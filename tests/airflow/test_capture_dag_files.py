"""What the scheduler keeps of a DAG with captures, and what a DAG file costs and may say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest


def serialized(dag: Any) -> Any:
    """The DAG out of the metadata database."""
    import json

    from airflow.serialization.serialized_objects import DagSerialization

    data = DagSerialization.to_dict(dag)
    DagSerialization.validate_schema(data)
    return DagSerialization.from_dict(json.loads(json.dumps(data)))


@pytest.fixture
def dag() -> Any:
    from airflow.sdk import DAG

    from sameshot_airflow.decorators.capture import sameshot_capture_task
    from sameshot_airflow.operators.capture import SameshotCaptureOperator
    from sameshot_airflow.sensors.job import SameshotJobSensor

    with DAG("profile", schedule=None) as dag:
        SameshotCaptureOperator(
            task_id="capture",
            job="bert",
            duration=timedelta(seconds=1),
            activities=["cpu"],
            with_stack=True,
            min_ranks=7,
            if_unavailable="skip",
            attempt=1,
            timeout="{{ params.patience }}",
            allow_backfill=True,
            retries=2,
        )
        SameshotCaptureOperator.partial(task_id="each", duration="1s", if_busy="skip").expand(job=["bert", "gpt"])
        SameshotJobSensor(task_id="ready", job="bert", timeout=60)

        @sameshot_capture_task(if_busy="fail")
        def chosen(job: str) -> dict[str, object]:
            return {"job": job, "duration": "1s"}

        chosen("bert")
    return dag


def test_a_capture_survives_serialisation_with_its_options(dag: Any) -> None:
    task = serialized(dag).get_task("capture")
    assert task.task_type == "SameshotCaptureOperator"
    fields = {name: getattr(task, name) for name in task.template_fields}
    assert fields["job"] == "bert"
    assert fields["activities"] == ["cpu"]
    assert (fields["with_stack"], fields["min_ranks"], fields["attempt"]) == (True, 7, 1)
    assert fields["if_unavailable"] == "skip"
    assert fields["timeout"] == "{{ params.patience }}"
    assert task.retries == 2
    assert [outlet.name for outlet in task.outlets] == ["sameshot_captures"]


def test_so_does_a_mapped_one(dag: Any) -> None:
    task = serialized(dag).get_task("each")
    assert task.is_mapped
    assert task.partial_kwargs["if_busy"] == "skip"
    assert task.expand_input.value == {"job": ["bert", "gpt"]}


def test_mapped_captures_have_their_edge_to_the_assets_in_the_ui() -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from sameshot_airflow.decorators.capture import sameshot_capture_task
    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    def chosen(job: str) -> dict[str, object]:
        return {"job": job}

    with DAG("operator", schedule=None) as plain:
        SameshotCaptureOperator.partial(task_id="each").expand(job=["bert", "gpt"])
    with DAG("decorator", schedule=None) as decorated:
        sameshot_capture_task(task_id="each")(chosen).expand(job=["bert", "gpt"])
    for dag in (plain, decorated):
        (edge,) = DagSerialization.to_dict(dag)["dag"]["dag_dependencies"]
        assert (edge["source"], edge["target"], edge["label"]) == (dag.dag_id, "asset-alias", "sameshot_captures")


def test_outlets_of_a_mapped_task_are_kept_beside_ours() -> None:
    from airflow.sdk import DAG, Asset

    from sameshot_airflow.assets import captures
    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("mapped", schedule=None):
        mine = SameshotCaptureOperator.partial(task_id="each", outlets=[Asset("mine")]).expand(job=["bert"])
        once = SameshotCaptureOperator.partial(task_id="once", outlets=[captures()]).expand(job=["bert"])
    assert [outlet.name for outlet in mine.outlets] == ["mine", "sameshot_captures"]
    assert [outlet.name for outlet in once.outlets] == ["sameshot_captures"]


def test_and_a_decorated_one(dag: Any) -> None:
    task = serialized(dag).get_task("chosen")
    assert task.operator_name == "@task.sameshot_capture"
    assert list(task.op_args) == ["bert"]
    assert task.if_busy == "fail"


def test_and_a_sensor(dag: Any) -> None:
    task = serialized(dag).get_task("ready")
    assert (task.task_type, task.job) == ("SameshotJobSensor", "bert")


def test_serialising_twice_gives_the_same(dag: Any) -> None:
    """Or the scheduler would see a new version of the DAG at every parse."""
    from airflow.serialization.serialized_objects import DagSerialization

    assert DagSerialization.to_dict(dag) == DagSerialization.to_dict(dag)


def test_one_event_of_the_alias_is_enough(dag: Any) -> None:
    from airflow.sdk import DAG

    from sameshot_airflow.assets import captures
    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("twice", schedule=None):
        task = SameshotCaptureOperator(task_id="capture", outlets=[captures()])
    assert len(task.outlets) == 1


def test_options_that_do_not_exist_are_refused() -> None:
    from airflow.sdk import DAG

    from sameshot_airflow.operators.capture import SameshotCaptureOperator

    with DAG("wrong", schedule=None), pytest.raises(TypeError, match="durration"):
        SameshotCaptureOperator(task_id="capture", durration="1s")
