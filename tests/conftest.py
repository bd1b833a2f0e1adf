from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and broken files that are too large or not ours to ship with the repository."""
    folder = Path(os.environ.get("SAMESHOT_TEST_DATA", REPO.parent / "shared"))
    if not (folder / "traces" / "INDEX.md").is_file():
        pytest.skip(f"no test data in {folder}: set SAMESHOT_TEST_DATA to a folder with traces/INDEX.md")
    return folder
