"""Tokens that a part brings along: renewed in time, asked for once by many threads, and not given up in an outage."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sameshot.errors import Denied, Unreachable
from sameshot.kube.api import ApiError
from sameshot.kube.tokens import ASK_AGAIN_S, FileToken, RequestedToken


class Server:
    """TokenRequest: `t-1`, `t-2`, … valid for `lasts_s` (None: the server does not say)."""

    def __init__(self, lasts_s: int | None = 600) -> None:
        self.now = 5.0
        self.asked: list[Any] = []
        self.trouble: Exception | None = None
        self.lasts_s = lasts_s

    def send(self, method: str, path: str, body: Any = None, *, content_type: str = "") -> bytes:
        self.asked.append((method, path, body))
        if self.trouble is not None:
            raise self.trouble
        spec = {} if self.lasts_s is None else {"spec": {"audiences": ["x"], "expirationSeconds": self.lasts_s}}
        # The server's clock is years away from ours; only how long it lasts counts.
        status = {"token": f"t-{len(self.asked)}", "expirationTimestamp": "2001-01-01T00:00:00Z"}
        return json.dumps({"kind": "TokenRequest", **spec, "status": status}).encode()

    def token(self) -> RequestedToken:
        api: Any = self
        return RequestedToken(api, "ml", "sameshot", "sameshot/u-1", clock=lambda: self.now)


def test_it_is_asked_for_one_audience_and_renewed_after_four_fifths_of_its_life() -> None:
    server = Server(lasts_s=1_000)
    token = server.token()
    assert token() == "t-1"
    assert server.asked == [
        (
            "POST",
            "/api/v1/namespaces/ml/serviceaccounts/sameshot/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": ["sameshot/u-1"], "expirationSeconds": 600},
            },
        )
    ]
    server.now = 5.0 + 799
    assert token() == "t-1"
    server.now = 5.0 + 801
    assert (token(), token()) == ("t-2", "t-2")


def test_where_the_server_does_not_say_it_lasts_as_long_as_was_asked_for() -> None:
    server = Server(lasts_s=None)
    token = server.token()
    token()
    server.now = 5.0 + 479
    assert token() == "t-1"
    server.now = 5.0 + 481
    assert token() == "t-2"


@pytest.mark.parametrize("trouble", [ConnectionRefusedError(), ApiError(503, ""), ApiError(403, "")], ids=str)
def test_while_it_can_not_be_renewed_the_old_one_serves_to_its_end_and_no_call_waits(trouble: Exception) -> None:
    server = Server(lasts_s=600)
    token = server.token()
    token()
    server.trouble = trouble
    server.now = 5.0 + 500
    assert [token() for _ in range(20)] == ["t-1"] * 20
    assert len(server.asked) == 2
    server.now += ASK_AGAIN_S + 1
    token()
    assert len(server.asked) == 3
    server.now = 5.0 + 600
    with pytest.raises((Denied, Unreachable)):
        token()
    server.trouble = None
    assert token() == f"t-{len(server.asked)}"


@pytest.mark.parametrize(
    ("trouble", "error", "says"),
    [
        (ApiError(403, "forbidden"), Denied, "verb create on serviceaccounts/token"),
        (ApiError(404, "not found"), Denied, "There is no ServiceAccount ml/sameshot"),
        (ApiError(500, "etcd"), Unreachable, "No token of the ServiceAccount ml/sameshot"),
        (TimeoutError("timed out"), Unreachable, "does not answer"),
    ],
    ids=["403", "404", "500", "timeout"],
)
def test_without_any_token_the_error_says_whose_and_what_to_do(
    trouble: Exception, error: type[Exception], says: str
) -> None:
    server = Server()
    server.trouble = trouble
    with pytest.raises(error, match=says):
        server.token()()


def test_many_threads_ask_once() -> None:
    server = Server()
    token = server.token()
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(token())) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(10)
    assert seen == ["t-1"] * 20
    assert len(server.asked) == 1


def test_a_projected_token_is_read_anew_and_its_absence_is_said(tmp_path: Path) -> None:
    token = FileToken(tmp_path / "token")
    with pytest.raises(Unreachable, match="can't be read"):
        token()
    (tmp_path / "token").write_text("one\n")
    assert token() == "one"
    (tmp_path / "next").write_text("two")
    (tmp_path / "next").rename(tmp_path / "token")
    assert token() == "two"
