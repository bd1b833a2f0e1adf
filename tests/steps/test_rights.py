"""What a caller within the cluster is given: a token of one account, and captures where its jobs are. Nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes_objects import documents_in, schema_problems

from sameshot.steps.rights import rights

Json = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
SHIPPED = {
    "kfp": (("pipeline-runner", "kubeflow"), {"jobs_in": ["ml"], "make_account": False}),
    "flyte": (("sameshot-connector", "flyte"), {"jobs_in": ["ml"]}),
    "airflow": (
        ("sameshot", "airflow"),
        {"jobs_in": ["ml"], "callers": ["airflow-worker", "airflow-triggerer", "airflow-api-server"]},
    ),
}


def rules(made: list[Json]) -> list[tuple[str, Json]]:
    return [(each["metadata"]["namespace"], rule) for each in made if each["kind"] == "Role" for rule in each["rules"]]


def bound(made: list[Json]) -> dict[tuple[str, str], set[str]]:
    """(namespace, role) → accounts, as namespace/name."""
    return {
        (each["metadata"]["namespace"], each["roleRef"]["name"]): {
            f"{one['namespace']}/{one['name']}" for one in each["subjects"]
        }
        for each in made
        if each["kind"] == "RoleBinding"
    }


def test_an_account_that_asks_for_itself_gets_its_own_token_and_captures_where_it_is() -> None:
    made = rights("steps", "ml")
    assert rules(made) == [
        (
            "ml",
            {
                "apiGroups": [""],
                "resources": ["serviceaccounts/token"],
                "resourceNames": ["steps"],
                "verbs": ["create"],
            },
        )
    ]
    assert bound(made) == {("ml", "steps-token"): {"ml/steps"}, ("ml", "sameshot-user"): {"ml/steps"}}


def test_accounts_that_capture_as_another_get_its_token_and_may_find_coordinators_but_not_capture_as_themselves() -> (
    None
):
    made = rights("sameshot", "airflow", callers=["worker", "triggerer"], jobs_in=["ml", "vision"])
    workers = {"airflow/worker", "airflow/triggerer"}
    assert bound(made) == {
        ("airflow", "sameshot-token"): workers,
        **{(place, "sameshot-user"): {"airflow/sameshot"} for place in ("ml", "vision")},
        **{(place, "sameshot-of-airflow-coordinators"): workers for place in ("ml", "vision")},
    }
    reading = [rule for place, rule in rules(made) if place == "ml"]
    assert [rule["verbs"] for rule in reading] == [["get", "list", "watch"]]
    assert reading[0]["resources"] == ["capturecoordinators"]


def test_two_namespaces_accounts_of_one_name_get_objects_of_their_own() -> None:
    names = [
        {each["metadata"]["name"] for each in rights("steps", place, jobs_in=["ml"]) if each["kind"] == "RoleBinding"}
        for place in ("a", "b")
    ]
    assert {"steps-of-a-captures"} == names[0] - names[1]


@pytest.mark.parametrize("engine", SHIPPED)
def test_what_is_shipped_is_what_the_command_writes(engine: str) -> None:
    where, options = SHIPPED[engine]
    file = DEPLOY / engine / "role.yaml"
    assert documents_in(file) == rights(*where, **options)
    (line,) = [each for each in file.read_text().replace("\\\n#", "").splitlines() if "sameshot rights " in each]
    command = [*line.split("sameshot ", 1)[1].split()]
    done = subprocess.run([sys.executable, "-m", "sameshot.cli.main", *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"apiVersion": "v1", "kind": "List", "items": documents_in(file)}


@pytest.mark.parametrize("engine", SHIPPED)
def test_every_field_of_it_is_one_of_kubernetes(engine: str) -> None:
    documents = documents_in(DEPLOY / engine / "role.yaml")
    assert [problem for each in documents for problem in schema_problems(each)] == []
