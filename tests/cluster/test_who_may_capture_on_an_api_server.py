"""Needs an API server with RBAC, and its controller manager where bindings of people are to be seen. A coordinator runs
beside it and asks it, by TokenReview and SubjectAccessReview, about tokens that it made, by TokenRequest."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from cluster_at_hand import Cluster, accounts_of, apply
from cluster_parts import Coordinator, coordinator, job_of

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.sameshot_pb2_grpc import CoordinatorStub
from sameshot.api.transport import Endpoint, channel
from sameshot.client import Client
from sameshot.errors import Denied, SameshotError, UnknownCapture
from sameshot.kube import names
from sameshot.kube.reviews import expires_in
from sameshot.kube.tokens import RequestedToken
from sameshot.model import CaptureSpec

Json = dict[str, Any]
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SPEC = CaptureSpec(duration_ms=200, activities=("cpu",))
UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def served(sameshot: Cluster) -> Iterator[Coordinator]:
    """A job's coordinator, the accounts of its namespace, and another namespace with the same accounts."""
    with sameshot.scope() as inner:
        namespace = inner.namespace("ml")
        apply(inner, accounts_of(namespace))
        for account in ("sameshot", "sameshot-viewer"):
            inner.until_captures(namespace, account)
        with coordinator(inner, job_of(inner.armed_job(namespace, "llama"))) as found:
            yield found


@pytest.fixture(scope="module")
def elsewhere(served: Coordinator) -> Iterator[str]:
    with served.cluster.scope() as inner:
        namespace = inner.namespace("other")
        apply(inner, accounts_of(namespace))
        yield namespace


def describe(client: Client) -> object:
    return client.describe()


def start(client: Client) -> object:
    return client.start_capture(SPEC)


def get(client: Client) -> object:
    return client.get(UNKNOWN)


def watch(client: Client) -> object:
    return list(client.watch(UNKNOWN, timeout_s=20))


def captures(client: Client) -> object:
    return client.captures()


def workers(client: Client) -> object:
    return client.workers()


def cancel(client: Client) -> object:
    return client.cancel(UNKNOWN)


def manifest(client: Client) -> object:
    return client.manifest(UNKNOWN)


CALLS = (describe, start, get, watch, captures, workers, cancel, manifest)
READING = {describe, get, watch, captures, workers, manifest}
BAD = {
    "no token": lambda at, other: None,
    "what is no token": lambda at, other: "e30.e30.e30",
    "of nobody's audience: the caller's own credential": lambda at, other: at.cluster.token(
        at.job.namespace, "sameshot"
    ),
    "for agents": lambda at, other: at.cluster.token(at.job.namespace, "sameshot", names.AGENT_AUDIENCE),
    "for another job": lambda at, other: at.cluster.token(at.job.namespace, "sameshot", "sameshot/ffff"),
    "for this job, of the same account in another namespace": lambda at, other: at.cluster.token(
        other, "sameshot", names.audience_of(at.job)
    ),
    "for this job, of an account without rights": lambda at, other: at.cluster.token(
        at.job.namespace, "sameshot-analysis", names.audience_of(at.job)
    ),
}


@pytest.mark.parametrize("token", BAD)
@pytest.mark.parametrize("call", CALLS, ids=[each.__name__ for each in CALLS])
def test_this_token_opens_nothing(
    token: str, call: Callable[[Client], object], served: Coordinator, elsewhere: str
) -> None:
    with served.client(BAD[token](served, elsewhere)) as client, pytest.raises(Denied):
        call(client)


@pytest.mark.parametrize("call", CALLS, ids=[each.__name__ for each in CALLS])
@pytest.mark.parametrize("account", ["sameshot", "sameshot-viewer"])
def test_users_may_all_and_viewers_only_look(
    account: str, call: Callable[[Client], object], served: Coordinator
) -> None:
    with served.client_of(served.job.namespace, account) as client:
        if account == "sameshot-viewer" and call not in READING:
            with pytest.raises(Denied, match=f"sameshot-viewer may not .* of job {served.job.name}"):
                call(client)
        elif call in (get, watch, cancel, manifest):
            with pytest.raises(UnknownCapture):  # let in, and told that there is none
                call(client)
        else:
            call(client)


def test_who_calls_is_whom_the_server_says_and_not_whom_the_call_says(served: Coordinator) -> None:
    with served.client_of(served.job.namespace, "sameshot") as client:
        assert client.describe().caller == f"system:serviceaccount:{served.job.namespace}:sameshot"
    token = served.cluster.token(served.job.namespace, "sameshot-viewer", names.audience_of(served.job))
    to = Endpoint(served.address, ca=served.authority.pem, server_name=served.server_name, token=lambda: token)
    with Client(to, caller="system:serviceaccount:ml:sameshot") as client:
        assert client.describe().caller == f"system:serviceaccount:{served.job.namespace}:sameshot-viewer"
        with pytest.raises(Denied):
            client.start_capture(SPEC)


def test_one_verb_that_is_missing_is_missed(served: Coordinator) -> None:
    """Somebody who may begin captures and look at them, and has no `delete`."""
    group, where = "rbac.authorization.k8s.io", served.job.namespace
    rule = {"apiGroups": [names.GROUP], "resources": [names.CAPTURES], "verbs": ["create", "get", "list"]}
    with served.cluster.scope() as inner:
        who = inner.account(where, "no-delete")
        meta = {"name": "no-delete", "namespace": where}
        inner.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [rule]})
        inner.create(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "no-delete"},
                "subjects": [{"kind": "ServiceAccount", "name": "no-delete", "namespace": where}],
            }
        )
        what = f"{names.CAPTURES}.{names.GROUP}"
        inner.until(lambda: inner.may(who, "create", what, namespace=where, name="llama"), "it is in force")
        with served.client_of(where, "no-delete") as client:
            begun = client.start_capture(SPEC)
            with pytest.raises(Denied, match="may not delete"):
                client.cancel(begun.capture_id)
            assert client.get(begun.capture_id).caller == who


@pytest.mark.parametrize("account", ["sameshot", "sameshot-viewer"])
def test_only_the_operator_ends_a_coordinator(account: str, served: Coordinator) -> None:
    token = served.cluster.token(served.job.namespace, account, names.audience_of(served.job))
    to = Endpoint(served.address, ca=served.authority.pem, server_name=served.server_name, token=lambda: token)
    with channel(to) as opened:
        stub: Any = CoordinatorStub(opened)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            stub.Retire(pb.RetireRequest(), timeout=20)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_the_operator_s_account_describes_and_does_not_capture(served: Coordinator) -> None:
    token = served.cluster.token(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT, names.audience_of(served.job))
    with served.client(token) as client:
        client.describe()
        for call in (start, captures, workers, cancel):
            with pytest.raises(Denied):
                call(client)


def test_a_token_whose_account_is_gone_opens_nothing(served: Coordinator) -> None:
    served.cluster.not_too_slow("what was said of a token is remembered for seconds")
    where = served.job.namespace
    with served.cluster.scope() as inner:
        inner.bind(where, "sameshot-user", inner.account(where, "short-lived"))
        token = inner.token(where, "short-lived", names.audience_of(served.job))
        what, who = f"{names.CAPTURES}.{names.GROUP}", f"system:serviceaccount:{where}:short-lived"
        inner.until(lambda: inner.may(who, "get", what, namespace=where, name="llama"), "it is in force")
        with served.client(token) as client:
            client.describe()

    def refused() -> bool:
        try:
            with served.client(token) as client:
                client.describe()
        except Denied:
            return True
        return False

    # What was said of it is remembered for seconds here, and for some more in the server.
    served.cluster.until(refused, "it is refused", 60)


def test_another_authority_s_coordinator_is_not_believed(served: Coordinator) -> None:
    from tls import Authority

    to = Endpoint(served.address, ca=Authority().pem, server_name=served.server_name, token=lambda: "x")
    with Client(to) as client, pytest.raises(SameshotError) as refused:
        client.describe()
    assert not isinstance(refused.value, Denied), "the token was never sent"
    to = msgspec.structs.replace(
        to, ca=served.authority.pem, server_name=f"c-other-0.{names.COORDINATORS_NAMESPACE}.svc"
    )
    with Client(to) as client, pytest.raises(SameshotError) as refused:
        client.describe()
    assert not isinstance(refused.value, Denied)


def test_a_token_is_asked_for_by_an_account_for_itself_alone(served: Coordinator) -> None:
    """As a step's pod does it."""
    from sameshot.steps.rights import rights

    with served.cluster.scope() as inner:
        engine = inner.namespace("engine")
        for each in rights("steps", engine, jobs_in=[served.job.namespace]):
            inner.create(each)
        who = f"system:serviceaccount:{engine}:steps"
        inner.until(
            lambda: inner.may(who, "create", "serviceaccounts/token", namespace=engine, name="steps"), "it is in force"
        )
        api = inner.kube(engine, "steps")
        token = RequestedToken(api, engine, "steps", names.audience_of(served.job))
        assert 500 < expires_in(token()) <= 3700
        with served.client(token()) as client:
            assert client.describe().caller == who
        with pytest.raises(Denied, match="serviceaccounts/token"):
            RequestedToken(api, engine, "default", names.audience_of(served.job))()


def test_tokens_are_good_for_their_time_and_for_one_audience(served: Coordinator) -> None:
    """What the server itself says of them."""
    where, audience = served.job.namespace, names.audience_of(served.job)
    path = f"/api/v1/namespaces/{where}/serviceaccounts/sameshot/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 600},
    }
    asked = served.cluster.api.call("POST", path, body).thing["status"]
    ends = datetime.datetime.fromisoformat(asked["expirationTimestamp"])
    left = (ends - datetime.datetime.now(datetime.UTC)).total_seconds()
    assert 500 < left <= 601
    for audiences, good in (([audience], True), (["sameshot/ffff"], False), ([], False)):
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": asked["token"], **({"audiences": audiences} if audiences else {})},
        }
        said = served.cluster.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).thing["status"]
        assert bool(said.get("authenticated")) is good, audiences
        if good:
            assert said["user"]["username"] == f"system:serviceaccount:{where}:sameshot"
            assert said["audiences"] == [audience]


def test_nothing_in_a_capture_was_written_to_the_server(served: Coordinator) -> None:
    """By the server's own log of requests, which only the emulated one keeps; a real one shows what the account may."""
    who = names.username_of(names.COORDINATORS_NAMESPACE, names.account_of(served.job))
    with served.client_of(served.job.namespace, "sameshot") as client:
        view = client.wait(client.start_capture(SPEC).capture_id, timeout_s=120)
    assert view.state.terminal
    if served.cluster.emulated is not None:
        assert served.cluster.emulated.writes(user=who) == []
        assert served.cluster.emulated.count(user=who, verb="watch") > 0
    for verb in ("create", "update", "patch", "delete"):
        for what in ("pods", "events", "configmaps", f"{names.COORDINATORS}.{names.GROUP}"):
            assert not served.cluster.may(who, verb, what, namespace=served.job.namespace), (verb, what)
