"""Tokens that a part brings along: from a file that the kubelet renews, or asked for (TokenRequest) and renewed here.

Both are called by gRPC in a thread of its own, at every call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sameshot.errors import Denied, Unreachable
from sameshot.kube.api import TROUBLES, ApiError, Sender

LASTS_S = 600  # the least that API servers give
RENEWED_AFTER = 0.8  # of its life
ASK_AGAIN_S = 10.0  # where it could not be renewed: meanwhile no call waits for a server that is silent


class NoAccount(Denied):
    """There is no such ServiceAccount."""


class FileToken:
    """A projected token; the kubelet replaces the file long before it expires."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> str:
        try:
            return self._path.read_text().strip()
        except OSError as error:
            raise Unreachable(f"The token in {self._path} can't be read: {error}.") from None


class RequestedToken:
    """A token of a ServiceAccount for one audience, asked for when it is needed. Safe in threads.

    How long it lasts is counted here from the question on: the clock of a laptop may be wrong by more than that.
    """

    def __init__(
        self, api: Sender, namespace: str, account: str, audience: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._account = account
        self._audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._renew_at, self._ends_at = "", float("-inf"), float("-inf")

    def __call__(self) -> str:
        """Raises Denied where it may not be asked for, Unreachable where the API server does not answer."""
        with self._lock:
            if self._clock() >= self._renew_at:
                try:
                    self._ask()
                except (Denied, Unreachable):
                    if self._clock() >= self._ends_at:
                        raise
                    self._renew_at = self._clock() + ASK_AGAIN_S
            return self._token

    def _ask(self) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{self._account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [self._audience], "expirationSeconds": LASTS_S},
        }
        now = self._clock()
        try:
            answer = msgspec.json.decode(self._api.send("POST", path, body), type=_Requested)
        except ApiError as error:
            account = f"ServiceAccount {self._namespace}/{self._account}"
            if error.status in (401, 403):
                raise Denied(
                    f"No token of the {account} was given ({error}). Whoever calls needs the verb create on "
                    "serviceaccounts/token of it."
                ) from None
            if error.status == 404:
                raise NoAccount(f"There is no {account}.") from None
            raise Unreachable(f"No token of the {account} was given: {error}.") from None
        except TROUBLES as error:
            raise Unreachable(f"The API server does not answer: {error}.") from None
        lasts_s = answer.spec.expiration_seconds or LASTS_S  # a server may give more or less than was asked for
        self._token, self._ends_at = answer.status.token, now + lasts_s
        self._renew_at = now + RENEWED_AFTER * lasts_s


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    expiration_seconds: int | None = None


class _Status(msgspec.Struct):
    token: str


class _Requested(msgspec.Struct):
    status: _Status
    spec: _Spec = _Spec()
