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
WITHOUT_ARTIFACTS = {
    f"no-artifacts/{name}": SHIPPED[name] for name in ("workflow-template.yaml", "cluster-workflow-template.yaml")
}
"""For clusters where no artifact repository is configured: saving one, an optional one too, fails the pod."""


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


@pytest.mark.parametrize(("file", "kind"), WITHOUT_ARTIFACTS.items())
def test_without_artifacts_it_is_what_render_writes_too(file: str, kind: str) -> None:
    text = (DEPLOY / file).read_text()
    assert text == render("--kind", kind, "--no-artifacts"), (
        f"regenerate it: sameshot argo render --kind {kind} --no-artifacts > deploy/argo/{file}"
    )
    assert "artifacts" not in text


def test_nothing_else_is_shipped() -> None:
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert files == {*SHIPPED, *WITHOUT_ARTIFACTS}


def test_by_default_all_that_a_namespace_needs_is_written() -> None:
    documents = list(yaml.safe_load_all(render("--namespace", "ml")))
    kinds = ["ServiceAccount", "Role", "RoleBinding", "RoleBinding", "WorkflowTemplate"]
    assert [each["kind"] for each in documents] == kinds
    assert {each["metadata"]["namespace"] for each in documents} == {"ml"}
    assert {one["namespace"] for each in documents[2:4] for one in each["subjects"]} == {"ml"}


def test_runs_may_capture_jobs_of_other_namespaces_where_that_is_asked_for() -> None:
    documents = list(yaml.safe_load_all(render("--kind", "Role", "--namespace", "argo", "--jobs-namespace", "ml")))
    (users,) = [each for each in documents if each.get("roleRef", {}).get("name") == "sameshot-user"]
    assert users["metadata"]["namespace"] == "ml"
    assert [each["namespace"] for each in users["subjects"]] == ["argo"]
