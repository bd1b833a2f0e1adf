"""One running job that most tests share: four ranks on two nodes. Whoever harms it puts it right again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
from live import LiveJob, running_job, wait_for


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[None]:
    """Runs of these tests stay among themselves, under a path that is short enough for Kineto's sockets."""
    folder = tempfile.mkdtemp(prefix="ss-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESHOT_RUNTIME_DIR", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _shared_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    with running_job(tmp_path_factory.mktemp("job"), script_args=("--pause", "0.02")) as job:
        yield job
        assert job.finish() == [0, 0], job.output()[-3000:]


@pytest.fixture
def job(_shared_job: LiveJob) -> LiveJob:
    """Training and able to be captured on all four ranks, whatever the test before has done."""
    with _shared_job.local.client() as client:
        wait_for(
            lambda: (
                (view := client.workers()) and len(view.agents) == 2 and all(each.reachable for each in view.agents)
            ),
            "both agents answer",
        )
    _shared_job.wait_training(more_steps=1)
    return _shared_job
