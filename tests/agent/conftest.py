from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_lab import Lab, a_lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with a_lab() as lab:
        yield lab
