"""A host that fell silent costs its own targets, whenever it happens, and one tenant reaches nothing of another's."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
from hosts_lab import Hosts, Relay
from live import wait_for
from pods import needs_pods
from prometheus_client.parser import text_string_to_metric_families
from tls import Authority

from sameshot.api import sameshot_pb2 as pb
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.convert import to_proto
from sameshot.api.status import from_rpc
from sameshot.api.transport import Endpoint, aio_channel
from sameshot.api.views import CaptureView
from sameshot.client import Client
from sameshot.errors import Denied, SameshotError, Unreachable
from sameshot.kube import names
from sameshot.kube.reviews import REMEMBERED_S
from sameshot.manifest import decode
from sameshot.model import CaptureSpec, CaptureState, FailureReason, JobRef, TargetState

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
A, B, C = "host-a", "host-b", "host-c"
SPEC = CaptureSpec(duration_ms=200, warmup_ms=0, activities=("cpu",))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    needs_pods()
    with Hosts(tmp_path_factory.mktemp("hosts"), A, B, C) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def job(hosts: Hosts) -> JobRef:
    return hosts.a_job("ml", "llama", A, B, C)


@pytest.fixture(scope="module")
def client(hosts: Hosts, job: JobRef) -> Iterator[Client]:
    with hosts.coordinator(job, on=A) as client:
        until_all_answer(client)
        yield client


def until_all_answer(client: Client, count: int = 3) -> None:
    wait_for(lambda: sum(each.current for each in client.workers().workers) == count, "all workers are known")


def followed(client: Client, view: CaptureView) -> tuple[CaptureView, dict[int, float]]:
    """The capture at its end, and for each rank when its target was first seen at its own end."""
    ended: dict[int, float] = {}

    def over() -> bool:
        nonlocal view
        view = client.get(view.capture_id)
        for fact in view.targets:
            if fact.state.terminal and fact.identity.rank is not None:
                ended.setdefault(fact.identity.rank, time.monotonic())
        return view.state.terminal

    wait_for(over, "the capture converges")
    return view, ended


def whole(client: Client) -> CaptureView:
    view, _ = followed(client, client.start_capture(SPEC))
    assert view.state is CaptureState.SUCCEEDED, view
    assert len({fact.identity.node for fact in view.targets}) == 3
    return view


def cost_one_host(client: Client, view: CaptureView, ended: dict[int, float]) -> None:
    """Two ranks are archived, the third is explained, in that order; the manifest says the same."""
    assert view.state is CaptureState.PARTIAL, view
    assert view.published
    by_rank = {fact.identity.rank: fact for fact in view.targets}
    assert [by_rank[rank].state for rank in (0, 1, 2)] == [
        TargetState.ARCHIVED, TargetState.ARCHIVED, TargetState.FAILED
    ]  # fmt: skip
    failure = by_rank[2].failure
    assert failure is not None
    assert failure.reason is FailureReason.AGENT_UNREACHABLE
    assert C in failure.detail
    assert max(ended[0], ended[1]) < ended[2], "nobody waited for the host that does not answer"
    manifest = decode(client.manifest(view.capture_id))
    assert (manifest.totals.archived, manifest.totals.failed) == (2, 1)
    assert list(manifest.totals.missing_ranks) == [2]


def test_a_host_that_is_dead_before_a_capture_costs_its_own_targets_and_delivers_to_the_next_one_once_it_is_back(
    hosts: Hosts, client: Client
) -> None:
    whole(client)
    hosts[C].black_hole()
    try:
        with pytest.raises(TimeoutError), hosts[A].network():  # dropped, not refused
            socket.create_connection((hosts[C].address, names.AGENT_PORT), timeout=0.2)
        view, ended = followed(client, client.start_capture(SPEC))
    finally:
        hosts[C].restore()
    cost_one_host(client, view, ended)
    assert view.capture_id not in hosts[C].workers[0].asked
    assert view.frozen_at_ns is not None
    for name in (A, B):  # dispatched while the set was still open for the silent one
        assert hosts[name].workers[0].asked[view.capture_id] < view.frozen_at_ns
    until_all_answer(client)
    whole(client)


def test_a_host_that_dies_in_mid_capture_costs_its_own_targets_and_delivers_to_the_next_one_once_it_is_back(
    hosts: Hosts, client: Client
) -> None:
    until_all_answer(client)
    worker = hosts[C].workers[0]
    worker.held.set()
    started = client.start_capture(SPEC)
    wait_for(lambda: started.capture_id in worker.asked, "the host has accepted the capture")
    hosts[C].black_hole()
    try:
        view, ended = followed(client, started)
    finally:
        hosts[C].restore()
        worker.held.clear()
    cost_one_host(client, view, ended)
    until_all_answer(client)
    again = whole(client)
    assert again.capture_id != view.capture_id


def test_an_api_server_that_is_away_in_mid_capture_is_not_noticed_by_any_host(hosts: Hosts, client: Client) -> None:
    until_all_answer(client)
    workers = [hosts[name].workers[0] for name in (A, B, C)]
    for worker in workers:
        worker.held.set()
    started = client.start_capture(SPEC)
    wait_for(lambda: all(started.capture_id in each.asked for each in workers), "all have accepted the capture")
    hosts.api.away()
    try:
        ends = time.monotonic() + REMEMBERED_S  # from then on only the last word on each token is there
        wait_for(lambda: client.get(started.capture_id) and time.monotonic() > ends, "nobody remembers any more")
        for worker in workers:
            worker.held.clear()
        view, _ = followed(client, started)
        assert view.state is CaptureState.SUCCEEDED, view
        assert view.published
        assert metrics(hosts, B)["sameshot_agent_calls_on_last_word_total"] > 0
    finally:
        hosts.api.come_back()
        for worker in workers:
            worker.held.clear()


def metrics(hosts: Hosts, name: str) -> dict[str, float]:
    """Those without labels, from the agent's own process."""
    with hosts[name].network():
        connection = http.client.HTTPConnection("127.0.0.1", names.METRICS_PORT, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def test_the_coordinator_of_one_tenant_reaches_nothing_of_anothers_on_any_host(
    hosts: Hosts, job: JobRef, client: Client
) -> None:
    """With its own token over the network, as a coordinator that was taken over would try."""
    theirs = hosts.a_job("other", "bert", B)
    token = hosts.coordinator_token(theirs)
    refused = metrics(hosts, B)["sameshot_agent_calls_refused_total"]
    relay = Relay(("127.0.0.1", 0), None, (hosts[B].address, names.AGENT_PORT), hosts[A].pid)
    pods_of = {fact.worker.folder for fact in hosts[B].workers}
    assert len(pods_of) == 2

    async def ask(given: str | None, about: JobRef, ca: bytes = hosts.authority.pem) -> list[str] | SameshotError:
        to = Endpoint(f"127.0.0.1:{relay.port}", ca, names.AGENT_HOST, None if given is None else lambda: str(given))
        async with aio_channel(to) as channel:
            stub = sameshot_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = await stub.ListWorkers(pb.ListWorkersRequest(job=to_proto(about, pb.JobRef())), timeout=20)
            except grpc.RpcError as error:
                return from_rpc(error, "The agent")
            return [each.registration.pod for each in answer.workers]

    try:
        wait_for(lambda: asyncio.run(ask(token, theirs)) == ["bert-0"], "its own pod is served")
        assert isinstance(asyncio.run(ask(token, job)), Denied)
        assert isinstance(asyncio.run(ask(None, job)), Denied)
        moved = msgspec.structs.replace(theirs, namespace="ml")
        assert isinstance(asyncio.run(ask(token, moved)), Denied)
        clients = hosts.api.token_for(names.username_of("ml", "sameshot"), audience=names.audience_of(job))
        assert isinstance(asyncio.run(ask(clients, job)), Denied), "what a client brought is worth nothing here"
        assert isinstance(asyncio.run(ask(token, theirs, Authority().pem)), Unreachable)
    finally:
        relay.close()
    assert len(client.workers().workers) == 3
    seen = metrics(hosts, B)
    assert seen["sameshot_agent_calls_refused_total"] - refused == 4
    assert seen["sameshot_agent_directories"] == 2
    assert seen["sameshot_agent_serving"] == 1
    assert 0 <= seen["sameshot_agent_api_list_age_seconds"] < 70
    log = Path(hosts.folder / f"{B}.log").read_text()
    assert "refused: system:serviceaccount:sameshot-coordinators:" in log
    assert token not in log
