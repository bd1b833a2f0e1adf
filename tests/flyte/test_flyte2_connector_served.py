"""The connector of Flyte 2's SDK, served by that SDK and called as a back end calls it, beside a job that trains."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator

import pytest
from flyte2_service import Flyte, Refused, Service
from live import LiveJob, running_job, wait_for

from sameshot.model import CaptureState

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(240)]

QUICK = {"duration": "300ms", "warmup": "0s", "activities": "cpu"}
LONG = {"duration": "10s", "warmup": "0s", "activities": "cpu"}
ARCHIVE = "https://traces.example.org/archive"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    with (
        tempfile.TemporaryDirectory(prefix="ss-", dir="/tmp") as runtime,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SAMESHOT_RUNTIME_DIR", runtime)
        with running_job(tmp_path_factory.mktemp("job"), nodes=1, script_args=("--pause", "0.02")) as running:
            yield running


@pytest.fixture(scope="module")
def service(job: LiveJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as served:
        yield served


@pytest.fixture(scope="module")
def flyte(job: LiveJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flyte]:
    with Flyte(tmp_path_factory.mktemp("flyte")) as caller:
        yield caller


def captures(job: LiveJob, flyte: Flyte, action: str) -> list[str]:
    """The ids of all captures that were made for an action of the run."""
    with job.local.client() as client:
        return [each.capture_id for each in client.captures() if f"/{flyte.run}/{action}/" in each.request_key]


def state(job: LiveJob, meta: bytes) -> CaptureState:
    with job.local.client() as client:
        return client.get(capture_of(meta)).state


def capture_of(meta: bytes) -> str:
    return str(json.loads(meta).get("capture_id", ""))


def test_a_back_end_is_told_which_tasks_the_connector_serves(flyte: Flyte, service: Service) -> None:
    (listed,) = [each for each in flyte.connectors(service)["connectors"] if each["name"] == "sameshot"]
    assert listed["supportedTaskCategories"] == [{"name": "sameshot_capture"}]


def test_an_action_has_one_capture_however_often_it_is_created_and_tried(
    job: LiveJob, flyte: Flyte, service: Service
) -> None:
    asked = {"address": job.local.address, **QUICK}
    first = flyte.create(service, action="once", **asked)
    again = flyte.create(service, action="once", **asked)
    retried = flyte.create(service, action="once", retry=1, **asked)
    other = flyte.create(service, action="mapped-2", **asked)
    for meta in (first, again, retried, other):
        assert flyte.ended(service, meta).phase == "SUCCEEDED"
    late = flyte.create(service, action="once", retry=2, **asked)

    assert capture_of(first) != ""
    assert {capture_of(each) for each in (first, again, retried, late)} == {capture_of(first)}
    assert captures(job, flyte, "once") == [capture_of(first)]
    assert captures(job, flyte, "mapped-2") == [capture_of(other)]
    assert capture_of(other) != capture_of(first)


def test_a_new_process_finds_the_capture_again_and_gives_typed_outputs(
    job: LiveJob, flyte: Flyte, service: Service
) -> None:
    asked = {"address": job.local.address, **QUICK, "warmup": "2s"}
    meta = flyte.create(service, action="restarted", settings={"archive_base_url": ARCHIVE}, **asked)
    service.kill()
    service.start()
    seen = flyte.ended(service, meta)

    assert (seen.phase, list(seen.outputs)) == ("SUCCEEDED", ["capture"])
    found = seen.outputs["capture"]
    with job.local.client() as client:
        view = client.get(capture_of(meta))
    assert captures(job, flyte, "restarted") == [view.capture_id]
    assert sorted(job.traces_of(view)) == [0, 1]
    manifest = job.manifest_of(view)
    assert (found["capture_id"], found["job"], found["outcome"]) == (view.capture_id, "local/live", "SUCCEEDED")
    assert (found["expected"], found["archived"], found["shards"]) == (2, 2, ["0/2", "1/2"])
    assert (found["manifest_uri"], found["manifest_sha256"]) == (
        manifest.as_uri(),
        json.loads(manifest.read_bytes())["sha256"],
    )
    (link,) = seen.links
    assert link["uri"] == f"{ARCHIVE}/local/live/0/{view.capture_id}/manifest.json"


def test_what_was_deleted_is_cancelled_once_and_not_tried_again(job: LiveJob, flyte: Flyte, service: Service) -> None:
    meta = flyte.create(service, action="ended", address=job.local.address, **LONG)
    wait_for(lambda: state(job, meta) is CaptureState.COLLECTING, "it collects")
    assert flyte.get(service, meta).phase == "RUNNING"

    flyte.delete(service, meta)
    assert state(job, meta) is CaptureState.CANCELLED
    flyte.delete(service, meta)
    log = service.log.read_text()
    assert log.count(f"Capture {capture_of(meta)} is CANCELLED") == 1
    assert log.count(f"Capture {capture_of(meta)} was over already: CANCELLED") == 1

    seen = flyte.ended(service, meta)
    assert (seen.phase, seen.outputs) == ("FAILED", {})
    assert "cancelled" in seen.message.lower()
    assert captures(job, flyte, "ended") == [capture_of(meta)]


def test_deleting_what_has_ended_leaves_it_as_it_is(job: LiveJob, flyte: Flyte, service: Service) -> None:
    meta = flyte.create(service, action="done", address=job.local.address, **QUICK)
    flyte.ended(service, meta)
    flyte.delete(service, meta)
    assert state(job, meta) is CaptureState.SUCCEEDED
    assert flyte.get(service, meta).phase == "SUCCEEDED"


def test_a_capture_that_nobody_knows_is_a_failure_that_another_attempt_may_mend(
    job: LiveJob, flyte: Flyte, service: Service
) -> None:
    meta = flyte.create(service, action="lost", address=job.local.address, **QUICK)
    flyte.ended(service, meta)
    nobodys = "0" * len(capture_of(meta))
    lost = flyte.get(service, meta.replace(capture_of(meta).encode(), nobodys.encode()))
    assert (lost.phase, lost.outputs) == ("RETRYABLE_FAILED", {})
    assert nobodys in lost.message
    assert "lost" in lost.message


def test_state_that_cannot_be_read_is_said_and_not_thrown(flyte: Flyte, service: Service) -> None:
    for nonsense in (
        b"\x00\xff",
        b"{}",
        b'{"version": 99, "request": {"request_key": "k"}, "since": 0, "deadline": 0}',
    ):
        seen = flyte.get(service, nonsense)
        assert seen.phase == "FAILED"
        assert "Flyte handed over" in seen.message
        flyte.delete(service, nonsense)


def test_a_capture_past_its_deadline_is_cancelled_and_may_be_tried_again(
    job: LiveJob, flyte: Flyte, service: Service
) -> None:
    meta = flyte.create(service, action="late", timeout="1s", address=job.local.address, **LONG)
    deadline = time.monotonic() + 1
    wait_for(lambda: time.monotonic() > deadline, "the deadline passes", 10)
    seen = flyte.ended(service, meta)
    assert (seen.phase, seen.outputs) == ("RETRYABLE_FAILED", {})
    assert "Not done within 1 s" in seen.message
    assert state(job, meta) is CaptureState.CANCELLED


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"duration": "soon"}, "duration: 'soon' is not a duration"),
        ({"address": ""}, "`address` is empty"),
        ({"min_ranks": -3}, "min_ranks: -3 is not a whole number"),
        ({"duration": "11s"}, "The policy of this job allows a window of 10000 ms"),
    ],
)
def test_wrong_inputs_fail_the_task_in_words_and_for_good(
    job: LiveJob, flyte: Flyte, service: Service, wrong: dict[str, str], words: str
) -> None:
    meta = flyte.create(service, action="wrong", **{"address": job.local.address, **QUICK, **wrong})
    seen = flyte.get(service, meta)
    assert (seen.phase, seen.outputs) == ("FAILED", {})
    assert words in seen.message
    assert captures(job, flyte, "wrong") == []


def test_a_job_that_is_not_there_is_skipped_where_that_is_asked_for(flyte: Flyte, service: Service) -> None:
    skipped = flyte.get(
        service, flyte.create(service, action="skip", address="local:nobody", if_unavailable="skip", **QUICK)
    )
    assert skipped.phase == "SUCCEEDED"
    found = skipped.outputs["capture"]
    assert (found["capture_id"], found["manifest_uri"], found["shards"]) == ("", "", [])
    assert found["message"].startswith("Skipped: ")

    failed = flyte.get(service, flyte.create(service, action="no-skip", address="local:nobody", **QUICK))
    assert (failed.phase, failed.outputs) == ("RETRYABLE_FAILED", {})
    assert "nobody" in failed.message


def test_secrets_and_settings_of_a_connection_change_nothing(job: LiveJob, flyte: Flyte, service: Service) -> None:
    connection = {"secrets": {"token": "s3cr3t-of-a-test"}, "configs": {"address": "local:another"}}
    meta = flyte.create(service, action="secret", connection=connection, address=job.local.address, **QUICK)
    assert flyte.ended(service, meta).phase == "SUCCEEDED"
    assert b"s3cr3t" not in meta
    assert "s3cr3t" not in service.log.read_text()


def test_another_task_type_is_not_ours(flyte: Flyte, service: Service) -> None:
    with pytest.raises(Refused, match="NOT_FOUND"):
        flyte.call(service, "GetTask", {"resourceMeta": "", "taskCategory": {"name": "bigquery_query_job_task"}})


def test_the_registered_capture_names_its_type_its_inputs_and_no_cache(flyte: Flyte) -> None:
    template = flyte.spec(archive_base_url=ARCHIVE)["taskTemplate"]
    assert template["type"] == "sameshot_capture"
    assert template["custom"] == {"archive_base_url": ARCHIVE}
    assert flyte.spec()["taskTemplate"]["custom"], "the back end starts nothing of a task without a custom part"
    assert template["metadata"]["retries"] == {"retries": 2}
    assert not template["metadata"].get("discoverable", False)
    assert flyte.spec(retries=5)["taskTemplate"]["metadata"]["retries"] == {"retries": 5}
    simple = {each["key"]: each["value"]["type"]["simple"] for each in template["interface"]["inputs"]["variables"]}
    assert simple["address"] == simple["duration"] == "STRING"
    assert simple["min_ranks"] == "INTEGER"
    assert simple["with_stack"] == "BOOLEAN"
    (output,) = template["interface"]["outputs"]["variables"]
    assert output["key"] == "capture"
    assert output["value"]["type"]["simple"] == "STRUCT"
