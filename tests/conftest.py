from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _logs_of_launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torchrun makes a folder for its logs at every start and never removes it: not in /tmp, then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PET_LOG_DIR", str(tmp_path_factory.getbasetemp() / "torchrun"))  # its --log-dir
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and broken files that are too large or not ours to ship with the repository."""
    folder = Path(os.environ.get("SAMESHOT_TEST_DATA", REPO.parent / "shared"))
    if not (folder / "traces" / "INDEX.md").is_file():
        pytest.skip(f"no test data in {folder}: set SAMESHOT_TEST_DATA to a folder with traces/INDEX.md")
    return folder
