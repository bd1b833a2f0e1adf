"""From an address in a cluster to its coordinator, against an emulated API server with the rights of deploy/, and
coordinators that speak TLS."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi
from dialled_cluster import Dialled

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.client import AsyncClient, Client
from sameshot.client.cluster import access, dialing, parse
from sameshot.client.cluster.access import Access
from sameshot.errors import Denied, JobEnded, NoSuchJob, OtherAttempt, SameshotError, TryAgain, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.coordinators import Phase
from sameshot.kube.tokens import RequestedToken
from sameshot.model import JobRef

LISTED, TOKEN, FORWARDED = "list capturecoordinators", "create serviceaccounts/token", "get pods/portforward"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialled]:
    with ClusterApi() as api, Dialled(api, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting takes less."""
    for name, seconds in (("UNHEARD_OF_S", 0.3), ("CALM_S", 0.0), ("FIRST_PAUSE_S", 0.05), ("LONGEST_PAUSE_S", 0.05)):
        monkeypatch.setattr(dialing, name, seconds)


def described(dialer: dialing.Dialer, address: str, **more: Any) -> JobRef:
    with Client(dialer.dial(address, **more)) as client:
        return client.describe().job


def test_in_a_pod_a_job_is_found_and_called_with_a_token_of_the_pods_own_account(cluster: Dialled) -> None:
    job = cluster.job("in-a-pod")
    since = len(cluster.api.log)
    assert described(cluster.in_pod("runner"), "kube:ml/in-a-pod") == job
    assert cluster.asked(since) == [LISTED, TOKEN]
    (token,) = cluster.served(job).seen.tokens
    bearer = cluster.api.tokens.bearer(token.removeprefix("Bearer "), (names.audience_of(job),))
    assert bearer.user.name == "system:serviceaccount:ml:runner"
    with pytest.raises(Exception, match="audience"):  # it opens nothing else
        cluster.api.tokens.bearer(token.removeprefix("Bearer "))


def test_with_a_kubeconfig_the_same_goes_through_the_api_server_as_the_callers_account(cluster: Dialled) -> None:
    job = cluster.job("from-a-laptop")
    since = len(cluster.api.log)
    assert described(cluster.dialer("jane"), "kube:ml/from-a-laptop") == job
    assert cluster.asked(since) == [LISTED, TOKEN, FORWARDED]
    token = cluster.served(job).seen.tokens[0].removeprefix("Bearer ")
    user = cluster.api.tokens.bearer(token, (names.audience_of(job),)).user
    assert user.name == "system:serviceaccount:ml:sameshot"
    assert {each.user for each in cluster.api.log[since:]} == {"jane"}


def test_a_route_can_be_forced(cluster: Dialled) -> None:
    job = cluster.job("routed")
    since = len(cluster.api.log)
    assert described(cluster.dialer("jane"), "kube:ml/routed?route=direct") == job
    assert FORWARDED not in cluster.asked(since)
    with pytest.raises(Denied, match="pods/portforward in namespace sameshot-coordinators"):
        described(cluster.in_pod("runner"), "kube:ml/routed?route=port-forward")


@pytest.mark.parametrize(
    ("service_account", "own", "meant"),
    [
        (None, None, ("ml", "sameshot")),
        (None, ("airflow", "worker"), ("airflow", "worker")),
        ("viewer", None, ("ml", "viewer")),
        ("sameshot", ("airflow", "worker"), ("airflow", "sameshot")),
        ("ops/robot", None, ("ops", "robot")),
        ("ops/robot", ("airflow", "worker"), ("ops", "robot")),
    ],
)
def test_whose_token_is_asked_for(
    service_account: str | None, own: tuple[str, str] | None, meant: tuple[str, str]
) -> None:
    address = parse("kube:ml/a" + (f"?service-account={service_account}" if service_account else ""))
    assert dialing.account_for(address, Access(None, None, own)) == meant  # type: ignore[arg-type]


def test_a_server_that_is_not_the_jobs_own_gets_no_token(cluster: Dialled) -> None:
    job, other = cluster.job("impostor"), JobRef("ml", "other", "another-uid")
    posing = cluster.serve(other)  # a certificate of the same CA, for another job
    cluster.ready(job, posing)
    with pytest.raises(Unreachable, match="coordinator of job ml/impostor"):
        described(cluster.in_pod("runner"), "kube:ml/impostor")
    assert posing.seen.calls == 0
    assert posing.seen.tokens == []


@pytest.mark.parametrize("way", ["pod", "kubeconfig"])
def test_a_hundred_polls_cost_the_api_server_nothing(cluster: Dialled, way: str) -> None:
    job = cluster.job(f"polled-by-{way}")
    dialer = cluster.in_pod("runner") if way == "pod" else cluster.dialer("jane")

    async def poll(times: int) -> None:
        for _ in range(times):
            async with AsyncClient(dialer.dial(f"kube:ml/{job.name}")) as client:
                await client.describe()

    async def polls() -> None:
        await poll(1)
        since = len(cluster.api.log)
        await poll(100)
        assert cluster.asked(since) == []

    asyncio.run(polls())
    seen = cluster.served(job).seen
    assert seen.calls == 101
    assert len(seen.peers) == 1  # one connection for all of them
    assert len(set(seen.tokens)) == 1


def test_a_loop_that_ends_leaves_no_connection(cluster: Dialled) -> None:
    cluster.job("brief")
    dialer = cluster.dialer("jane")

    async def poll() -> None:
        async with AsyncClient(dialer.dial("kube:ml/brief")) as client:
            await client.describe()

    asyncio.run(poll())
    (place,) = dialer._places.values()
    assert place.known is not None
    tunnel = place.known.tunnel
    assert tunnel is not None
    within(lambda: tunnel.connections == 0)


def test_a_replaced_coordinator_is_found_after_the_first_call_that_fails(cluster: Dialled, quick: None) -> None:
    job = cluster.job("replaced")
    for dialer in (cluster.in_pod("runner"), cluster.dialer("jane")):
        assert described(dialer, "kube:ml/replaced") == job
        cluster.stop(cluster.served(job))
        with pytest.raises(Unreachable):
            described(dialer, "kube:ml/replaced")
        cluster.ready(job, cluster.serve(job))
        assert described(dialer, "kube:ml/replaced") == job


def test_a_job_with_a_new_attempt_is_looked_up_again_when_its_coordinator_says_that_it_is_retired(
    cluster: Dialled, quick: None
) -> None:
    old = cluster.job("restarted", kind="JobSet")
    dialer = cluster.in_pod("runner")
    assert described(dialer, "kube:ml/restarted") == old
    new = cluster.job("restarted", kind="JobSet", uid=old.uid, attempt=1)
    retired = pb.DescribeResponse(policy_json=b"{}", retired="a later attempt runs")
    to_proto(old, retired.job)
    cluster.served(old).canned.answers["Describe"] = retired
    cluster.status(old, phase=Phase.SUPERSEDED.value)
    assert described(dialer, "kube:ml/restarted") == old  # says so, and from then on
    assert described(dialer, "kube:ml/restarted") == new
    assert described(dialer, "kube:ml/restarted", uid=old.uid, attempt=0) == old  # for those who follow what it did
    with pytest.raises(OtherAttempt):
        dialer.dial("kube:ml/restarted", uid="0-other", wait_s=0)


def test_who_is_denied_by_the_coordinator_asks_for_a_new_token(cluster: Dialled, quick: None) -> None:
    job = cluster.job("denying")
    dialer = cluster.in_pod("runner")
    answers = cluster.served(job).canned.answers
    answers["Describe"] = Denied("bind the ClusterRole sameshot-user")
    with pytest.raises(Denied, match="sameshot-user"):
        described(dialer, "kube:ml/denying")
    answers["Describe"] = job
    since = len(cluster.api.log)
    assert described(dialer, "kube:ml/denying") == job
    assert cluster.asked(since) == [LISTED, TOKEN]


# ---- rights


def test_what_is_not_allowed_names_the_right_and_how_it_is_given(cluster: Dialled) -> None:
    cluster.job("denied")
    with pytest.raises(Denied, match=r"kubectl create rolebinding sameshot-user -n ml .*--user=<you>"):
        cluster.dialer("nobody", role=None).dial("kube:ml/denied")
    with pytest.raises(Denied, match=r"--serviceaccount=ml:poor"):
        cluster.in_pod("poor", role=None).dial("kube:ml/denied")
    with pytest.raises(Denied, match=r"serviceaccounts/token.*\?service-account=sameshot-viewer"):
        cluster.dialer("vera", role="sameshot-viewer").dial("kube:ml/denied")
    root = cluster.dialer("root", role="cluster-admin")
    with pytest.raises(Denied, match=r"no ServiceAccount ml/missing\. Make it .*--service-account NAME") as missing:
        root.dial("kube:ml/denied?service-account=missing")
    assert "rolebinding" not in str(missing.value)  # no right is missing
    with pytest.raises(Denied, match=r"rolebinding sameshot-viewer -n ml --clusterrole=sameshot-viewer --user=<you>"):
        cluster.dialer("una").dial("kube:ml/denied?service-account=sameshot-viewer")
    with pytest.raises(Denied, match=r"--resource=serviceaccounts/token --resource-name=own .*--role=own-token") as own:
        cluster.dialer("una").dial("kube:ml/denied?service-account=own")
    assert "--clusterrole" not in str(own.value)  # it would not give that
    with pytest.raises(Denied, match=r"--role=sameshot-connect") as walled:
        cluster.dialer("walled", connects=False).dial("kube:ml/denied")
    assert '{"' not in str(walled.value)  # words, not the answer's JSON


def test_a_token_that_is_refused_later_is_denied_and_not_silence(cluster: Dialled) -> None:
    job = cluster.job("expiring")
    dialer = cluster.in_pod("expirer")
    with Client(dialer.dial("kube:ml/expiring")) as client:
        assert client.describe().job == job
        (place,) = dialer._places.values()
        assert place.known is not None
        place.known.token._inner = RequestedToken(cluster.api.kube("nobody"), "ml", "expirer", names.audience_of(job))
        with pytest.raises(Denied, match="serviceaccounts/token"):
            client.describe()
    assert described(dialer, "kube:ml/expiring") == job  # of a new token


def test_a_viewer_calls_as_the_viewers_account(cluster: Dialled) -> None:
    job = cluster.job("viewed")
    dialer = cluster.dialer("vera", role="sameshot-viewer")
    assert described(dialer, "kube:ml/viewed?service-account=sameshot-viewer") == job


def test_a_cluster_without_our_kinds_says_that_nothing_is_installed(tmp_path: Path) -> None:
    with ClusterApi() as api:
        path = str(api.kubeconfig(tmp_path / "config"))
        with pytest.raises(NoSuchJob, match="operator is not installed"):
            dialing.Dialer().dial(f"kube:ml/a?kubeconfig={path}")


# ---- waiting


def test_a_cold_coordinator_is_waited_for_and_that_is_said(cluster: Dialled, quick: None) -> None:
    job = cluster.job("cold", phase=Phase.PENDING)
    cluster.status(job, conditions=[condition("PodReady", "False", "ContainerCreating")])
    served, said = cluster.serve(job), []

    def say(line: str) -> None:
        said.append(line)
        cluster.ready(job, served)

    assert described(cluster.in_pod("runner"), "kube:ml/cold", say=say) == job
    assert len(said) == 1
    assert "job cold in namespace ml is starting (Pending): PodReady is False (ContainerCreating)" in said[0]


def test_a_job_whose_pods_are_armed_is_waited_for_before_anybody_made_it_a_coordinator(
    cluster: Dialled, quick: None
) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "x"}]},
        "metadata": {"name": "early-0-x", "namespace": "ml", "labels": {"sameshot.dev/arm": "enabled"}},
        "status": {"phase": "Pending"},
    }  # fmt: skip
    cluster.api.make(pod)
    cluster.grant_pods("runner")
    dialer = cluster.in_pod("runner")
    with pytest.raises(Unreachable, match="operator does not run"):
        dialer.dial("kube:ml/early?wait=400ms")
    assert described(dialer, "kube:ml/early", say=lambda _: cluster.job_once("early")).name == "early"
    began = time.monotonic()
    with pytest.raises(NoSuchJob, match="sameshot arm"):
        dialer.dial("kube:ml/earl?wait=60s")
    assert time.monotonic() - began < 5  # what nobody knows of is not waited for that long


def test_who_may_not_list_pods_waits_as_long_as_the_address_says(cluster: Dialled, quick: None) -> None:
    """Its coordinator may be about to be made: nothing says that it is not."""
    began = time.monotonic()
    with pytest.raises(NoSuchJob, match="may not be listed"):
        cluster.in_pod("blind").dial("kube:ml/unheard-of?wait=700ms")
    assert time.monotonic() - began > 0.65
    assert described(cluster.in_pod("blind"), "kube:ml/late", say=lambda _: cluster.job_once("late")).name == "late"


@pytest.mark.parametrize("wait", ["0s", "300ms"])
def test_waiting_ends_with_the_conditions_in_words(cluster: Dialled, quick: None, wait: str) -> None:
    job = cluster.job(f"stuck-{wait}", phase=Phase.PENDING)
    cluster.status(job, conditions=[condition("PodReady", "False", "Unschedulable", "0/3 nodes")])
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"PodReady is False \(Unschedulable\) 0/3 nodes"):
        cluster.in_pod("runner").dial(f"kube:ml/{job.name}?wait={wait}")
    assert time.monotonic() - began < 5


def test_who_waits_can_leave(cluster: Dialled) -> None:
    cluster.job("left", phase=Phase.PENDING)
    leave = threading.Event()
    began = time.monotonic()
    with pytest.raises(TryAgain):
        cluster.in_pod("runner").dial("kube:ml/left", say=lambda _: leave.set(), leave=leave)
    assert time.monotonic() - began < 5


def test_many_who_wait_for_one_coordinator_wait_side_by_side(cluster: Dialled, quick: None) -> None:
    cluster.job("awaited", phase=Phase.PENDING)
    dialer, leave = cluster.in_pod("runner"), threading.Event()

    def wait(leaving: threading.Event | None) -> str:
        try:
            dialer.dial("kube:ml/awaited?wait=1s" if leaving is None else "kube:ml/awaited?wait=60s", leave=leaving)
        except Unreachable as error:
            return str(error)
        return ""

    began = time.monotonic()
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(wait, None) for _ in range(4)]
        left = threads.submit(wait, leave)
        leave.set()
        assert "waited for any longer" in left.result(10) or "not ready" in left.result(10)
        assert all("not ready" in each.result(10) for each in waiting)
    assert time.monotonic() - began < 3.5  # four times one second, one after the other, it would be


# ---- ends and outages


@pytest.mark.parametrize(("phase", "error"), [(Phase.FINISHED, JobEnded), (Phase.SUPERSEDED, OtherAttempt)])
def test_a_job_that_is_over_is_called_as_long_as_its_coordinator_is_there(
    cluster: Dialled, quick: None, phase: Phase, error: type[Exception]
) -> None:
    job = cluster.job(f"over-{phase.lower()}")
    cluster.status(job, phase=phase.value)
    address = f"kube:ml/{job.name}?attempt=0"
    for dialer in (cluster.in_pod("runner"), cluster.dialer("jane")):
        assert described(dialer, address) == job
    cluster.stop(cluster.served(job))
    for dialer in (cluster.in_pod("runner"), cluster.dialer("jane")):
        with pytest.raises(Unreachable):  # silence alone proves nothing
            described(dialer, address)
    cluster.api.delete("pods", names.COORDINATORS_NAMESPACE, names.coordinator_of(job))
    with pytest.raises(error):
        cluster.dialer("jane").dial(address)
    cluster.status(job, endpoint="", pod=None)
    with pytest.raises(error):
        cluster.in_pod("runner").dial(address)


def test_a_client_that_was_kept_says_to_connect_again_where_the_pod_may_have_another_address(
    cluster: Dialled, quick: None
) -> None:
    job = cluster.job("moved")
    dialer = cluster.in_pod("runner")
    with Client(dialer.dial("kube:ml/moved")) as kept:
        assert kept.describe().job == job
        cluster.stop(cluster.served(job))
        cluster.ready(job, cluster.serve(job))
        with pytest.raises(Unreachable, match="connect again"):
            kept.describe()
    assert described(dialer, "kube:ml/moved") == job
    with Client(cluster.dialer("jane").dial("kube:ml/moved")) as through:  # as the pod's name stays, so does that way
        cluster.stop(cluster.served(job))
        with pytest.raises(Unreachable) as met:
            through.describe()
        assert "connect again" not in str(met.value)
    cluster.status(job, endpoint=f"{names.coordinator_host(job)}:7443")  # as does its Service
    by_name = cluster.in_pod("runner").dial("kube:ml/moved")
    assert by_name.failed is not None
    assert str(by_name.failed(Unreachable("No answer."))) == "No answer."


def test_a_status_that_somebody_else_wrote_has_nobody_called_and_no_token_asked_for(cluster: Dialled) -> None:
    job = cluster.job("forged")
    cluster.status(job, serverName="c-1.mallory.svc")
    for dialer in (cluster.in_pod("runner"), cluster.dialer("jane")):
        since = len(cluster.api.log)
        with pytest.raises(SameshotError, match=r"operator writes: serverName is 'c-1\.mallory\.svc'"):
            dialer.dial("kube:ml/forged")
        assert cluster.asked(since) == [LISTED]
    assert cluster.served(job).seen.calls == 0


def test_while_the_api_server_is_away_what_is_known_goes_on_being_used(tmp_path: Path, quick: None) -> None:
    with ClusterApi() as api, Dialled(api, tmp_path) as cluster:
        job = cluster.job("steady")
        dialer = cluster.in_pod("runner")
        assert described(dialer, "kube:ml/steady") == job
        api.away()
        with pytest.raises(Unreachable, match="API server"):  # who knows nothing gets a reason
            cluster.in_pod_again("runner").dial("kube:ml/steady")
        (place,) = dialer._places.values()
        assert place.known is not None
        for met in (Unreachable("no answer"), Unreachable("none again")):
            place.known.failed(met)
            assert described(dialer, "kube:ml/steady") == job
        api.come_back()
        # A server that has just started refuses for a moment what it has not read the roles for yet.
        api.fail(403, resource="capturecoordinators", times=1)
        place.known.failed(Unreachable("no answer"))
        assert described(dialer, "kube:ml/steady") == job


def test_without_a_way_into_a_cluster_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for address in (f"kube:ml/a?kubeconfig={tmp_path}/none", "kube:ml/a?context=none"):
        with pytest.raises(UsageError, match="kubeconfig"):
            dialing.Dialer().dial(address)


def test_in_a_pod_the_api_server_can_be_elsewhere(cluster: Dialled, tmp_path: Path) -> None:
    environment, folder = cluster.pod_environment("sameshot")
    del environment["KUBERNETES_SERVICE_HOST"]
    assert not access.is_pod(environment, folder)
    environment[access.API_SERVER] = cluster.api.url
    found = access.open_access(parse("kube:ml/a"), environment, folder)
    assert found.account == ("ml", "sameshot")
    assert cluster.api.url in found.called
    (tmp_path / "token").write_text("person-0123")
    with pytest.raises(UsageError, match="name the account"):
        access.open_access(parse("kube:ml/a"), environment | {access.TOKEN_FILE: str(tmp_path / "token")}, folder)


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip


def within(holds: Any, seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)
