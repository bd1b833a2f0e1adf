"""Finding the jobs of this machine through the runtime directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sameshot.api.transport import Endpoint
from sameshot.client import resolve
from sameshot.client.local import JobInfo, jobs, runtime_root, write_job_file
from sameshot.errors import Denied, NoSuchJob, UsageError
from sameshot.model import JobRef


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    return root


HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that hold a run's lock; ended with the test."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


def info(name: str, pid: int = 2**22 + 1, started: int = 1, **labels: str) -> JobInfo:
    return JobInfo(
        job=JobRef("local", name, "u" + name),
        series=name,
        labels=labels,
        coordinator=f"unix:/tmp/{name}.sock",
        archive="/archive",
        pid=pid,
        started_at_ns=started,
    )


def run(root: Path, holders: list[subprocess.Popen[str]], job: JobInfo, folder: str = "") -> subprocess.Popen[str]:
    """A run that lives: another process holds its lock."""
    path = root / (folder or job.job.name)
    path.mkdir()
    write_job_file(path, job)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path / "alive.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    holders.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_running_jobs_are_listed_newest_first_and_by_label(root: Path, holders: list[subprocess.Popen[str]]) -> None:
    run(root, holders, info("old", started=1, team="x"))
    run(root, holders, info("new", started=2, team="x", size="big"))
    assert [each.job.name for each in jobs()] == ["new", "old"]
    assert [each.job.name for each in jobs({"team": "x"})] == ["new", "old"]
    assert [each.job.name for each in jobs({"team": "x", "size": "big"})] == ["new"]
    assert jobs({"team": "y"}) == []
    assert jobs()[0].run == "new"


def test_a_run_whose_lock_is_free_has_ended(root: Path, holders: list[subprocess.Popen[str]]) -> None:
    process = run(root, holders, info("train"))
    assert jobs()[0].alive
    process.kill()
    process.wait()
    assert jobs() == []
    assert [each.alive for each in jobs(also_ended=True)] == [False]


def test_looking_never_takes_or_breaks_the_lock(root: Path, holders: list[subprocess.Popen[str]]) -> None:
    run(root, holders, info("train"))
    for _ in range(3):
        assert jobs()[0].alive


def test_a_run_that_lists_itself_keeps_its_own_lock(root: Path, holders: list[subprocess.Popen[str]]) -> None:
    """Closing any descriptor of a file gives up the process's own record locks on it: its file must not be opened."""
    script = """
import fcntl, os, pathlib, sys
from sameshot.client.local import JobInfo, jobs, write_job_file
from sameshot.model import JobRef
run = pathlib.Path(sys.argv[1]) / "mine"
run.mkdir()
fd = os.open(run / "alive.lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(fd, fcntl.LOCK_EX)
write_job_file(run, JobInfo(job=JobRef("local", "mine", "u"), series="", coordinator="unix:/x", archive="/a",
                            pid=os.getpid()))
assert jobs()[0].alive
print("listed", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    holders.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "listed\n"
    assert [each.job.name for each in jobs()] == ["mine"]


def test_an_address_is_found_by_job_name_by_folder_or_because_there_is_only_one(
    root: Path, holders: list[subprocess.Popen[str]]
) -> None:
    with pytest.raises(NoSuchJob, match="sameshot run"):
        resolve("local")
    run(root, holders, info("train"), folder="aa11")
    assert resolve("local") == resolve("local:train") == resolve("local:aa11") == Endpoint("unix:/tmp/train.sock")
    run(root, holders, info("train", started=2), folder="bb22")
    run(root, holders, info("other"))
    for ambiguous in ("local", "local:train"):
        with pytest.raises(UsageError, match="local:bb22"):
            resolve(ambiguous)
    assert resolve("local:other") == Endpoint("unix:/tmp/other.sock")
    with pytest.raises(NoSuchJob, match="Running are: "):
        resolve("local:missing")


def test_other_addresses_pass_and_nonsense_is_refused(root: Path) -> None:
    for address in ("unix:/run/x.sock", "localhost:1234", "127.0.0.1:1", "[::1]:80", "c.ns.svc:443"):
        assert resolve(address) == Endpoint(address)
    for nonsense in ("", "localhost", "unix:", "http://x:1", "a b:1", "x:port"):
        with pytest.raises(UsageError):
            resolve(nonsense)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_runtime_directory_that_others_can_enter_is_refused(root: Path, mode: int) -> None:
    root.chmod(mode)
    with pytest.raises(Denied, match="0700"):
        jobs()


def test_a_link_in_place_of_the_runtime_directory_is_refused(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(root)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(Denied):
        jobs()


def test_without_a_runtime_directory_there_are_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "nothing"))
    assert jobs() == []
    monkeypatch.delenv("SAMESHOT_RUNTIME_DIR")
    assert runtime_root() == Path(f"/tmp/sameshot-{os.getuid()}")


def test_damaged_foreign_and_newer_files_are_skipped(root: Path, holders: list[subprocess.Popen[str]]) -> None:
    run(root, holders, info("train"))
    for name, content in (("broken", "{"), ("newer", '{"schema":"sameshot.dev/run/v9"}'), ("list", "[]")):
        (root / name).mkdir()
        (root / name / "job.json").write_text(content)
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "job.json")
    (root / "link").mkdir()
    (root / "link" / "job.json").symlink_to(root / "train" / "job.json")
    (root / "file").write_text("")
    assert [each.job.name for each in jobs(also_ended=True)] == ["train"]
