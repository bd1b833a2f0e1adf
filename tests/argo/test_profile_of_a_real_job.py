"""The whole profile, as Argo would run it, of a job that really trains on four ranks of two nodes."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argo_checks import problems
from argo_executor import Executor, Pod, walk
from hera.workflows import DAG, Workflow
from live import LiveJob, running_job, wait_for

from sameshot.client import connect
from sameshot.model import CaptureState
from sameshot_argo.objects import workflow, workflow_template
from sameshot_argo.tasks import analyze_rank, capture, reduce

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(400)]

TEMPLATE = workflow_template().to_dict()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    folder = tempfile.mkdtemp(prefix="ss-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESHOT_RUNTIME_DIR", folder)
        with running_job(tmp_path_factory.mktemp("job"), script_args=("--pause", "0.02")) as job:
            yield job
    shutil.rmtree(folder, ignore_errors=True)


def profiled(job: LiveJob, results: Path, /, **more: str) -> dict[str, Any]:
    arguments = {
        "address": job.local.address,
        "results": str(results),
        "duration": "500ms",
        "warmup": "0s",
        "activities": "cpu",
    }
    made: dict[str, Any] = workflow(arguments | more).to_dict()
    assert problems(made, [TEMPLATE]) == []
    return made


def executor(folder: Path, started: Callable[[Pod], None] | None = None) -> Executor:
    return Executor(
        [TEMPLATE],
        folder / "argo",
        environment={"SAMESHOT_RUNTIME_DIR": os.environ["SAMESHOT_RUNTIME_DIR"], "OMP_NUM_THREADS": "1"},
        started=started,
    )


def test_from_a_running_job_to_its_report_and_the_second_time_to_a_comparison(job: LiveJob, tmp_path: Path) -> None:
    results = tmp_path / "results"
    argo = executor(tmp_path / "first")
    root = argo.run(profiled(job, results))
    assert root.phase == "Succeeded", root.shown()
    assert {name: each.phase for name, each in root.children.items()} == {
        "capture": "Succeeded",
        "analyze": "Succeeded",
        "reduce": "Succeeded",
        "compare": "Skipped",
    }
    assert sorted(root["analyze"].children) == ["0:0/4", "1:1/4", "2:2/4", "3:3/4"]
    told = root.parameters
    assert (told["outcome"], told["archived"], told["analysed"]) == ("SUCCEEDED", "4", "4")
    assert told["verdict"] == told["comparison_uri"] == ""
    with connect(job.local.address) as client:
        view = client.get(request_key=f"argo/{argo.uid}/profile")
    assert (view.capture_id, view.manifest_uri) == (told["capture_id"], told["manifest_uri"])
    assert sorted(job.traces_of(view)) == [0, 1, 2, 3]
    summary = json.loads(root.artifacts["summary"].read_text())
    assert summary == json.loads(Path(told["summary_uri"].removeprefix("file://")).read_text())
    assert root.artifacts["report"].read_bytes() == Path(told["report_uri"].removeprefix("file://")).read_bytes()
    assert sorted(root.artifacts) == ["report", "summary"]
    assert json.loads(told["headline"])["steps"] > 0

    second = executor(tmp_path / "second").run(profiled(job, results, threshold="5"))
    assert second.phase == "Succeeded", second.shown()
    assert second["compare"].phase == "Succeeded"
    assert second.parameters["verdict"] in {"slower", "same", "faster", "unknown"}
    assert second["compare"].parameters["before_capture_id"] == told["capture_id"]
    assert sorted(second.artifacts) == ["comparison", "comparison-data", "report", "summary"]
    assert second.parameters["capture_id"] != told["capture_id"]


def test_pods_that_are_evicted_and_lost_on_the_way_change_nothing(job: LiveJob, tmp_path: Path) -> None:
    """One pod of each kind goes; the capture stays the same, and the report has every rank."""
    gone: dict[str, str] = {}

    def lose_the_first(pod: Pod) -> None:
        if pod.template in gone or pod.on_exit:
            return
        gone[pod.template] = pod.node
        if pod.template == "capture-pod":
            wait_for(lambda: b"capture " in (pod.folder / "log").read_bytes(), "it follows the capture")
            pod.evict()
        else:
            pod.lose()

    argo = executor(tmp_path, lose_the_first)
    root = argo.run(profiled(job, tmp_path / "results", key="again/and again"))
    assert root.phase == "Succeeded", root.shown()
    assert sorted(gone) == ["analyze-rank", "capture-pod", "reduce"]
    assert [each.exit_code for each in root["capture"].attempts] == [143, 0]
    assert [each.phase for each in root["reduce"].attempts] == ["Error", "Succeeded"]
    tries = sorted(len(each.attempts) for each in root["analyze"].children.values())
    assert tries == [1, 1, 1, 2]
    with connect(job.local.address) as client:
        mine = [view for view in client.captures() if view.request_key.startswith(f"argo/{argo.uid}/")]
    assert [(view.capture_id, view.n, view.state) for view in mine] == [
        (root.parameters["capture_id"], 1, CaptureState.SUCCEEDED)
    ]
    assert root.parameters["analysed"] == "4"


def test_a_shard_that_is_killed_is_missing_in_the_report_and_the_others_may_be_enough(
    job: LiveJob, tmp_path: Path
) -> None:
    def kill_the_first(argo: list[Executor], pod: Pod) -> None:
        if pod.template == "analyze-rank" and sum(each.template == pod.template for each in argo[0].all_pods) == 1:
            pod.kill()  # as out of memory: it is not retried

    for needed, phase in (("", "Failed"), ("3", "Succeeded")):
        argo: list[Executor] = []
        argo.append(executor(tmp_path / f"needed-{needed}", functools.partial(kill_the_first, argo)))
        root = argo[0].run(profiled(job, tmp_path / "results", min_ranks=needed))
        assert root.phase == phase, root.shown()
        assert sorted(each.phase for each in root["analyze"].children.values()) == ["Failed", *["Succeeded"] * 3]
        told = root["reduce"].parameters
        assert (told["analysed"], root["reduce"].exit_code) == ("3", 0 if needed else 3)
        assert told["missing"] in {"0", "1", "2", "3"}
        assert root["reduce"].artifacts["report"].is_file()


def test_a_stopped_profile_frees_the_jobs_profilers_for_the_next(job: LiveJob, tmp_path: Path) -> None:
    argo = executor(tmp_path / "stopped")
    argo.start(profiled(job, tmp_path / "results", duration="10s"))
    with connect(job.local.address) as client:
        wait_for(lambda: key_is_known(argo, client), "the capture has begun")
        began = time.monotonic()
        argo.stop()
        root = argo.wait()
        assert root.phase == "Failed"
        assert root["capture.onExit"].parameters["was_over"] == "false", root.shown()
        assert {name: each.phase for name, each in root.children.items()} == {
            "capture": "Failed",
            "capture.onExit": "Succeeded",
        }
        view = client.get(request_key=f"argo/{argo.uid}/profile")
        assert view.state is CaptureState.CANCELLED
    again = executor(tmp_path / "next").run(profiled(job, tmp_path / "results", if_busy="fail"))
    assert again.phase == "Succeeded", (time.monotonic() - began, again.shown())


def key_is_known(argo: Executor, client: Any) -> bool:
    assert argo.problem is None, argo.problem
    return any(view.request_key.startswith("argo/") for view in client.captures(unsettled=True))


def test_a_node_that_does_not_answer_fails_the_profile_unless_its_ranks_may_be_missing(
    job: LiveJob, tmp_path: Path
) -> None:
    pid = job.local.services["agent-1"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        root = executor(tmp_path / "all").run(profiled(job, tmp_path / "results"))
        assert (root.phase, root["capture"].exit_code) == ("Failed", 3), root.shown()
        assert (root["capture"].parameters["missing"], "reduce" in root.children) == ("2-3", False)
        root = executor(tmp_path / "two").run(profiled(job, tmp_path / "results", min_ranks="2"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert root.phase == "Succeeded", root.shown()
    assert (root.parameters["outcome"], root.parameters["analysed"]) == ("PARTIAL", "2")
    assert root["reduce"].parameters["missing"] == "2-3"
    assert sorted(root["analyze"].children) == ["0:0/2", "1:1/2"]
    wait_for(lambda: agents_answer(job), "both agents answer again")


def agents_answer(job: LiveJob) -> bool:
    with job.local.client() as client:
        return all(agent.reachable for agent in client.workers().agents)


def test_a_job_that_is_not_there_is_skipped_where_that_is_wanted_and_nothing_is_analysed(
    tmp_path: Path, job: LiveJob
) -> None:
    made = profiled(job, tmp_path / "results", job="another", if_unavailable="skip")
    root = executor(tmp_path).run(made)
    assert root.phase == "Succeeded", root.shown()
    assert {name: each.phase for name, each in root.children.items()} == {
        "capture": "Succeeded",
        "analyze": "Skipped",
        "reduce": "Skipped",
        "compare": "Skipped",
    }
    assert root.parameters["capture_id"] == root.parameters["report_uri"] == ""


def test_a_workflow_of_ones_own_runs_two_captures_and_as_many_pods_as_it_allows(job: LiveJob, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    options = {"address": job.local.address, "duration": "500ms", "warmup": "0s", "activities": ["cpu"]}
    with Workflow(generate_name="mine-", entrypoint="main") as made, DAG(name="main", parallelism=2):
        before = capture("before", **options)
        after = capture("after", **options)
        before >> after
        analyzed = analyze_rank(of=after, results=results)
        analyzed >> reduce(of=after, results=results, history=False)
    document = made.to_dict()
    assert problems(document, [TEMPLATE]) == []
    argo = executor(tmp_path)
    root = argo.run(document)
    assert root.phase == "Succeeded", root.shown()
    ids = [root[name].parameters["capture_id"] for name in ("before", "after")]
    assert len(set(ids)) == 2
    assert root["reduce"].parameters["capture_id"] == ids[1]
    assert len(root["analyze"].children) == 4
    assert argo.most_at_once == 2
    assert all(each.phase == "Succeeded" for each in walk(root))
