"""`kubectl sameshot …`: kubectl runs the script `kubectl-sameshot` that it finds on the PATH, by its path, with what
stands after the plugin's name (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As installers write it."""
    path = tmp_path_factory.mktemp("bin") / "kubectl-sameshot"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom sameshot.cli.main import main\nsys.exit(main())\n")
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SAMESHOT_", "KUBE"))}
    return subprocess.run(
        [script, *arguments], capture_output=True, text=True, env={**inherited, "COLUMNS": "200", **environment}
    )


def test_it_is_installed_as_the_same_command() -> None:
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-sameshot"] == scripts["sameshot"] == "sameshot.cli.main:main"


def test_its_help_and_its_examples_say_kubectl_sameshot(script: Path) -> None:
    done = run(script, "capture", "--help")
    assert done.returncode == 0
    assert "Usage: kubectl sameshot capture" in done.stdout
    assert "Examples: kubectl sameshot capture --duration 2s" in done.stdout
    assert " sameshot capture" not in done.stdout.replace("kubectl sameshot", "")


def test_without_more_words_the_cluster_of_the_kubeconfig_is_meant_in_its_own_namespace(
    script: Path, tmp_path: Path
) -> None:
    """Nobody listens there: the message shows what was looked for."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "ml"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    environment = {"KUBECONFIG": str(tmp_path / "config"), "SAMESHOT_RUNTIME_DIR": str(tmp_path / "none")}
    done = run(script, "jobs", **environment)
    assert done.returncode == 75
    assert "127.0.0.1" in done.stderr
    other = run(script, "jobs", "--context", "elsewhere", **environment)
    assert other.returncode == 2
    assert "no context 'elsewhere'" in other.stderr
