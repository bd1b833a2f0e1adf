"""docs/verify_manifest.py, run as a stranger would: with a bare Python, no sameshot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "docs/verify_manifest.py"


def verify(manifest: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(manifest)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPO / "tests/manifest/golden/capture", tmp_path / "moved"))


def test_it_is_short_and_needs_nothing_of_ours() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 21
    assert "import sameshot" not in text
    assert "from sameshot" not in text


def test_it_accepts_the_golden_capture_wherever_it_lies(capture: Path) -> None:
    done = verify(capture / "manifest.json")
    assert (done.returncode, done.stdout.strip()) == (0, "3 targets as stated, outcome PARTIAL")


@pytest.mark.parametrize(
    "name", ["node-a/main/0/trace.json.gz", "node-a/main/0/trace.parquet", "raw/node-a/main/1/trace.json"]
)
def test_it_names_a_flipped_byte_and_a_missing_file(capture: Path, name: str) -> None:
    data = bytearray((capture / name).read_bytes())
    data[len(data) // 2] ^= 1
    (capture / name).write_bytes(data)
    done = verify(capture / "manifest.json")
    assert done.returncode == 4
    assert f"{name} is different" in done.stdout
    (capture / name).unlink()
    done = verify(capture / "manifest.json")
    assert done.returncode == 4
    assert f"{name} is missing" in done.stdout


def test_it_notices_an_edited_and_an_empty_manifest(capture: Path) -> None:
    body = json.loads((capture / "manifest.json").read_bytes())
    (capture / "manifest.json").write_text(json.dumps(body | {"targets": []}))
    done = verify(capture / "manifest.json")
    assert done.returncode == 4
    assert "the manifest was edited" in done.stdout
    assert "the manifest is empty" in done.stdout


def test_it_ignores_files_that_the_manifest_does_not_name(capture: Path) -> None:
    (capture / "node-a/main/0/other.json").write_text("{}")
    assert verify(capture / "manifest.json").returncode == 0
