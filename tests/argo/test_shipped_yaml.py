"""deploy/argo is what `sameshot argo render` writes, for people who have no Python at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy" / "argo"
SHIPPED = {
    "role.yaml": "Role",
    "workflow-template.yaml": "WorkflowTemplate",
    "cluster-workflow-template.yaml": "ClusterWorkflowTemplate",
    "cron-workflow.yaml": "CronWorkflow",
    "workflow.yaml": "Workflow",
}


def render(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sameshot.cli.main", "argo", "render", *arguments], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("file", "kind"), SHIPPED.items())
def test_it_is_what_render_writes(file: str, kind: str) -> None:
    assert (DEPLOY / file).read_text() == render("--kind", kind), (
        f"regenerate it: sameshot argo render --kind {kind} > deploy/argo/{file}"
    )


def test_nothing_else_is_shipped() -> None:
    assert {path.name for path in DEPLOY.iterdir()} == set(SHIPPED)


def test_by_default_all_that_a_namespace_needs_is_written() -> None:
    documents = list(yaml.safe_load_all(render("--namespace", "ml")))
    assert [each["kind"] for each in documents] == ["ServiceAccount", "Role", "RoleBinding", "WorkflowTemplate"]
    assert {each["metadata"]["namespace"] for each in documents} == {"ml"}
    assert documents[2]["subjects"][0]["namespace"] == "ml"
