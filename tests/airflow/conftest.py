"""Airflow reads its configuration when it is imported: before that, each test process gets a home of its own.

In this folder, what Airflow says will go away is an error.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from support.airflow_home import hermetic_environment

HERE = Path(__file__).parent


def _private_home() -> Path:
    if "airflow" in sys.modules:
        raise RuntimeError("Airflow was imported before tests/airflow/conftest.py could give it a home of its own.")
    home = Path(tempfile.mkdtemp(prefix="ss-af-"))  # also under xdist: a worker inherits the controller's environment
    (home / "dags").mkdir()
    environment = hermetic_environment(home)
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    os.environ.update(environment)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
    return home


HOME = _private_home()

# Whatever Airflow deprecates, and whatever anybody deprecates that our own modules use.
DEPRECATED = [
    "error::airflow.exceptions.RemovedInAirflow4Warning",
    "error::airflow.sdk.exceptions.RemovedInAirflow4Warning",
    "error::airflow.exceptions.AirflowProviderDeprecationWarning",
    "error::airflow.utils.deprecation_tools.DeprecatedImportWarning",
    "error::DeprecationWarning:sameshot_airflow",
    "error::FutureWarning:sameshot_airflow",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in DEPRECATED:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """$AIRFLOW_HOME of this test process; it goes when the process ends."""
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Path:
    """The migrated, empty metadata database of this process (some seconds): for `dag.test()` and connections."""
    from airflow.utils.db import initdb

    initdb()
    return airflow_home / "airflow.db"
