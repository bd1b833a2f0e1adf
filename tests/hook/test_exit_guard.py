"""A worker that ends while its trace is recorded neither crashes nor loses it, and never waits beyond its limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_lab import DEADLINE_S, Responder, environment, registrations, script, started, until

from sameshot.hook import PAYLOAD
from sameshot.model import Phase
from sameshot.profiler.config import TRACE_NAME, traced_file

sys.path.insert(0, str(PAYLOAD))
import _sameshot_later as later

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

TRAIN = """
import os, sys, time
import torch
end, stop = sys.argv[1], sys.argv[2]
weights = torch.ones(64, 64)
while not os.path.exists(stop):
    weights = (weights @ weights).clamp(max=1)
    time.sleep(0.005)
if end == "exit": sys.exit(7)
if end == "raise": raise RuntimeError("a bug of the user's")
"""
CODES = {"return": 0, "exit": 7, "raise": 1}


class Run:
    """One armed single-process training with a daemon that asks it for one window."""

    def __init__(self, folder: Path, daemon: Responder, local_rank: int, end: str, **names: str) -> None:
        self.directory, self.daemon, self.end = folder, daemon, end
        self.stop = folder / f"stop-{local_rank}"
        self.out = folder / "captures" / "c1" / "main" / str(local_rank)
        self.out.mkdir(parents=True)
        identity = {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "8"}
        self.env = environment(folder, **identity, **names)
        self.command = [sys.executable, str(script(folder, TRAIN)), end, str(self.stop)]

    def ask(self, pid: int, *, duration_ms: int, starts_in_s: float | None = None) -> None:
        """Hold a request for the worker. Without a start it begins when it is fetched: a start that a slow poll has
        already missed is refused by Kineto and leaves an empty file for ever."""
        self.daemon.offer(
            pid,
            ACTIVITIES_LOG_FILE=self.out / "trace.json",
            ACTIVITIES_DURATION_MSECS=duration_ms,
            ACTIVITIES_WARMUP_PERIOD_SECS=0,
            ACTIVITY_TYPES="cpu_op",
            PROFILE_START_TIME=0 if starts_in_s is None else int((time.time() + starts_in_s) * 1000),
        )

    def recording(self) -> bool:
        return any(self.out.glob("*.json.tmp"))

    def delivered(self) -> bool:
        return any(self.out.glob("*.json")) and not self.recording()


@pytest.fixture
def daemon() -> Iterator[tuple[Path, Responder]]:
    with tempfile.TemporaryDirectory(prefix="hook", dir="/tmp") as name, Responder(Path(name)) as responder:
        yield Path(name), responder


def end_inside_the_window(
    folder: Path, daemon: Responder, local_rank: int, end: str, **names: str
) -> tuple[Run, int, str]:
    """Start, ask for a window, and end the training as soon as the request is accepted."""
    run = Run(folder, daemon, local_rank, end, **names)
    with started(run.command, run.env, stderr=subprocess.PIPE) as process:
        until(lambda: process.pid in daemon.polled, "the worker polls", process)
        run.ask(process.pid, duration_ms=2500)
        until(run.recording, "the request is accepted", process)
        run.stop.touch()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    return run, process.returncode, stderr


@pytest.mark.parametrize(
    "end", [next(iter(CODES)), *(pytest.param(each, marks=pytest.mark.full) for each in [*CODES][1:])]
)
def test_an_exit_inside_the_window_waits_for_the_trace_and_keeps_its_exit_code(
    daemon: tuple[Path, Responder], end: str
) -> None:
    run, code, stderr = end_inside_the_window(*daemon, 0, end)
    assert code == CODES[end]
    assert run.delivered()
    (trace,) = run.out.glob("*.json")
    assert json.loads(trace.read_bytes())["traceEvents"]
    assert "sameshot" not in stderr
    (worker,) = registrations(run.directory)
    assert worker.phase is Phase.EXITING


@pytest.mark.full
def test_a_worker_is_marked_exiting_before_it_waits_for_a_window_that_is_still_ahead(
    daemon: tuple[Path, Responder],
) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "return")
    with started(run.command, run.env) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        run.ask(process.pid, starts_in_s=10.0, duration_ms=500)
        until(run.recording, "the request is accepted", process)
        assert registrations(folder)[0].phase is Phase.CANDIDATE
        run.stop.touch()
        until(lambda: registrations(folder)[0].phase is Phase.EXITING, "marked exiting", process)
        assert process.poll() is None
        assert run.recording()
        assert process.wait(timeout=DEADLINE_S) == 0
    assert run.delivered()


def test_the_exit_is_held_no_longer_than_its_limit(daemon: tuple[Path, Responder]) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "return", SAMESHOT_EXIT_WAIT_S="1")
    with started(run.command, run.env, stderr=subprocess.PIPE) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        # A file of ours that never becomes a trace, as after a start that Kineto refused.
        (run.out / f"trace_{process.pid}.json.tmp").touch()
        run.stop.touch()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert stderr.count("\n") == 1
    assert "unfinished 1 s after the end of training" in stderr


def test_files_of_other_workers_and_of_earlier_lives_do_not_hold_an_exit(daemon: tuple[Path, Responder]) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "return")
    with started(run.command, run.env, stderr=subprocess.PIPE) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        (run.out / f"trace_{process.pid + 1}.json.tmp").touch()
        other_rank = run.out.parent / "1"
        other_rank.mkdir()
        (other_rank / f"trace_{process.pid}.json.tmp").touch()
        earlier = run.out / f"trace_{process.pid}.json.tmp"  # pid 1 of a restarted container
        earlier.touch()
        os.utime(earlier, (time.time() - 3600,) * 2)
        run.stop.touch()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (0, "")


def test_an_exit_between_queued_and_fetched_is_clean_and_leaves_the_request_with_the_daemon(
    daemon: tuple[Path, Responder],
) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "exit")
    with started(run.command, run.env, stderr=subprocess.PIPE) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        # Another file holds the exit for several polls; the request comes only after the worker is marked.
        blocker = run.out / f"trace_{process.pid}.json.tmp"
        blocker.touch()
        run.stop.touch()
        until(lambda: registrations(folder)[0].phase is Phase.EXITING, "marked exiting", process)
        until(lambda: not any((folder / "ipc").glob("dynoconfigclient*")), "out of reach", process)
        run.ask(process.pid, duration_ms=60_000)
        seen = responder.polls
        until(lambda: responder.polls >= seen + 2, "two more polls", process)
        blocker.unlink()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (7, "")
    assert responder.fetched == set()
    assert not any(run.out.iterdir())


def test_an_exit_right_after_the_fetch_waits_for_a_trace_of_which_nothing_is_seen_yet(
    daemon: tuple[Path, Responder],
) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "return")
    with started(run.command, run.env, stderr=subprocess.PIPE) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        run.ask(process.pid, duration_ms=400)
        until(lambda: process.pid in responder.fetched, "the request is fetched", process)
        run.stop.touch()
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (0, "")
    assert run.delivered()


def test_the_guard_knows_a_finished_trace_by_the_name_that_kineto_gives_it(tmp_path: Path) -> None:
    """While a fresh folder holds no trace of this process a request may be on its way, and the exit takes longer."""
    assert later._maybe_asked([str(tmp_path)])
    (tmp_path / traced_file(TRACE_NAME, os.getpid() + 1)).touch()
    assert later._maybe_asked([str(tmp_path)])
    (tmp_path / traced_file(TRACE_NAME, os.getpid())).touch()
    assert not later._maybe_asked([str(tmp_path)])
    (tmp_path / f"{traced_file(TRACE_NAME, os.getpid())}.tmp").touch()
    assert later._unfinished([str(tmp_path)], 0)


def test_a_signal_that_ends_the_process_at_once_is_not_held(daemon: tuple[Path, Responder]) -> None:
    folder, responder = daemon
    run = Run(folder, responder, 0, "return")
    with started(run.command, run.env) as process:
        until(lambda: process.pid in responder.polled, "the worker polls", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_S) == -signal.SIGTERM
    assert registrations(folder)[0].phase is Phase.CANDIDATE  # only its released lock tells


@pytest.mark.full
@pytest.mark.timeout(900)
def test_ten_exits_with_the_guard_are_clean_and_without_it_one_of_ten_crashes(daemon: tuple[Path, Responder]) -> None:
    folder, responder = daemon
    for rank in range(10):
        run, code, stderr = end_inside_the_window(folder, responder, rank, list(CODES)[rank % 3])
        assert code == CODES[run.end], stderr
        assert run.delivered(), stderr
    for rank in range(10, 20):
        _, code, _ = end_inside_the_window(folder, responder, rank, "return", SAMESHOT_EXIT_WAIT_S="0")
        if code < 0:
            return
    pytest.fail("ten exits without the guard did not crash: the guard guards nothing on this torch")
