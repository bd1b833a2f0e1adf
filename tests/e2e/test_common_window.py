"""The offered start is what makes windows overlap: measured with it and, on the same processes, without it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from live import LiveJob, running_job

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState

pytestmark = pytest.mark.live

WINDOW_MS = 1000
POLL_S = 1.0
ENOUGH = 0.8


@pytest.fixture(scope="module")
def staggered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    """Imports of torch lie rank × 1.3 s apart, and so do the polls (modulo their interval)."""
    with running_job(tmp_path_factory.mktemp("staggered"), script_args=("--stagger", "1.3")) as job:
        yield job


def test_most_of_the_window_is_common_to_all_ranks_and_without_the_offered_start_it_is_not(staggered: LiveJob) -> None:
    spread_polls(staggered)
    offered = staggered.capture(duration_ms=WINDOW_MS, warmup_ms=1000)
    # A start that has passed when the first worker asks can be met by nobody: everyone begins at once, as it would be
    # without an offer. Everything else is the same.
    free = staggered.capture(duration_ms=WINDOW_MS, warmup_ms=1000, start_delay_ms=0)

    for view in (offered, free):
        assert view.state is CaptureState.SUCCEEDED, view
        assert view.common_window_ns == common_ns(view)
    assert common_share(offered) >= ENOUGH
    assert common_share(free) < ENOUGH
    assert [fact.late_start for fact in offered.targets] == [False] * 4
    assert [fact.late_start for fact in free.targets] == [True] * 4
    assert offered.start_at_ns is not None
    for fact in offered.targets:
        assert fact.artifact is not None
        assert abs(fact.artifact.window_start_ns - offered.start_at_ns) < 0.2 * WINDOW_MS * 1e6
    assert offered.note == ""
    if common_share(free) < 0.5:
        assert "in common" in free.note


def common_ns(view: CaptureView) -> int:
    artifacts = [fact.artifact for fact in view.targets if fact.artifact is not None]
    assert len(artifacts) == 4
    return min(each.window_end_ns for each in artifacts) - max(each.window_start_ns for each in artifacts)


def common_share(view: CaptureView) -> float:
    return common_ns(view) / (WINDOW_MS * 1e6)


def spread_polls(job: LiveJob) -> None:
    """Polls that came to lie together by chance are pulled apart: a stopped process polls late, and from then on."""
    for _ in range(10):
        if largest_gap(job) < POLL_S - 0.35:
            return
        pid = job.pids()[3]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.6)  # this *is* the shift
        os.kill(pid, signal.SIGCONT)
        job.wait_training()
    raise AssertionError("the polls of the ranks stay together")


def largest_gap(job: LiveJob) -> float:
    """The longest time in which nobody polls; POLL_S means that all poll at once."""
    ages = [worker.last_poll_age_s for worker in job.workers().values()]
    phases = sorted(age % POLL_S for age in ages if age is not None)
    assert len(phases) == job.world_size
    return max(later - earlier for earlier, later in zip(phases, [*phases[1:], phases[0] + POLL_S], strict=True))
