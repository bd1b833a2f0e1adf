"""The DAG files of dags/ in a running Airflow, with real training jobs on this machine.

    steady   team=vision, floor=2   trains
    slowed   team=vision            trains, until a test makes its steps longer
    bare     team=vision            nobody trains: no worker ever registered
    strict   floor=2                trains, and its policy allows windows of one second only

What a user would edit is edited in one place: a notifier for regressions.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from airflow_lab import served
from airflow_server import AirflowApi, AirflowServer
from live import LiveJob, running_job, wait_for

from sameshot import manifest
from sameshot.client import connect
from sameshot.local.run import LocalRun, LocalSetup
from sameshot.model import CapturePolicy, CaptureSpec
from sameshot.steps.history import rows

pytestmark = [pytest.mark.full, pytest.mark.live, pytest.mark.timeout(480)]

FOLDER = Path(__file__).parents[2] / "dags"
SCHEDULED, ON_DEMAND, EVERY = "profile_on_schedule", "profile_on_demand", "capture_every_armed_job"
PLACE = "ON_REGRESSION: list[Any] = []"


class Lab(NamedTuple):
    server: AirflowServer
    archive: Path
    results: Path
    told: Path  # what the notifier was told, a line each
    pause: Path  # how long a step of `slowed` sleeps

    @property
    def api(self) -> AirflowApi:
        return self.server.api

    def start(self, dag_id: str, **conf: object) -> str:
        self.server.wait_dag(dag_id)
        return self.api.trigger(dag_id, {"activities": ["cpu"], **conf})

    def states(self, dag_id: str, run_id: str) -> dict[tuple[str, str], str]:
        """(task without its group, job) → state; a mapped task that ran shows its job's name."""
        jobs = [each["job"] for each in self.api.xcom(dag_id, run_id, "find_jobs")]
        found = {}
        for task in self.api.tasks(dag_id, run_id):
            job = jobs[task["map_index"]] if task["map_index"] >= 0 else ""
            found[task["task_id"].rpartition(".")[2], job] = task["state"]
            if job and task["state"] == "success":
                assert task["rendered_map_index"] == job
        return found

    def index(self, dag_id: str, run_id: str, job: str) -> int:
        return [each["job"] for each in self.api.xcom(dag_id, run_id, "find_jobs")].index(job)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ssd-", dir="/tmp"))  # short enough for Kineto's sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        runtime, archive, results, told = (folder / name for name in ("r", "archive", "results", "told"))
        for each in (runtime, archive, results):
            each.mkdir(mode=0o700)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SAMESHOT_RUNTIME_DIR", str(runtime))
        connection = {
            "conn_type": "sameshot",
            "host": "local",
            "extra": {"results_uri": str(results), "report_base_url": stack.enter_context(served(results))},
        }
        environment = {
            "SAMESHOT_RUNTIME_DIR": str(runtime),
            "SAMESHOT_LABELS": "team=vision",
            "SAMESHOT_CAPTURES_AT_ONCE": "1",
            "AIRFLOW_CONN_SAMESHOT_DEFAULT": json.dumps(connection),
        }
        dags = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
        assert PLACE in dags[f"{SCHEDULED}.py"]
        notifier = f"[lambda context: open({str(told)!r}, 'a').write(str(context['exception']) + '\\n')]"
        dags[f"{SCHEDULED}.py"] = dags[f"{SCHEDULED}.py"].replace(PLACE, f"ON_REGRESSION = {notifier}")
        server = stack.enter_context(AirflowServer(environment=environment, dags=dags))
        vision, second = {"team": "vision"}, {"floor": "2"}
        pause = folder / "pause"
        _train(stack, folder, archive, "steady", labels=vision | second)
        _train(stack, folder, archive, "slowed", labels=vision, arguments=("--pause-file", str(pause)))
        _train(stack, folder, archive, "strict", labels=second, policy=CapturePolicy(max_duration_ms=1000))
        stack.enter_context(LocalRun(LocalSetup(name="bare", archive=str(archive), labels=vision)))
        yield Lab(server, archive, results, told, pause)


def _train(
    stack: contextlib.ExitStack,
    folder: Path,
    archive: Path,
    name: str,
    *,
    arguments: tuple[str, ...] = (),
    **setup: Any,
) -> LiveJob:
    (own := folder / name).mkdir()
    return stack.enter_context(
        running_job(
            own,
            nodes=1,
            setup={"name": name, "archive": str(archive), **setup},
            script_args=("--pause", "0.05", *arguments),
        )
    )


def test_the_command_line_of_airflow_finds_nothing_wrong_with_them(lab: Lab) -> None:
    errors = lab.server.run("dags", "list-import-errors")
    assert errors.returncode == 0, errors.stdout
    assert "No data found" in errors.stdout
    listed = json.loads(lab.server.run("dags", "list", "-o", "json").stdout.splitlines()[-1])
    assert {SCHEDULED, ON_DEMAND, EVERY} <= {each["dag_id"] for each in listed}
    shown = lab.server.run("tasks", "list", SCHEDULED)
    assert shown.returncode == 0, shown.stdout
    assert {"find_jobs", "profile.capture", "profile.analyze", "profile.compare", "profile.alert"} <= set(
        shown.stdout.split()
    )


def test_the_schedule_begins_now_and_only_the_job_that_becomes_slower_raises_an_alert(lab: Lab) -> None:
    lab.server.wait_dag(SCHEDULED)
    wait_for(lambda: lab.api.runs(SCHEDULED), "the scheduler started a run")
    (begun,) = lab.api.runs(SCHEDULED)  # one, not one for every six hours since the DAG's start date
    assert begun["run_type"] == "scheduled"
    first = begun["dag_run_id"]
    lab.api.wait_run(SCHEDULED, first, "success", timeout_s=240)
    states = lab.states(SCHEDULED, first)
    for job in ("steady", "slowed"):
        assert [states[task, job] for task in ("capture", "analyze", "compare")] == ["success"] * 3
        assert states["alert", job] == "skipped"
    # Nobody trains there: that is no failure, and keeps nothing from the others.
    assert {states[task, "bare"] for task in ("capture", "analyze", "compare", "alert")} == {"skipped"}
    assert ("capture", "strict") not in states
    assert not lab.told.exists()

    lab.pause.write_text("0.3")  # steps of 50 ms become steps of 300 ms
    second = lab.api.trigger(SCHEDULED, {"threshold": 1.0})
    lab.api.wait_run(SCHEDULED, second, "failed", timeout_s=240)
    states = lab.states(SCHEDULED, second)
    assert (states["alert", "slowed"], states["alert", "steady"]) == ("failed", "skipped")
    assert [state for state in states.values() if state == "failed"] == ["failed"]

    at = lab.index(SCHEDULED, second, "slowed")
    assert lab.api.task(SCHEDULED, second, "profile.alert", at)["rendered_map_index"] == "slowed"
    compared = lab.api.xcom(SCHEDULED, second, "profile.compare", map_index=at)
    assert compared["verdict"] == "regressed"
    # The step is what it sleeps and what it computes: from 50 ms + c to 300 ms + c, at most five times the step more.
    assert 1 < compared["slowdown"] < 5
    log = lab.api.log(SCHEDULED, second, "profile.alert", map_index=at)
    assert f"slowed: Regression against capture {compared['before_capture_id']}" in log
    (said,) = lab.told.read_text().splitlines()
    assert said.startswith("slowed: ")
    with urllib.request.urlopen(said.rpartition(" ")[2]) as page:
        assert b"<html" in page.read().lower()
    for job in ("steady", "slowed"):
        captured = [
            lab.api.xcom(SCHEDULED, run, "profile.capture", map_index=lab.index(SCHEDULED, run, job))["capture_id"]
            for run in (first, second)
        ]
        assert [row.capture_id for row in rows(str(lab.results), "local", job)] == captured


def test_a_job_that_fails_keeps_nothing_from_the_others(lab: Lab) -> None:
    run = lab.start(SCHEDULED, labels={"floor": "2"}, threshold=5)
    lab.api.wait_run(SCHEDULED, run, "failed", timeout_s=240)
    states = lab.states(SCHEDULED, run)
    assert states["capture", "strict"] == "failed"
    assert states["analyze", "strict"] == states["alert", "strict"] == "upstream_failed"
    assert [states[task, "steady"] for task in ("capture", "analyze", "compare", "alert")] == [
        *["success"] * 3,
        "skipped",
    ]
    at = lab.index(SCHEDULED, run, "strict")
    assert "allows a window of 1000 ms" in lab.api.log(SCHEDULED, run, "profile.capture", map_index=at)


def test_a_run_without_any_such_job_is_no_failure(lab: Lab) -> None:
    run = lab.start(SCHEDULED, labels={"team": "nobody"})
    lab.api.wait_run(SCHEDULED, run, "success")
    assert lab.api.xcom(SCHEDULED, run, "find_jobs") == []
    assert {task["state"] for task in lab.api.tasks(SCHEDULED, run) if task["task_id"] != "find_jobs"} == {"skipped"}


def test_every_armed_job_is_captured_no_more_at_once_than_allowed(lab: Lab) -> None:
    run = lab.start(EVERY, duration="500ms")
    lab.api.wait_run(EVERY, run, "success", timeout_s=240)
    states = lab.states(EVERY, run)
    assert {job: states["capture", job] for job in ("steady", "slowed", "strict", "bare")} == {
        **dict.fromkeys(("steady", "slowed", "strict"), "success"),
        "bare": "skipped",
    }
    events = {event["extra"]["job"]: event["extra"] for event in lab.api.asset_events(EVERY, run)}
    assert sorted(events) == ["local/slowed/0", "local/steady/0", "local/strict/0"]
    made = [
        manifest.decode(Path(each["manifest_uri"].removeprefix("file://")).read_bytes()).capture
        for each in events.values()
    ]
    spans = sorted((each.frozen_at, each.converged_at) for each in made)
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert ended < began, "one at a time was asked for, and a task that is deferred counts"


def test_a_job_is_profiled_on_demand_and_its_report_opens(lab: Lab) -> None:
    run = lab.start(ON_DEMAND, job="steady", duration="1s", with_stack=True)
    lab.api.wait_run(ON_DEMAND, run, "success", timeout_s=240)
    states = {(task["task_id"], task["map_index"]): task["state"] for task in lab.api.tasks(ON_DEMAND, run)}
    assert {states["profile_job.analyze", index] for index in (0, 1)} == {"success"}
    capture = lab.api.xcom(ON_DEMAND, run, "profile_job.capture")
    asked = manifest.decode(Path(capture["manifest_uri"].removeprefix("file://")).read_bytes()).capture.spec
    assert asked is not None
    assert (asked.duration_ms, asked.with_stack, [each.value for each in asked.activities]) == (1000, True, ["cpu"])
    (report,) = [
        url for name, url in lab.api.links(ON_DEMAND, run, "profile_job.reduce").items() if url and "report" in url
    ]
    with urllib.request.urlopen(report) as page:
        assert b"steady" in page.read()
    for task in ("capture", "reduce", "compare"):
        assert len(msgspec.json.encode(lab.api.xcom(ON_DEMAND, run, f"profile_job.{task}"))) < 2048


def test_a_form_that_makes_no_sense_is_refused_before_anything_runs(lab: Lab) -> None:
    before = len(lab.api.runs(ON_DEMAND))
    for wrong in ({"if_busy": "shout"}, {"min_ranks": 0}, {"activities": ["gpu"]}, {"with_stack": "perhaps"}):
        with pytest.raises(AssertionError, match=": 400 "):
            lab.start(ON_DEMAND, job="steady", **wrong)
    assert len(lab.api.runs(ON_DEMAND)) == before


def test_a_busy_job_is_skipped_and_one_that_refuses_keeps_nothing_from_the_others(lab: Lab) -> None:
    with connect("local:steady") as client:
        # The job is occupied until then, whatever a cancel says: so this test is the last one here.
        other = client.start_capture(CaptureSpec(start_delay_ms=300_000))
        try:
            run = lab.start(EVERY, duration="2s")
            lab.api.wait_run(EVERY, run, "failed", timeout_s=240)
        finally:
            client.cancel(other.capture_id)
    states = lab.states(EVERY, run)
    assert [states["capture", job] for job in ("steady", "slowed", "strict")] == ["skipped", "success", "failed"]
    log = lab.api.log(EVERY, run, "capture", map_index=lab.index(EVERY, run, "steady"))
    assert "steady" in log
    assert other.capture_id in log
