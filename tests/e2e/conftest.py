"""One running job that most tests share: four ranks on two nodes. Whoever harms it puts it right again."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Generator, Iterator

import pytest
from live import JOBS, LiveJob, running_job, wait_for


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test that failed because torch itself crashed is run once more, and the crash is reported.

    torch before 2.14 can crash a worker whenever a recording stops (docs/troubleshooting.md): once in some 3,000.
    """
    before = {job: job.crashed for job in JOBS}
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        if not any(job.crashed and not before.get(job, False) for job in JOBS):
            raise
        warnings.warn(f"torch crashed a worker (SIGSEGV); {pyfuncitem.name} runs again after: {error}", stacklevel=1)
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        if isinstance(shared := arguments.get("job"), LiveJob) and shared.crashed:
            shared.restart()
        if "tmp_path" in arguments:
            (again := arguments["tmp_path"] / "again").mkdir()
            arguments["tmp_path"] = again
        return pyfuncitem.obj(**arguments) or True


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
    if _shared_job.crashed:
        _shared_job.restart()
    with _shared_job.local.client() as client:
        wait_for(
            lambda: (
                (view := client.workers()) and len(view.agents) == 2 and all(each.reachable for each in view.agents)
            ),
            "both agents answer",
        )
    _shared_job.wait_training(more_steps=1)
    return _shared_job
