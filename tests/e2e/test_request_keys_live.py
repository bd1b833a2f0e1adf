"""A caller that asks again with the same key gets the same capture; ids are for those who know them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from live import LiveJob

from sameshot.client import connect
from sameshot.errors import RequestKeyConflict, UnknownCapture
from sameshot.model import CaptureState

pytestmark = pytest.mark.live


def test_the_same_key_is_the_same_capture_at_once_and_later(job: LiveJob) -> None:
    with ThreadPoolExecutor(6) as several:
        at_once = list(several.map(lambda _: job.start(request_key="nightly"), range(6)))
    assert len({view.capture_id for view in at_once}) == 1
    ended = job.wait(at_once[0])
    assert ended.state is CaptureState.SUCCEEDED
    later = job.start(request_key="nightly")
    assert (later.capture_id, later.state) == (ended.capture_id, CaptureState.SUCCEEDED)
    with job.local.client() as client:
        assert [view.request_key for view in client.captures()].count("nightly") == 1
        assert client.get(request_key="nightly").capture_id == ended.capture_id
        assert client.manifest(request_key="nightly") == job.manifest_of(ended).read_bytes()


def test_the_same_key_with_another_spec_is_refused_with_exit_code_2(job: LiveJob) -> None:
    first = job.start(request_key="fixed", duration_ms=300)
    with pytest.raises(RequestKeyConflict, match=first.capture_id):
        job.start(request_key="fixed", duration_ms=301)
    terminal = job.sameshot("capture", "--key", "fixed", "--duration", "301ms", "--wait")
    said, _ = terminal.communicate(timeout=60)
    assert terminal.returncode == 2, said
    assert first.capture_id in said
    assert job.wait(first).state is CaptureState.SUCCEEDED


def test_a_cancelled_key_starts_a_new_capture_unless_the_old_one_is_asked_for(job: LiveJob) -> None:
    first = job.start(request_key="again", start_delay_ms=60_000)
    with job.local.client() as client:
        cancelled = job.wait(client.cancel(request_key="again"))
        assert (cancelled.capture_id, cancelled.state) == (first.capture_id, CaptureState.CANCELLED)
        assert client.get(request_key="again").state is CaptureState.CANCELLED
        returned = client.start_capture(first.spec, request_key="again", on_failed="RETURN")
        assert returned.capture_id == first.capture_id
        second = client.start_capture(first.spec, request_key="again")
        assert (second.n, second.capture_id != first.capture_id) == (2, True)
        client.cancel(second.capture_id)


def test_another_callers_key_is_another_key(job: LiveJob) -> None:
    mine = job.start(request_key="shared name")
    with connect(job.local.address, caller="somebody-else") as other:
        with pytest.raises(UnknownCapture):
            other.get(request_key="shared name")
        theirs = other.start_capture(mine.spec, request_key="shared name")
        assert theirs.capture_id != mine.capture_id
        other.cancel(request_key="shared name")
    with job.local.client() as client:
        assert not client.get(mine.capture_id).cancel_requested
        client.cancel(mine.capture_id)
