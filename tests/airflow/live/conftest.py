"""One running Airflow and one training job for all tests here: started with the first one, gone after the last."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest
from airflow_lab import Lab, start

HERE = Path(__file__).parent
REPO = HERE.parents[2]


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
        _LABS.clear()
        _STACK.close()


@pytest.fixture
def lab() -> Lab:
    if not _LABS:
        try:
            _LABS.append(start(_STACK, HERE / "dags", REPO / "dags"))
        except BaseException:
            _STACK.close()
            raise
    _LABS[0].server.mend()
    return _LABS[0]
