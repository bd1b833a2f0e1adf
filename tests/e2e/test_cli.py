"""The command line against a real job: what a person or a script sees, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import TRAIN, free_port, wait_for

from sameshot.cli.capture import _cancelled
from sameshot.cli.telling import program
from sameshot.cli.where import Where
from sameshot.errors import Unreachable

pytestmark = pytest.mark.live

SHORT = ("--duration", "300ms", "--activities", "cpu")


class Terminal:
    """Runs `sameshot` in the environment of one runtime directory."""

    def __init__(self, runtime: Path) -> None:
        self.environment = {
            **os.environ,
            "SAMESHOT_RUNTIME_DIR": str(runtime),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sameshot.cli.main", *arguments],
            env=self.environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> object:
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Socket paths must be short, and pytest's folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="ss", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def terminal(runtime: Path) -> Terminal:
    return Terminal(runtime)


@pytest.fixture(scope="module")
def job(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A two-rank job under `sameshot run`; yields its folder, which holds the archive."""
    folder = tmp_path_factory.mktemp("job")
    process = terminal.start(
        *("run", "--name", "clitest", "--label", "team=x", "--archive", str(folder / "archive"), "--"),
        *("torchrun", "--nproc-per-node", "2", "--master-port", str(free_port())),
        *(str(TRAIN), "--finish", str(folder / "finish")),
    )
    try:
        wait_for(lambda: _ranks(terminal) == [0, 1] or _check_runs(process), "two confirmed ranks", 120)
        yield folder
        (folder / "finish").touch()
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not list(Path(terminal.environment["SAMESHOT_RUNTIME_DIR"]).iterdir())
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def _check_runs(process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[1]
    return False


def _ranks(terminal: Terminal) -> list[int]:
    done = terminal.run("workers", "-o", "json")
    if done.returncode:
        return []
    workers = json.loads(done.stdout)["workers"]
    return sorted(w["registration"]["rank"] for w in workers if w["registration"]["phase"] == "confirmed")


@pytest.mark.usefixtures("job")
def test_jobs_are_found_by_label_and_only_then(terminal: Terminal) -> None:
    assert [info["job"]["name"] for info in terminal.json("jobs", "--label", "team=x")] == ["clitest"]
    assert terminal.json("jobs", "--label", "team=y") == []


def test_a_capture_with_wait_delivers_every_rank_and_can_be_verified_and_analysed(
    terminal: Terminal, job: Path, tmp_path: Path
) -> None:
    done = terminal.run("capture", *SHORT, "--wait")
    assert done.returncode == 0, done.stderr
    assert "SUCCEEDED, 2 of 2 archived" in done.stdout
    manifest = next(line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("manifest: "))
    assert terminal.run("manifest", "verify", manifest).returncode == 0

    report = terminal.run("analyze", manifest, "--out", str(tmp_path / "report"))
    assert report.returncode == 0, report.stderr
    assert json.loads((tmp_path / "report" / "summary.json").read_bytes())["analysed_ranks"] == 2
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000

    for name, analysed in (("trace.json.gz", 0), ("columns.parquet", 4)):  # analysis reads columns where there are any
        file = next((job / "archive").rglob(f"rank-1-*/{name}"))
        whole = file.read_bytes()
        file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        try:
            verified = terminal.run("manifest", "verify", manifest)
            assert verified.returncode == 4
            assert f"rank 1 (node-0/main/1): {'trace' if name.startswith('t') else 'columns'}" in verified.stdout
            assert terminal.run("analyze", manifest, "--out", str(tmp_path / name)).returncode == analysed
        finally:
            file.write_bytes(whole)


@pytest.mark.usefixtures("job")
def test_scripts_get_json_and_the_same_key_gives_the_same_capture(terminal: Terminal) -> None:
    first = terminal.json("capture", *SHORT, "--key", "k1", "--wait")
    assert first["state"] == "SUCCEEDED"
    assert [target["identity"]["rank"] for target in first["targets"]] == [0, 1]
    assert terminal.json("capture", *SHORT, "--key", "k1", "--wait")["capture_id"] == first["capture_id"]
    assert first["capture_id"] in [view["capture_id"] for view in terminal.json("captures")]

    other_spec = terminal.run("capture", "--duration", "400ms", "--activities", "cpu", "--key", "k1")
    assert other_spec.returncode == 2
    assert "k1" in other_spec.stderr


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("capture", "--durations", "1s"), 2, "No such option"),
        (("capture", "--activities", "gpu"), 2, "cpu, cuda, xpu, mtia"),
        (("capture", "--duration", "soon"), 2, "not a duration"),
        (("capture", "--duration", "20s"), 2, "policy"),
        (("capture", "--duration", "3s", "--with-stack"), 2, "policy"),
        (("watch", "0" * 32), 5, "0" * 32),
        (("cancel", "0" * 32), 5, "0" * 32),
        (("workers", "--job", "nobody"), 6, "nobody"),
        (("workers", "--address", "127.0.0.1:1"), 75, "127.0.0.1:1"),
        (("watch",), 2, "--key"),
        (("manifest", "verify", "/nonexistent/manifest.json"), 5, "/nonexistent"),
    ],
)
def test_a_refused_request_says_why_and_exits_with_its_own_code(
    terminal: Terminal, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = terminal.run(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("job")
def test_ctrl_c_cancels_the_capture_it_waits_for_and_says_what_is_kept(terminal: Terminal) -> None:
    process = terminal.start("capture", *SHORT, "--start-in", "30s", "--key", "interrupted", "--wait")
    wait_for(lambda: _state(terminal, "interrupted") == "COLLECTING", "the capture is under way")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "CANCELLED; no trace was kept" in err
    assert _state(terminal, "interrupted") == "CANCELLED"
    assert terminal.run("watch", "--key", "interrupted").returncode == 7


def _state(terminal: Terminal, key: str) -> str:
    return next((view["state"] for view in terminal.json("captures") if view["request_key"] == key), "")


@pytest.mark.full
@pytest.mark.usefixtures("job")
def test_doctor_finds_a_healthy_job_healthy_and_names_a_worker_that_ignores_the_hook(
    terminal: Terminal, tmp_path: Path
) -> None:
    healthy = terminal.run("doctor")
    assert healthy.returncode == 0, healthy.stdout
    assert "2 of 2 ranks are registered" in healthy.stdout
    assert "entered daemon mode" in healthy.stdout
    assert "a window of 0.1 s was written" in healthy.stdout

    uid = terminal.json("jobs")[0]["job"]["uid"]
    with contextlib.ExitStack() as stack:
        deaf = subprocess.Popen(
            [sys.executable, "-I", "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            env={**terminal.environment, "SAMESHOT_JOB_UID": uid, "RANK": "5"},
        )
        stack.callback(deaf.wait)
        stack.callback(deaf.kill)
        sick = terminal.run("doctor")
    assert sick.returncode == 1
    assert f"Process {deaf.pid} (rank 5)" in sick.stdout


def test_doctor_refuses_a_runtime_directory_that_is_too_long_for_sockets(tmp_path: Path) -> None:
    done = Terminal(tmp_path / ("x" * 60)).run("doctor", "-o", "json")
    assert done.returncode == 1
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert findings["socket directory"]["verdict"] == "problem"
    assert "SAMESHOT_RUNTIME_DIR" in findings["socket directory"]["remedy"]


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)]
)
def test_run_returns_the_exit_code_of_the_command_and_leaves_nothing_behind(
    tmp_path: Path, program: str, code: int
) -> None:
    runtime = Path(tempfile.mkdtemp(prefix="ss", dir="/tmp"))
    try:
        done = Terminal(runtime).run("run", "--single", "--archive", str(tmp_path), "--", sys.executable, "-c", program)
        assert done.returncode == code, done.stderr
        assert list(runtime.iterdir()) == []
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def test_run_returns_the_exit_code_also_when_the_archive_is_out_of_reach() -> None:
    runtime = Path(tempfile.mkdtemp(prefix="ss", dir="/tmp"))
    terminal = Terminal(runtime)
    terminal.environment.update(  # the discard port: nobody listens
        AWS_ENDPOINT_URL="http://127.0.0.1:9", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_REGION="x"
    )
    try:
        done = terminal.run("run", "--single", "--archive", "s3://nobody/x", "--", sys.executable, "-c", "exit(7)")
        assert done.returncode == 7, done.stderr
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def test_the_demonstration_removes_nothing_that_is_not_its_own(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = terminal.run("demo", "--out", str(tmp_path))
    assert done.returncode == 2
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_plain_install_can_talk_to_a_coordinator_and_says_what_more_a_command_needs(tmp_path: Path) -> None:
    blocked = ("isal", "jinja2", "numpy", "obstore", "torch")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n")
    plain = Terminal(tmp_path / "rt")
    plain.environment["PYTHONPATH"] = str(tmp_path)
    assert plain.run("capture", "--help").returncode == 0
    assert plain.run("workers").returncode == 6
    needs_more = plain.run("analyze", str(tmp_path / "manifest.json"))
    assert needs_more.returncode == 2
    assert "pip install 'sameshot[local]'" in needs_more.stderr


class _Deaf:
    """A coordinator that does not answer a cancel."""

    def cancel(self, capture_id: str) -> None:
        raise Unreachable("The coordinator does not answer.")


def test_a_cancel_that_nobody_confirmed_claims_nothing_about_traces() -> None:
    said = _cancelled(_Deaf(), "c1", Where(namespace="ml", job="bert"))  # type: ignore[arg-type]
    assert said == (
        "the cancel of capture c1 is not confirmed (The coordinator does not answer.); see: "
        f"{program()} watch c1 -n ml --job bert"
    )


def test_a_command_that_does_not_exist_is_a_usage_error(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("run", "--archive", str(tmp_path), "--", "no-such-program")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr


def test_every_command_shows_an_example_in_its_help(terminal: Terminal) -> None:
    for command in ("run", "capture", "watch", "cancel", "captures", "jobs", "workers", "analyze", "doctor", "demo"):
        done = terminal.run(command, "--help")
        assert done.returncode == 0
        assert "Example" in done.stdout, command
