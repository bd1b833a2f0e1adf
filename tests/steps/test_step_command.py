"""`sameshot step NAME` as an engine runs it: flags in, one JSON file out, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from sameshot.cli.main import Terminated
from sameshot.cli.step.frame import reporting
from sameshot.client.local import LOCK_FILE, JobInfo, write_job_file
from sameshot.errors import JobBusy, PartialCapture, SameshotError, UsageError
from sameshot.model import CaptureState, FailureReason, TargetState
from sameshot.steps.begin import begin
from sameshot.steps.capture import accept
from sameshot.steps.results import CancelResult, CaptureResult
from support.coordination import in_loop, until
from support.fake_agent import JOB, deliver, failing, stay
from support.step_requests import by_rank, request, training

SHORT = ("--duration", "1s", "--activities", "cpu,cuda", "--caller", "ana")


async def started(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    """With a result file and a result folder of this name."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sameshot.cli.main", "step", *arguments),
        *("--result", str(folder / "out" / "result.json"), "--result-dir", str(folder / "values")),
        env={**os.environ, "SAMESHOT_RUNTIME_DIR": str(folder / "runs")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def step(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, the result file, standard error)"""
    return await ended(folder, await started(folder, *arguments))


async def ended(folder: Path, process: asyncio.subprocess.Process) -> tuple[int, dict[str, Any], str]:
    out, err = await process.communicate()
    assert out == b""
    assert b"Traceback" not in err, err.decode()
    told = json.loads((folder / "out" / "result.json").read_bytes())
    assert told["exit_code"] == process.returncode
    assert [name for name in os.listdir(folder / "out") if name != "result.json"] == []
    for name, value in told.items():  # the same, one by one
        text = (folder / "values" / name).read_text()
        assert (
            (text == value) if isinstance(value, str) else (text == "" if value is None else json.loads(text) == value)
        )
    assert process.returncode is not None
    return process.returncode, told, err.decode()


@in_loop
async def test_a_capture_leaves_every_field_of_its_result_in_the_file(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        code, told, err = await step(tmp_path, "capture", "--address", client.address, "--key", "k1", *SHORT)
        assert code == 0
        view = await client.get(request_key="k1")
        assert set(told) == {"step", "error", *CaptureResult.__struct_fields__}
        assert (told["step"], told["error"], told["outcome"]) == ("capture", "", "SUCCEEDED")
        assert (told["capture_id"], told["manifest_uri"]) == (view.capture_id, view.manifest_uri)
        assert told["shards"] == ["0/2", "1/2"]
        assert told["job"] == msgspec.to_builtins(JOB)
        assert msgspec.convert(told, CaptureResult).capture_id == view.capture_id
        assert "SUCCEEDED, 2 of 2 archived" in err

        agent.workers = []
        again = await step(tmp_path, "capture", "--address", client.address, "--key", "k1", *SHORT)
        assert (again[0], again[1]["capture_id"]) == (0, view.capture_id)


@in_loop
async def test_a_partial_capture_is_told_with_exit_code_3_or_as_a_warning(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.WORKER_EXITED, "it ended"))
        arguments = ("capture", "--address", client.address, "--key", "k1", *SHORT)
        code, told, err = await step(tmp_path, *arguments)
        assert (code, told["error"], told["missing"]) == (3, "PartialCapture", "1")
        assert "rank 1: WORKER_EXITED, it ended" in err
        code, told, err = await step(tmp_path, *arguments, "--min-ranks", "1")
        assert (code, told["error"]) == (0, "")
        assert "warning: " in err
        assert "rank 1: WORKER_EXITED" in told["warning"]


@in_loop
async def test_a_step_that_is_skipped_succeeds_and_one_that_fails_says_why(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        other = await begin(request(client, "other", caller="ben"))
        await until(lambda: other.capture_id in agent.accepted)
        arguments = ("capture", "--address", client.address, "--key", "k1", *SHORT)
        code, told, _ = await step(tmp_path, *arguments, "--if-busy", "skip")
        assert (code, told["capture_id"], told["error"]) == (0, "", "")
        assert other.capture_id in told["message"]
        code, told, err = await step(tmp_path, *arguments, "--if-busy", "fail")
        assert (code, told["error"], told["request_key"]) == (75, "JobBusy", "k1")
        assert told["message"] in err
        code, told, _ = await step(tmp_path, *arguments, "--attempt", "4")
        assert (code, told["error"]) == (6, "OtherAttempt")


@in_loop
async def test_a_step_whose_time_is_over_has_cancelled(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        code, told, _ = await step(
            tmp_path, "capture", "--address", client.address, "--key", "k1", "--timeout", "2s", *SHORT
        )
        assert (code, told["error"], told["timed_out"]) == (7, "CaptureCancelled", True)
        assert (await client.get(request_key="k1")).state is CaptureState.CANCELLED


@pytest.mark.parametrize(
    ("number", "code", "name"), [(signal.SIGTERM, 143, "Terminated"), (signal.SIGINT, 130, "Interrupted")]
)
def test_a_signal_leaves_the_capture_running_and_the_file_says_so(
    tmp_path: Path, number: signal.Signals, code: int, name: str
) -> None:
    @in_loop
    async def test() -> None:
        async with training(tmp_path) as (agent, client):
            agent.script = stay(TargetState.CONSUMED)
            arguments = ("capture", "--address", client.address, "--key", "k1", *SHORT)
            process = await started(tmp_path, *arguments)
            await until(lambda: agent.calls.count("GetFacts") > 2)
            view = await client.get(request_key="k1")
            assert process.stderr is not None
            await process.stderr.readline()  # the first news: the step knows its capture
            process.send_signal(number)
            got, told, _ = await ended(tmp_path, process)
            assert (got, told["error"], told["capture_id"]) == (code, name, view.capture_id)
            assert f"Capture {view.capture_id} goes on" in told["message"]
            assert told["manifest_uri"] == view.manifest_uri

            now = await client.get(view.capture_id)
            assert now.state is CaptureState.COLLECTING
            assert not now.cancel_requested
            assert "Withdraw" not in agent.calls
            agent.script = deliver
            got, told, _ = await step(tmp_path, *arguments)  # what an engine's retry does
            assert (got, told["capture_id"]) == (0, view.capture_id)

    test()


@in_loop
async def test_cancel_by_id_and_by_key_and_of_what_nobody_knows(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        view = await begin(request(client))
        await until(lambda: view.capture_id in agent.accepted)
        by = ("--address", client.address, "--caller", "ana")
        code, told, _ = await step(tmp_path, "cancel", "--key", "k1", *by)
        assert (code, told["capture_id"], told["state"], told["was_over"]) == (0, view.capture_id, "CANCELLED", False)
        assert set(told) == {"step", "error", *CancelResult.__struct_fields__}
        code, told, _ = await step(tmp_path, "cancel", view.capture_id, *by)
        assert (code, told["state"], told["was_over"]) == (0, "CANCELLED", True)
        code, told, _ = await step(tmp_path, "cancel", "0" * 32, *by)
        assert (code, told["error"], told["state"]) == (5, "UnknownCapture", "UNKNOWN")
        code, told, _ = await step(tmp_path, "cancel", *by)
        assert (code, told["error"]) == (2, "UsageError")


@in_loop
async def test_of_several_jobs_of_one_name_a_cancel_takes_the_one_with_the_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        with contextlib.ExitStack() as running:
            for run_id, uid in (("r1", JOB.uid), ("r2", "2" * 32)):
                (root / run_id).mkdir()
                lock = running.enter_context((root / run_id / LOCK_FILE).open("w"))
                fcntl.lockf(lock, fcntl.LOCK_EX)
                job = msgspec.structs.replace(JOB, uid=uid)
                where = client.address if uid == JOB.uid else f"unix:{tmp_path}/none"
                info = JobInfo(job=job, series="s", coordinator=where, archive="/a", pid=os.getpid())
                write_job_file(root / run_id, info)
            view = await begin(request(client))
            await until(lambda: view.capture_id in agent.accepted)
            by = ("--key", "k1", "--job", "train", "--caller", "ana")
            code, told, _ = await step(tmp_path, "cancel", *by)
            assert (code, told["error"]) == (2, "UsageError")
            code, told, _ = await step(tmp_path, "cancel", *by, "--uid", JOB.uid)
            assert (code, told["capture_id"], told["state"]) == (0, view.capture_id, "CANCELLED")
            code, told, _ = await step(tmp_path, "cancel", *by, "--uid", "3" * 32)
            assert (code, told["capture_id"]) == (0, "")  # of a job that is not there: nothing to cancel
            code, told, _ = await step(tmp_path, "cancel", view.capture_id, *by[2:], "--uid", "3" * 32)
            assert (code, told["error"]) == (6, "NoSuchJob")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("--duration", "soon"), 2, "InvalidSpec"),
        (("--activities", "gpu"), 2, "InvalidSpec"),
        (("--min-ranks", "0"), 2, "UsageError"),
        (("--timeout", "0s"), 2, "UsageError"),
        (("--address", "nowhere"), 2, "UsageError"),
        (("--job", "nobody"), 6, "NoSuchJob"),
    ],
)
def test_what_can_not_be_done_leaves_a_result_too(
    tmp_path: Path, arguments: Sequence[str], code: int, error: str
) -> None:
    @in_loop
    async def test() -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "result.json").write_text('{"exit_code": 0}')  # of an earlier try
        got, told, err = await step(tmp_path, "capture", "--key", "k1", *arguments)
        assert (got, told["error"], told["request_key"]) == (code, error, "k1")
        assert set(told) == {"step", "exit_code", "error", "message", "request_key"}
        assert told["message"] in err

    test()


# ---- the frame, for steps of any kind


def test_a_result_that_can_not_be_written_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = []
    with pytest.raises(UsageError, match="can't be written"), reporting("x", tmp_path / "file" / "result.json"):
        done.append("the step")
    assert done == []


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (PartialCapture("rank 1"), 3, "PartialCapture"),
        (ZeroDivisionError("oops"), 1, "ZeroDivisionError"),
        (Terminated(143), 143, "Terminated"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_however_a_step_breaks_off_its_file_says_so_and_the_error_goes_on(
    tmp_path: Path, error: BaseException, code: int, name: str
) -> None:
    file = tmp_path / "result.json"

    def run() -> None:
        with reporting("x", file) as report:
            report.knows(shard="0/4")
            report.when_signalled = "Nothing is lost."
            raise error

    with pytest.raises(type(error)):
        run()
    told = json.loads(file.read_bytes())
    assert (told["step"], told["exit_code"], told["error"], told["shard"]) == ("x", code, name, "0/4")
    assert ("Nothing is lost." in told["message"]) == (code > 128)


def test_a_file_that_is_being_replaced_is_never_seen_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "result.json"
    file.write_text("{}")  # of an earlier try, which is never taken for this one's
    replaced = []

    def replace(source: Path, target: Path) -> None:
        replaced.append((json.loads(Path(source).read_bytes())["step"], Path(target).exists()))
        Path(source).rename(target)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(typer.Exit), reporting("x", file) as report:
        report.done(CancelResult(capture_id="c", state="CANCELLED"))
    assert replaced == [("x", False)]


def in_its_own_process(body: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """`body` sees what the command line has set up; SIGTERM is as there."""
    begin = (
        "import asyncio, os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from sameshot.cli.main import _on_sigterm\n"
        "from sameshot.cli.step.frame import reporting, stoppable\n"
        "from sameshot.steps.results import CancelResult\n"
        "signal.signal(signal.SIGTERM, _on_sigterm)\n"
        "DONE = CancelResult(capture_id='c', state='CANCELLED')\n"
    )
    command = [sys.executable, "-c", begin + body, *arguments]
    return subprocess.run(command, check=False, capture_output=True, timeout=60)


def test_a_second_sigterm_while_threads_are_waited_for_costs_no_result_file(tmp_path: Path) -> None:
    """Decoding a large manifest is such a thread; pods are told to end more than once."""
    done = in_its_own_process(
        "def decode(step):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    while signal.getsignal(signal.SIGTERM) is step: time.sleep(0.01)\n"  # the step has ended, the loop has not
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.3)\n"
        "async def work():\n"
        "    await asyncio.to_thread(decode, signal.getsignal(signal.SIGTERM))\n"
        "with reporting('x', Path(sys.argv[1])) as report:\n"
        "    report.done(stoppable(work()))\n",
        str(tmp_path / "result.json"),
    )
    told = json.loads((tmp_path / "result.json").read_bytes())
    assert (done.returncode, told["exit_code"], told["error"]) == (143, 143, "Terminated")


def test_what_a_step_has_come_to_is_told_though_a_signal_comes_before_the_loop_is_down(tmp_path: Path) -> None:
    done = in_its_own_process(
        "def linger(step):\n"
        "    while signal.getsignal(signal.SIGTERM) is step: time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.3)\n"
        "async def work():\n"
        "    asyncio.get_running_loop().run_in_executor(None, linger, signal.getsignal(signal.SIGTERM))\n"
        "    return DONE\n"
        "import typer\n"
        "try:\n"
        "    with reporting('x', Path(sys.argv[1])) as report:\n"
        "        report.done(stoppable(work()))\n"
        "except typer.Exit as left:\n"
        "    sys.exit(left.exit_code)\n",
        str(tmp_path / "result.json"),
    )
    told = json.loads((tmp_path / "result.json").read_bytes())
    assert (done.returncode, told["exit_code"], told["capture_id"]) == (0, 0, "c")


@in_loop
async def test_a_step_whose_log_nobody_reads_any_more_goes_on_to_its_end(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        reads, writes = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sameshot.cli.main", "step", "capture", "--address", client.address),
            *("--key", "k1", *SHORT, "--result", str(tmp_path / "result.json")),
            stderr=writes,
        )
        os.close(writes)
        await until(lambda: agent.calls.count("GetFacts") > 2)
        os.close(reads)
        agent.script = deliver  # news, and last words, for nobody
        code = await process.wait()
        told = json.loads((tmp_path / "result.json").read_bytes())
    assert (code, told["exit_code"], told["outcome"]) == (0, 0, "SUCCEEDED")


def test_an_error_that_nobody_reads_has_its_exit_code(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "sameshot.cli.main", "step", "cancel", "--result", str(tmp_path / "result.json")]
    done = subprocess.run(command, check=False, stderr=writes, timeout=60)
    os.close(writes)
    assert (done.returncode, json.loads((tmp_path / "result.json").read_bytes())["exit_code"]) == (2, 2)


def test_a_step_that_needs_more_than_is_installed_says_the_same_by_its_file_as_by_its_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from sameshot.cli.main import invoke\n"
        "sys.exit(invoke(['step', 'analyze', '/nowhere', '--results', sys.argv[1], '--result', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    told = json.loads(file.read_bytes())
    assert (done.returncode, told["exit_code"], told["error"]) == (2, 2, "ModuleNotFoundError")
    assert "pip install 'sameshot[local]'" in told["message"]
    assert told["message"] in done.stderr


def test_values_that_an_earlier_try_left_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not of any step")
    (tmp_path / "state").write_text("COLLECTING")  # known to a try that was ended by a signal
    earlier = CaptureResult(capture_id="earlier", manifest_uri="file:///earlier", shards=("0/1",))
    with pytest.raises(typer.Exit), reporting("capture", None, tmp_path, of=CaptureResult, facts=("state",)) as report:
        report.done(earlier)
    assert (tmp_path / "capture_id").read_text() == "earlier"
    assert not (tmp_path / "state").exists()

    def fail() -> None:
        with reporting("capture", None, tmp_path, of=CaptureResult, facts=("state",)) as report:
            report.knows(request_key="k2")
            assert sorted(os.listdir(tmp_path)) == ["mine.txt"]  # whatever becomes of this one, also by SIGKILL
            raise JobBusy("busy")

    with pytest.raises(JobBusy):
        fail()
    values = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert values == {
        "mine.txt": "not of any step",
        "step": "capture",
        "exit_code": "75",
        "error": "JobBusy",
        "message": "busy",
        "request_key": "k2",
    }


@in_loop
async def test_a_capture_step_that_fails_leaves_no_value_of_the_one_before(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        arguments = ("capture", "--address", client.address, "--key", "k1", *SHORT)
        assert (await step(tmp_path, *arguments))[0] == 0
        assert (tmp_path / "values" / "manifest_uri").read_text().startswith("file:")
        code, told, _ = await step(tmp_path, *arguments, "--attempt", "4")
        assert (code, told["error"]) == (6, "OtherAttempt")
        assert set(os.listdir(tmp_path / "values")) == set(told)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 75, 77, 99])
def test_the_file_names_the_error_that_accepting_the_result_raises(tmp_path: Path, code: int) -> None:
    result, file = CaptureResult(exit_code=code, message="so it is"), tmp_path / "result.json"
    with pytest.raises(typer.Exit) as left, reporting("capture", file) as report:
        report.done(result)
    raised = ""
    try:
        accept(result)
    except SameshotError as error:
        raised = type(error).__name__
    assert left.value.exit_code == code
    assert json.loads(file.read_bytes())["error"] == raised
    assert bool(raised) == bool(code)


def test_capturing_and_cancelling_need_no_more_than_a_plain_install() -> None:
    blocked = ("backports.zstd", "isal", "jinja2", "numpy", "obstore", "pyarrow", "torch")
    code = (
        f"import sys; sys.modules |= dict.fromkeys({blocked!r}); import sameshot.steps.capture, sameshot.steps.cancel"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_steps_themselves_are_light_to_import() -> None:
    heavy = ("asyncio", "grpc", "numpy", "pyarrow", "typer")
    code = (
        "import sys; from sameshot.steps import AIRFLOW, Action, CaptureRequest, CaptureResult\n"
        f"raise SystemExit(str([name for name in {heavy!r} if name in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""
