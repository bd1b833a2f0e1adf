"""A job that really trains, profiled in a local run of Flyte 2: the example as a user runs it, and what it shows."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, requests
from flyte2_lab import User, python
from live import LiveJob, running_job

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "plugins" / "flyte" / "examples" / "flyte2_profile.py"
WISH = {"duration": "500ms", "activities": "cpu"}


@pytest.fixture(scope="module")
def job() -> Iterator[LiveJob]:
    python()  # skips before anything trains
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ssf-", dir="/tmp"))  # short enough for Kineto's sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SAMESHOT_RUNTIME_DIR", str(folder / "r"))
        yield stack.enter_context(running_job(folder, nodes=1))


@pytest.fixture
def user(job: LiveJob, tmp_path: Path) -> Iterator[User]:
    """Also knows where the runs of this machine are (SAMESHOT_RUNTIME_DIR)."""
    user = User(tmp_path)
    shutil.copy(EXAMPLE, user.work)
    yield user
    user.leaves()


def captures(job: LiveJob) -> dict[str, CaptureView]:
    with job.local.client() as client:
        return {view.capture_id: view for view in client.captures()}


def test_the_example_profiles_a_training_job_and_its_page_asks_nobody_for_anything(
    job: LiveJob, user: User, tmp_path: Path
) -> None:
    before = captures(job)
    ran = user.runs(
        "flyte2_profile",
        "profile_job",
        address=job.local.address,
        results=str(tmp_path / "results"),
        threshold=0.1,
        **WISH,
    )
    assert ran.error is None, ran.log
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.state is CaptureState.SUCCEEDED
    assert view.request_key.split("/")[:3] == ["flyte", "local", "local"]
    took, analysis = ran.outputs["capture"], ran.outputs["analysis"]
    assert (took["capture_id"], took["archived"], took["shards"]) == (view.capture_id, 2, ["0/2", "1/2"])
    assert took["manifest_sha256"] == json.loads(job.manifest_of(view).read_bytes())["sha256"]
    assert (analysis["expected"], analysis["analysed"], analysis["missing"]) == (2, 2, "")
    assert [row["rank"] for row in ran.outputs["ranks"]] == [0, 1]
    assert all(row["events"] > 0 for row in ran.outputs["ranks"])
    assert ran.outputs["comparison"]["verdict"] == "first"
    actions = user.actions(ran)
    assert {task: len(made) for task, made in actions.items()} == {
        "sameshot_capture": 1,
        "profiling.profile_job": 1,
        "profiling.analyze_rank": 2,
        "profiling.reduce": 1,
        "profiling.compare": 1,
    }
    page = actions["profiling.profile_job"][0].report
    assert page is not None
    looks_right_without_asking(page, took["capture_id"], tmp_path)


def looks_right_without_asking(page: str, capture_id: str, folder: Path) -> None:
    """In a browser: the report is there, in colours of its own, and its script has run; nothing but the file was asked
    for. A page with Flyte's own fonts in it is told from that."""
    shown, other = folder / "shown.html", folder / "other.html"
    shown.write_text(page)
    other.write_text(page.replace("<head>", '<head><link href="http://127.0.0.1:9/font.css" rel="stylesheet">', 1))
    with chromium(folder / "browser") as driver:
        driver.get(shown.as_uri())
        frame = driver.find_element("css selector", "iframe")
        driver.switch_to.frame(frame)
        text = driver.find_element("css selector", "body").text
        assert "2 ranks" in text
        assert capture_id in text
        before = driver.find_element("css selector", "#theme").text
        driver.find_element("css selector", "#theme").click()
        assert driver.find_element("css selector", "#theme").text != before, "the page's own script runs"
        # What begins with chrome: is of the browser's own first page.
        asked = [url for url in requests(driver) if not url.startswith(("chrome:", "data:", "about:"))]
        assert asked == [shown.as_uri()]
        driver.get(other.as_uri())
        assert any(url.startswith("http:") for url in requests(driver)), "it would have been seen"


def test_the_command_of_the_example_runs_it_as_written(job: LiveJob, user: User, tmp_path: Path) -> None:
    said = re.search(r"^    flyte (run --local) (flyte2_profile\.py profile_job) ", EXAMPLE.read_text(), re.MULTILINE)
    assert said is not None
    before = captures(job)
    results = tmp_path / "results"
    done = user.command(
        *("flyte", *said[1].split(), "--name", user.names(), "--raw-data-path", str(user.raw), *said[2].split()),
        *("--address", job.local.address, "--results", str(results)),
        *(f"--{name}={value}" for name, value in WISH.items()),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.state is CaptureState.SUCCEEDED
    summary = json.loads(next(results.rglob("summary.json")).read_bytes())
    assert (summary["capture"]["capture_id"], summary["analysed_ranks"]) == (view.capture_id, 2)


def test_the_same_job_is_captured_again_and_compared(job: LiveJob, user: User, tmp_path: Path) -> None:
    """The same inputs mean another picture: a capture is no cached result."""
    before = captures(job)
    asked: dict[str, Any] = {
        "address": job.local.address,
        "results": str(tmp_path / "results"),
        "threshold": 0.1,
        **WISH,
    }
    first = user.runs("flyte2_profile", "profile_job", **asked)
    second = user.runs("flyte2_profile", "profile_job", **asked)
    assert (first.error, second.error) == (None, None), first.log + second.log
    taken = [ran.outputs["capture"]["capture_id"] for ran in (first, second)]
    assert len(set(taken)) == 2
    assert set(taken) <= captures(job).keys() - before.keys()
    assert second.outputs["comparison"]["before_capture_id"] == taken[0], second.outputs["comparison"]
    assert not any(each.hit for made in user.actions(second).values() for each in made)
