"""Which calls of Flyte mean the same capture: those of one place in one execution, in whatever attempt."""

from __future__ import annotations

import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte_connector import metadata, output_prefix
from flytekit.models.task import TaskExecutionMetadata

from sameshot_flyte.asked import Place
from sameshot_flyte.flyte1.place import place_of


def place(prefix: str, **where: object) -> Place:
    told = TaskExecutionMetadata.from_flyte_idl(metadata(**where))  # type: ignore[arg-type]
    return place_of(told, prefix, "sameshot.capture")


def test_a_place_is_project_domain_execution_and_node() -> None:
    found = place(output_prefix("n0"))
    assert found == Place("ml", "production", "f3a9c1", "n0", -1)
    assert found.request_key == "flyte/ml/production/f3a9c1/n0/-1"


def test_attempts_of_a_node_and_of_all_nodes_above_are_in_the_same_place() -> None:
    places = {place(output_prefix("n2", "n0", attempt=attempt), attempt=attempt, node="n0") for attempt in range(3)}
    assert places == {Place("ml", "production", "f3a9c1", "n2.n0", -1)}


def test_nodes_of_two_sub_workflows_have_the_same_id_and_are_two_places() -> None:
    inner = [place(output_prefix(outer, "n0"), node="n0") for outer in ("n1", "n2")]
    assert [each.node for each in inner] == ["n1.n0", "n2.n0"]
    assert place(output_prefix("n0"), node="n0").node == "n0"


def test_deep_within_all_nodes_above_count() -> None:
    assert place(output_prefix("n1", "dn0", "n0-n1"), node="n0-n1").node == "n1.dn0.n0-n1"


def test_the_node_of_a_name_that_is_a_number_is_not_taken_for_an_attempt() -> None:
    assert place(output_prefix("1", "2"), node="2").node == "1.2"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "s3://elsewhere/n0/data/0",
        "s3://flyte/ml-production-f3a9c1/n0",
        "s3://flyte/ml-production-f3a9c1/n0/outputs/0",
        "s3://flyte/ml-production-f3a9c1/n0/data/first",
        "s3://flyte/ml-production-f3a9c1/n1/data/0/n0",
        "s3://flyte/ml-production-f3a9c1/n1/data/0",  # of another node
        "s3://flyte/ml-production-f3a9c1x/n1/data/0/n0/0",
    ],
)
def test_where_prefixes_are_laid_out_otherwise_the_node_has_its_plain_id(prefix: str) -> None:
    assert place(prefix, node="n0").node == "n0"


def test_every_index_of_a_mapped_task_is_a_place() -> None:
    prefix = output_prefix("n1", "0")  # propeller's folder of an index has no n, its node id has
    assert place(prefix, node="n0", index=0) == Place("ml", "production", "f3a9c1", "n1.0", 0)
    assert place(output_prefix("n1", "12"), node="n12", index=12) == Place("ml", "production", "f3a9c1", "n1.12", 12)


def test_an_index_that_is_none_is_no_index() -> None:
    told = metadata()
    told.environment_variables["BATCH_JOB_ARRAY_INDEX_VAR_NAME"] = "FLYTE_K8S_ARRAY_INDEX"
    told.environment_variables["FLYTE_K8S_ARRAY_INDEX"] = "first"
    read = TaskExecutionMetadata.from_flyte_idl(told)
    assert place_of(read, output_prefix("n0"), "sameshot.capture").map_index == -1


def test_without_metadata_the_output_prefix_is_the_place() -> None:
    first, again, other = (place_of(None, prefix, "nightly") for prefix in ("/tmp/a", "/tmp/a", "/tmp/b"))
    assert first == again != other
    assert (first.project, first.domain, first.node) == ("local", "local", "nightly")
    empty = TaskExecutionMetadata.from_flyte_idl(metadata(project="", domain="", execution="", node=""))
    assert place_of(empty, "/tmp/a", "nightly") == first
