"""Who is calling, and may they: TokenReview and SubjectAccessReview, remembered for seconds only.

A caller never sends its own API credential but a token for one audience; we have the API server look at it and ask what
the account behind it may do. While the server can't be asked, what it last said of this very token may hold on for a
while, never longer than the token itself: so a capture that runs does not notice. It can't be asked where it answers
nothing for half a second, or says anything but yes or no: its 5xx, 429, or 401 and 403 for our own account (as
servers that have just started do, until they have read their own roles). That we are busy is none of these: a flood of
strangers must not make an old yes last. So what can't be good is refused unasked, and who was good before has threads
of its own and waits behind no stranger.
(https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/)
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from sameshot.errors import Denied, Unreachable
from sameshot.kube.api import TROUBLES, ApiError, Sender
from sameshot.kube.claims import claims_of
from sameshot.threads import DaemonThreads

log = logging.getLogger(__name__)

REMEMBERED_S = 5.0
PATIENCE_S = 0.5
"""So long is a server waited for whose last word still holds: callers' own deadlines are short."""
MAX_REMEMBERED = 1_000  # of yes, and as many of no: whoever floods us with garbage drives no good token out
MAX_STRANGERS = 256  # who wait for an answer on what was never good before; more are turned away
MAX_TOKEN = 16 << 10
CLOCKS_APART_S = 60.0  # so much ours may be ahead of the API server's
# Of their own: a server that hangs holds up nothing else.
STRANGERS_THREADS = 6
KNOWN_THREADS = 4

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_PRINTABLE = re.compile(r"[\x21-\x7e]+")

_Answer = TypeVar("_Answer")


class Who(msgspec.Struct, frozen=True):
    """An account as the API server knows it."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


@dataclass
class Tally:
    """Questions to the API server since the start, and calls that were let through or refused by its last word."""

    asked: int = 0
    denied: int = 0
    unanswered: int = 0
    held: int = 0


class TokenReviews:
    """Tokens of one audience. `outage_s`: so long the last word on a token holds while the server can't be asked."""

    def __init__(
        self,
        api: Sender,
        audience: str,
        *,
        outage_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._audience = audience
        self._outage_s = outage_s
        self._wall_clock = wall_clock
        self._answers: _Remembered[Who] = _Remembered(clock)

    @property
    def tally(self) -> Tally:
        return self._answers.tally

    async def who(self, token: str, *, outage_s: float | None = None) -> Who:
        """Whose token it is; `outage_s` for this call instead of the usual.

        Raises Denied for one that is not valid here, Unreachable where nobody can say.
        """
        if not token:
            raise Denied("The call brought no token; use a client that asks for one (TokenRequest) for this audience.")
        if len(token) > MAX_TOKEN or not _PRINTABLE.fullmatch(token):
            raise Denied(f"What the call brought as a token is none: {len(token)} characters.")
        claims, now = claims_of(token), self._wall_clock()
        if not claims.meant_for(self._audience) or claims.exp <= now - CLOCKS_APART_S:
            raise Denied(
                f"The token is not valid for {self._audience}: by its own word it is for somebody else or has expired, "
                "or it is no token of a ServiceAccount."
            )
        key = hashlib.sha256(token.encode()).hexdigest()
        return await self._answers.get(
            key,
            lambda: self._ask(token),
            valid=claims.exp > now,
            outage_s=self._outage_s if outage_s is None else outage_s,
        )

    def _ask(self, token: str) -> Who:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        status = msgspec.json.decode(self._api.send("POST", TOKEN_REVIEWS, body), type=_Reviewed).status
        user = status.user
        if not status.authenticated or user is None or not user.username:
            why = status.error or "it has expired, was made for somebody else, or is none"
            raise Denied(f"The token is not valid for {self._audience}: {why[:300]}.")
        if self._audience not in (status.audiences or ()):  # none: of a server that knows no audiences
            raise Denied(f"The token is not valid for {self._audience}: it is for {(status.audiences or [])[:5]}.")
        return Who(user.username, user.uid, tuple(user.groups or ()), user.extra or {})


class AccessReviews:
    """What an account may do on one resource of one namespace."""

    def __init__(
        self,
        api: Sender,
        *,
        group: str,
        resource: str,
        namespace: str,
        outage_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._about = {"group": group, "resource": resource, "namespace": namespace}
        self._outage_s = outage_s
        self._answers: _Remembered[None] = _Remembered(clock)

    @property
    def tally(self) -> Tally:
        return self._answers.tally

    async def check(self, who: Who, verb: str, name: str, *, outage_s: float | None = None) -> None:
        """Whether `who` may; `outage_s` for this call instead of the usual.

        Raises Denied where it may not, Unreachable where nobody can say.
        """
        asked = {**self._about, "verb": verb, "name": name}
        key = hashlib.sha256(msgspec.json.encode([who, asked], order="deterministic")).hexdigest()
        await self._answers.get(
            key,
            lambda: self._ask(who, asked),
            valid=True,
            outage_s=self._outage_s if outage_s is None else outage_s,
        )

    def _ask(self, who: Who, asked: Mapping[str, str]) -> None:
        spec: dict[str, Any] = {
            "user": who.username,
            "uid": who.uid,
            "groups": who.groups,
            "extra": who.extra,
            "resourceAttributes": asked,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = msgspec.json.decode(self._api.send("POST", ACCESS_REVIEWS, body), type=_Allowed).status
        if not status.allowed or status.denied:
            raise Denied(
                f"{who.username} may not {asked['verb']} {asked['resource']}.{asked['group']} of job {asked['name']} "
                f"in namespace {asked['namespace']}; bind the ClusterRole sameshot-user or sameshot-viewer to it."
            )


def expires_in(token: str, now: float | None = None) -> float:
    """How many seconds a ServiceAccount's token has left by its own word; 0 where it does not say.

    Nobody has looked at the signature: good for not holding on to a token, never for letting one through.
    """
    return max(claims_of(token).exp - (time.time() if now is None else now), 0.0)


class _Remembered(Generic[_Answer]):
    """Answers for seconds: yes and no alike, so that neither is asked for at every call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.tally = Tally()
        self._clock = clock
        self._yes: OrderedDict[str, tuple[float, _Answer]] = OrderedDict()  # with the moment of the question
        self._no: OrderedDict[str, tuple[float, Denied]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Answer | Denied | Unreachable]] = {}
        self._strange: set[str] = set()  # those of them that were never good before
        self._strangers = 0  # calls that wait for one of these
        self._heard = 0  # answers of the server, and errors
        self._silent_until = float("-inf")
        self._quiet_until = float("-inf")  # what is wrong was logged
        self._for_known = DaemonThreads(KNOWN_THREADS, "sameshot-reviews-known")
        self._for_strangers = DaemonThreads(STRANGERS_THREADS, "sameshot-reviews")

    async def get(self, key: str, ask: Callable[[], _Answer], *, valid: bool, outage_s: float) -> _Answer:
        """The answer. A yes that is not `valid` any more, by what it is about, is told to nobody."""
        last = self._no.get(key) or (self._yes.get(key) if valid else None)
        age = float("inf") if last is None else self._clock() - last[0]
        outcome: _Answer | Denied | Unreachable
        if last is not None and age < REMEMBERED_S:
            outcome = last[1]
        elif last is not None and age < outage_s:
            silent = self._clock() < self._silent_until
            outcome = Unreachable() if silent else await self._asked(key, ask, patiently=False)
            if isinstance(outcome, Unreachable):
                self.tally.held += 1
                outcome = last[1]
        else:
            outcome = await self._asked(key, ask, patiently=True)
        if isinstance(outcome, Denied | Unreachable):
            raise type(outcome)(str(outcome))  # a new one: several callers may raise it
        return outcome

    async def _asked(self, key: str, ask: Callable[[], _Answer], *, patiently: bool) -> _Answer | Denied | Unreachable:
        """What the server says; Unreachable: nothing that counts, or (unless `patiently`) nobody got an answer lately.

        Raises Unreachable where too many strangers wait, which is no word on the server.
        """
        stranger = key not in self._yes
        if stranger and max(self._strangers, len(self._strange)) >= MAX_STRANGERS:
            raise Unreachable("Too many calls at once whose tokens are not known yet; call again.")
        if key not in self._asking:  # many calls at once are one question
            self._asking[key] = asyncio.create_task(self._learn(key, ask, stranger))
            if stranger:
                self._strange.add(key)
        question = self._asking[key]
        self._strangers += stranger
        try:
            while not question.done():
                heard = self._heard
                # Not awaited itself: a caller that gives up does not end the question for the others.
                await asyncio.wait({question}, timeout=None if patiently else PATIENCE_S)
                if not question.done() and self._heard == heard:
                    self._silent_until = self._clock() + REMEMBERED_S
                    return Unreachable()
        finally:
            self._strangers -= stranger
        return question.result()

    async def _learn(self, key: str, ask: Callable[[], _Answer], stranger: bool) -> _Answer | Denied | Unreachable:
        began = self._clock()
        self.tally.asked += 1

        def asked() -> _Answer:
            try:
                return ask()
            finally:
                self._heard += 1

        try:
            threads = self._for_strangers if stranger else self._for_known
            answer = await asyncio.get_running_loop().run_in_executor(threads, asked)
        except Denied as error:
            self.tally.denied += 1
            self._silent_until = float("-inf")
            self._yes.pop(key, None)
            refusal = Denied(str(error))  # without the frames that raised it, and the token in them
            _put(self._no, key, (began, refusal))
            return refusal
        except Exception as error:
            self.tally.unanswered += 1
            trouble = _unanswered(error)
            if self._clock() >= self._quiet_until:  # once in a while, however many ask
                log.warning("%s", trouble)
                self._quiet_until = self._clock() + REMEMBERED_S
            if not stranger:  # what befalls a stranger's token says nothing about others
                self._silent_until = self._clock() + REMEMBERED_S
            return trouble
        finally:
            self._asking.pop(key, None)
            self._strange.discard(key)
        self._silent_until = float("-inf")
        self._no.pop(key, None)
        _put(self._yes, key, (began, answer))
        return answer


def _put(known: OrderedDict[str, Any], key: str, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > MAX_REMEMBERED:
        known.popitem(last=False)


def _unanswered(error: Exception) -> Unreachable:
    if isinstance(error, ApiError) and error.status in (401, 403, 404):
        why = f"Who calls could not be found out: {error}; see the rights of this part (create on the reviews)."
    elif isinstance(error, TROUBLES):
        why = f"Who calls could not be found out, as the API server does not answer: {error}."
    else:
        log.error("asking who calls failed", exc_info=error)
        return Unreachable(f"Who calls could not be found out: {type(error).__name__}.")
    return Unreachable(why)


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None
    audiences: list[str] | None = None
    error: str = ""


class _Reviewed(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _Allowed(msgspec.Struct):
    status: _AccessStatus
