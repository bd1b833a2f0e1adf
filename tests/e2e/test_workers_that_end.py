"""Training that ends by itself inside the window: its exit waits for the trace, and the exit code is its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from live import running_job, wait_for

from sameshot.model import CaptureState, FailureReason, TargetState

pytestmark = pytest.mark.live


def test_a_job_that_ends_while_it_is_recorded_delivers_its_traces(tmp_path: Path) -> None:
    with running_job(tmp_path, nodes=1) as job:
        view = job.start(duration_ms=2000)
        recording = job.wait_until(view, TargetState.CONSUMED)
        assert recording.start_at_ns is not None
        begun = recording.start_at_ns + 500_000_000
        wait_for(lambda: time.time_ns() > begun, "the window has begun")
        codes = job.finish()
        ended_at = time.time_ns()
        view = job.wait(view)

    assert codes == [0], job.output()[-3000:]
    assert view.state is CaptureState.SUCCEEDED, view
    for fact in view.targets:
        assert fact.artifact is not None
        assert fact.artifact.window_end_ns < ended_at


def test_workers_that_end_before_they_fetch_are_named_and_not_waited_for(tmp_path: Path) -> None:
    with running_job(tmp_path, nodes=1) as job:
        view = job.start(start_delay_ms=60_000)
        job.wait_until(view, TargetState.DISPATCHED)
        asked_at = time.monotonic()
        codes = job.finish()
        ended = job.wait(view)
        took_s = time.monotonic() - asked_at
        nobody = job.capture()

    assert codes == [0], job.output()[-3000:]
    # Fetched or not: the window lies a minute ahead, so the exit guard gives it up and nobody can have a trace.
    assert ended.state is CaptureState.FAILED
    for fact in ended.targets:
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.WORKER_EXITED
    assert took_s < 60
    assert nobody.state is CaptureState.FAILED
    assert nobody.expected == 0
    assert "its process has ended" in nobody.note
