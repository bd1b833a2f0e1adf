"""A job that really trains, profiled by flytekit's local run: captured through the connector, mapped, reduced and
compared, and its Deck opened in a browser as Flyte's console opens it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from browser import chromium, requests
from live import LiveJob, running_job

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flytekit.deck.deck import get_deck_template
from flytekit_alone import alone, decks

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState
from sameshot_flyte import profile_job, work
from sameshot_flyte.flyte1.connector import SameshotConnector

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "plugins" / "flyte" / "examples" / "flytekit_profile.py"

CONSOLE = """<!doctype html><title>console</title>
<iframe title="deck" src="{deck}" style="border: none; width: 1200px; height: 900px"
  sandbox="allow-forms allow-modals allow-orientation-lock allow-pointer-lock allow-popups
  allow-popups-to-escape-sandbox allow-presentation allow-same-origin allow-scripts
  allow-top-navigation-by-user-activation allow-downloads"></iframe>"""
"""How flyteconsole shows a Deck: by its signed address, in a frame with these rights (ExecutionNodeDeck.tsx)."""


@pytest.fixture(scope="module")
def job() -> Iterator[LiveJob]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ssf-", dir="/tmp"))  # short enough for Kineto's sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SAMESHOT_RUNTIME_DIR", str(folder / "r"))
        yield stack.enter_context(running_job(folder, nodes=2))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    with alone(tmp_path / "flyte") as folder:
        yield folder


def captures(job: LiveJob) -> dict[str, CaptureView]:
    with job.local.client() as client:
        return {view.capture_id: view for view in client.captures()}


def profiled(job: LiveJob, results: Path, **more: Any) -> Any:
    return profile_job(
        address=job.local.address, results=str(results), **{"duration": "500ms", "activities": "cpu", **more}
    )


def test_one_workflow_from_a_running_job_to_its_report(
    job: LiveJob, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for call in ("create", "get"):
        monkeypatch.setattr(SameshotConnector, call, _counted(getattr(SameshotConnector, call), asked))
    before, results = captures(job), tmp_path / "results"
    made = profiled(job, results, threshold=0.1)

    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.state is CaptureState.SUCCEEDED
    assert view.request_key.startswith("flyte/local/")
    assert asked[:1] == ["create"]
    assert asked.count("create") == 1
    assert asked.count("get") > 1  # it was not over at the first look
    assert (made.capture.capture_id, made.capture.archived) == (view.capture_id, 4)
    assert made.capture.shards == ["0/4", "1/4", "2/4", "3/4"]

    summary = json.loads(next(results.rglob("summary.json")).read_bytes())
    assert made.analysis.capture_id == view.capture_id
    assert made.analysis.analysed == summary["analysed_ranks"] == 4
    assert made.analysis.step_time_ns == summary["step_time"]["median_ns"]
    assert made.ranks.open(pa.Table).all()["rank"].to_pylist() == [0, 1, 2, 3]
    report, compared = decks(here)
    assert report == next(results.rglob("report.html")).read_text() == Path(str(made.report)).read_text()
    assert made.comparison.verdict == "first"
    assert made.comparison.message in compared


def _counted(original: Any, asked: list[str]) -> Any:
    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(original.__name__)
        return await original(self, *args, **kwargs)

    return counted


def test_another_picture_of_the_series_is_compared_with_the_one_before(
    job: LiveJob, here: Path, tmp_path: Path
) -> None:
    first, second = (profiled(job, tmp_path / "results", threshold=0.1) for _ in range(2))
    assert first.capture.capture_id != second.capture.capture_id
    assert second.comparison.before_capture_id == first.capture.capture_id
    assert second.comparison.verdict in ("same", "slower", "faster", "regressed", "unknown")
    assert decks(here)[-1] == next((tmp_path / "results").rglob("comparison.html")).read_text()


def test_a_job_that_is_not_there_may_be_skipped_and_that_is_said(job: LiveJob, here: Path, tmp_path: Path) -> None:
    before = captures(job)
    made = profile_job(
        address="local:somebody-else", results=str(tmp_path / "results"), if_unavailable="skip", threshold=0.1
    )
    assert made.capture.message.startswith("Skipped: ")
    assert "somebody-else" in made.capture.message
    assert made.analysis.message == made.comparison.message == work.NOTHING_CAPTURED
    assert made.ranks.open(pa.Table).all().num_rows == 0
    assert [work.NOTHING_CAPTURED in deck for deck in decks(here)] == [True, True]
    assert not (tmp_path / "results").exists()
    assert captures(job).keys() == before.keys()


def test_a_users_file_runs_as_users_run_it(job: LiveJob, tmp_path: Path) -> None:
    before, results = captures(job), tmp_path / "results"
    shutil.copy(EXAMPLE, tmp_path)
    home = os.environ | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [
            Path(sys.executable).with_name("pyflyte"), "run", EXAMPLE.name, "profile_on_demand",
            "--address", job.local.address, "--results", results, "--duration", "500ms",
        ],
        cwd=tmp_path, env=home, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.capture_id in done.stdout
    assert "All 4 ranks analysed." in done.stdout
    assert len(list(results.rglob("report.html"))) == 1


# -- in a browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@contextlib.contextmanager
def console(folder: Path, deck: str) -> Iterator[str]:
    """The address of a page that shows this Deck as Flyte's console does."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    folder.mkdir()
    (folder / "deck.html").write_text(deck)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            (folder / "console.html").write_text(CONSOLE.format(deck=f"{address}/deck.html"))
            yield address
        finally:
            server.shutdown()
            thread.join()


def opened(driver: Any, address: str) -> list[str]:
    """Opens it, with the Deck's frame as what is looked at next; what was asked of others than the console."""
    requests(driver)
    driver.get_log("browser")
    driver.get(f"{address}/console.html")
    driver.switch_to.frame(driver.find_element("css selector", "iframe"))
    asked = requests(driver)
    assert f"{address}/deck.html" in asked
    return [url for url in asked if not url.startswith(("data:", address))]


def test_the_deck_shows_what_was_found_and_asks_nobody(job: LiveJob, here: Path, tmp_path: Path, driver: Any) -> None:
    made = profiled(job, tmp_path / "results")
    with console(tmp_path / "console", decks(here)[0]) as address:
        assert opened(driver, address) == []
        text = " ".join(driver.find_element("css selector", "main").text.lower().split())
        who, _, why = made.analysis.findings[0].partition(": ")  # the page has the first as its head, and its reason
        assert who.partition(" (")[0].lower() in text
        assert why.partition(";")[0].rstrip("…").lower() in text
        assert driver.find_element("id", "theme").is_displayed()  # its script runs, and shows what needs it
        driver.find_element("id", "theme").click()
        assert driver.execute_script("return document.documentElement.dataset.theme") == "light"
        driver.find_element("css selector", "nav a").click()  # within the frame
        assert driver.execute_script("return location.hash").startswith("#")
        of_the_console = ("favicon", "can escape its sandboxing")
        said = [each["message"] for each in driver.get_log("browser")]
        assert [each for each in said if not any(words in each for words in of_the_console)] == []
        assert [url for url in requests(driver) if not url.startswith(("data:", address))] == []


def test_the_same_browser_sees_what_flytekits_own_page_asks_for(tmp_path: Path, driver: Any) -> None:
    theirs = get_deck_template().substitute(NAV_HTML="<li>x</li>", BODY_HTML="<div>x</div>")
    with console(tmp_path / "console", theirs) as address:
        assert any("fonts.googleapis.com" in url for url in opened(driver, address))
