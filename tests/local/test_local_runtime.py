"""Runtime directories of runs on one machine: private, found while they live, cleaned up when nothing is lost by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live import wait_for

from sameshot.client.local import JobInfo, jobs
from sameshot.errors import SameshotError, UsageError
from sameshot.local.arming import armed_environment, node_dir
from sameshot.local.runtime import RunFolder
from sameshot.local.services import Service, ServiceCommand
from sameshot.model import JobRef

JOB = JobRef("local", "job", "u1")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "rt"
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(folder))
    return folder


# A run whose process is killed: it announces itself, makes what the arguments name, and dies without cleaning up.
KILLED = """
import os, sys
from pathlib import Path
from sameshot.client.local import JobInfo
from sameshot.local.runtime import RunFolder
from sameshot.local.services import Service, ServiceCommand
from sameshot.model import JobRef
run = RunFolder.create()
job = JobRef("local", "killed", "u0")
run.announce(JobInfo(job=job, series="s", coordinator="unix:/x", archive="/a", pid=os.getpid()))
for name in sys.argv[1:]:
    (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    (run.path / name).write_text("x")
print(run.path, flush=True)
os.kill(os.getpid(), 9)
"""

# A worker that still trains: it holds its record lock until its standard input closes.
WORKER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def killed_run(*files: str) -> Path:
    done = subprocess.run([sys.executable, "-c", KILLED, *files], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    return Path(done.stdout.strip())


def test_the_next_run_removes_what_a_killed_one_left(root: Path) -> None:
    left = killed_run("agent-0.log")
    assert left.is_dir()
    RunFolder.create().close(keep=False)
    assert not left.exists()


@pytest.mark.parametrize("trace", ["spool-n0/captures/c/t/raw.json", "n0/captures/c/main/0/trace_7.json"])
def test_trace_bytes_that_never_reached_the_archive_are_never_removed(root: Path, trace: str) -> None:
    left = killed_run(trace)
    run = RunFolder.create()
    assert (left / trace).read_text() == "x"
    run.close(keep=False)


def test_a_killed_run_whose_worker_still_trains_keeps_its_folder_until_the_worker_ends(root: Path) -> None:
    left = killed_run("n0/workers/w.lock")
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(left / "n0/workers/w.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"locked\n"
        RunFolder.create().close(keep=False)
        assert left.is_dir()
        worker.communicate()
    RunFolder.create().close(keep=False)
    assert not left.exists()


def test_a_living_run_is_found_and_another_run_does_not_touch_it(root: Path) -> None:
    first = RunFolder.create()
    first.announce(JobInfo(job=JOB, series="s", coordinator="unix:/x", archive="/a", pid=os.getpid()))
    second = RunFolder.create()
    assert [info.run for info in jobs()] == [first.path.name]
    second.close(keep=False)
    assert first.path.is_dir()
    first.close(keep=False)
    assert jobs() == []


def test_a_run_that_has_not_announced_itself_yet_is_not_swept(root: Path) -> None:
    first = RunFolder.create()
    (root / "starting").mkdir()
    (root / "starting" / "alive.lock").touch()  # another process, between making its lock file and locking it
    RunFolder.create().close(keep=False)
    assert first.path.is_dir()
    assert (root / "starting").is_dir()
    os.utime(root / "starting" / "alive.lock", (0, 0))  # killed long ago, before it was announced
    RunFolder.create().close(keep=False)
    assert not (root / "starting").exists()
    first.close(keep=False)


def test_a_runtime_directory_that_others_may_enter_is_refused(root: Path) -> None:
    root.mkdir(mode=0o755)
    with pytest.raises(SameshotError, match="0700"):
        RunFolder.create()


def test_a_node_directory_too_long_for_kineto_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SAMESHOT_RUNTIME_DIR"):
        node_dir(tmp_path / ("x" * 50), 0)


def test_arming_twice_changes_nothing_and_keeps_the_users_own_python_path(tmp_path: Path) -> None:
    once = armed_environment({"PYTHONPATH": "/mine"}, job=JOB, node="n", folder=tmp_path)
    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
    assert armed_environment(once, job=JOB, node="n", folder=tmp_path) == once


def test_a_service_that_can_not_start_is_reported_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "raise SystemExit('no such archive')")
    service = Service(
        ServiceCommand(name="agent-0", argv=argv, log=tmp_path / "log", ready=tmp_path / "address"), dict(os.environ)
    )
    try:
        with pytest.raises(SameshotError, match="no such archive"):
            service.wait_ready(60)
    finally:
        service.stop()


def test_a_service_that_dies_is_started_again_and_ends_when_its_parent_does(tmp_path: Path) -> None:
    program = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); sys.stdin.read()"
    address = tmp_path / "address"
    service = Service(
        ServiceCommand(
            name="agent-0",
            argv=(sys.executable, "-c", program, str(address)),
            log=tmp_path / "log",
            ready=address,
        ),
        dict(os.environ),
    )
    first = int(service.wait_ready(60))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: service.restarts == 1, "the service is started again")
    second = int(service.wait_ready(60))
    assert second != first
    service.stop()
    assert not Path(f"/proc/{second}").exists()
