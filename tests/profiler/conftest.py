from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from profiler_lab import Dynolog, short_directory

STANDIN: list[str | Path] = [sys.executable, Path(__file__).parent.parent / "support" / "dynolog_standin.py"]


@pytest.fixture
def ipc_dir() -> Iterator[Path]:
    with short_directory() as folder:
        yield folder


@pytest.fixture(params=["stand-in", "real"])
def dynolog_command(request: pytest.FixtureRequest) -> list[str | Path]:
    """The same tests run against the stand-in and, where there is one, against the real daemon."""
    if request.param == "stand-in":
        return STANDIN
    real = os.environ.get("SAMESHOT_DYNOLOG")
    if not real:
        pytest.skip("no real daemon: set SAMESHOT_DYNOLOG to the path of a dynolog binary")
    return [real]


@pytest.fixture
def dynolog(dynolog_command: list[str | Path], ipc_dir: Path) -> Iterator[Dynolog]:
    with Dynolog(dynolog_command, str(ipc_dir)) as daemon:
        yield daemon


@pytest.fixture
def standin(ipc_dir: Path) -> Iterator[Callable[..., Dynolog]]:
    """Start the stand-in with its own knobs, for what the real daemon can't be made to do on demand."""
    with ExitStack() as stack:
        yield lambda **knobs: stack.enter_context(Dynolog(STANDIN, str(ipc_dir), **knobs))
