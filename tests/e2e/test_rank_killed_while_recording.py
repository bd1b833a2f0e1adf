"""A rank that is killed inside the window fails alone and at once; what its launcher does to the others is told too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from checks import check_capture
from live import LiveJob, running_job, wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState, FailureReason, TargetFact, TargetState
from sameshot.trace.capture_check import locate

pytestmark = pytest.mark.live

# The announce deadline lies more than 30 s behind the window's end; a lock that nobody holds tells much sooner.
SECONDS = 6.0


def kill_inside_the_window(job: LiveJob, view: CaptureView, rank: int) -> float:
    """SIGKILL once the rank records; returns when."""
    recording = job.wait_until(view, TargetState.CONSUMED)
    assert recording.start_at_ns is not None
    begun = recording.start_at_ns + 200_000_000
    wait_for(lambda: time.time_ns() > begun, "the window has begun")
    victim = recording.targets[rank].identity
    assert victim.rank == rank
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    return time.time()


def failed_at(job: LiveJob, view: CaptureView, fact: TargetFact) -> float:
    return job.journal(view)["failed", fact.target_id]


@pytest.mark.full
def test_the_others_are_delivered_and_the_capture_is_partial(tmp_path: Path) -> None:
    # Started one by one, without collectives: neither a launcher nor gloo ends the others.
    options = ("--apart", "--loader-workers", "2", "--fork-workers")
    with running_job(tmp_path, launcher="none", script_args=options) as job:
        terminal = job.sameshot("capture", "--duration", "2s", "--activities", "cpu", "--key", "kill", "--wait")
        with job.local.client() as client:
            wait_for(lambda: client.captures(), "the capture has begun")
            (view,) = client.captures()
        with left_behind(job.pids()[3]) as loader_workers:
            killed_at = kill_inside_the_window(job, view, rank=3)
            said, _ = terminal.communicate(timeout=90)
            ended = job.get(view)
            # They have its environment, its memory and copies of its descriptors, and don't pass for it.
            assert [each.status() for each in loader_workers] == ["stopped"] * 2
            assert sorted(job.workers()) == [0, 1, 2]
        took_s = failed_at(job, view, ended.targets[3]) - killed_at
        report = check_capture(*locate(str(job.folder_of(view))))

    assert terminal.returncode == 3, said
    assert ended.state is CaptureState.PARTIAL
    assert ended.published
    *others, victim = ended.targets
    assert [fact.state for fact in others] == [TargetState.ARCHIVED] * 3
    assert victim.failure is not None
    assert victim.failure.reason is FailureReason.WORKER_EXITED
    assert victim.failure.last_state is TargetState.CONSUMED
    assert took_s < SECONDS
    assert "WORKER_EXITED" in said
    assert [target.files for target in report.targets] == [2, 2, 2, 0]  # a trace and its columns


@contextmanager
def left_behind(rank: int) -> Iterator[list[psutil.Process]]:
    """The forked loader workers of a rank, stopped: otherwise they would notice its end, and end as well."""
    forked = psutil.Process(rank).children()
    assert len(forked) == 2
    for child in forked:
        child.suspend()
    try:
        yield forked
    finally:
        for child in forked:
            child.kill()


@pytest.mark.full
def test_under_torchrun_every_rank_ends_with_a_trace_or_with_its_reason(tmp_path: Path) -> None:
    # torchrun's agent ends the victim's neighbour; on the other node the next collective raises.
    with running_job(tmp_path) as job:
        view = job.start(duration_ms=2000)
        killed_at = kill_inside_the_window(job, view, rank=3)
        ended = job.wait(view)
        took_s = failed_at(job, view, ended.targets[3]) - killed_at

    assert ended.state in (CaptureState.PARTIAL, CaptureState.FAILED)
    assert ended.targets[3].failure is not None
    assert ended.targets[3].failure.reason is FailureReason.WORKER_EXITED
    assert took_s < SECONDS
    for fact in ended.targets:
        assert fact.artifact is not None or fact.failure is not None
        if fact.failure is not None:  # EMPTY: Kineto began late, when its process had already stopped training
            assert fact.failure.reason in (FailureReason.WORKER_EXITED, FailureReason.EMPTY), fact
