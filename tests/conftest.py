from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parent.parent
AIRFLOW = "tests/airflow/live/"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup` two tracks: the tests that share one running Airflow and mostly wait for it, and all
    others, each one after the other as without it. (xdist 3.8 loses its own groups with pytest 9.2.)"""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Tracks(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "airflow" if nodeid.startswith(AIRFLOW) else "others"

    return Tracks(config, log)


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
