"""docs/argo.md: its YAML is valid, its Python runs, and it says what the templates do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from argo_checks import Schemas, problems

from sameshot_argo.composed import templates
from sameshot_argo.objects import cluster_workflow_template, workflow_template
from sameshot_argo.settings import Settings

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "argo.md").read_text()
INSTALLED = [workflow_template().to_dict(), cluster_workflow_template().to_dict()]
BLOCKS = [each for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for each in yaml.safe_load_all(block)]
OBJECTS = [each for each in BLOCKS if each["apiVersion"].startswith("argoproj.io")]


@pytest.mark.parametrize("document", OBJECTS, ids=[each["kind"] + str(at) for at, each in enumerate(OBJECTS)])
def test_its_yaml_is_valid(shared_data: Path, document: dict[str, Any]) -> None:
    assert Schemas(shared_data / "argo-crds").problems(document) == []
    assert problems(document, INSTALLED) == []


def test_its_python_makes_a_valid_workflow(shared_data: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    made: dict[str, Any] = {}
    exec(code.replace("print(", "str("), made)
    document = made["workflow"].to_dict()
    assert Schemas(shared_data / "argo-crds").problems(document) == []
    assert problems(document, INSTALLED) == []


def captured(document: dict[str, Any]) -> set[str]:
    """The keys of what a workflow captures below a DAG."""
    tasks = [task for each in document["spec"].get("templates", []) for task in each.get("dag", {}).get("tasks", [])]
    given = [
        {each["name"]: each["value"] for each in task["arguments"]["parameters"]}
        for task in tasks
        if task.get("templateRef", {}).get("template") in ("profile", "capture")
    ]
    return {each["key"] for each in given}


def test_where_a_dag_is_above_captures_the_exit_hook_cancels_each_of_them() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    made: dict[str, Any] = {}
    exec(code.replace("print(", "str("), made)
    below = [each for each in (*OBJECTS, made["workflow"].to_dict()) if captured(each)]
    assert len(below) == 2
    for each in below:
        hook = each["spec"]["hooks"]["exit"]
        assert hook["templateRef"]["template"] == "on-exit"
        given = {one["name"]: one["value"] for one in hook["arguments"]["parameters"]}
        assert set(json.loads(given["keys"])) == captured(each)


def test_what_it_asks_of_the_image_and_of_the_controller_is_what_pods_need() -> None:
    (file,) = re.findall(r"podman build -f (\S+) -t \S+:\d", PAGE)
    image = (REPO / file).read_text()
    assert re.findall(r"^USER (\d+)$", image, re.MULTILINE) == [str(Settings().run_as_user)]
    (controller,) = [each for each in BLOCKS if each["kind"] == "ConfigMap"]
    restricted = yaml.safe_load(controller["data"]["executor"])["securityContext"]
    (pod, *_) = [each for each in INSTALLED[0]["spec"]["templates"] if "container" in each]
    assert restricted == {
        **pod["container"]["securityContext"],
        "seccompProfile": pod["securityContext"]["seccompProfile"],
    }


def test_every_template_and_the_secrets_of_the_pods_are_on_it() -> None:
    assert re.findall(r"^\| `([\w-]+)` \| (?:a|steps)\b", PAGE, re.MULTILINE) == [
        "profile", "capture", "capture-pod", "analyze-rank", "reduce", "compare", "cancel", "on-exit",
    ]  # fmt: skip
    assert {each.name for each in templates()} == set(
        re.findall(r"^\| `([\w-]+)` \| (?:a|steps)\b", PAGE, re.MULTILINE)
    )
    named = {each["metadata"]["name"] for each in BLOCKS if each["kind"] == "Secret"}
    assert named == {Settings().archive_secret, Settings().results_secret}
