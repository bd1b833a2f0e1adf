"""The demonstration, run as a user runs it: what it leaves, and what its two reports say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(400)]

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo-out"
    done = subprocess.run(
        [sys.executable, "-m", "sameshot.cli.main", "demo", "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the job ended by itself with exit code 0" in done.stdout
    return folder


def test_both_captures_hold_all_four_ranks_and_pass_a_check_without_our_code(out: Path) -> None:
    manifests = sorted((out / "archive" / "local" / "demo" / "0").glob("*/manifest.json"))
    assert len(manifests) == 2
    for path in manifests:
        manifest = json.loads(path.read_bytes())
        assert manifest["capture"]["outcome"] == "SUCCEEDED"
        assert [target["identity"]["rank"] for target in manifest["targets"]] == [0, 1, 2, 3]
        assert [target["identity"]["node"] for target in manifest["targets"]] == ["node-0"] * 2 + ["node-1"] * 2
        assert len({target["identity"]["pid"] for target in manifest["targets"]}) == 4
        check = subprocess.run([sys.executable, str(REPO / "docs" / "verify_manifest.py"), str(path)], check=False)
        assert check.returncode == 0


def test_the_analysis_names_nobody_before_and_the_slow_rank_after(out: Path) -> None:
    before = json.loads((out / "first" / "summary.json").read_bytes())
    after = json.loads((out / "summary.json").read_bytes())
    assert before["late"]["ranks"] == []
    assert [late["rank"] for late in after["late"]["ranks"]] == [2]
    assert "Rank 2 is late" in (out / "report.html").read_text()


def test_the_training_script_contains_nothing_of_ours() -> None:
    script = (REPO / "core" / "sameshot" / "local" / "demo" / "train.py").read_text()
    assert "sameshot" not in script
    assert "profil" not in script.split('"""', 2)[2]
