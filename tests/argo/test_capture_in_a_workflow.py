"""The capture of a workflow, as Argo would run its pods: ended, lost, stopped, failed, and in part.

The coordinator is real, its node is scripted; the pods are real processes of the rendered commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from argo_checks import problems
from argo_executor import Executor, Node, Pod
from hera.workflows import DAG, Step, Steps, Workflow

from sameshot.client import AsyncClient
from sameshot.model import CaptureState, FailureReason, TargetState
from sameshot_argo.composed import templates
from sameshot_argo.objects import cluster_workflow_template, workflow_template
from sameshot_argo.tasks import IN_CLUSTER, INSTALLED, OWN, Source, cancel, capture, exit_hook
from support.coordination import SPEC, in_loop, until
from support.fake_agent import deliver, failing, stay
from support.step_requests import by_rank, training

INSTALLED_YAML = [workflow_template().to_dict(), cluster_workflow_template().to_dict()]


def calling(source: Source = INSTALLED, hooks: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A workflow of a user's own that captures once."""
    task = capture(source=source, duration="1s", **options)
    with Workflow(
        generate_name="mine-", entrypoint="main", templates=templates() if source is OWN else [], hooks=hooks
    ) as made:
        if hooks is None:  # steps, which wait for hooks when they are stopped
            with Steps(name="main"):
                Step(name=task.name, arguments=task.arguments, template=task.template, template_ref=task.template_ref)
        else:
            DAG(name="main", tasks=[task])
    document: dict[str, Any] = made.to_dict()
    assert problems(document, INSTALLED_YAML) == []
    return document


def executor(folder: Path, started: Callable[[Pod], None] | None = None) -> Executor:
    return Executor(
        INSTALLED_YAML, folder / "argo", environment={"SAMESHOT_RUNTIME_DIR": str(folder / "runs")}, started=started
    )


async def run(argo: Executor, workflow: dict[str, Any]) -> Node:
    return await asyncio.to_thread(argo.run, workflow)


def pod_of(root: Node) -> Node:
    """The pod of the capture, with its retries."""
    return root["capture"]["capture"]


def key_of(argo: Executor, key: str = "capture") -> str:
    return f"argo/{argo.uid}/{key}"


async def captures(client: AsyncClient) -> list[Any]:
    """Of everybody's; the containers' user is not the test's."""
    return list(await client.captures())


@pytest.mark.parametrize("source", [INSTALLED, IN_CLUSTER, OWN], ids=["namespace", "cluster", "own"])
@in_loop
async def test_its_outputs_are_the_steps_result_wherever_the_templates_are(tmp_path: Path, source: Source) -> None:
    async with training(tmp_path) as (_, client):
        argo = executor(tmp_path)
        root = await run(argo, calling(source, address=client.address))
        assert root.phase == "Succeeded", root.shown()
        (view,) = await captures(client)
        told = root["capture"].parameters
        assert (told["capture_id"], told["outcome"], told["shards"]) == (view.capture_id, "SUCCEEDED", '["0/2","1/2"]')
        assert told["request_key"] == view.request_key == key_of(argo)
        assert (told["exit_code"], told["error"], told["manifest_uri"]) == ("0", "", view.manifest_uri)
        assert list(root["capture"].children) == ["capture"]  # no hook ran


@in_loop
async def test_an_evicted_pod_is_retried_and_finds_its_capture(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        argo = executor(tmp_path)
        argo.start(calling(address=client.address))
        first = await running(argo, client)
        (began,) = await captures(client)
        first.evict()
        second = await running(argo, client, after=first)
        second.lose()
        await running(argo, client, after=second)
        agent.script = deliver
        root = await asyncio.to_thread(argo.wait)
        assert root.phase == "Succeeded", root.shown()
        assert [each.exit_code for each in pod_of(root).attempts] == [143, None, 0]
        assert [each.phase for each in pod_of(root).attempts] == ["Failed", "Error", "Succeeded"]
        (view,) = await captures(client)
        assert (view.capture_id, view.n, view.cancel_requested) == (began.capture_id, 1, False)
        assert root["capture"].parameters["capture_id"] == began.capture_id
        assert list(root["capture"].children) == ["capture"]
        terminated = pod_of(root).attempts[0].parameters  # a signal leaves a result, too
        assert (terminated["error"], terminated["capture_id"]) == ("Terminated", began.capture_id)
        assert pod_of(root).attempts[1].parameters == {}


async def running(argo: Executor, client: AsyncClient, after: Pod | None = None) -> Pod:
    """A capture pod that is following its capture."""
    await until(
        lambda: argo.problem or [pod for pod in argo.pods() if pod is not after and b"capture " in log(pod)], 60
    )
    assert argo.problem is None, argo.problem
    return next(pod for pod in argo.pods() if pod is not after)


def log(pod: Pod) -> bytes:
    return (pod.folder / "log").read_bytes()


@pytest.mark.parametrize("shape", ["steps", "dag"])
@in_loop
async def test_a_stopped_workflow_cancels_its_capture_and_no_other(tmp_path: Path, shape: str) -> None:
    """By the hook of its step; where a DAG is above that, by an exit hook of the workflow's own."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        other = await client.start_capture(SPEC, request_key="somebody's")
        argo = executor(tmp_path)
        hooks = None if shape == "steps" else exit_hook(address=client.address, key="capture")
        argo.start(calling(address=client.address, hooks=hooks))
        await until(lambda: argo.problem or any(b"WAITING" in log(pod) for pod in argo.pods()), 60)
        argo.stop()
        root = await asyncio.to_thread(argo.wait)
        assert root.phase == "Failed"
        assert [pod.process.returncode for pod in argo.all_pods] == [143, 0]  # nothing is retried; the hook
        hook = root["capture"]["capture.onExit"] if shape == "steps" else root["workflow.onExit"]["cancel"]["0:capture"]
        assert (hook.phase, hook.parameters["was_over"]) == ("Succeeded", "false"), root.shown()
        mine = next(each for each in await captures(client) if each.request_key == key_of(argo))
        assert (hook.parameters["capture_id"], mine.state) == (mine.capture_id, CaptureState.CANCELLED)
        assert not (await client.get(other.capture_id)).cancel_requested


@pytest.mark.parametrize("source", [INSTALLED, IN_CLUSTER, OWN], ids=["namespace", "cluster", "own"])
@in_loop
async def test_a_workflow_that_succeeded_asks_nobody_at_its_exit_and_stays_so(tmp_path: Path, source: Source) -> None:
    """Its hook runs all the same, and would fail it: the coordinator may be gone with the job by then."""
    async with training(tmp_path) as (_, client):
        argo = executor(tmp_path)
        hooks = exit_hook(address="127.0.0.1:9", key=["capture", "other"], source=source)
        root = await run(argo, calling(source, address=client.address, hooks=hooks))
        assert (root.phase, root["workflow.onExit"].phase) == ("Succeeded", "Succeeded"), root.shown()
        assert {name: each.phase for name, each in root["workflow.onExit"]["cancel"].children.items()} == {
            "0:capture": "Skipped",
            "1:other": "Skipped",
        }
        assert len(argo.all_pods) == 1


@in_loop
async def test_a_workflow_whose_exit_handler_failed_has_failed(tmp_path: Path) -> None:
    """The executor's rule, by which the test above can fail."""
    async with training(tmp_path) as (_, client):
        nothing = {"name": "sameshot", "template": "reduce"}
        given = [{"name": name, "value": str(tmp_path / "none")} for name in ("manifest_uri", "results")]
        workflow = calling(address=client.address)
        workflow["spec"]["hooks"] = {"exit": {"templateRef": nothing, "arguments": {"parameters": given}}}
        root = await run(executor(tmp_path), workflow)
        assert (root["capture"].phase, root["workflow.onExit"].phase, root.phase) == ("Succeeded", "Failed", "Failed")


@in_loop
async def test_at_the_exit_all_that_goes_on_is_cancelled_and_what_never_began_is_no_failure(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        argo = executor(tmp_path)
        options = {"address": client.address, "duration": "1s"}
        hooks = exit_hook(address=client.address, key=["one", "two", "never"])
        dag = DAG(name="main", tasks=[capture("one", **options), capture("two", **options)])
        with Workflow(generate_name="mine-", entrypoint="main", templates=[dag], hooks=hooks) as made:
            pass
        document = made.to_dict()
        assert problems(document, INSTALLED_YAML) == []
        argo.start(document)
        await until(lambda: argo.problem or sum(b"capture " in log(pod) for pod in argo.pods()) == 2, 60)
        argo.stop()
        root = await asyncio.to_thread(argo.wait)
        cancelled = root["workflow.onExit"]["cancel"]
        told = {name: (each.phase, each.parameters["capture_id"] != "") for name, each in cancelled.children.items()}
        assert told == {
            "0:one": ("Succeeded", True),
            "1:two": ("Succeeded", True),
            "2:never": ("Succeeded", False),
        }, root.shown()
        assert {each.state for each in await captures(client)} == {CaptureState.CANCELLED}


@in_loop
async def test_an_exit_handler_that_is_a_dag_does_not_run_after_a_stop(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        argo = executor(tmp_path)
        workflow = calling(address=client.address, hooks=exit_hook(address=client.address, key="capture"))
        (main,) = workflow["spec"]["templates"]
        ends = cancel(address=client.address, key="capture")
        with Workflow(generate_name="x-", entrypoint="ends", templates=[DAG(name="ends", tasks=[ends])]) as handler:
            pass
        workflow["spec"]["templates"] = [main, *handler.to_dict()["spec"]["templates"]]
        workflow["spec"]["hooks"] = {"exit": {"template": "ends"}}
        assert problems(workflow, INSTALLED_YAML) == []
        argo.start(workflow)
        await running(argo, client)
        argo.stop()
        root = await asyncio.to_thread(argo.wait)
        assert (root["workflow.onExit"].phase, root["workflow.onExit"].children) == ("Failed", {})
        (view,) = await captures(client)
        assert not view.cancel_requested


@in_loop
async def test_a_pod_that_outlives_its_deadline_is_not_retried_and_its_capture_is_cancelled(tmp_path: Path) -> None:
    """It is for a step that hangs: its own timeout comes first. Both end it by SIGTERM, as an eviction does."""
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        argo = executor(tmp_path)
        argo.start(calling(address=client.address, timeout="10m"))
        pod = await running(argo, client)
        assert pod.deadline_s == 600 + 300
        pod.outlive()
        root = await asyncio.to_thread(argo.wait)
        assert [(each.phase, each.exit_code) for each in pod_of(root).attempts] == [("Failed", 143)], root.shown()
        assert (root.phase, root["capture"]["capture.onExit"].phase) == ("Failed", "Succeeded")
        (view,) = await captures(client)
        assert view.state is CaptureState.CANCELLED


@in_loop
async def test_a_terminated_workflow_leaves_its_capture_running(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        argo = executor(tmp_path)
        argo.start(calling(address=client.address))
        await running(argo, client)
        argo.terminate()
        root = await asyncio.to_thread(argo.wait)
        assert (root.phase, list(root["capture"].children)) == ("Failed", ["capture"])
        assert [pod.process.returncode for pod in argo.all_pods] == [143]
        (view,) = await captures(client)
        assert not view.cancel_requested
        assert not view.state.terminal


@in_loop
async def test_a_failed_capture_is_not_retried_and_says_why(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.EMPTY, "an empty file")
        root = await run(executor(tmp_path), calling(address=client.address))
        assert root.phase == "Failed"
        pod = pod_of(root)
        assert [each.exit_code for each in pod.attempts] == [4]
        assert (pod.parameters["exit_code"], pod.parameters["outcome"]) == ("4", "FAILED")
        assert pod.parameters["error"] == "CaptureFailed"
        assert "EMPTY" in pod.parameters["message"]
        assert root["capture"].parameters == {}  # a DAG that failed hands nothing up
        assert len(await captures(client)) == 1
        assert root["capture"]["capture.onExit"].parameters["was_over"] == "true"  # there is nothing to cancel


@in_loop
async def test_missing_ranks_fail_it_unless_the_others_are_enough(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.EMPTY))
        root = await run(executor(tmp_path / "all"), calling(address=client.address))
        pod = pod_of(root)
        assert (root.phase, [each.exit_code for each in pod.attempts]) == ("Failed", [3]), root.shown()
        assert (pod.parameters["outcome"], pod.parameters["missing"]) == ("PARTIAL", "1")

        root = await run(executor(tmp_path / "one"), calling(address=client.address, min_ranks=1))
        assert root.phase == "Succeeded", root.shown()
        told = root["capture"].parameters
        assert (told["outcome"], told["archived"], told["shards"]) == ("PARTIAL", "1", '["0/1"]')
        assert told["warning"]


@pytest.mark.full  # each attempt is patient
@in_loop
async def test_a_coordinator_that_does_not_answer_is_asked_again_as_often_as_allowed(tmp_path: Path) -> None:
    workflow = calling(OWN, address="127.0.0.1:9", timeout="1s")
    for each in workflow["spec"]["templates"]:
        if "retryStrategy" in each:
            each["retryStrategy"]["limit"] = 1
    root = await run(executor(tmp_path), workflow)
    assert [each.exit_code for each in pod_of(root).attempts] == [75, 75], root.shown()
    assert pod_of(root).parameters["manifest_uri"] == ""
    assert pod_of(root).parameters["shards"] == "[]"


@in_loop
async def test_a_job_that_is_not_there_can_be_skipped(tmp_path: Path) -> None:
    async with training(tmp_path, armed=False) as (_, client):
        root = await run(executor(tmp_path), calling(address=client.address, if_unavailable="skip"))
        assert root.phase == "Succeeded", root.shown()
        told = root["capture"].parameters
        assert (told["capture_id"], told["outcome"], told["shards"], told["exit_code"]) == ("", "", "[]", "0")
