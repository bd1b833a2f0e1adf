"""What the daemon itself does: without the real one's vices the stand-in would prove nothing about the client."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from profiler_lab import JOB, PATIENCE_S, Client, Dynolog


def matched(answer: dict[str, list[int]]) -> list[int]:
    return sorted(answer["processesMatched"])


def triggered(answer: dict[str, list[int]]) -> list[int]:
    return sorted(answer["activityProfilersTriggered"])


def test_a_stored_config_goes_to_the_next_poll_once(dynolog: Dynolog) -> None:
    with Client(dynolog.ipc_dir, pid=50) as worker:
        assert worker.poll() == ""
        answer = dynolog.request(pids=[50], config="X=1")
        assert (matched(answer), triggered(answer)) == ([50], [50])
        assert worker.poll() == "X=1\n"
        assert worker.poll() == ""


def test_busy_means_stored_and_not_fetched(dynolog: Dynolog) -> None:
    with Client(dynolog.ipc_dir, pid=50) as worker:
        worker.poll()
        dynolog.request(pids=[50])
        answer = dynolog.request(pids=[50])
        assert (matched(answer), triggered(answer), answer["activityProfilersBusy"]) == ([50], [], 1)
        worker.poll()
        assert triggered(dynolog.request(pids=[50])) == [50]


def test_ancestors_match(dynolog: Dynolog) -> None:
    with Client(dynolog.ipc_dir, pid=50, ancestors=(40, 30)) as worker:
        worker.poll()
        assert triggered(dynolog.request(pids=[30])) == [50]


@pytest.mark.parametrize("pids", [[], [0], [2**40]])
def test_some_pid_lists_mean_everybody(dynolog: Dynolog, pids: list[int]) -> None:
    with Client(dynolog.ipc_dir, pid=50) as one, Client(dynolog.ipc_dir, pid=51) as other:
        one.poll()
        other.poll()
        assert triggered(dynolog.request(pids=pids)) == [50, 51]


@pytest.mark.parametrize("job_id", [JOB + 2**32, JOB + 0.9])
def test_job_ids_are_cut(dynolog: Dynolog, job_id: float) -> None:
    with Client(dynolog.ipc_dir, pid=50) as worker:
        worker.poll()
        assert matched(dynolog.request(pids=[50], job_id=job_id)) == [50]
        assert matched(dynolog.request(pids=[50], job_id=JOB + 1)) == []


def test_a_process_limit_of_zero_triggers_nobody(dynolog: Dynolog) -> None:
    with Client(dynolog.ipc_dir, pid=50) as worker:
        worker.poll()
        answer = dynolog.request(pids=[50], process_limit=0)
        assert (matched(answer), triggered(answer)) == ([50], [])


def test_incomplete_and_mistyped_requests_fail_in_two_ways(dynolog: Dynolog) -> None:
    assert dynolog.request(pids=...) == {"status": "failed"}
    assert dynolog.request(config=...) == {"status": "failed"}
    assert dynolog.request(pids="all")["status"].startswith("failed with exception = ")
    assert dynolog.request(config=7)["status"].startswith("failed with exception = ")


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}", b'{"fn":"unknown"}'])
def test_malformed_requests_are_closed_without_a_byte(dynolog: Dynolog, body: bytes) -> None:
    assert dynolog.exchange(struct.pack("=i", len(body)) + body) == b""
    assert dynolog.rpc({"fn": "getVersion"})


@pytest.mark.parametrize("size", [0, -1])
def test_an_impossible_length_is_closed_without_a_byte(dynolog: Dynolog, size: int) -> None:
    assert dynolog.exchange(struct.pack("=i", size)) == b""
    assert dynolog.rpc({"fn": "getVersion"})


def test_a_silent_client_blocks_everybody(dynolog: Dynolog) -> None:
    with dynolog.connect() as silent:
        body = b'{"fn":"getVersion"}'
        with dynolog.connect() as other:  # connecting still succeeds
            other.sendall(struct.pack("=i", len(body)) + body)
            other.settimeout(0.5)
            with pytest.raises(TimeoutError):
                other.recv(4)
            silent.close()
            other.settimeout(PATIENCE_S)
            assert len(other.recv(4)) == 4
            while other.recv(4096):
                pass


def test_a_client_that_closes_before_the_answer_kills_it(standin: Callable[..., Dynolog]) -> None:
    daemon = standin(think_s=0.3)
    body = b'{"fn":"getVersion"}'
    with daemon.connect() as impatient:
        impatient.sendall(struct.pack("=i", len(body)) + body)
    daemon.process.wait(PATIENCE_S)
    assert not daemon.alive


def test_dead_processes_linger_until_they_are_swept(standin: Callable[..., Dynolog]) -> None:
    daemon = standin(keepalive_s=1.0, sweep_s=0.1)
    with Client(daemon.ipc_dir, pid=50) as worker:
        worker.poll()
    assert matched(daemon.request(pids=[50])) == [50]
    deadline = time.monotonic() + PATIENCE_S
    while matched(daemon.request(pids=[50])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
