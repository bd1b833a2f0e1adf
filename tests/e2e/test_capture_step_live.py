"""The capture step against a job that really trains: ended by its engine in the middle, and run again."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path

import pytest
from live import LiveJob, wait_for

from sameshot.model import Outcome
from sameshot.steps.results import CaptureResult

pytestmark = pytest.mark.live


def test_a_step_that_is_terminated_leaves_the_capture_and_the_next_run_of_it_has_every_rank(
    job: LiveJob, tmp_path: Path
) -> None:
    key, file = f"argo/{uuid.uuid4()}/profile", tmp_path / "result.json"
    arguments = ("step", "capture", "--key", key, "--duration", "500ms", "--warmup", "0s", "--activities", "cpu")
    first = job.sameshot(*arguments, "--result", str(file))
    with job.local.client() as client:
        wait_for(lambda: any(view.request_key == key for view in client.captures(unsettled=True)), "it has started")
        began = client.get(request_key=key)
        assert first.stdout is not None
        assert began.capture_id in first.stdout.readline()
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 143
        left = json.loads(file.read_bytes())
        assert (left["exit_code"], left["capture_id"]) == (143, began.capture_id)
        assert not client.get(began.capture_id).cancel_requested

    second = job.sameshot(*arguments, "--result", str(file))
    out, _ = second.communicate(timeout=90)
    assert second.returncode == 0, out
    result = json.loads(file.read_bytes())
    assert (result["capture_id"], result["n"]) == (began.capture_id, 1)
    assert (result["outcome"], result["expected"], result["archived"]) == (Outcome.SUCCEEDED, 4, 4)
    view = job.get(began)
    assert sorted(job.traces_of(view)) == [0, 1, 2, 3]
    assert result["manifest_sha256"] == json.loads(job.manifest_of(view).read_bytes())["sha256"]
    assert set(CaptureResult.__struct_fields__) <= set(result)
