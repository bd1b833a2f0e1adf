"""flytekit makes two folders for temporary files as soon as it is imported, and leaves them there."""

from __future__ import annotations

import shutil
import sys

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    configuration = sys.modules.get("flytekit.configuration")
    if configuration is not None:
        shutil.rmtree(configuration.Config.local_sandbox_path, ignore_errors=True)
    persistence = sys.modules.get("flytekit.core.data_persistence")
    if persistence is not None:
        shutil.rmtree(persistence.flyte_tmp_dir, ignore_errors=True)
