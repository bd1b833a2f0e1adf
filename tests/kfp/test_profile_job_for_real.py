"""The pipeline under KFP's own local runner against a job that really trains, and the same by its containers."""

# KFP reads annotations as values: no `from __future__ import annotations` here.

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from kfp import dsl, local
from kfp_containers import IR, Container
from live import LiveJob, running_job, wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState
from sameshot_kfp import Components, analyze_capture, profile_job, profile_pipeline

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(600)]

LOCAL = Components.local()


@pytest.fixture(scope="module")
def job() -> Iterator[LiveJob]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ssk-", dir="/tmp"))  # short enough for Kineto's sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SAMESHOT_RUNTIME_DIR", str(folder / "r"))
        yield stack.enter_context(running_job(folder, nodes=1))


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Where the local runner keeps what tasks gave; each run anew."""
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "kfp"),
        workspace_root=str(tmp_path / "w"),
    )
    return tmp_path / "kfp"


def asked(job: LiveJob, results: Path, **more: Any) -> dict[str, Any]:
    return {
        "address": job.local.address,
        "results": str(results),
        "duration": "500ms",
        "activities": "cpu",
        **more,
    }


def captures(job: LiveJob) -> dict[str, CaptureView]:
    with job.local.client() as client:
        return {view.capture_id: view for view in client.captures()}


def executor_output(outputs: Path, task: str) -> dict[str, Any]:
    (path,) = outputs.rglob(f"{task}/executor_output.json")
    return dict(json.loads(path.read_text()))


def kill_the_capture_task(job: LiveJob, before: dict[str, CaptureView]) -> list[str]:
    """Once its capture runs, all processes of the task at once: what the end of a container is. What was killed."""
    wait_for(lambda: len(captures(job)) > len(before), "the capture has begun")
    children = psutil.Process().children()
    (task,) = (each for each in children if "kfp.dsl.executor_main" in " ".join(each.cmdline()))
    processes = [*task.children(recursive=True), task]
    commands = [" ".join(each.cmdline()) for each in processes]
    for each in processes:
        each.kill()
    return commands


def test_one_pipeline_from_a_running_job_to_its_report(job: LiveJob, outputs: Path, tmp_path: Path) -> None:
    before = captures(job)
    profile_pipeline(LOCAL)(**asked(job, tmp_path / "results", threshold=0.1))
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.state is CaptureState.SUCCEEDED
    engine, _run, task, key = view.request_key.split("/")
    assert (engine, task, key) == ("kfp", "capture", "profile")

    (report,) = outputs.rglob("reduce/report")
    assert report.read_bytes() == next((tmp_path / "results").rglob("report.html")).read_bytes()
    numbers = executor_output(outputs, "reduce")["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    summary = json.loads(next((tmp_path / "results").rglob("summary.json")).read_bytes())
    assert (
        (numbers["expected"], numbers["analysed"]) == (2, 2) == (summary["expected_ranks"], summary["analysed_ranks"])
    )
    manifest = executor_output(outputs, "capture")["artifacts"]["manifest"]["artifacts"][0]
    assert manifest["metadata"]["manifest_uri"] == view.manifest_uri
    assert manifest["metadata"]["outcome"] == "SUCCEEDED"
    assert Path(manifest["uri"]).read_bytes() == job.manifest_of(view).read_bytes()
    (verdict,) = outputs.rglob("compare/verdict")
    assert verdict.read_text() == "first"
    (said,) = outputs.rglob("cancel/message")
    assert said.read_text() == "All went well, so there is nothing to cancel."


def test_a_nested_component_gives_its_outputs_and_captures_of_one_run_do_not_collide(
    job: LiveJob, outputs: Path, tmp_path: Path
) -> None:
    before = captures(job)
    profile = profile_job(LOCAL)
    results = tmp_path / "results"

    @dsl.pipeline
    def two_pictures(address: str, results: str) -> str:
        first = profile(address=address, results=results, duration="500ms", activities="cpu", key="before")
        second = profile(
            address=address, results=results, duration="500ms", activities="cpu", key="after", threshold=0.1
        )
        second.after(first)
        return second.outputs["verdict"]

    run = two_pictures(address=job.local.address, results=str(results))
    fresh = [view for capture_id, view in captures(job).items() if capture_id not in before]
    assert sorted(view.request_key.split("/")[-1] for view in fresh) == ["after", "before"]
    assert len({view.request_key.split("/")[1] for view in fresh}) == 1  # of one run
    assert run.output in ("same", "slower", "faster", "unknown", "regressed")  # there was one before
    assert len(list(results.rglob("report.html"))) == 2


def test_a_loop_over_keys_makes_a_capture_for_each_item(job: LiveJob, outputs: Path) -> None:
    before = captures(job)

    @dsl.pipeline
    def pictures(address: str) -> None:
        with dsl.ParallelFor(["a/1", "a/2"], parallelism=1) as each:
            LOCAL.capture(address=address, key=each, duration="500ms", activities="cpu")

    pictures(address=job.local.address)
    fresh = [view for capture_id, view in captures(job).items() if capture_id not in before]
    assert sorted(view.request_key.split("/", 3)[-1] for view in fresh) == ["a%2F1", "a%2F2"]
    assert all(view.state is CaptureState.SUCCEEDED for view in fresh)


def test_the_same_manifest_is_analysed_once_and_the_same_job_captured_again(job: LiveJob, tmp_path: Path) -> None:
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "kfp"),
        workspace_root=str(tmp_path / "w"),
        enable_caching=True,
    )
    before = captures(job)
    profile, analyze = profile_job(LOCAL), analyze_capture(LOCAL)
    first = profile(**asked(job, tmp_path / "results")).outputs
    second = profile(**asked(job, tmp_path / "results")).outputs
    assert len(captures(job)) == len(before) + 2
    assert first["capture_id"] != second["capture_id"]
    assert first["report_uri"] != second["report_uri"]
    assert first["verdict"] == second["verdict"] == ""  # no threshold

    def made(task: str) -> int:
        return len(list((tmp_path / "kfp").rglob(f"{task}/executor_output.json")))

    ran = {task: made(task) for task in ("analyze-rank", "reduce", "compare")}
    of = {name: second[name] for name in ("manifest_uri", "manifest_sha256")} | {"results": str(tmp_path / "results")}
    again = analyze(**of, shards=["0/2", "1/2"]).outputs
    assert again["report_uri"] == second["report_uri"]
    assert {task: made(task) - count for task, count in ran.items()} == {"analyze-rank": 0, "reduce": 0, "compare": 1}


def test_a_run_whose_capture_task_is_lost_cancels_the_capture(job: LiveJob, outputs: Path, tmp_path: Path) -> None:
    before = captures(job)
    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_the_capture_task, job, before)
        with pytest.raises(RuntimeError, match="capture"):
            profile_pipeline(LOCAL)(**asked(job, tmp_path / "results", duration="9s"))
        assert any("step capture" in each for each in killed.result())
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert view.state is CaptureState.CANCELLED
    (ids,) = outputs.rglob("cancel/cancelled")
    assert json.loads(ids.read_text()) == [view.capture_id]
    assert not (tmp_path / "results").exists()


def test_a_failed_profile_runs_the_exit_task_of_the_ready_made_pipeline(
    job: LiveJob, outputs: Path, tmp_path: Path
) -> None:
    before = captures(job)
    with pytest.raises(RuntimeError, match="capture"):
        profile_pipeline(LOCAL)(**asked(job, tmp_path / "results") | {"job": "another"})
    assert captures(job).keys() == before.keys()
    (said,) = outputs.rglob("cancel/message")
    assert said.read_text() == "No capture of this run goes on."
    assert not (tmp_path / "results").exists()


def test_a_task_that_is_killed_and_retried_finds_the_capture_of_its_first_try(job: LiveJob, outputs: Path) -> None:
    before = captures(job)
    components = Components.local(retries=1)

    @dsl.pipeline
    def retried(address: str) -> str:
        return components.capture(address=address, key="again", duration="4s", activities="cpu").outputs["capture_id"]

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_the_capture_task, job, before)
        run = retried(address=job.local.address)
        assert any("step capture" in each for each in killed.result())
    (view,) = (view for capture_id, view in captures(job).items() if capture_id not in before)
    assert (view.capture_id, view.state) == (run.output, CaptureState.SUCCEEDED)


def test_containers_give_what_the_lightweight_components_give(job: LiveJob, outputs: Path, tmp_path: Path) -> None:
    """Every task of the pipeline by its container, with what the tasks before it gave."""
    results = tmp_path / "by-containers"
    own = {"run_id": "run-1", "task_name": "capture", "key": "containers"}
    ran = Container(IR, "capture").run(
        tmp_path / "capture", {**own, "address": job.local.address, "duration": "500ms", "activities": "cpu"}
    )
    assert ran.code == 0, ran.log
    of = {name: ran.parameters[name] for name in ("manifest_uri", "manifest_sha256")} | {"results": str(results)}
    ranks = [
        Container(IR, "analyze-rank").run(tmp_path / f"rank-{at}", {**of, "shard": shard})
        for at, shard in enumerate(ran.parameters["shards"])
    ]
    assert [rank.parameters["done"] for rank in ranks] == ["0/2", "1/2"]
    reduced = Container(IR, "reduce").run(
        tmp_path / "reduce", {**of, "shards": [rank.parameters["done"] for rank in ranks]}
    )
    before = job.capture(activities=["cpu"]).manifest_uri  # later in fact; it is given by name
    compared = Container(IR, "compare").run(tmp_path / "compare", {**of, "before": before})
    assert reduced.code == compared.code == 0, reduced.log + compared.log
    assert reduced.files["report"] == next(results.rglob("report.html")).read_bytes()
    assert compared.files["report"] == next(results.rglob("comparison.html")).read_bytes()
    assert compared.parameters["before_manifest_uri"] == before

    # The same capture once more, by the lightweight components and into another place.
    elsewhere = tmp_path / "by-functions"
    of["results"] = str(elsewhere)

    @dsl.pipeline
    def analysed(manifest_uri: str, manifest_sha256: str, shards: list, results: str, before: str) -> None:  # type: ignore[type-arg]
        given = {"manifest_uri": manifest_uri, "manifest_sha256": manifest_sha256, "results": results}
        with dsl.ParallelFor(shards) as shard:
            rank = LOCAL.analyze_rank(shard=shard, **given)
        report = LOCAL.reduce(shards=dsl.Collected(rank.outputs["done"]), **given)
        LOCAL.compare(before=before, **given).after(report)

    analysed(**of, before=before, shards=ran.parameters["shards"])
    for name, container in (("reduce", reduced), ("compare", compared)):
        written = executor_output(outputs, name)["artifacts"]
        for artifact, metadata in container.metadata.items():
            got = written[artifact]["artifacts"][0]["metadata"]
            assert text(got, elsewhere) == text(metadata, results)
        for parameter, value in container.parameters.items():
            (path,) = outputs.rglob(f"{name}/{parameter}")
            got = path.read_text() if isinstance(value, str) else json.loads(path.read_text())
            assert text(got, elsewhere) == text(value, results)


def text(value: Any, results: Path) -> Any:
    """Without the place where results lie; numbers as KFP has them."""
    plain = json.loads(json.dumps(value).replace(str(results), "RESULTS"))
    return (
        {key: float(one) if isinstance(one, int) else one for key, one in plain.items()}
        if isinstance(plain, dict)
        else plain
    )
