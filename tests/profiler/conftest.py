from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from profiler_lab import short_directory


@pytest.fixture
def ipc_dir() -> Iterator[Path]:
    with short_directory() as folder:
        yield folder
