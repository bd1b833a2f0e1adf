"""The DAG files of dags/ in a running Airflow, with real training jobs on this machine.

    steady   team=vision, floor=2   trains
    slowed   team=vision            trains, until a test makes its steps longer
    bare     team=vision            nobody trains: no worker ever registered
    strict   floor=2                trains, and its policy allows windows of one second only
    live                            trains: the one that all tests here share

What a user would edit is edited in one place: a notifier for regressions.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from airflow_lab import Lab
from airflow_server import AirflowApi
from live import running_job, wait_for

from sameshot import manifest
from sameshot.client import connect
from sameshot.local.run import LocalRun, LocalSetup
from sameshot.model import CapturePolicy, CaptureSpec
from sameshot.steps.history import rows

SCHEDULED, ON_DEMAND, EVERY = "profile_on_schedule", "profile_on_demand", "capture_every_armed_job"


class Shipped(NamedTuple):
    lab: Lab
    pause: Path  # how long a step of `slowed` sleeps

    @property
    def api(self) -> AirflowApi:
        return self.lab.api

    def start(self, dag_id: str, **conf: object) -> str:
        return self.lab.run(dag_id, **{"activities": ["cpu"], **conf})

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
def jobs(running_lab: Lab) -> Iterator[Path]:
    """The jobs of this file; a file that says how long a step of `slowed` sleeps."""
    with contextlib.ExitStack() as stack:
        vision, second = {"team": "vision"}, {"floor": "2"}
        pause = running_lab.folder / "pause"
        _train(stack, running_lab, "steady", labels=vision | second)
        _train(stack, running_lab, "slowed", labels=vision, arguments=("--pause-file", str(pause)))
        _train(stack, running_lab, "strict", labels=second, policy=CapturePolicy(max_duration_ms=1000))
        stack.enter_context(LocalRun(LocalSetup(name="bare", archive=str(running_lab.archive), labels=vision)))
        try:
            yield pause
        finally:
            running_lab.api.pause(SCHEDULED)  # its next run is nobody's business here


@pytest.fixture
def shipped(lab: Lab, jobs: Path) -> Shipped:
    return Shipped(lab, jobs)


def _train(stack: contextlib.ExitStack, lab: Lab, name: str, *, arguments: tuple[str, ...] = (), **setup: Any) -> None:
    (own := lab.folder / name).mkdir()
    stack.enter_context(
        running_job(
            own,
            nodes=1,
            setup={"name": name, "archive": str(lab.archive), **setup},
            script_args=("--pause", "0.05", *arguments),
        )
    )


def test_the_command_line_of_airflow_finds_nothing_wrong_with_them(shipped: Shipped) -> None:
    errors = shipped.lab.server.run("dags", "list-import-errors")
    assert errors.returncode == 0, errors.stdout
    assert "No data found" in errors.stdout
    listed = json.loads(shipped.lab.server.run("dags", "list", "-o", "json").stdout.splitlines()[-1])
    assert {SCHEDULED, ON_DEMAND, EVERY} <= {each["dag_id"] for each in listed}
    shown = shipped.lab.server.run("tasks", "list", SCHEDULED)
    assert shown.returncode == 0, shown.stdout
    assert {"find_jobs", "profile.capture", "profile.analyze", "profile.compare", "profile.alert"} <= set(
        shown.stdout.split()
    )


def test_the_schedule_begins_now_and_only_the_job_that_becomes_slower_raises_an_alert(shipped: Shipped) -> None:
    shipped.lab.server.wait_dag(SCHEDULED)
    wait_for(lambda: shipped.api.runs(SCHEDULED), "the scheduler started a run")
    (begun,) = shipped.api.runs(SCHEDULED)  # one, not one for every six hours since the DAG's start date
    assert begun["run_type"] == "scheduled"
    first = begun["dag_run_id"]
    shipped.api.wait_run(SCHEDULED, first, "success", timeout_s=240)
    states = shipped.states(SCHEDULED, first)
    for job in ("steady", "slowed"):
        assert [states[task, job] for task in ("capture", "analyze", "compare")] == ["success"] * 3
        assert states["alert", job] == "skipped"
    # Nobody trains there: that is no failure, and keeps nothing from the others.
    assert {states[task, "bare"] for task in ("capture", "analyze", "compare", "alert")} == {"skipped"}
    assert ("capture", "strict") not in states
    assert not shipped.lab.told.exists()

    shipped.pause.write_text("0.3")  # steps of 50 ms become steps of 300 ms
    second = shipped.api.trigger(SCHEDULED, {"threshold": 1.0})
    shipped.api.wait_run(SCHEDULED, second, "failed", timeout_s=240)
    states = shipped.states(SCHEDULED, second)
    assert (states["alert", "slowed"], states["alert", "steady"]) == ("failed", "skipped")
    assert [state for state in states.values() if state == "failed"] == ["failed"]

    at = shipped.index(SCHEDULED, second, "slowed")
    assert shipped.api.task(SCHEDULED, second, "profile.alert", at)["rendered_map_index"] == "slowed"
    compared = shipped.api.xcom(SCHEDULED, second, "profile.compare", map_index=at)
    assert compared["verdict"] == "regressed"
    # The step is what it sleeps and what it computes: from 50 ms + c to 300 ms + c, at most five times the step more.
    assert 1 < compared["slowdown"] < 5
    log = shipped.api.log(SCHEDULED, second, "profile.alert", map_index=at)
    assert f"slowed: Regression against capture {compared['before_capture_id']}" in log
    (said,) = shipped.lab.told.read_text().splitlines()
    assert said.startswith("slowed: ")
    with urllib.request.urlopen(said.rpartition(" ")[2]) as page:
        assert b"<html" in page.read().lower()
    for job in ("steady", "slowed"):
        captured = [
            shipped.api.xcom(SCHEDULED, run, "profile.capture", map_index=shipped.index(SCHEDULED, run, job))[
                "capture_id"
            ]
            for run in (first, second)
        ]
        assert [row.capture_id for row in rows(str(shipped.lab.results), "local", job)] == captured


def test_a_job_that_fails_keeps_nothing_from_the_others(shipped: Shipped) -> None:
    run = shipped.start(SCHEDULED, labels={"floor": "2"}, threshold=5)
    shipped.api.wait_run(SCHEDULED, run, "failed", timeout_s=240)
    states = shipped.states(SCHEDULED, run)
    assert states["capture", "strict"] == "failed"
    assert states["analyze", "strict"] == states["alert", "strict"] == "upstream_failed"
    assert [states[task, "steady"] for task in ("capture", "analyze", "compare", "alert")] == [
        *["success"] * 3,
        "skipped",
    ]
    at = shipped.index(SCHEDULED, run, "strict")
    assert "allows a window of 1000 ms" in shipped.api.log(SCHEDULED, run, "profile.capture", map_index=at)


def test_a_run_without_any_such_job_is_no_failure(shipped: Shipped) -> None:
    run = shipped.start(SCHEDULED, labels={"team": "nobody"})
    shipped.api.wait_run(SCHEDULED, run, "success")
    assert shipped.api.xcom(SCHEDULED, run, "find_jobs") == []
    assert {task["state"] for task in shipped.api.tasks(SCHEDULED, run) if task["task_id"] != "find_jobs"} == {
        "skipped"
    }


def test_every_armed_job_is_captured_no_more_at_once_than_allowed(shipped: Shipped) -> None:
    run = shipped.start(EVERY, duration="500ms")
    shipped.api.wait_run(EVERY, run, "success", timeout_s=240)
    states = shipped.states(EVERY, run)
    assert {job: state for (task, job), state in states.items() if task == "capture" and job} == {
        **dict.fromkeys(("live", "steady", "slowed", "strict"), "success"),
        "bare": "skipped",
    }
    events = {event["extra"]["job"]: event["extra"] for event in shipped.api.asset_events(EVERY, run)}
    assert sorted(events) == ["local/live/0", "local/slowed/0", "local/steady/0", "local/strict/0"]
    made = [
        manifest.decode(Path(each["manifest_uri"].removeprefix("file://")).read_bytes()).capture
        for each in events.values()
    ]
    spans = sorted((each.frozen_at, each.converged_at) for each in made)
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert ended < began, "one at a time was asked for, and a task that is deferred counts"


def test_a_form_that_makes_no_sense_is_refused_before_anything_runs(shipped: Shipped) -> None:
    before = len(shipped.api.runs(ON_DEMAND))
    for wrong in ({"if_busy": "shout"}, {"min_ranks": 0}, {"activities": ["gpu"]}, {"with_stack": "perhaps"}):
        with pytest.raises(AssertionError, match=": 400 "):
            shipped.start(ON_DEMAND, job="steady", **wrong)
    assert len(shipped.api.runs(ON_DEMAND)) == before


def test_a_busy_job_is_skipped_and_one_that_refuses_keeps_nothing_from_the_others(shipped: Shipped) -> None:
    with connect("local:steady") as client:
        # The job is occupied until then, whatever a cancel says: so this test is the last one here.
        other = client.start_capture(CaptureSpec(start_delay_ms=300_000))
        try:
            run = shipped.start(EVERY, duration="2s")
            shipped.api.wait_run(EVERY, run, "failed", timeout_s=240)
        finally:
            client.cancel(other.capture_id)
    states = shipped.states(EVERY, run)
    assert [states["capture", job] for job in ("steady", "slowed", "strict")] == ["skipped", "success", "failed"]
    log = shipped.api.log(EVERY, run, "capture", map_index=shipped.index(EVERY, run, "steady"))
    assert "steady" in log
    assert other.capture_id in log
