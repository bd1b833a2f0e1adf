"""Which agents a coordinator finds in a cluster, and what it says of ranks in pods that no agent can serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from coordination import QUICK, SPEC, JumpClock, in_loop, until, until_view
from coordinator_cluster import Cluster, ip_of
from fake_agent import FakeAgent, stay
from tls import Authority

from sameshot.api.transport import ServerTls
from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient
from sameshot.coordinator import cluster as cluster_module
from sameshot.coordinator.cluster import AgentChannels, ClusterCoordinator
from sameshot.errors import Unreachable
from sameshot.kube import names
from sameshot.kube.agentpods import AgentPod
from sameshot.kube.tokens import FileToken
from sameshot.model import FailureReason, JobRef, Nobody, Outcome, TargetFact, TargetState

SHORT = msgspec.structs.replace(QUICK, freeze_s=0.5)  # everybody who answers has done so before


@contextlib.asynccontextmanager
async def serving(cluster: Cluster, job: JobRef, **more: Any) -> AsyncIterator[tuple[ClusterCoordinator, AsyncClient]]:
    more.setdefault("timings", SHORT)
    async with cluster.coordinator(job, **more) as coordinator, cluster.client(job) as client:
        roster = coordinator.server.roster
        await until(lambda: all(link.answers or link.trouble for link in roster.links()))
        yield coordinator, client


async def captured(client: AsyncClient) -> CaptureView:
    return await client.wait((await client.start_capture(SPEC)).capture_id)


def failed(view: CaptureView, rank: int) -> TargetFact:
    fact = next(each for each in view.targets if each.identity.rank == rank)
    assert fact.failure is not None
    return fact


def why(view: CaptureView, rank: int) -> str:
    failure = failed(view, rank).failure
    assert failure is not None
    return failure.detail


async def heard(coordinator: ClusterCoordinator, node: str) -> None:
    """Its agent has answered: what comes next does not depend on how long a first connection takes."""
    links = coordinator.server.roster.links
    await until(lambda: any(link.key == node and link.answers for link in links()))


async def known(coordinator: ClusterCoordinator, pods: int) -> None:
    await until(lambda: len(coordinator.directory.pods().pods) == pods)


@in_loop
async def test_a_capture_finds_the_agents_of_the_jobs_own_pods_and_writes_nothing_to_the_api_server(
    tmp_path: Path,
) -> None:
    """Strangers all around: a job of the same name elsewhere, another job and another attempt on the same labels."""
    async with Cluster(tmp_path) as cluster:
        job, others = cluster.job("llama"), [cluster.job("llama", namespace="nlp"), cluster.job("bert")]
        await cluster.node("a", [0, 1], job, 3)
        await cluster.node("b", [2], job, 3)
        strangers = [await cluster.node(f"s{n}", [0], each, 1) for n, each in enumerate(others)]
        earlier = cluster.pod(job, "llama-old", "s2", labels={"jobset.sigs.k8s.io/restart-attempt": "1"})
        strangers.append(await cluster.agent("s2", [cluster.worker(earlier, job, 0, 3)]))
        cluster.agent_pod("s2", ip_of(strangers[-1]))
        unlabelled = await cluster.agent("c")
        cluster.agent_pod("c", ip_of(unlabelled))
        job = cluster.job("llama", uid=job.uid)
        async with serving(cluster, job) as (coordinator, client):
            cluster.api.delete("pods", "ml", "llama-old")  # of a later attempt: while it is there nothing is captured
            await known(coordinator, 2)
            await until(lambda: coordinator.directory.later_attempt is None)
            before = len(cluster.api.log)
            view = await captured(client)
            assert view.outcome is Outcome.SUCCEEDED
            assert view.published
            assert [fact.identity.node for fact in view.targets] == ["a", "a", "b"]
            assert view.caller == "system:serviceaccount:ml:sameshot"
            asked = cluster.api.log[before:]
            assert {(each.resource, each.verb) for each in asked if each.verb != "watch"} <= {
                ("tokenreviews", "create"),
                ("subjectaccessreviews", "create"),
            }
        account = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        assert cluster.api.writes(user=account) == []
        assert cluster.api.count(user=account, verb="watch") >= 2
        assert [agent.calls for agent in (*strangers, unlabelled)] == [[], [], [], []]


@in_loop
async def test_an_agent_that_comes_back_at_another_address_in_mid_capture_is_the_same_agent(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        first = await cluster.node("a", [0], job, 1)
        first.script = stay(TargetState.QUEUED)
        async with serving(cluster, job) as (_, client):
            started = await client.start_capture(SPEC)
            await until(lambda: "GetFacts" in first.calls)
            second = await cluster.agent("a", first.workers)
            second.accepted, second.known = first.accepted, first.known  # as its disk says
            cluster.api.delete("pods", names.AGENTS_NAMESPACE, "sameshot-agent-a")
            await first.stop()
            cluster.agent_pod("a", ip_of(second), name="sameshot-agent-new")
            view = await client.wait(started.capture_id)
        assert view.outcome is Outcome.SUCCEEDED
        assert "Dispatch" not in second.calls


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (None, "no node agent runs on node b"),
        ({"ip": "", "phase": "Pending"}, "its pod sameshot-agent-b is Pending"),
        ({"ip": "nobody", "ready": False}, "its pod sameshot-agent-b is not Ready"),
        ({"ip": "nobody", "phase": "Failed"}, "its pod sameshot-agent-b is Failed"),
    ],
    ids=["no agent", "pending", "not ready", "failed"],
)
@in_loop
async def test_ranks_on_a_node_without_an_agent_fail_with_that_reason_and_are_not_called_unregistered(
    tmp_path: Path, agent: dict[str, Any] | None, words: str
) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 2)
        cluster.pod(job, "llama-1", "b")
        if agent is not None:
            ip = cluster.new_ip() if agent["ip"] else ""
            cluster.agent_pod("b", ip, **{key: value for key, value in agent.items() if key != "ip"})
        async with serving(cluster, job) as (_, client):
            view = await captured(client)
            workers = await client.workers()
        assert view.outcome is Outcome.PARTIAL
        failure = failed(view, 1).failure
        assert failure is not None
        assert failure.reason is FailureReason.AGENT_UNREACHABLE
        assert words in failure.detail
        assert "never registered" not in failure.detail
        assert [each.reachable for each in workers.agents] == [True, False]


@in_loop
async def test_an_agent_that_is_not_ready_and_answers_all_the_same_is_used(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        agent = await cluster.agent("a")
        agent.workers = [cluster.worker(cluster.pod(job, "llama-0", "a"), job, 0, 1)]
        cluster.agent_pod("a", ip_of(agent), ready=False)
        async with serving(cluster, job) as (_, client):
            assert (await captured(client)).outcome is Outcome.SUCCEEDED


def an_agent(name: str, **more: Any) -> AgentPod:
    return AgentPod(**{"name": name, "uid": name, "node": "a", "ip": "10.0.0.1", "phase": "Running", **more})


@pytest.mark.parametrize(
    "pods",
    [
        [an_agent("best", ready=True, created="2026-01-02"), an_agent("older", ready=True, created="2026-01-01")],
        [an_agent("best", ready=True, created="2026-01-01"), an_agent("new", created="2026-01-02")],
        [an_agent("best", ready=True), an_agent("evicted", ready=False, phase="Failed", created="2027")],
        [an_agent("best", ready=True), an_agent("leaving", ready=True, deleting=True, created="2027")],
        [an_agent("best", ready=True, deleting=True), an_agent("starting", ready=False, created="2027")],
        [an_agent("best"), an_agent("no address", ip="", ready=True, created="2027")],
    ],
    ids=lambda pods: pods[1].name,
)
def test_of_two_agents_on_a_node_the_newest_ready_one_serves_it(pods: list[AgentPod]) -> None:
    assert max(pods, key=lambda pod: pod.precedence).name == "best"
    assert max(reversed(pods), key=lambda pod: pod.precedence).name == "best"


UNSCHEDULABLE = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}
    ]
}


@pytest.mark.parametrize(
    ("node", "more", "words"),
    [
        (None, {"phase": "Pending", "status": UNSCHEDULABLE}, "Pending, on no node yet (Unschedulable: 0/3 nodes"),
        (
            "a",
            {
                "phase": "Pending",
                "status": {
                    "containerStatuses": [
                        {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
                    ]
                },
            },
            "Pending on node a (ImagePullBackOff: no)",
        ),
        (
            "a",
            {"phase": "Failed", "status": {"reason": "Evicted", "message": "The node was low on resource: memory."}},
            "is Failed (Evicted: The node was low on resource: memory)",
        ),
        ("a", {"phase": "Succeeded"}, "has Succeeded"),
        ("a", {"armed": False}, "was not armed when it was made"),
    ],
    ids=["unschedulable", "no image", "evicted", "succeeded", "not armed"],
)
@in_loop
async def test_a_rank_that_never_came_is_explained_by_the_pod_that_can_not_be_captured(
    tmp_path: Path, node: str | None, more: dict[str, Any], words: str
) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 2)
        cluster.pod(job, "llama-1", node, **more)
        async with serving(cluster, job) as (_, client):
            view = await captured(client)
        assert view.outcome is Outcome.PARTIAL
        failure = failed(view, 1).failure
        assert failure is not None
        assert failure.reason is FailureReason.NEVER_REGISTERED
        assert f"Pod ml/llama-1 {words}".replace("llama-1 Pending", "llama-1 is Pending") in failure.detail


@in_loop
async def test_a_rank_whose_pod_has_gone_or_was_made_anew_is_remembered_and_not_called_never_registered(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 3)
        others = [await cluster.node(name, [rank], job, 3) for name, rank in (("b", 1), ("c", 2))]
        async with serving(cluster, job) as (coordinator, client):
            assert (await captured(client)).outcome is Outcome.SUCCEEDED
            for agent in others:
                agent.workers = []  # the directories of the pods have gone with them
            cluster.api.delete("pods", "ml", "llama-b")
            cluster.api.delete("pods", "ml", "llama-c")
            cluster.pod(job, "llama-c", None, phase="Pending")
            await until(lambda: "Pending" in " ".join(coordinator.directory.pods().troubles))
            await known(coordinator, 2)
            view = await captured(client)
        assert view.outcome is Outcome.PARTIAL
        assert [each.failure.reason for each in view.targets if each.failure] == [FailureReason.WORKER_EXITED] * 2
        assert failed(view, 1).identity.pod == "llama-b"
        assert "last seen alive on llama-b/trainer/1. Pod llama-b is not there any more." in why(view, 1)
        assert "was deleted and made anew under the same name. Pod ml/llama-c is Pending" in why(view, 2)


@in_loop
async def test_what_a_silent_agent_once_said_of_a_pod_that_has_gone_is_no_debt_of_its_node(
    tmp_path: Path,
) -> None:
    """The pod has gone, whether the agent that once saw its worker answers or not: that is what the rank is told."""
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 2)
        stuck = await cluster.node("b", [1], job, 2)
        cluster.pod(job, "llama-idle", "b")  # so that node b is still one of the job's
        async with serving(cluster, job) as (coordinator, client):
            await until(lambda: 1 in coordinator.server.roster.last_seen)
            stuck.frozen.clear()
            cluster.api.delete("pods", "ml", "llama-b")
            await cluster.node("c", [], job, 2)
            await known(coordinator, 3)
            await heard(coordinator, "c")
            view = await captured(client)
            assert view.outcome is Outcome.PARTIAL
            fact = failed(view, 1)
            assert fact.target_id == "llama-b/trainer/1"
            assert fact.failure is not None
            assert fact.failure.reason is FailureReason.WORKER_EXITED
            assert "Pod llama-b is not there any more" in fact.failure.detail
            stuck.frozen.set()


@in_loop
async def test_pods_that_come_while_a_capture_is_prepared_belong_to_the_next_one(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        slow = await cluster.node("a", [0], job, 2)
        await cluster.node("b", [1], job, 2)
        async with serving(cluster, job) as (coordinator, client):
            await until(lambda: len(coordinator.server.roster.last_seen) == 2)
            slow.delay["ListWorkers"] = asyncio.Event()
            started = await client.start_capture(SPEC)
            await until_view(client, started.capture_id, lambda view: view.state == "DISPATCHING")
            late = await cluster.node("c", [0, 1, 2], job, 3, registered_at_ns=2)
            await until(lambda: len(coordinator.directory.agents()) == 3)
            slow.delay.pop("ListWorkers").set()
            view = await client.wait(started.capture_id)
            assert (view.outcome, view.world_size, len(view.targets)) == (Outcome.SUCCEEDED, 2, 2)
            assert "Dispatch" not in late.calls
            await heard(coordinator, "c")
            assert (await captured(client)).world_size == 3


@in_loop
async def test_pods_that_end_or_go_after_the_set_was_closed_take_no_trace_along(tmp_path: Path) -> None:
    """Their nodes still have the files, though no pod leads there any more; one node's agent is made anew meanwhile."""
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 2)
        first = await cluster.node("b", [1], job, 2)
        hold, first.script = first.script, stay(TargetState.QUEUED)
        async with serving(cluster, job) as (coordinator, client):
            started = await client.start_capture(SPEC)
            await until_view(client, started.capture_id, lambda view: view.archived == 1)
            cluster.api.set_status("pods", "ml", "llama-a", {"phase": "Succeeded"})
            cluster.api.delete("pods", "ml", "llama-b")
            await until(lambda: not coordinator.directory.agents())
            second = await cluster.agent("b")
            second.accepted, second.script = first.accepted, hold
            cluster.api.delete("pods", names.AGENTS_NAMESPACE, "sameshot-agent-b")
            await first.stop()
            cluster.agent_pod("b", ip_of(second), name="sameshot-agent-new")
            view = await client.wait(started.capture_id)
        assert view.outcome is Outcome.SUCCEEDED
        assert view.published


@pytest.mark.parametrize(
    ("phase", "nobody", "words"),
    [
        ("Pending", Nobody.SILENT, "No pod of this job is on a node yet. Pod ml/llama-0 is Pending"),
        ("Succeeded", Nobody.ENDED, "No pod of this job runs any more. Pod ml/llama-0 has Succeeded"),
        (None, Nobody.SILENT, "There is no pod of it that has the label"),
    ],
)
@in_loop
async def test_a_job_without_a_pod_that_runs_fails_at_once_with_what_its_pods_say(
    tmp_path: Path, phase: str | None, nobody: Nobody, words: str
) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        if phase is not None:
            cluster.pod(job, "llama-0", None, phase=phase)
        async with serving(cluster, job) as (_, client):
            view = await captured(client)
        assert (view.outcome, view.nobody, view.targets) == (Outcome.FAILED, nobody, ())
        assert words in view.note


@in_loop
async def test_a_capture_does_not_notice_that_the_api_server_is_away(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        agent = await cluster.node("a", [0], job, 1)
        deliver, agent.script = agent.script, stay(TargetState.QUEUED)
        async with serving(cluster, job) as (_, client):
            started = await client.start_capture(SPEC)
            await client.get(started.capture_id)  # who asks is known from now on
            await until(lambda: "GetFacts" in agent.calls)
            cluster.api.away()
            agent.script = deliver
            view = await client.wait(started.capture_id)
            assert (view.outcome, view.published) == (Outcome.SUCCEEDED, True)


@in_loop
async def test_until_the_api_server_has_told_who_is_there_captures_are_asked_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty directory must not look like a job without workers."""
    monkeypatch.setattr(cluster_module, "FIRST_LISTS_WITHIN_S", 0.1)
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 1)
        cluster.api.fail(403, verb="list", resource="pods")
        async with serving(cluster, job) as (coordinator, client):
            with pytest.raises(Unreachable, match=r"has not told the pods of namespace ml yet.*403"):
                await client.start_capture(SPEC)
            cluster.api.fail(0)
            await until(lambda: not coordinator.directory.trouble)
            assert (await captured(client)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_until_whose_pods_they_are_was_asked_once_captures_are_asked_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_LISTS_WITHIN_S", 0.1)
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 1)
        cluster.api.slow(3.0, verb="get", resource="jobs")
        async with serving(cluster, job) as (coordinator, client):
            await until(lambda: "whose the armed pods" in coordinator.directory.trouble)
            with pytest.raises(Unreachable, match="has not told yet whose the armed pods of namespace ml are"):
                await client.start_capture(SPEC)
            await until(lambda: not coordinator.directory.trouble)
            assert (await captured(client)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_pods_whose_job_could_not_be_told_explain_a_rank_that_is_missing(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama", uid="0b1c")  # of another kind than Job
        await cluster.node("a", [0], job, 2)
        async with serving(cluster, job) as (coordinator, client):
            cluster.api.fail(500, verb="get", resource="jobs")
            pod = cluster.pod(job, "llama-1", "a")
            owner = {**pod["metadata"]["ownerReferences"][0], "uid": "another", "name": "of-a-jobset"}
            cluster.api.change("pods", "ml", "llama-1", {"metadata": {"ownerReferences": [owner]}})
            await until(lambda: coordinator.directory.pods().unknown == 1)
            view = await captured(client)
        assert view.outcome is Outcome.PARTIAL
        assert "The API server has not told yet whose 1 more armed pods of this namespace are." in why(view, 1)


@in_loop
async def test_nobody_asks_whose_the_pods_of_other_jobs_are_where_a_jobs_pods_are_its_own_children(
    tmp_path: Path,
) -> None:
    """Hundreds of Jobs in one namespace, a coordinator each: no look at all the others' owners by each of them."""
    async with Cluster(tmp_path) as cluster:
        job, others = cluster.job("llama"), [cluster.job(f"other-{n}") for n in range(3)]
        await cluster.node("a", [0], job, 1)
        for number, other in enumerate(others):
            cluster.pod(other, f"stranger-{number}", "a")
        async with serving(cluster, job) as (_, client):
            assert (await captured(client)).outcome is Outcome.SUCCEEDED
        account = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
        asked = {each.name for each in cluster.api.log if each.user == account and each.verb == "get"}
        assert asked == {"llama"}


@in_loop
async def test_a_job_of_another_kind_is_not_taken_for_the_batch_job_of_the_same_name(tmp_path: Path) -> None:
    """A JobSet's pods are its Jobs' children, so their owners are climbed."""
    async with Cluster(tmp_path) as cluster:
        cluster.job("llama")
        jobset = cluster.api.make(
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "llama", "namespace": "ml"},
                "spec": {},
            }
        )["metadata"]
        job, child = cluster.job("llama", uid=jobset["uid"]), cluster.job("llama-workers-0")
        owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "llama", "controller": True}
        change = {"metadata": {"ownerReferences": [{**owner, "uid": jobset["uid"]}]}}
        cluster.api.change("jobs.batch", "ml", "llama-workers-0", change)
        agent = await cluster.agent("a")
        agent.workers = [cluster.worker(cluster.pod(child, "llama-workers-0-0", "a"), job, 0, 1)]
        cluster.agent_pod("a", ip_of(agent))
        async with serving(cluster, job) as (_, client):
            assert (await captured(client)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_a_stranger_at_an_agents_address_is_sent_no_token(tmp_path: Path) -> None:
    """Its certificate is of another authority: the connection ends before any call."""
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 2)
        cluster.pod(job, "llama-1", "b")
        folder = tmp_path / "stranger"
        folder.mkdir()
        Authority().issue(folder, names.AGENT_HOST)
        ip = cluster.new_ip()
        stranger = FakeAgent("b", listen=f"{ip}:{cluster.port}", tls=ServerTls(folder / "tls.crt", folder / "tls.key"))
        cluster.agent_pod("b", ip)
        async with stranger, serving(cluster, job) as (_, client):
            view = await captured(client)
            assert stranger.calls == []
        assert failed(view, 1).failure is not None
        assert why(view, 1).startswith("Rank 1 of 2 is registered on no node that answers")


def test_agents_are_called_with_the_authority_in_force_and_the_token_of_the_file(tmp_path: Path) -> None:
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    ca.write_bytes(b"old")
    token.write_text("t1\n")
    connect = AgentChannels(ca, FileToken(token))
    first = connect("10.0.0.1:7444")
    assert (first.ca, first.server_name, first.token and first.token()) == (b"old", names.AGENT_HOST, "t1")
    assert connect("10.0.0.1:7444") == first, "an unchanged authority gives no new connection"
    ca.rename(tmp_path / "ca.old")
    assert connect("10.0.0.1:7444") == first, "while it is being replaced the one in force goes on"
    ca.write_bytes(b"old and new")
    assert connect("10.0.0.1:7444").ca == b"old and new"


@in_loop
async def test_an_agent_that_leaves_for_good_costs_only_its_own_targets_and_says_so(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job, clock = cluster.job("llama"), JumpClock()
        await cluster.node("a", [0], job, 2)
        leaving = await cluster.node("b", [1], job, 2)
        leaving.script = stay(TargetState.QUEUED)
        async with serving(cluster, job, clock=clock) as (coordinator, client):
            started = await client.start_capture(SPEC)
            await until_view(client, started.capture_id, lambda view: view.archived == 1)
            await leaving.stop()
            cluster.api.delete("pods", names.AGENTS_NAMESPACE, "sameshot-agent-b")
            await until(lambda: "no node agent" in coordinator.server.roster.links()[1].trouble)
            waiting = asyncio.create_task(client.wait(started.capture_id))
            while not waiting.done():
                clock.jump(9)  # not so far that it was asleep itself
                await asyncio.wait({waiting}, timeout=0.05)
            view = await waiting
        assert view.outcome is Outcome.PARTIAL
        failure = failed(view, 1).failure
        assert failure is not None
        assert failure.reason is FailureReason.AGENT_UNREACHABLE
        assert "no node agent runs on node b" in failure.detail
        assert failure.last_state is TargetState.QUEUED
