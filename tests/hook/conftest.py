from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_lab import make_standin


@pytest.fixture
def shared_dir() -> Iterator[Path]:
    """A $SAMESHOT_DIR with a path short enough for Kineto's sockets."""
    with tempfile.TemporaryDirectory(prefix="hook", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a `torch` that executes in no time and tells what it saw."""
    folder = tmp_path / "standin"
    folder.mkdir()
    return make_standin(folder)
