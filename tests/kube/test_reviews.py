"""Whose token it is and what it may do: answers are kept for seconds, and through an outage as far as is allowed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from agent_lab import in_loop
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.errors import Denied, SameshotError, Unreachable
from sameshot.kube import reviews
from sameshot.kube.api import ApiError, KubeApi
from sameshot.kube.reviews import AccessReviews, TokenReviews, Who

AUDIENCE = "sameshot-agent"
NAME = "system:serviceaccount:sameshot-coordinators:c-1"
GROUPS = ["system:serviceaccounts", "system:authenticated"]


def token(n: int | str = 0, *, exp: object = 10_000.0, aud: object = (AUDIENCE,)) -> str:
    """As the API server makes them, but for the signature; `exp` is of the wall clock below."""
    return jwt(json.dumps({"aud": aud, "exp": exp, "n": n}).encode())


def jwt(claims: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


class Server:
    """The two reviews of an API server. `valid`: token → what the status says; `trouble` is raised instead."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.asked: list[Any] = []
        self.trouble: Exception | None = None
        self.status: Callable[[str], Any] = lambda _: yes()
        self.open = threading.Event()
        self.open.set()

    def send(self, method: str, path: str, body: Any = None, *, content_type: str = "") -> bytes:
        self.asked.append((method, path, body))
        assert self.open.wait(30)
        if self.trouble is not None:
            raise self.trouble
        return json.dumps({"kind": "x", "status": self.status(body["spec"].get("token", ""))}).encode()

    def reviews(self, outage_s: float = 600.0) -> TokenReviews:
        api: Any = self
        return TokenReviews(api, AUDIENCE, outage_s=outage_s, clock=lambda: self.now, wall_clock=lambda: self.now)

    def access(self, outage_s: float = 0.0) -> AccessReviews:
        api: Any = self
        return AccessReviews(
            api, group="sameshot.dev", resource="captures", namespace="ml", outage_s=outage_s, clock=lambda: self.now
        )


def yes(username: str = NAME) -> Any:
    return {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": username, "groups": GROUPS}}


NO = {"user": {}, "error": "[invalid bearer token, service account token has expired]"}


async def fails(call: Any) -> SameshotError:
    with pytest.raises(SameshotError) as caught:
        await call
    return caught.value


# --- a token


@in_loop
async def test_the_server_is_asked_with_our_audience_and_its_answer_is_the_account() -> None:
    server = Server()
    assert await server.reviews().who(token()) == Who(NAME, "", tuple(GROUPS), {})
    [(method, path, body)] = server.asked
    assert (method, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert body == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token(), "audiences": [AUDIENCE]},
    }


REFUSALS = {
    "the server says no": NO,
    "it says nothing": {},
    "it names no audience: it knows none, or the token is a credential for the API itself": yes() | {"audiences": None},
    "it is for somebody else": yes() | {"audiences": ["sameshot/1", "https://kubernetes.default.svc"]},
    "no user": {"authenticated": True, "audiences": [AUDIENCE]},
    "a user without a name": yes(""),
    "a user, but not authenticated": yes() | {"authenticated": False},
}


@pytest.mark.parametrize("status", REFUSALS.values(), ids=list(REFUSALS))
@in_loop
async def test_a_token_is_refused_unless_the_server_says_yes_for_our_audience(status: Any) -> None:
    server = Server()
    server.status = lambda _: status
    error = await fails(server.reviews().who(token()))
    assert isinstance(error, Denied)
    assert "not valid for sameshot-agent" in str(error)
    assert ("service account token has expired" in str(error)) == (status is NO)


GARBAGE = {
    "none": "",
    "huge": "a" * (reviews.MAX_TOKEN + 1),
    "no text": "\udcff",
    "two words": "a b",
    "lines": "a\nb",
    "no JWT": "abc",
    "a JWT of two parts": "e30.e30",
    "no claims": "e30.e30.c2ln",
    "no base64": f"e30.{'é' * 5}.c2ln",
    "no object": jwt(b"[1]"),
    "a deep one": jwt(b'{"a":' + b"[" * 5_000),
    "for somebody else": token(aud=["sameshot/1", "https://kubernetes.default.svc"]),
    "for somebody else, as a string": token(aud=f"{AUDIENCE}s"),
    "for nobody": jwt(b'{"exp": 10000}'),
    "expired for so long that no clock is to blame": token(exp=1_000.0 - reviews.CLOCKS_APART_S),
    "that does not say when it ends": jwt(json.dumps({"aud": [AUDIENCE]}).encode()),
}


@pytest.mark.parametrize("given", GARBAGE.values(), ids=list(GARBAGE))
@in_loop
async def test_what_is_no_token_is_refused_without_a_question(given: str) -> None:
    server = Server()
    assert isinstance(await fails(server.reviews().who(given)), Denied)
    assert server.asked == []


@pytest.mark.parametrize("aud", [AUDIENCE, [AUDIENCE], ["https://kubernetes.default.svc", AUDIENCE]], ids=str)
@in_loop
async def test_of_what_looks_like_a_token_of_ours_the_server_is_asked_whatever_our_clock_says(aud: Any) -> None:
    server = Server()
    await server.reviews().who(token(aud=aud, exp=1_000.0 - reviews.CLOCKS_APART_S / 2))
    assert len(server.asked) == 1


@in_loop
async def test_yes_and_no_are_remembered_for_seconds_and_then_asked_for_anew() -> None:
    server = Server()
    server.status = lambda given: yes() if given == token("good") else NO
    judge = server.reviews()
    for _ in range(3):
        await judge.who(token("good"))
        assert isinstance(await fails(judge.who(token("bad"))), Denied)
        server.now += reviews.REMEMBERED_S / 3 - 0.1
    assert len(server.asked) == 2
    server.now += reviews.REMEMBERED_S
    server.status = lambda given: NO if given == token("good") else yes()
    assert isinstance(await fails(judge.who(token("good"))), Denied)
    assert (await judge.who(token("bad"))).username == NAME
    assert len(server.asked) == 4
    assert (judge.tally.asked, judge.tally.denied, judge.tally.unanswered, judge.tally.held) == (4, 2, 0, 0)


@in_loop
async def test_many_calls_at_once_are_one_question_and_a_caller_that_gives_up_does_not_end_it() -> None:
    server = Server()
    judge = server.reviews()
    server.open.clear()
    first = asyncio.create_task(judge.who(token()))
    others = [asyncio.create_task(judge.who(token())) for _ in range(50)]
    while not server.asked:
        await asyncio.sleep(0.001)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    server.open.set()
    assert {each.username for each in await asyncio.gather(*others)} == {NAME}
    assert len(server.asked) == 1


# --- while the server can't be asked

TROUBLES: dict[str, Exception] = {
    "refused": ConnectionRefusedError(111, "refused"),
    "timeout": TimeoutError("timed out"),
    "cut off": http.client.IncompleteRead(b""),
    "500": ApiError(500, "etcd"),
    "503": ApiError(503, ""),
    "429": ApiError(429, "too many requests"),
    "403 for our own account": ApiError(403, "tokenreviews is forbidden"),
    "401 for our own account": ApiError(401, "Unauthorized"),
    "a defect of ours": RuntimeError("x"),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=list(TROUBLES))
@in_loop
async def test_the_last_word_on_a_token_holds_for_the_outage_and_an_unknown_one_is_not_let_in(
    trouble: Exception,
) -> None:
    server = Server()
    server.status = lambda given: NO if given == token("bad") else yes()
    judge = server.reviews(outage_s=600)
    await judge.who(token("good"))
    await fails(judge.who(token("bad")))
    server.trouble = trouble
    for later in (6.0, 599.0):
        server.now = 1_000.0 + later
        assert (await judge.who(token("good"))).username == NAME
        assert isinstance(await fails(judge.who(token("bad"))), Denied)
        assert isinstance(await fails(judge.who(token("unknown"))), Unreachable)
    server.now = 1_000.0 + 600.0
    error = await fails(judge.who(token("good")))
    assert isinstance(error, Unreachable)
    assert ("see the rights of this part" in str(error)) == ("own account" in _id(trouble))
    assert token("good") not in str(error)
    server.trouble = None
    assert (await judge.who(token("good"))).username == NAME


def _id(trouble: Exception) -> str:
    return next(name for name, each in TROUBLES.items() if each is trouble)


@in_loop
async def test_an_outage_is_logged_once_in_a_while_however_many_ask(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.trouble = ApiError(403, "tokenreviews is forbidden")
    judge = server.reviews()
    for n in range(50):
        await fails(judge.who(token(n)))
    [said] = [each.getMessage() for each in caplog.records]
    assert "see the rights of this part" in said
    server.now += 60
    await fails(judge.who(token(0)))
    assert len(caplog.records) == 2


@in_loop
async def test_the_outage_rule_may_be_another_for_each_call() -> None:
    server = Server()
    judge, access = server.reviews(outage_s=0), server.access()
    who = await judge.who(token())
    for verb in ("get", "create"):
        server.status = lambda _: {"allowed": True}
        await access.check(who, verb, "llama")
    server.trouble = ConnectionRefusedError()
    server.now += 100
    assert await judge.who(token(), outage_s=120) == who
    await access.check(who, "get", "llama", outage_s=120)
    assert isinstance(await fails(access.check(who, "create", "llama", outage_s=0)), Unreachable)
    assert isinstance(await fails(access.check(who, "list", "llama", outage_s=120)), Unreachable)  # never asked before
    assert isinstance(await fails(judge.who(token(), outage_s=0)), Unreachable)
    assert isinstance(await fails(judge.who(token())), Unreachable)
    server.now += 21
    assert isinstance(await fails(judge.who(token(), outage_s=120)), Unreachable)


@in_loop
async def test_no_word_holds_longer_than_its_token() -> None:
    server = Server()
    judge = server.reviews(outage_s=600)
    short = token(exp=1_100.0)
    await judge.who(short)
    server.trouble = ConnectionRefusedError()
    server.now = 1_099.0
    await judge.who(short)
    server.now = 1_100.0
    assert isinstance(await fails(judge.who(short)), Unreachable)


@in_loop
async def test_an_expired_token_is_not_even_let_through_from_memory() -> None:
    server = Server()
    judge = server.reviews()
    await judge.who(token(exp=1_001.0))
    server.now, server.status = 1_001.5, lambda _: NO
    assert isinstance(await fails(judge.who(token(exp=1_001.0))), Denied)


@in_loop
async def test_a_server_that_hangs_costs_a_known_token_a_moment_once_and_nothing_else_of_the_process() -> None:
    server = Server()
    judge = server.reviews()
    await judge.who(token())
    server.now += 10
    server.open.clear()
    try:
        begun = time.monotonic()
        assert (await judge.who(token())).username == NAME
        waited = time.monotonic() - begun
        assert reviews.PATIENCE_S * 0.9 < waited < 15
        strangers = [asyncio.create_task(judge.who(token(f"stranger {n}"))) for n in range(reviews.MAX_STRANGERS + 10)]
        held_up = 2 + reviews.STRANGERS_THREADS  # what was answered, what was asked of the same token, and strangers
        while len(server.asked) < held_up:
            await asyncio.sleep(0.001)
        begun = time.monotonic()
        for _ in range(100):
            assert (await judge.who(token())).username == NAME
        assert await asyncio.to_thread(lambda: 1) == 1  # the threads for everything else are free
        assert time.monotonic() - begun < waited
        assert len(server.asked) == held_up
        turned_away = [each for each in strangers if each.done()]
        assert len(turned_away) == 10
        assert all(isinstance(each.exception(), Unreachable) for each in turned_away)
    finally:
        server.open.set()
    await asyncio.gather(*strangers, return_exceptions=True)
    assert judge.tally.held == 101


@in_loop
async def test_what_a_slow_server_says_counts_from_the_next_call_on() -> None:
    server = Server()
    judge = server.reviews()
    await judge.who(token())
    server.now, server.status = server.now + 10, lambda _: NO
    server.open.clear()
    assert (await judge.who(token())).username == NAME
    server.open.set()
    while judge.tally.denied == 0:
        await asyncio.sleep(0.001)
    assert isinstance(await fails(judge.who(token())), Denied)


@in_loop
async def test_a_flood_of_garbage_drives_no_good_token_out() -> None:
    server = Server()
    server.status = lambda given: yes() if given == token("good") else NO
    judge = server.reviews()
    await judge.who(token("good"))
    for n in range(reviews.MAX_REMEMBERED + 10):
        await fails(judge.who(token(n)))
    server.now, server.trouble = server.now + 500, ConnectionRefusedError()
    assert (await judge.who(token("good"))).username == NAME
    known = judge._answers
    assert len(known._no) == reviews.MAX_REMEMBERED
    assert len(known._asking) == 0


class Busy(Server):
    """Takes its time with strangers, of whom there are always more than can be asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.revoked = False
        self.answered = 0
        self.status = self.judged
        self.known = threading.Event()
        self.known.set()

    def judged(self, given: str) -> Any:
        if given == token("good"):
            assert self.known.wait(30)
            return NO if self.revoked else yes()
        time.sleep(0.01)
        self.answered += 1
        return NO

    async def flood(self, judge: TokenReviews) -> None:
        async def one(n: int) -> None:
            for again in range(10_000):
                with contextlib.suppress(SameshotError):
                    await judge.who(token(f"{n} {again}"))
                await asyncio.sleep(0.001)

        await asyncio.gather(*(one(n) for n in range(reviews.MAX_STRANGERS + 50)))


@in_loop
async def test_a_flood_of_strangers_neither_keeps_out_who_was_good_nor_lets_in_who_is_no_more() -> None:
    server = Busy()
    judge = server.reviews(outage_s=120)
    await judge.who(token("good"))
    flood = asyncio.create_task(server.flood(judge))
    try:
        while server.answered < 50:
            await asyncio.sleep(0.001)
        for outage_s in (0.0, 120.0):
            server.now += reviews.REMEMBERED_S + 1
            began = time.monotonic()
            await judge.who(token("good"), outage_s=outage_s)
            assert time.monotonic() - began < 5
        assert judge.tally.held == 0
        server.now, server.revoked = server.now + reviews.REMEMBERED_S + 1, True
        assert isinstance(await fails(judge.who(token("good"))), Denied)
    finally:
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


@in_loop
async def test_a_server_that_answers_others_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "PATIENCE_S", 0.1)
    server = Busy()
    judge = server.reviews(outage_s=120)
    await judge.who(token("good"))
    flood = asyncio.create_task(server.flood(judge))
    try:
        server.now, server.revoked = server.now + reviews.REMEMBERED_S + 1, True
        server.known.clear()
        asked = asyncio.create_task(judge.who(token("good")))
        ends = time.monotonic() + 3 * reviews.PATIENCE_S
        while time.monotonic() < ends:
            await asyncio.sleep(0.01)
        assert not asked.done()
        server.known.set()
        assert isinstance(await fails(asked), Denied)
    finally:
        server.known.set()
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


@in_loop
async def test_what_befalls_the_question_about_a_stranger_makes_no_old_yes_last() -> None:
    server = Server()
    judge = server.reviews(outage_s=120)
    await judge.who(token("good"))
    server.now += reviews.REMEMBERED_S + 1
    server.trouble = ApiError(422, "odd")
    await fails(judge.who(token("odd")))
    server.trouble, server.status = None, lambda _: NO
    assert isinstance(await fails(judge.who(token("good"))), Denied)


@in_loop
async def test_a_yes_does_not_come_back_once_there_was_a_no_and_the_reverse() -> None:
    server = Server()
    judge = server.reviews()
    good = token("good")
    await judge.who(good)
    server.now, server.status = server.now + 6, lambda _: NO
    await fails(judge.who(good))
    for n in range(reviews.MAX_REMEMBERED + 1):  # which drives the no out
        await fails(judge.who(token(n)))
    server.trouble = ConnectionRefusedError()
    assert isinstance(await fails(judge.who(good)), Unreachable)

    server.trouble, server.status = None, lambda _: yes()
    await judge.who(good)
    await fails(judge.who(token(n)))  # it was refused just now
    server.now += 6
    await judge.who(token(n))
    server.now, server.trouble = server.now + 6, ConnectionRefusedError()
    assert (await judge.who(token(n))).username == NAME, "the last word was a yes"


def test_a_server_that_speaks_no_json_or_refuses_us_is_no_reason_to_let_anybody_in() -> None:
    """Over a real connection."""
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    answers = [(403, b"tokenreviews.authentication.k8s.io is forbidden"), (201, b"<html>"), (201, b'{"status": 1}'),
               (201, json.dumps({"status": yes()}).encode())]  # fmt: skip
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        async def ask() -> list[str]:
            judge = TokenReviews(
                KubeApi(f"http://127.0.0.1:{server.server_address[1]}", part="test"), AUDIENCE, outage_s=600
            )
            lasting = token(exp=time.time() + 600)
            said = [str(await fails(judge.who(lasting))) for _ in range(3)]
            assert (await judge.who(lasting)).username == NAME
            return said

        said = asyncio.run(ask())
        server.shutdown()
    assert ["could not be found out" in each for each in said] == [True] * 3
    assert "tokenreviews.authentication.k8s.io is forbidden" in said[0]


# --- what an account may do


@in_loop
async def test_access_is_asked_for_by_verb_job_and_account_and_remembered_by_all_of_them() -> None:
    server = Server()
    allowed = {("get", "llama"), ("create", "llama")}

    def judged(_: str) -> Any:
        attributes = server.asked[-1][2]["spec"]["resourceAttributes"]
        return {"allowed": (attributes["verb"], attributes["name"]) in allowed}

    server.status = judged
    access = server.access()
    who = Who("ann", "u-1", ("team",), {"scopes": ["a"]})
    await access.check(who, "get", "llama")
    assert server.asked[-1] == (
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "ann",
                "uid": "u-1",
                "groups": ("team",),
                "extra": {"scopes": ["a"]},
                "resourceAttributes": {
                    "group": "sameshot.dev", "resource": "captures", "namespace": "ml", "verb": "get", "name": "llama",
                },
            },
        },
    )  # fmt: skip
    await access.check(who, "get", "llama")
    assert len(server.asked) == 1
    await access.check(who, "create", "llama")
    error = await fails(access.check(who, "delete", "llama"))
    assert isinstance(error, Denied)
    assert str(error).startswith("ann may not delete captures.sameshot.dev of job llama in namespace ml")
    assert isinstance(await fails(access.check(who, "get", "other")), Denied)
    await access.check(Who("ann", "u-1", ("another team",)), "get", "llama")
    assert len(server.asked) == 5


@in_loop
async def test_an_explicit_denial_outweighs_allowed() -> None:
    server = Server()
    server.status = lambda _: {"allowed": True, "denied": True}
    assert isinstance(await fails(server.access().check(Who("ann"), "get", "llama")), Denied)


# --- any course of events

EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 4.0, 6.0, 50.0, 130.0])),
    st.tuples(st.sampled_from(["up", "down", "revoke", "restore", "call"]), st.just(0.0)),
)


@given(events=st.lists(EVENTS, max_size=40), lasts_s=st.sampled_from([7.0, 60.0, 10_000.0]))
@settings(max_examples=150, deadline=None)
def test_whoever_is_let_in_was_good_lately_as_far_as_could_be_known(
    events: list[tuple[str, float]], lasts_s: float
) -> None:
    """Against the whole history: who is let in, was good at a moment recent enough when the server could say so."""
    outage_s = 120.0
    server = Server()
    began = server.now
    good = token(exp=began + lasts_s)
    history = [(server.now, True, True)]  # (since when, up, valid); a token expires by itself

    async def play() -> None:
        judge = server.reviews(outage_s)
        up, valid = True, True
        server.status = lambda _: yes() if valid and server.now < began + lasts_s else NO
        for event, amount in [*events, ("call", 0.0)]:
            server.now += amount
            if event in ("up", "down"):
                up = event == "up"
                server.trouble = None if up else ConnectionRefusedError()
            elif event in ("revoke", "restore"):
                valid = event == "restore"
            history.append((server.now, up, valid))
            if event != "call":
                continue
            try:
                await judge.who(good)
                seen = "in"
            except Denied:
                seen = "denied"
            except Unreachable:
                seen = "unreachable"
            _check(seen, up)

    def states(since: float) -> list[tuple[bool, bool]]:
        """All (up, valid) that held at some moment from `since` until now."""
        before = [each for each in history if each[0] <= since]
        return [each[1:] for each in [*before[-1:], *(each for each in history if each[0] > since)]]

    def _check(seen: str, up: bool) -> None:
        now = server.now
        could_say = states(now - outage_s)
        lately = states(now - reviews.REMEMBERED_S)
        if seen == "in":
            assert now < began + lasts_s
            assert (True, True) in could_say
            if all(each[0] for each in lately):  # up all the time: seconds only
                assert (True, True) in lately
        elif seen == "unreachable":
            assert not up
        elif all(each == (True, True) for each in lately):
            assert now >= began + lasts_s, "denied though it was good for long"

    asyncio.run(play())
