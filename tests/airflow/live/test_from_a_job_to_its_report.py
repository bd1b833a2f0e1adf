"""The shipped DAG `profile_on_demand`, asked for by the REST API, against a job that trains."""

from __future__ import annotations

import json

import httpx
from airflow_lab import Lab

from sameshot.model import Activity, CaptureState

DAG = "profile_on_demand"
CAPTURE, ANALYZE, REDUCE = "profile_job.capture", "profile_job.analyze", "profile_job.reduce"


def test_a_job_is_captured_analysed_rank_by_rank_and_reported(lab: Lab) -> None:
    run = lab.run(DAG, job="live", duration="5s", activities=["cpu"], record_shapes=True)
    lab.api.wait_task(DAG, run, CAPTURE, "deferred")
    pool = lab.api.pool()
    assert (pool["running_slots"], pool["open_slots"]) == (0, pool["slots"])
    lab.api.wait_run(DAG, run, "success", timeout_s=240)

    (view,) = lab.captures_for(run)
    assert (view.state, view.archived) == (CaptureState.SUCCEEDED, 2)
    asked = (view.spec.duration_ms, view.spec.record_shapes, view.spec.with_stack, view.spec.activities)
    assert asked == (5000, True, False, (Activity.CPU,))
    folder = lab.job.folder_of(view)
    manifest = json.loads((folder / "manifest.json").read_bytes())

    # A mapped task for each rank; everything succeeded, at the first try.
    tasks = lab.api.tasks(DAG, run)
    assert {(task["state"], task["try_number"]) for task in tasks} == {("success", 1)}
    assert sorted(task["map_index"] for task in tasks if task["task_id"] == ANALYZE) == [0, 1]
    ranks = [lab.api.xcom(DAG, run, ANALYZE, map_index=index)["ranks"] for index in (0, 1)]
    assert sorted(ranks) == ["0", "1"]

    # Small results only, and all of them speak of the same bytes.
    for entry in lab.api.xcoms(DAG, run):
        value = lab.api.xcom(DAG, run, entry["task_id"], entry["key"], entry["map_index"])
        assert len(json.dumps(value).encode()) < 2048, (entry, value)
        if entry["key"] == "return_value" and "manifest_sha256" in value:
            assert value["manifest_sha256"] == manifest["sha256"]
    assert lab.api.xcom(DAG, run, CAPTURE)["capture_id"] == view.capture_id
    reduced = lab.api.xcom(DAG, run, REDUCE)
    assert (reduced["analysed"], reduced["expected"], reduced.get("missing")) == (2, 2, None)

    # What the links open is the report and the manifest.
    report = httpx.get(str(lab.api.links(DAG, run, REDUCE)["Report"]), trust_env=False)
    assert report.status_code == 200
    assert report.content == (lab.results / "captures" / view.job.path / view.capture_id / "report.html").read_bytes()
    assert "live" in report.text
    linked = httpx.get(str(lab.api.links(DAG, run, CAPTURE)["Manifest"]), trust_env=False)
    assert linked.json() == manifest

    # Other DAGs are told.
    (event,) = lab.api.asset_events(DAG, run)
    assert (event["uri"], event["source_task_id"]) == ("sameshot://local/live", CAPTURE)
    assert event["extra"]["capture_id"] == view.capture_id
    assert event["extra"]["manifest_uri"] == f"file://{folder}/manifest.json"
    assert event["extra"]["manifest_sha256"] == manifest["sha256"]


def test_the_connection_forms_test_button_finds_the_job(lab: Lab) -> None:
    extra = json.dumps({"results_uri": str(lab.results)})
    found = lab.api.test_connection(conn_type="sameshot", host="local", extra=extra)
    assert found["status"], found
    assert "1 armed job runs on the machine that ran this test: live." in found["message"]
    nobody = lab.api.test_connection(conn_type="sameshot", host="127.0.0.1", port=9)
    assert not nobody["status"], nobody


def test_a_job_that_does_not_run_is_named(lab: Lab) -> None:
    run = lab.run(DAG, job="gone", if_unavailable="skip")
    lab.api.wait_run(DAG, run, "success")
    states = {task["task_id"]: task["state"] for task in lab.api.tasks(DAG, run)}
    assert set(states.values()) == {"skipped"}
    assert "gone" in lab.api.xcom(DAG, run, CAPTURE)["message"]
    assert lab.api.asset_events(DAG, run) == []

    run = lab.run("one_capture", job="gone")
    lab.api.wait_run("one_capture", run, "failed")
    assert "No job called 'gone' runs on this machine" in lab.api.log("one_capture", run, "capture")
