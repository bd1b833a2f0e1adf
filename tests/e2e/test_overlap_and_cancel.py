"""Two captures of one job take turns, and one that is cancelled before any worker fetched it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live import LiveJob, wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState, FailureReason, TargetFact, TargetState

pytestmark = pytest.mark.live


def test_two_overlapping_captures_both_succeed_and_the_second_says_that_it_waits(job: LiveJob) -> None:
    first = job.start()
    second = job.start()
    waiting = job.get(second)
    assert waiting.state is CaptureState.WAITING
    assert first.capture_id in waiting.note
    assert waiting.expected == 0

    first, second = job.wait(first), job.wait(second)
    assert first.state is second.state is CaptureState.SUCCEEDED
    assert windows(first)[1] <= windows(second)[0]
    assert sorted(job.traces_of(first)) == sorted(job.traces_of(second)) == [0, 1, 2, 3]
    with job.local.client() as client:  # a cancel after the end changes nothing
        assert client.cancel(first.capture_id) == first


def windows(view: CaptureView) -> tuple[int, int]:
    """From the first recorded event of all ranks to the last."""
    artifacts = [fact.artifact for fact in view.targets if fact.artifact is not None]
    return min(each.window_start_ns for each in artifacts), max(each.window_end_ns for each in artifacts)


def test_a_capture_cancelled_before_any_fetch_is_withdrawn_for_good(job: LiveJob) -> None:
    with stopped(job):  # nobody polls, so nobody can have fetched anything
        terminal = job.sameshot("capture", "--duration", "300ms", "--key", "withdrawn", "--wait")
        with job.local.client() as client:
            wait_for(lambda: "withdrawn" in [each.request_key for each in client.captures()], "it has begun")
            view = client.get(request_key="withdrawn")
            job.wait_until(view, TargetState.QUEUED)
            client.cancel(view.capture_id)
        cancelled = job.wait(view)
        for fact in cancelled.targets:  # the agent has tidied up; now a trace would have a place to appear at
            place_of(job, fact).joinpath(view.capture_id, "main", str(fact.identity.local_rank)).mkdir(parents=True)
    said, _ = terminal.communicate(timeout=60)

    assert cancelled.state is CaptureState.CANCELLED
    assert terminal.returncode == 7, said
    assert "4 of 4 configs were withdrawn" in cancelled.withdrawn
    for fact in cancelled.targets:
        assert fact.failure is not None
        assert (fact.failure.reason, fact.failure.last_state) == (FailureReason.CANCELLED, TargetState.QUEUED)

    # The workers poll again, beyond what would have been the window, and still nothing appears.
    assert cancelled.start_at_ns is not None
    window_ends = cancelled.start_at_ns + 300_000_000
    wait_for(lambda: time.time_ns() > window_ends + 1_000_000_000, "the window would be over")
    wait_for(
        lambda: all((worker.last_poll_age_s or 0) < 1.5 for worker in job.workers().values()), "all workers poll again"
    )
    after = job.capture()  # a later window on the same processes: theirs is the only trace
    assert after.state is CaptureState.SUCCEEDED
    assert job.traces_on_nodes(cancelled) == []  # not even one that was begun
    assert list(job.folder_of(cancelled).rglob("trace*")) == []


def place_of(job: LiveJob, fact: TargetFact) -> Path:
    """Where the workers of a target's node write their traces."""
    return job.local.node_dir(job.local.setup.nodes.index(fact.identity.node or "")) / "captures"


@contextmanager
def stopped(job: LiveJob) -> Iterator[None]:
    pids = job.pids().values()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
