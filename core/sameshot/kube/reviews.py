"""Who is calling, and may they: TokenReview and SubjectAccessReview, remembered for seconds only.

A caller never sends its own API credential but a token for one audience; we have the API server look at it and ask what
the account behind it may do. While the server can't be asked (no answer, or one of its 5xx), what it last said of this
very token may hold on for a while, never longer than the token itself: so a capture that runs does not notice.
(https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/)
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from sameshot.errors import Denied, Unreachable
from sameshot.kube.api import TROUBLES, Api, ApiError

REMEMBERED_S = 5.0
MAX_REMEMBERED = 1_000
MAX_TOKEN = 16 << 10

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_Answer = TypeVar("_Answer")


class Who(msgspec.Struct, frozen=True):
    """An account as the API server knows it."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class TokenReviews:
    """Tokens of one audience. `outage_s`: so long the last word on a token holds while the server can't be asked."""

    def __init__(
        self, api: Api, audience: str, *, outage_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._audience = audience
        self._answers: _Remembered[Who] = _Remembered(outage_s, clock)

    async def who(self, token: str) -> Who:
        """Whose token it is. Raises Denied for one that is not valid here, Unreachable where nobody can say."""
        if not token or len(token) > MAX_TOKEN:
            raise Denied("The call brought no token; use a client that asks for one (TokenRequest) for this audience.")
        key = hashlib.sha256(token.encode()).hexdigest()
        return await self._answers.get(key, lambda: self._ask(token), expires_in(token))

    def _ask(self, token: str) -> Who:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        status = msgspec.json.decode(self._api.send("POST", TOKEN_REVIEWS, body), type=_Reviewed).status
        if not status.authenticated or status.user is None or self._audience not in (status.audiences or ()):
            why = status.error or "it has expired, was made for somebody else, or is none"
            raise Denied(f"The token is not valid for {self._audience}: {why[:300]}.")
        user = status.user
        return Who(user.username, user.uid, tuple(user.groups or ()), user.extra or {})


class AccessReviews:
    """What an account may do on one resource of one namespace."""

    def __init__(
        self,
        api: Api,
        *,
        group: str,
        resource: str,
        namespace: str,
        outage_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._about = {"group": group, "resource": resource, "namespace": namespace}
        self._answers: _Remembered[None] = _Remembered(outage_s, clock)

    async def check(self, who: Who, verb: str, name: str) -> None:
        """Raises Denied where `who` may not, Unreachable where nobody can say."""
        asked = {**self._about, "verb": verb, "name": name}
        key = hashlib.sha256(msgspec.json.encode([who, asked], order="deterministic")).hexdigest()
        await self._answers.get(key, lambda: self._ask(who, asked))

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


def expires_in(token: str) -> float:
    """How many seconds a ServiceAccount's token has left by its own word; 0 where it does not say."""
    try:
        _, middle, _ = token.split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        return 0.0
    return max(claims.exp - time.time(), 0.0)


class _Remembered(Generic[_Answer]):
    """Answers for seconds: yes and no alike, so that neither is asked for at every call."""

    def __init__(self, outage_s: float, clock: Callable[[], float]) -> None:
        self._outage_s = outage_s
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, _Answer | Denied]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Answer]] = {}

    async def get(self, key: str, ask: Callable[[], _Answer], lasts_s: float = float("inf")) -> _Answer:
        known = self._known.get(key)
        age = float("inf") if known is None else self._clock() - known[0]
        if known is not None and age < min(REMEMBERED_S, lasts_s):
            return _given(known[1])
        if key not in self._asking:  # many calls at once are one question
            self._asking[key] = asyncio.create_task(asyncio.to_thread(ask))
            self._asking[key].add_done_callback(lambda _: self._asking.pop(key, None))
        try:
            answer: _Answer | Denied = await asyncio.shield(self._asking[key])
        except Denied as error:
            answer = error
        except TROUBLES as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise Unreachable(f"Who calls could not be found out: {error}; see the rights of this part.") from None
            if known is not None and age < min(self._outage_s, lasts_s):
                return _given(known[1])
            raise Unreachable(
                f"Who calls could not be found out, as the API server does not answer: {error}."
            ) from None
        self._known[key] = (self._clock(), answer)
        self._known.move_to_end(key)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return _given(answer)


def _given(answer: _Answer | Denied) -> _Answer:
    if isinstance(answer, Denied):
        raise Denied(str(answer))
    return answer


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


class _Claims(msgspec.Struct):
    exp: float = 0.0
