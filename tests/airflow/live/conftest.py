"""One running Airflow and one training job for all tests of the suite that need them: started with the first test here,
gone after the last. Then no log of any of its processes may blame our files for using what will go away."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest
from airflow_lab import Lab, start

import sameshot
import sameshot_airflow

HERE = Path(__file__).parent
REPO = HERE.parents[2]
OURS = (Path(sameshot_airflow.__file__).parent, Path(sameshot.__file__).parent)
ON_PURPOSE = "uses_what_goes_away.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.full)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(480))  # the first one also starts everything


_STACK = contextlib.ExitStack()
_LABS: list[Lab] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Tests elsewhere have the machine for themselves again."""
    yield
    if _LABS and (nextitem is None or not nextitem.path.is_relative_to(HERE)):
        server = _LABS.pop().server
        complaints = server.warnings_about(*OURS, server.dags)
        _STACK.close()
        complaints = [line for line in complaints if ON_PURPOSE not in line]
        assert not complaints, "our files use what Airflow or Python will take away:\n" + "\n".join(complaints)


@pytest.fixture(scope="module")
def running_lab() -> Lab:
    """For fixtures that outlive a test."""
    if not _LABS:
        try:
            _LABS.append(start(_STACK, HERE / "dags", REPO / "dags"))
        except BaseException:
            _STACK.close()
            raise
    return _LABS[0]


@pytest.fixture
def lab(running_lab: Lab) -> Lab:
    running_lab.server.mend()
    return running_lab
