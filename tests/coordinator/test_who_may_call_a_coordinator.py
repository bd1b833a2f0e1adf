"""Who may do what with a coordinator of a cluster: every call, as a table; outages; and streams of people who lost
their right meanwhile. Tokens, roles and reviews are those of the emulated API server, roles those of deploy/."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from coordination import SPEC, in_loop, until, until_view
from coordinator_cluster import OPERATOR, Cluster
from unfinished import Unfinished

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import AgentStub, CoordinatorStub
from sameshot.api.status import from_rpc
from sameshot.api.transport import CALLER_KEY, Endpoint, aio_channel
from sameshot.client import AsyncClient
from sameshot.coordinator import service
from sameshot.coordinator.auth import Call
from sameshot.coordinator.server import MAX_REQUEST
from sameshot.coordinator.tokenauth import TokenAuthenticator
from sameshot.errors import Denied, SameshotError, UnknownCapture, Unreachable, UsageError
from sameshot.kube import names, reviews
from sameshot.kube.reviews import AccessReviews, TokenReviews
from sameshot.model import JobRef, Outcome

ASKED: dict[Call, Any] = {
    Call.DESCRIBE: pb.DescribeRequest(),
    Call.START: pb.StartCaptureRequest(spec=pb.CaptureSpec(duration_ms=1)),  # let in, and then refused for its spec
    Call.GET: pb.CaptureSelector(capture_id="0" * 32),
    Call.WATCH: pb.CaptureSelector(capture_id="0" * 32),
    Call.LIST: pb.ListCapturesRequest(),
    Call.CANCEL: pb.CaptureSelector(capture_id="0" * 32),
    Call.MANIFEST: pb.CaptureSelector(capture_id="0" * 32),
    Call.WORKERS: pb.ListJobWorkersRequest(),
    Call.RETIRE: pb.RetireRequest(why=0),  # let in, and then refused for its reason
}
LET_IN = "let in"
DENIED = str(grpc.StatusCode.PERMISSION_DENIED.value[0])


async def tried(to: Endpoint, call: Call, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    """`LET_IN`, or the error's class."""
    async with aio_channel(to) as channel:
        method = getattr(CoordinatorStub(channel), call.rpc)  # type: ignore[no-untyped-call]
        try:
            answer = method(ASKED[call], metadata=metadata, timeout=10)
            if call is Call.WATCH:
                async for _ in answer:
                    pass
            else:
                await answer
        except grpc.RpcError as error:
            found = from_rpc(error, "it")
            if isinstance(found, Denied):
                return "Denied"
            # An error of a later stage proves that the door was passed.
            return LET_IN if error.code() in _LATER else f"{type(found).__name__}: {found}"
    return LET_IN


_LATER = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
ALL = frozenset(Call)
LOOKS = frozenset({Call.DESCRIBE, Call.GET, Call.WATCH, Call.LIST, Call.MANIFEST, Call.WORKERS})
USES = ALL - {Call.RETIRE}


def a_role(name: str, verbs: list[str], only: list[str] | None = None) -> dict[str, Any]:
    rule = {"apiGroups": ["sameshot.dev"], "resources": ["captures"], "verbs": verbs}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule if only is None else {**rule, "resourceNames": only}],
    }


@in_loop
async def test_who_may_call_what(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job, other = cluster.job("llama"), cluster.job("bert")
        mine, api = names.audience_of(job), cluster.api
        api.put(a_role("no-delete", ["create", "get", "list"]))
        api.put(a_role("bert-only", ["create", "get", "list", "delete"], ["bert"]))
        api.put(a_role("llama-only", ["create", "get", "list", "delete"], ["llama"]))
        api.put(a_role("almost", ["update", "patch", "watch", "deletecollection"]))
        user = cluster.account("sameshot", role="sameshot-user")
        coordinators = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))

        def token(username: str, audience: str = mine, lasts_s: float = 600) -> str:
            return api.token_for(username, audience=audience, lasts_s=lasts_s)

        def of_role(role: str) -> str:
            return token(cluster.account(role, role=role))

        rows: dict[str, tuple[str | None, frozenset[Call]]] = {
            "a user": (f"Bearer {token(user)}", USES),
            "a user, scheme in lower case": (f"bearer {token(user)}", USES),
            "a viewer": (f"Bearer {of_role('sameshot-viewer')}", LOOKS),
            "a user without delete": (f"Bearer {of_role('no-delete')}", USES - {Call.CANCEL}),
            "a user of this job alone": (f"Bearer {of_role('llama-only')}", USES),
            "a user of another job alone": (f"Bearer {of_role('bert-only')}", frozenset()),
            "other verbs": (f"Bearer {of_role('almost')}", frozenset()),
            "an account without rights": (f"Bearer {token(cluster.account('nobody'))}", frozenset()),
            "a user of another namespace": (
                f"Bearer {token(cluster.account('sameshot', 'nlp', 'sameshot-user'))}",
                frozenset(),
            ),
            "the operator": (f"Bearer {token(OPERATOR)}", frozenset({Call.RETIRE, Call.DESCRIBE})),
            "the coordinator itself": (f"Bearer {token(coordinators)}", frozenset()),
            "its token for agents": (f"Bearer {token(coordinators, names.AGENT_AUDIENCE)}", frozenset()),
            "no token": (None, frozenset()),
            "an empty one": ("Bearer ", frozenset()),
            "no bearer": (f"Basic {token(user)}", frozenset()),
            "nothing but the token": (token(user), frozenset()),
            "garbage": ("Bearer nonsense", frozenset()),
            "garbage that looks like one": ("Bearer e30.e30.e30", frozenset()),
            "a large one": (f"Bearer {'x' * 7000}", frozenset()),
            "the API server's own audience": (f"Bearer {api.token_for(user)}", frozenset()),
            "another job's audience": (f"Bearer {token(user, names.audience_of(other))}", frozenset()),
            "an expired one": (f"Bearer {token(user, lasts_s=-5)}", frozenset()),
            "an administrator's own credential": (f"Bearer {api.admin_token}", frozenset()),
        }
        async with cluster.coordinator(job):
            to = Endpoint(cluster.address, cluster.authority.pem, names.coordinator_host(job))
            found: dict[tuple[str, str], str] = {}
            for who, (header, _) in rows.items():
                claim = ((CALLER_KEY, "root"),)
                metadata = claim if header is None else (*claim, ("authorization", header))
                answers = await asyncio.gather(*(tried(to, call, metadata) for call in Call))
                found |= {(who, call.rpc): answer for call, answer in zip(Call, answers, strict=True)}
        expected = {
            (who, call.rpc): LET_IN if call in allowed else "Denied"
            for who, (_, allowed) in rows.items()
            for call in Call
        }
        assert found == expected


def test_every_call_of_the_service_has_its_verb() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Coordinator"].methods
    assert {call.rpc for call in Call} == {method.name for method in methods}
    assert {call.rpc: call.verb for call in Call} == {
        "Describe": "get", "StartCapture": "create", "GetCapture": "get", "WatchCapture": "get",
        "ListCaptures": "list", "CancelCapture": "delete", "GetManifest": "get", "ListWorkers": "list", "Retire": "",
    }  # fmt: skip


@in_loop
async def test_a_clients_token_is_worth_nothing_to_whoever_receives_it(tmp_path: Path) -> None:
    """Not at an agent, not at another job's coordinator, not at the API server."""
    async with Cluster(tmp_path) as cluster:
        job, other = cluster.job("llama"), cluster.job("bert")
        agent = await cluster.node("a", [0], job, 1)
        user = cluster.account("sameshot", role="sameshot-user")
        token = cluster.api.token_for(user, audience=names.audience_of(job))
        async with cluster.coordinator(job):
            assert await tried(cluster.endpoint(job, token), Call.LIST) == LET_IN
        forged = cluster.job("llama", "nlp", job.uid)  # as the maker of a pod there stated its owner
        cluster.allow(user, "nlp", "sameshot-user")
        for elsewhere in (other, forged):
            async with cluster.coordinator(elsewhere):
                assert await tried(cluster.endpoint(elsewhere, token), Call.LIST) == "Denied"
                own = cluster.api.token_for(user, audience=names.audience_of(elsewhere))
                assert await tried(cluster.endpoint(elsewhere, own), Call.LIST) == LET_IN
        to = Endpoint(agent.address, cluster.authority.pem, names.AGENT_HOST, lambda: token)
        async with aio_channel(to) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                await AgentStub(channel).ListWorkers(  # type: ignore[no-untyped-call]
                    pb.ListWorkersRequest(job=to_proto(job, pb.JobRef())), timeout=10
                )
        assert isinstance(from_rpc(caught.value, "it"), Denied)
        path = tmp_path / "token"
        path.write_text(token)
        kube = cluster.api.kube()
        kube._token_file = path
        with pytest.raises(OSError, match="401"):
            kube.get("/api/v1/namespaces/ml/pods")


@in_loop
async def test_denied_says_which_right_is_missing_and_a_caller_is_who_the_token_says(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 1)
        viewer = cluster.account("eve", role="sameshot-viewer")
        async with cluster.coordinator(job):
            async with cluster.client(job, viewer) as client:
                with pytest.raises(Denied) as caught:
                    await client.start_capture(SPEC)
                for part in (viewer, "create", "captures.sameshot.dev", "llama", "namespace ml", "sameshot-user"):
                    assert part in str(caught.value)
                assert (await client.describe()).caller == viewer
            token = cluster.api.token_for(cluster.account("sameshot", role="sameshot-user"),
                                          audience=names.audience_of(job))  # fmt: skip
            async with AsyncClient(cluster.endpoint(job, token), caller="root") as client:
                view = await client.wait((await client.start_capture(SPEC, "key-1")).capture_id)
                assert view.caller == "system:serviceaccount:ml:sameshot"
                assert view.outcome is Outcome.SUCCEEDED
                assert (await client.get(request_key="key-1")).capture_id == view.capture_id
            async with cluster.client(job, viewer) as client:
                with pytest.raises(UnknownCapture):  # a key is its caller's own
                    await client.get(request_key="key-1")
                assert (await client.get(view.capture_id)).outcome is Outcome.SUCCEEDED


@in_loop
async def test_without_tls_nothing_is_said_and_large_messages_are_not_read(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        async with cluster.coordinator(job), cluster.client(job) as client:
            with pytest.raises(SameshotError):
                await asyncio.wait_for(AsyncClient(cluster.address).describe(), 10)
            with pytest.raises(SameshotError, match="larger than max"):
                await client.get("0" * (2 << 20))
            with pytest.raises(UsageError, match="is no capture id"):
                await client.get("0" * (1 << 15))


@in_loop
async def test_of_whoever_is_not_let_in_no_message_is_waited_for(tmp_path: Path) -> None:
    """Nor is it kept: without this anybody could have a coordinator killed for its memory, a MB for each stream."""
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        nobody = cluster.api.token_for(cluster.account("nobody"), audience=names.audience_of(job))
        async with cluster.coordinator(job):

            def begin_and_wait() -> set[str]:
                with Unfinished(cluster.address, cluster.authority.pem, names.coordinator_host(job)) as peer:
                    begun = {
                        peer.begin(f"Coordinator/{call.rpc}", MAX_REQUEST - 1, token)
                        for call in Call
                        for token in ("", "x.y.z", nobody)
                    }
                    return set(peer.answers(begun).values())

            assert await asyncio.to_thread(begin_and_wait) == {DENIED}


@in_loop
async def test_every_right_of_a_coordinator_is_used_and_none_is_missing(tmp_path: Path) -> None:
    """What deploy/ gives it, against what it asks the API server for while it captures among pods of all kinds."""
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama", uid="0b1c")  # of another kind than Job
        await cluster.node("a", [0], job, 1)
        for number, (api_version, kind) in enumerate(
            [("batch/v1", "Job"), ("apps/v1", "ReplicaSet"), ("jobset.x-k8s.io/v1alpha2", "JobSet")]
        ):
            pod = cluster.pod(job, f"stranger-{number}", "z")
            owner = {"apiVersion": api_version, "kind": kind, "name": "other", "uid": "u", "controller": True}
            cluster.api.change("pods", "ml", pod["metadata"]["name"], {"metadata": {"ownerReferences": [owner]}})
        async with cluster.coordinator(job), cluster.client(job) as client:
            assert (await client.wait((await client.start_capture(SPEC)).capture_id)).outcome is Outcome.SUCCEEDED
            account = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(job))
            await until(lambda: cluster.api.count(user=account, verb="watch") == 2)
            asked = [each for each in cluster.api.log if each.user == account]
        assert [each for each in asked if each.status == 403] == []
        given = {
            (group, resource, verb)
            for role in ("roles", "clusterroles")
            for each in cluster.api.list(f"{role}.rbac.authorization.k8s.io")
            if each["metadata"]["name"].startswith("sameshot-coordinator")
            for rule in each["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert {(each.group, each.resource, each.verb) for each in asked} == given


# --- outages, on reviews whose time is ours


class Server:
    """Reviews that allow everything, or no answer at all."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.away = False

    def send(self, method: str, path: str, body: Any = None, *, content_type: str = "") -> bytes:
        if self.away:
            raise ConnectionRefusedError("away")
        if "token" in body["spec"]:
            status = {"authenticated": True, "audiences": ["a"], "user": {"username": "ana"}}
        else:
            status = {"allowed": True}
        return json.dumps({"status": status}).encode()


class Brought:
    def __init__(self, lasts_s: float = 3600) -> None:
        claims = (
            base64.urlsafe_b64encode(json.dumps({"aud": ["a"], "exp": 1_000.0 + lasts_s}).encode()).decode().rstrip("=")
        )
        self.token = f"e30.{claims}.c2ln"

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        return [("authorization", f"Bearer {self.token}")]


def authenticator(server: Any) -> TokenAuthenticator:
    def clock() -> float:
        return float(server.now)

    return TokenAuthenticator(
        TokenReviews(server, "a", clock=clock, wall_clock=clock),
        AccessReviews(server, group="g", resource="captures", namespace="ml", clock=clock),
        JobRef("ml", "llama", "u", 0),
        "operator",
    )


@pytest.mark.parametrize("call", list(Call), ids=lambda call: call.rpc)
@in_loop
async def test_through_an_outage_looking_goes_on_for_two_minutes_and_starting_or_cancelling_not_at_all(
    call: Call,
) -> None:
    server, brought = Server(), Brought()
    auth = authenticator(server)
    if call is Call.RETIRE:
        with pytest.raises(Denied, match="only the operator"):
            await auth.caller(brought.metadata, call)
        return
    assert (await auth.caller(brought.metadata, call)).name == "ana"
    server.away = True
    server.now += 4  # remembered for seconds, whatever it is
    await auth.caller(brought.metadata, call)
    server.now += 100
    looks = call in LOOKS
    if looks:
        await auth.caller(brought.metadata, call)
    else:
        with pytest.raises(Unreachable):
            await auth.caller(brought.metadata, call)
    server.now += 20
    with pytest.raises(Unreachable):
        await auth.caller(brought.metadata, call)


@in_loop
async def test_no_outage_makes_a_token_last_longer_than_it_says() -> None:
    server, brought = Server(), Brought(lasts_s=30)
    auth = authenticator(server)
    await auth.caller(brought.metadata, Call.GET)
    server.away, server.now = True, server.now + 31
    with pytest.raises(Unreachable):
        await auth.caller(brought.metadata, Call.GET)


# --- streams


@in_loop
async def test_who_has_lost_the_right_is_cut_off_from_a_stream_and_an_outage_cuts_nobody_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHECK_AGAIN_S", 0.05)
    monkeypatch.setattr(reviews, "REMEMBERED_S", 0.02)
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        agent = await cluster.node("a", [0], job, 1)
        deliver, agent.script = agent.script, lambda agent, target, looks: target
        viewer = cluster.account("eve", role="sameshot-viewer")
        async with cluster.coordinator(job) as coordinator, cluster.client(job) as client:
            started = await client.start_capture(SPEC)
            async with cluster.client(job, viewer) as watcher:
                watching = asyncio.create_task(until_view(watcher, started.capture_id, lambda view: False))
                tally = coordinator.rights.tally
                asked = tally.asked
                await until(lambda: tally.asked > asked + 2)
                assert not watching.done()
                cluster.api.away()
                held = coordinator.tokens.tally
                unanswered = held.unanswered
                await until(lambda: held.unanswered > unanswered + 1)
                assert not watching.done()
                cluster.api.come_back()
                cluster.api.delete("rolebindings.rbac.authorization.k8s.io", "ml", "eve-sameshot-viewer")
                with pytest.raises(Denied, match="may not get"):
                    await watching
            await client.get(started.capture_id)
            watching = asyncio.create_task(client.wait(started.capture_id))
            await until(lambda: "GetFacts" in agent.calls)
            cluster.api.away()
            unanswered = held.unanswered
            await until(lambda: held.unanswered > unanswered)
            agent.script = deliver
            assert (await watching).outcome is Outcome.SUCCEEDED


@in_loop
async def test_a_token_that_ends_during_a_stream_leaves_it_to_the_rights_of_its_account() -> None:
    server, brought = Server(), Brought()  # by the real time it has expired
    caller = await authenticator(server).caller(brought.metadata, Call.WATCH)
    asked: list[str] = []
    send = server.send

    def noting(method: str, path: str, body: Any = None, **more: Any) -> bytes:
        asked.append(body["kind"])
        return send(method, path, body, **more)

    server.send = noting  # type: ignore[method-assign]
    server.now += 100
    await caller.check_again()
    assert asked == ["SubjectAccessReview"]
