"""Bearer tokens of an emulated API server: ServiceAccounts' (JWTs with audience, expiry and what they are bound to),
and opaque ones for people."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster_rbac import User

Json = dict[str, Any]
AUDIENCE = "https://kubernetes.default.svc.cluster.local"  # the API server's own
EVERYBODY = "system:authenticated"


class BadToken(Exception):
    """Why it is not taken."""


@dataclass(frozen=True)
class Bearer:
    user: User
    audiences: tuple[str, ...]


class Tokens:
    """`find` gives a living object by (plural, namespace, name): a token dies with what it is bound to."""

    def __init__(self, find: Callable[[str, str, str], Json | None]) -> None:
        self._find = find
        self._key = secrets.token_bytes(32)
        self._people: dict[str, User] = {}

    def person(self, name: str, *groups: str) -> str:
        token = f"person-{secrets.token_hex(16)}"
        self._people[token] = User(name, (*groups, EVERYBODY))
        return token

    def account(
        self, account: Json, *, audiences: tuple[str, ...] = (AUDIENCE,), lasts_s: float = 3600, pod: Json | None = None
    ) -> tuple[str, float]:
        """A token of a ServiceAccount object, and when it expires (seconds since 1970)."""
        now = time.time()
        meta = account["metadata"]
        private: Json = {
            "namespace": meta["namespace"],
            "serviceaccount": {"name": meta["name"], "uid": meta["uid"]},
        }
        if pod is not None:
            private["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        claims = {
            "iss": AUDIENCE,
            "sub": f"system:serviceaccount:{meta['namespace']}:{meta['name']}",
            "aud": list(audiences),
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now + lasts_s),
            "jti": secrets.token_hex(8),
            "kubernetes.io": private,
        }
        head = f"{_spelt({'alg': 'HS256', 'typ': 'JWT'})}.{_spelt(claims)}"
        return f"{head}.{self._signature(head)}", float(claims["exp"])

    def bearer(self, token: str, audiences: tuple[str, ...] = (AUDIENCE,)) -> Bearer:
        """Whose it is, and for which of these audiences. Raises BadToken."""
        if (person := self._people.get(token)) is not None:
            if AUDIENCE not in audiences:
                raise BadToken("token is not for these audiences")
            return Bearer(person, (AUDIENCE,))
        head, _, signature = token.rpartition(".")
        if not head or not hmac.compare_digest(self._signature(head), signature):
            raise BadToken("invalid bearer token")
        claims = _read(head.partition(".")[2])
        if time.time() >= claims["exp"]:
            raise BadToken("token has expired")
        common = tuple(one for one in audiences if one in claims["aud"])
        if not common:
            raise BadToken(f"token audiences {claims['aud']} is invalid for the target audiences {list(audiences)}")
        return Bearer(self._user(claims["kubernetes.io"], claims["jti"]), common)

    def _user(self, private: Json, jti: str) -> User:
        namespace, account = private["namespace"], private["serviceaccount"]
        for plural, bound in (("serviceaccounts", account), ("pods", private.get("pod"))):
            if bound is not None:
                found = self._find(plural, namespace, bound["name"])
                if found is None or found["metadata"]["uid"] != bound["uid"]:
                    raise BadToken(f"the token is bound to one of {plural} that is gone: {namespace}/{bound['name']}")
        extra = {"authentication.kubernetes.io/credential-id": [f"JTI={jti}"]}
        if (pod := private.get("pod")) is not None:
            extra["authentication.kubernetes.io/pod-name"] = [pod["name"]]
            extra["authentication.kubernetes.io/pod-uid"] = [pod["uid"]]
        name = f"system:serviceaccount:{namespace}:{account['name']}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", EVERYBODY)
        return User(name, groups, account["uid"], extra)

    def _signature(self, head: str) -> str:
        return _text(hmac.digest(self._key, head.encode(), hashlib.sha256))


def _spelt(value: Json) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(part: str) -> Json:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
