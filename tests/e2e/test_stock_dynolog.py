"""The whole chain with the stock daemon: its stand-in and, where SAMESHOT_DYNOLOG names one, the real one."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from checks import check_capture
from live import running_job, wait_for

from sameshot.model import CaptureState, FailureReason, TargetState
from sameshot.profiler.daemon import BackendName
from sameshot.trace.capture_check import locate

pytestmark = [pytest.mark.live, pytest.mark.full]

STANDIN = Path(__file__).parent.parent / "support" / "dynolog_standin.py"


@pytest.fixture(params=["stand-in", "real"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The program that is started once per node."""
    if request.param == "stand-in":
        return program(tmp_path, f'exec {shlex.quote(sys.executable)} {shlex.quote(str(STANDIN))} "$@"')
    real = os.environ.get("SAMESHOT_DYNOLOG")
    if not real:
        pytest.skip("no real daemon: set SAMESHOT_DYNOLOG to the path of a dynolog binary")
    return Path(real)


def test_a_capture_succeeds_and_claims_nothing_that_this_daemon_cannot_see(daemon: Path, tmp_path: Path) -> None:
    with running_job(tmp_path, setup=on(daemon)) as job:
        view = job.start()
        claimed = set()
        with job.local.client() as client:
            for update in client.watch(view.capture_id, timeout_s=90):
                claimed |= {fact.state for fact in update.targets}
                assert all(fact.last_poll_age_s is None for fact in update.targets)
        ended = job.get(view)
        assert ended.state is CaptureState.SUCCEEDED, ended
        assert ended.backend == "dynolog"
        assert TargetState.CONSUMED not in claimed
        assert not any(event == "consumed" for event, _ in job.journal(view))
        assert {event for event, _ in job.journal(view)} >= {"queued", "announced", "archived"}
        report = check_capture(*locate(str(job.folder_of(view))))
        assert [target.rank for target in report.targets] == [0, 1, 2, 3]

        assert {service.restarts for service in job.local.services.values()} == {0}  # nor was it ever brought down
        assert job.finish() == [0, 0]


@pytest.mark.full
def test_a_daemon_that_is_restarted_before_a_config_is_fetched_costs_no_trace(daemon: Path, tmp_path: Path) -> None:
    with running_job(tmp_path, nodes=1, setup=on(daemon)) as job:
        frozen = job.pids()[1]
        os.kill(frozen, signal.SIGSTOP)  # it can't fetch
        try:
            view = job.start()
            job.wait_until(view, TargetState.QUEUED)
            service = job.local.services["dynolog-0"]
            os.kill(service.pid, signal.SIGKILL)
            wait_for(lambda: service.restarts == 1, "the daemon is started again")
        finally:
            os.kill(frozen, signal.SIGCONT)
        ended = job.wait(view)
        assert ended.state is CaptureState.SUCCEEDED, ended
        late = {fact.identity.rank: fact.late_start for fact in ended.targets}
        assert late[1] is True  # the second config, which begins at once


@pytest.mark.full
def test_without_a_running_daemon_training_is_unharmed_and_every_rank_has_its_reason(tmp_path: Path) -> None:
    nothing = program(tmp_path, "exec sleep 100000")
    with running_job(tmp_path, nodes=1, setup=on(nothing)) as job:
        view = job.start()
        said = job.wait_until(view, TargetState.DISPATCHED)
        wait_for(lambda: all("does not answer" in fact.note for fact in job.get(view).targets), "the notes say why")
        ended = job.wait(view)
        assert said.targets[0].state is TargetState.DISPATCHED
        assert ended.state is CaptureState.FAILED
        assert ended.published
        for fact in ended.targets:
            assert fact.failure is not None
            assert fact.failure.last_state is TargetState.DISPATCHED
            assert fact.failure.reason is FailureReason.MISSING
            assert "does not answer" in fact.failure.detail
        job.wait_training()
        assert job.finish() == [0], job.output()[-3000:]


def program(folder: Path, command: str) -> Path:
    path = folder / "dynolog"
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


def on(daemon: Path) -> dict[str, object]:
    return {"backend": BackendName.DYNOLOG, "dynolog": daemon}
