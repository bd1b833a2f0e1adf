"""Capture steps against a job in a cluster: the real coordinator, which judges tokens, and steps that know it by its
address alone. Who calls is the account of the token, whatever a request says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from coordination import QUICK, SPEC, in_loop, until
from coordinator_cluster import Cluster
from dialled_cluster import Dialled
from fake_agent import deliver, stay

from sameshot.api.views import CaptureView, JobDescription
from sameshot.client.cluster import caller_of, dialing
from sameshot.errors import JobBusy, JobEnded, NoSuchJob, OtherAttempt, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.coordinators import Phase, Status
from sameshot.model import CaptureState, JobRef, Outcome, TargetState
from sameshot.steps.begin import begin, pinned
from sameshot.steps.cancel import cancel_async
from sameshot.steps.finish import finish
from sameshot.steps.glance import Glances
from sameshot.steps.jobs import find_jobs_async
from sameshot.steps.kept import kept
from sameshot.steps.preflight import busy, dialled
from sameshot.steps.request import Action, CaptureRequest

RUNNER = "system:serviceaccount:ml:runner"


class Steps:
    """A cluster in which one job runs, and steps that run in a pod of the account `runner` there."""

    def __init__(self, cluster: Cluster, client: Dialled) -> None:
        self.cluster = cluster
        self.client = client
        self.job = JobRef("", "", "")
        self.coordinator = contextlib.AsyncExitStack()

    def request(self, key: str, **more: object) -> CaptureRequest:
        """Under the caller that an engine would name: here nobody believes it."""
        said = {"address": f"kube:ml/{self.job.name}", "request_key": key, "spec": SPEC, "caller": "airflow"}
        return CaptureRequest(**said | {"timeout_s": 60.0} | more)  # type: ignore[arg-type]

    async def over(self, phase: Phase = Phase.FINISHED) -> None:
        """The job has ended, and the coordinator's pod has gone."""
        await self.coordinator.aclose()
        self.client.status(self.job, phase=phase.value, endpoint=None, pod=None)


@contextlib.asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Steps]:
    monkeypatch.setattr(dialing, "CALM_S", 0.0)
    monkeypatch.setattr(dialing, "UNHEARD_OF_S", 0.2)
    async with Cluster(folder) as cluster:
        steps = Steps(cluster, Dialled(cluster.api, folder))
        monkeypatch.setattr(dialing, "DIALER", steps.client.in_pod("runner"))
        steps.client.grant_pods("runner")
        job = steps.job = cluster.job("llama")
        await cluster.node("a", [0, 1], job, 2)
        timings = msgspec.structs.replace(QUICK, freeze_s=0.5)
        async with steps.coordinator:
            coordinator = await steps.coordinator.enter_async_context(cluster.coordinator(job, timings=timings))
            status = Status(
                phase=Phase.READY,
                endpoint=cluster.address,
                server_name=names.coordinator_host(job),
                ca_bundle=base64.b64encode(cluster.authority.pem).decode(),
            )
            steps.client.cr(job, labels={"team": "nlp"}, status=status)
            await until(lambda: all(link.answers or link.trouble for link in coordinator.server.roster.links()))
            yield steps


@in_loop
async def test_a_capture_is_found_again_as_the_accounts_own_even_when_its_coordinator_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        request = steps.request("k1")
        view = await begin(request)
        assert view.caller == caller_of(request.address) == RUNNER
        this = pinned(request, view)
        assert (this.uid, this.attempt, this.caller) == (steps.job.uid, 0, RUNNER)
        result = await finish(this, view.capture_id, manifest_uri=view.manifest_uri)
        assert result.outcome is Outcome.SUCCEEDED
        again = await begin(steps.request("k1"))  # of a retry, in another process
        assert (again.capture_id, again.state) == (view.capture_id, CaptureState.SUCCEEDED)
        late = await cancel_async(request.address, request_key="k1", uid=this.uid)
        assert late.was_over
        await steps.over()
        with pytest.raises(JobEnded, match="SAMESHOT_ARCHIVE"):  # the archive is not known, and that is said
            await begin(steps.request("k1"))
        monkeypatch.setenv("SAMESHOT_ARCHIVE", str(tmp_path / "archive"))
        for asked in (steps.request("k1"), this):
            found = await begin(asked)
            assert (found.capture_id, found.caller, found.published) == (view.capture_id, RUNNER, True)
        with pytest.raises(JobEnded) as refused:
            await begin(steps.request("k2"))
        assert "SAMESHOT_ARCHIVE" not in str(refused.value)  # it was looked up
        steps.client.api.delete("capturecoordinators.sameshot.dev", "ml", names.coordinator_of(steps.job))
        steps.client.api.delete("pods", "ml", "llama-a", gracePeriodSeconds=0)
        assert (await begin(this)).capture_id == view.capture_id  # a pinned request says which job it means
        monkeypatch.setattr(dialing, "DIALER", steps.client.in_pod("another"))
        assert await kept(steps.request("k1", uid=this.uid)) is None  # a key is its account's own


@in_loop
async def test_captures_of_the_same_account_are_kin_and_others_are_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        (agent,) = steps.cluster.agents.values()
        agent.script = stay(TargetState.QUEUED)
        first = await begin(steps.request("task/1", family="task/"))
        second = await begin(steps.request("task/2", family="task/", if_busy=Action.FAIL))
        assert second.capture_id != first.capture_id  # its own earlier one is about to end, and no reason to fail
        with pytest.raises(JobBusy) as others:
            await begin(steps.request("other/1", family="other/", if_busy=Action.FAIL))
        assert not others.value.own
        assert RUNNER in str(others.value)
        for each in (second, first):
            await cancel_async(f"kube:ml/{steps.job.name}", each.capture_id, wait_s=0.0)


@in_loop
async def test_a_capture_does_not_notice_that_the_api_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        (agent,) = steps.cluster.agents.values()
        agent.script = stay(TargetState.QUEUED)
        view = await begin(steps.request("k1"))
        this, said = pinned(steps.request("k1"), view), []
        following = asyncio.create_task(finish(this, view.capture_id, progress=said.append))
        await until(lambda: said and "GetFacts" in agent.calls)
        await asyncio.to_thread(steps.client.api.away)
        looked = await Glances().look(this, view.capture_id)  # of another step: a new call, with the token it has
        assert looked.view is not None, looked.trouble
        (place,) = (each for each in dialing.DIALER._places.values() if each.known and each.known.wanted.attempt == 0)
        assert place.known is not None
        place.known.failed(Unreachable("a connection broke"))
        looked = await Glances().look(this, view.capture_id)  # looked up in vain, and called all the same
        assert looked.view is not None, looked.trouble
        agent.script = deliver
        result = await following
        assert result.outcome is Outcome.SUCCEEDED
        assert not [line for line in said if "denied" in line.lower() or "waiting" in line]
        await asyncio.to_thread(steps.client.api.come_back)


def test_the_coordinators_word_on_who_calls_counts_and_without_one_the_requests() -> None:
    job = JobRef("ml", "llama", "u")
    request = CaptureRequest(address="kube:ml/llama", request_key="k2", family="k", caller="ana", if_busy=Action.FAIL)
    theirs = CaptureView(capture_id="0" * 32, job=job, caller=RUNNER, request_key="k1")
    told, silent = JobDescription(job=job, caller=RUNNER), JobDescription(job=job)
    assert busy(request, told, [theirs]) is None  # the same task's
    assert busy(request, silent, [theirs]) is not None


@in_loop
async def test_an_attempt_is_pinned_and_another_one_is_never_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        view = await begin(steps.request("k1"))
        this = pinned(steps.request("k1"), view)
        later = msgspec.structs.replace(steps.job, attempt=1)
        steps.client.cr(later, status=Status(phase=Phase.PENDING))
        steps.client.status(steps.job, phase=Phase.SUPERSEDED.value)
        assert (await finish(this, view.capture_id)).outcome is Outcome.SUCCEEDED  # its coordinator is there still
        monkeypatch.setattr(dialing, "DIALER", steps.client.in_pod("runner"))  # another process
        with pytest.raises(Unreachable, match="not ready"):  # whoever means the newest waits for that
            async with dialled(this.address):
                pass
        async with dialled(this.address, uid=this.uid, attempt=0) as client:
            assert (await client.describe()).job == steps.job
        with pytest.raises(OtherAttempt, match="is not there any more"):
            await begin(steps.request("k1", uid="0-another"))
        await steps.over(Phase.SUPERSEDED)
        for error in (Unreachable, OtherAttempt):  # it does not answer; then it is looked up
            with pytest.raises(error):
                async with dialled(this.address, uid=this.uid, attempt=0) as client:
                    await client.describe()


@in_loop
async def test_jobs_of_a_namespace_are_listed_with_their_labels_and_each_address_means_that_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        cluster = steps.client
        twin = cluster.job("llama", kind="JobSet", phase=Phase.PENDING, labels={"team": "nlp"})
        cluster.job("bert.v2", phase=Phase.PENDING, labels={"team": "cv"})
        cluster.job("done", phase=Phase.FINISHED, labels={"team": "nlp"})
        cluster.job("elsewhere", phase=Phase.PENDING, namespace="nlp", labels={"team": "nlp"})
        found = await find_jobs_async("kube:ml?wait=5s")
        assert {each.name for each in found} == {"llama", "bert.v2"}
        assert {each.address for each in found if each.name == "bert.v2"} == {"kube:ml/bert.v2?wait=5s"}
        for each in await find_jobs_async("kube:ml/llama", {"team": "nlp"}):
            assert await find_jobs_async(each.address) == [each]
            assert each.uid in (steps.job.uid, twin.uid)
        assert await find_jobs_async("kube:ml", {"team": "ir"}) == []
        assert await find_jobs_async("kube:ml/nobody") == []
        with pytest.raises(UsageError, match="Several jobs"):
            async with dialled("kube:ml/llama"):
                pass
        with pytest.raises(NoSuchJob):
            async with dialled("kube:ml/nobody", wait_s=None):
                pass


@in_loop
async def test_who_is_cancelled_while_a_cold_coordinator_is_waited_for_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as steps:
        steps.client.job("cold", phase=Phase.PENDING)
        said: list[str] = []
        cold = msgspec.structs.replace(steps.request("k1"), address="kube:ml/cold?wait=60s")
        task = asyncio.create_task(begin(cold, said.append))
        await until(lambda: said)
        assert "is starting" in said[0]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = len(_asked_by_the_runner(steps))
        await until(lambda: not _waiting(dialing.DIALER))
        assert len(_asked_by_the_runner(steps)) - before <= 1


def _asked_by_the_runner(steps: Steps) -> list[str]:
    return [each.verb for each in steps.client.api.log if each.user == RUNNER]


def _waiting(dialer: dialing.Dialer) -> bool:
    return any(place.lock.locked() for place in dialer._places.values())
