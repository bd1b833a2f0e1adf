"""Who may ask an agent of a cluster for what: every call needs the token of the job's own coordinator."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_lab import JOB, SPEC, Caller, Lab, in_loop, until
from manifests import archived, make_capture
from tls import Authority
from unfinished import Unfinished

from sameshot.agent import certificate
from sameshot.agent.coordinators import OUTAGE_S, Coordinators
from sameshot.api import sameshot_pb2 as pb
from sameshot.api import sameshot_pb2_grpc
from sameshot.api.convert import to_proto
from sameshot.api.status import from_rpc
from sameshot.api.transport import MAX_MESSAGE_BYTES, Endpoint, ServerTls, aio_channel
from sameshot.errors import Denied, ManifestError, NoSuchJob, RequestKeyConflict, SameshotError, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.reviews import TokenReviews
from sameshot.manifest import Job, build, encode
from sameshot.model import JobRef, TargetState

OTHER = JobRef("local", "other", "uid-2", 0)
ELSEWHERE = JobRef("ml", JOB.name, JOB.uid, 0)  # the same uid, as whoever makes pods may state it
METHODS = [each.name for each in pb.DESCRIPTOR.services_by_name["Agent"].methods]


def spelt(name: str) -> str:
    """A token that says of itself that it is for agents, as everybody can write one."""
    claims = json.dumps({"aud": [names.AGENT_AUDIENCE], "exp": time.time() + 3600, "n": name}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"


class Api:
    """The TokenReviews of an API server: token → (username, audiences)."""

    def __init__(self) -> None:
        self.accounts: dict[str, tuple[str, list[str]]] = {}
        self.away = False
        self.asked = 0

    def send(self, method: str, path: str, body: Any = None, *, content_type: str = "") -> bytes:
        self.asked += 1
        if self.away:
            raise ConnectionRefusedError(111, "refused")
        username, audiences = self.accounts.get(body["spec"]["token"], ("", []))
        both = [each for each in audiences if each in body["spec"]["audiences"]]
        status = {"authenticated": bool(both), "audiences": both, "user": {"username": username}}
        return json.dumps({"status": status}).encode()

    def coordinator(self, token: str, job: JobRef, **more: Any) -> str:
        """Make a token of this job's coordinator; `audiences` are those that the server says."""
        token = spelt(token)
        namespace = more.get("namespace", "sameshot-coordinators")
        username = names.username_of(namespace, names.account_of(job))
        self.accounts[token] = (username, more.get("audiences", ["sameshot-agent"]))
        return token


class Served:
    """An agent that serves a cluster's coordinators; `by` gives the view of whoever brings this token."""

    def __init__(self, lab: Lab, api: Api, authority: Authority, address: str, caller: Caller) -> None:
        self.lab, self.api, self.caller = lab, api, caller
        self.agent = caller.agent
        self.authority, self.address = authority, address

    @contextlib.asynccontextmanager
    async def by(self, token: str | None) -> AsyncIterator[Caller]:
        given = None if token is None else lambda: token
        to = Endpoint(self.address, self.authority.pem, names.AGENT_HOST, given)
        async with aio_channel(to) as channel:
            yield Caller(sameshot_pb2_grpc.AgentStub(channel), self.lab)  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def served(lab: Lab) -> AsyncIterator[Served]:
    api, authority = Api(), Authority()
    given: Any = api
    authority.issue(lab.root, names.AGENT_HOST)
    tls = ServerTls(lab.root / "tls.crt", lab.root / "tls.key")
    callers = Coordinators(TokenReviews(given, names.AGENT_AUDIENCE, outage_s=OUTAGE_S))
    address = lab.root / "address"
    async with lab.agent(listen="127.0.0.1:0", tls=tls, callers=callers, address_file=address) as caller:
        yield Served(lab, api, authority, address.read_text().strip(), caller)


async def ask(caller: Caller, method: str, job: JobRef = JOB, capture_id: str = "a" * 32, **more: Any) -> Any:
    """One call of this method; raises the error that the agent answers with."""
    request = {
        "ListWorkers": lambda of: pb.ListWorkersRequest(job=of),
        "Dispatch": lambda of: pb.DispatchRequest(
            job=of, capture_id=capture_id, spec=to_proto(SPEC, pb.CaptureSpec()), start_at_ns=1,
            announce_timeout_ms=1000, **more,
        ),
        "GetFacts": lambda of: pb.FactsRequest(job=of, capture_id=capture_id),
        "Withdraw": lambda of: pb.WithdrawRequest(job=of, capture_id=capture_id, reason="x", **more),
        "KnownCaptures": lambda of: pb.KnownCapturesRequest(job=of, capture_ids=[capture_id]),
        "PublishManifest": lambda of: pb.PublishManifestRequest(job=of, capture_id=capture_id, **more),
    }[method](to_proto(job, pb.JobRef()))  # fmt: skip
    try:
        return await getattr(caller.stub, method)(request, timeout=20)
    except grpc.RpcError as error:
        raise from_rpc(error, "The agent") from None


async def refusal(call: Any) -> SameshotError:
    with pytest.raises(SameshotError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("method", METHODS)
@in_loop
async def test_every_call_needs_the_token_of_the_jobs_own_coordinator(lab: Lab, method: str) -> None:
    lab.worker()
    lab.worker(rank=1, local_rank=1, job=OTHER)
    async with served(lab) as node:
        api = node.api
        refused: dict[str, str | None] = {
            "no token": None,
            "no token of anybody": spelt("nobody"),
            "no token at all": "x.y.z",
            "for the API server": api.coordinator("t1", JOB, audiences=["https://kubernetes.default.svc"]),
            "for its coordinator, as clients have it": api.coordinator("t2", JOB, audiences=[names.audience_of(JOB)]),
            "of another job's coordinator": api.coordinator("t3", OTHER),
            "of a job with this uid in another namespace": api.coordinator("t4", ELSEWHERE),
            "of an account with that name in the job's namespace": api.coordinator("t5", JOB, namespace=JOB.namespace),
        }
        operators = spelt("t6")
        api.accounts[operators] = ("system:serviceaccount:sameshot-system:sameshot-operator", ["sameshot-agent"])
        for what, token in {**refused, "the operator's": operators}.items():
            async with node.by(token) as caller:
                error = await refusal(ask(caller, method))
            assert isinstance(error, Denied), (what, error)
        async with node.by(api.coordinator("good", JOB)) as caller:
            if method == "PublishManifest":  # the right caller, and no manifest
                assert isinstance(await refusal(ask(caller, method)), ManifestError)
            else:
                await ask(caller, method)


@in_loop
async def test_a_coordinator_asks_for_its_own_job_only_by_whatever_name(lab: Lab) -> None:
    lab.worker()
    lab.worker(rank=1, local_rank=1, job=OTHER)
    async with served(lab) as node, node.by(node.api.coordinator("a", JOB)) as a:
        assert len(await a.workers(JOB)) == 1
        # Of its own uid and namespace, but under a name that no pod here has: nothing is there to be seen or written.
        renamed = JobRef(JOB.namespace, OTHER.name, JOB.uid, 0)
        assert await a.workers(renamed) == {}
        for method in ("Dispatch", "GetFacts", "Withdraw", "PublishManifest"):
            assert isinstance(await refusal(ask(a, method, renamed)), NoSuchJob), method
        for job in (OTHER, ELSEWHERE, JobRef(JOB.namespace, JOB.name, OTHER.uid, 0)):
            for method in METHODS:
                assert isinstance(await refusal(ask(a, method, job)), Denied), (method, job)
        odd = JobRef(JOB.namespace, JOB.name, "UID-1/..", 0)
        assert isinstance(await refusal(ask(a, "ListWorkers", odd)), Denied)


@in_loop
async def test_a_capture_of_one_job_is_neither_shown_to_nor_touched_by_the_coordinator_of_another(lab: Lab) -> None:
    mine, theirs = lab.worker(), lab.worker(rank=1, local_rank=1, job=OTHER)
    async with (
        served(lab) as node,
        node.by(node.api.coordinator("a", JOB)) as a,
        node.by(node.api.coordinator("b", OTHER)) as b,
    ):
        capture_id = await a.dispatch(mine)
        answer = await ask(b, "GetFacts", OTHER, capture_id)
        assert (answer.known, list(answer.targets)) == (False, [])
        assert not (await ask(b, "KnownCaptures", OTHER, capture_id)).capture_ids
        assert list((await ask(a, "KnownCaptures", JOB, capture_id)).capture_ids) == [capture_id]
        wanted = pb.DispatchTarget(target_id=theirs.target_id, registration=theirs.registration.uuid)
        conflict = await refusal(ask(b, "Dispatch", OTHER, capture_id, targets=[wanted]))
        assert isinstance(conflict, RequestKeyConflict)
        assert JOB.name not in str(conflict)
        await ask(b, "Withdraw", OTHER, capture_id)
        await ask(b, "Withdraw", OTHER, capture_id, target_ids=[mine.target_id])
        assert (await a.fact(capture_id, mine)).state is TargetState.QUEUED
        assert lab.daemon.withdrawn == []
        # Another job's registration is nobody's in this one.
        await b.dispatch(mine, job=OTHER)
        assert b.answer[mine.target_id].failure.reason.value == "STALE_REGISTRATION"  # type: ignore[union-attr]


@in_loop
async def test_a_cancel_that_comes_first_is_for_its_own_jobs_capture_only(lab: Lab) -> None:
    mine = lab.worker()
    lab.worker(rank=1, local_rank=1, job=OTHER)
    async with (
        served(lab) as node,
        node.by(node.api.coordinator("a", JOB)) as a,
        node.by(node.api.coordinator("b", OTHER)) as b,
    ):
        guessed, cancelled = lab.capture_id(), lab.capture_id()
        await ask(b, "Withdraw", OTHER, guessed)
        await a.dispatch(mine, capture_id=guessed)
        assert a.answer[mine.target_id].state < TargetState.FAILED
        await ask(a, "Withdraw", JOB, cancelled)
        await a.dispatch(mine, capture_id=cancelled)
        assert a.answer[mine.target_id].state is TargetState.FAILED


@in_loop
async def test_a_manifest_is_published_under_its_own_jobs_prefix_or_not_at_all(lab: Lab) -> None:
    lab.worker()
    lab.worker(rank=1, local_rank=1, job=OTHER)
    body, theirs = _manifest(JOB, "b" * 32), _manifest(OTHER, "b" * 32)
    async with served(lab) as node, node.by(node.api.coordinator("a", JOB)) as a:
        for manifest, capture_id, job in (
            (theirs, "b" * 32, JOB),  # of another job
            (theirs, "b" * 32, OTHER),  # for another job
            (body, "c" * 32, JOB),  # of another capture
            (body, "../../x", JOB),
        ):
            error = await refusal(ask(a, "PublishManifest", job, capture_id, manifest=manifest))
            assert isinstance(error, UsageError | Denied), error
        assert not list(lab.archive.rglob("*.json"))
        answer = await ask(a, "PublishManifest", JOB, "b" * 32, manifest=body)
        assert answer.uri.endswith(f"/{JOB.namespace}/{JOB.name}/0/{'b' * 32}/manifest.json")


def _manifest(job: JobRef, capture_id: str) -> bytes:
    stated = Job(job.namespace, job.name, job.uid, job.attempt, "series")
    return encode(build(make_capture(job=stated, capture_id=capture_id, world_size=1), [archived(0)]))


@in_loop
async def test_while_the_api_server_is_away_a_running_capture_goes_on_and_strangers_stay_out(lab: Lab) -> None:
    worker = lab.worker()
    async with served(lab) as node, node.by(node.api.coordinator("a", JOB)) as a, node.by(spelt("b")) as stranger:
        capture_id = await a.dispatch(worker)
        clock = node.agent.config.callers.reviews._answers  # type: ignore[attr-defined]
        node.api.away = True
        before = clock._clock
        clock._clock = lambda: before() + 60.0
        worker.write_trace(capture_id)
        await a.until_archived(capture_id, worker)
        assert isinstance(await refusal(ask(stranger, "ListWorkers")), Unreachable)
        clock._clock = lambda: before() + OUTAGE_S + 1
        assert isinstance(await refusal(ask(a, "ListWorkers")), Unreachable)
        node.api.away = False
        assert len(await a.workers()) == 1


@in_loop
async def test_a_stranger_is_turned_away_before_its_message_is_read(lab: Lab) -> None:
    lab.worker()
    async with served(lab) as node, node.by(None) as stranger:
        error = await refusal(ask(stranger, "Dispatch", capture_id="not an id"))
        assert isinstance(error, Denied)
        secure = grpc.ssl_channel_credentials(node.authority.pem)
        options = [("grpc.ssl_target_name_override", names.AGENT_HOST), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.secure_channel(node.address, secure, options=options) as channel:
            caller = Caller(sameshot_pb2_grpc.AgentStub(channel), lab)  # type: ignore[no-untyped-call]
            error = await refusal(ask(caller, "PublishManifest", manifest=b"x" * (MAX_MESSAGE_BYTES + 1)))
        assert isinstance(error, Denied), "larger than any message may be, and refused for who sent it"
        assert node.api.asked == 0
        assert node.agent.config.callers.refused >= 2  # type: ignore[attr-defined]


@in_loop
async def test_of_whoever_is_no_coordinator_no_message_is_waited_for(lab: Lab) -> None:
    """Whoever may make tokens of an account of its own can make one for agents."""
    async with served(lab) as node:
        tenants = node.api.coordinator("t", JOB, namespace=JOB.namespace)

        def begin_and_wait() -> set[str]:
            with Unfinished(node.address, node.authority.pem, names.AGENT_HOST) as peer:
                begun = {
                    peer.begin(f"Agent/{method}", MAX_MESSAGE_BYTES - 1, token)
                    for method in METHODS
                    for token in ("", "x.y.z", tenants)
                }
                return set(peer.answers(begun).values())

        assert await asyncio.to_thread(begin_and_wait) == {str(grpc.StatusCode.PERMISSION_DENIED.value[0])}


@in_loop
async def test_a_certificate_is_waited_for_and_what_is_missing_is_said(tmp_path: Path) -> None:
    tls = ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key")
    said: list[str] = []
    waiting = asyncio.create_task(certificate.until_usable(tls, said.append))
    await until(lambda: said, "it says what it waits for")
    assert "there is no certificate yet" in said[-1]
    pair, other = Authority().pair(names.AGENT_HOST), Authority().pair(names.AGENT_HOST)
    tls.certificate.write_bytes(pair.certificate)
    tls.key.write_bytes(other.key)
    await until(lambda: "can't be used" in said[-1], "a key of another certificate is none")
    assert not waiting.done()
    tls.key.write_bytes(pair.key)
    await asyncio.wait_for(waiting, 30)
