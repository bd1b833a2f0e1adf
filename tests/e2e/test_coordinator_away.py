"""Capture state lives in the coordinator's memory on purpose: what a killed one leaves behind, and what it does not."""

from __future__ import annotations

import os
import signal

import pytest
from checks import check_capture
from live import LiveJob, wait_for

from sameshot.errors import RequestKeyConflict, SameshotError, UnknownCapture
from sameshot.model import CaptureState, TargetState
from sameshot.trace.capture_check import locate

pytestmark = pytest.mark.live


def kill_the_coordinator(job: LiveJob) -> None:
    service = job.local.services["coordinator"]
    killed = service.pid
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: service.pid != killed and answers(job), "another coordinator serves")


def answers(job: LiveJob) -> bool:
    try:
        with job.local.client() as client:
            client.describe()
    except SameshotError:
        return False
    return True


def test_what_it_had_not_finished_is_unknown_and_everything_else_is_still_there(job: LiveJob) -> None:
    finished = job.capture(request_key="before-the-kill")
    lost = job.start(request_key="cut-off")
    job.wait_until(lost, TargetState.CONSUMED)
    kill_the_coordinator(job)

    with job.local.client() as client:
        # The unfinished one: never a success, never a silent retry; its name is not used again.
        with pytest.raises(UnknownCapture, match="UNKNOWN"):
            client.get(lost.capture_id)
        with pytest.raises(UnknownCapture, match=lost.capture_id):
            client.get(request_key="cut-off")
        terminal = job.sameshot("watch", lost.capture_id)
        said, _ = terminal.communicate(timeout=60)
        assert terminal.returncode == 5, said

        # The finished one: by id, by key, in the list, and again as the answer to the same request.
        for found in (
            client.get(finished.capture_id),
            client.get(request_key="before-the-kill"),
            client.start_capture(finished.spec, request_key="before-the-kill"),
        ):
            assert (found.capture_id, found.state, found.published) == (finished.capture_id, finished.state, True)
            assert [fact.artifact for fact in found.targets] == [fact.artifact for fact in finished.targets]
        assert finished.capture_id in {view.capture_id for view in client.captures()}
        with pytest.raises(RequestKeyConflict):
            job.start(request_key="before-the-kill", duration_ms=400)
    check_capture(*locate(str(job.folder_of(finished))))

    # Agents finish what they accepted: the lost capture's traces are on disk, only nobody vouches for them.
    wait_for(lambda: len(list(job.folder_of(lost).rglob("trace.json.gz"))) == 4, "the lost capture's traces")
    assert not job.manifest_of(lost).exists()

    # The same key starts anew under another id.
    again = job.capture(request_key="cut-off")
    assert (again.state, again.n) == (CaptureState.SUCCEEDED, 2)
    assert again.capture_id != lost.capture_id
    check_capture(*locate(str(job.folder_of(again))))
