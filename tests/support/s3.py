"""A real HTTP S3 endpoint on loopback (moto's server), and a proxy before it that misbehaves on request.

    with moto_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "archive")
        proxy.add(Fault.UNAVAILABLE, times=2, method="PUT")
        with s3_environment(proxy.url): ...

moto keeps objects in memory and stores checksums without comparing them, so the proxy can also play that part of S3
(`checks_digests`): it answers 400 BadDigest where a body differs from its `x-amz-checksum-sha256`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import hashlib
import http.client
import http.server
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import boto3
from moto.server import ThreadedMotoServer

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Serve an empty S3 on a free loopback port; yields its URL. One process has one set of buckets."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_client(endpoint: str) -> Any:
    """An independent client (boto3), to look at the store from outside."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def make_bucket(endpoint: str, name: str) -> Any:
    client = s3_client(endpoint)
    client.create_bucket(Bucket=name)
    return client


@contextlib.contextmanager
def s3_environment(endpoint: str) -> Iterator[None]:
    """The environment in which a user would point sameshot at this endpoint."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    with mock.patch.dict(os.environ, settings):
        yield


class Fault(enum.Enum):
    """One way in which a store or the way to it goes wrong."""

    UNAVAILABLE = "answer 503 without forwarding"
    DENIED = "answer 403 without forwarding"
    BAD_REQUEST = "answer 400 without forwarding"
    CONFLICT = "answer 409 without forwarding"
    SLOW = "wait `delay_s`, then forward"
    CUT = "reset the connection after half of the body"
    LOST_ANSWER = "forward, then reset the connection instead of answering"
    SHORT_ANSWER = "forward, then reset the connection after half of the answer's body"
    FLIP = "flip one bit of the body and forward it"
    HALVE = "forward only the first half of the body"
    FLIP_ANSWER = "flip one bit of the answer's body"


@dataclasses.dataclass
class _Planned:
    fault: Fault
    times: int
    method: str
    query: str
    delay_s: float


@dataclasses.dataclass(frozen=True)
class Seen:
    """One request that reached the proxy, and what was done with it."""

    method: str
    path: str
    headers: dict[str, str]
    size: int
    fault: Fault | None


class FaultyProxy:
    """An HTTP proxy in front of `upstream` that applies planned faults, in order, to matching requests."""

    def __init__(self, upstream: str, *, checks_digests: bool = False) -> None:
        self.upstream = upstream
        self.checks_digests = checks_digests
        self.seen: list[Seen] = []
        self._plan: list[_Planned] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, fault: Fault, *, times: int = 1, method: str = "", query: str = "", delay_s: float = 0.0) -> None:
        """Do this to the next `times` requests whose method is `method` and whose target contains `query`."""
        with self._lock:
            self._plan.append(_Planned(fault, times, method, query, delay_s))

    def count(self, method: str = "", query: str = "", fault: Fault | None = None) -> int:
        """How many such requests came so far; with `fault`, only those to which it was done."""
        with self._lock:
            return sum(
                1
                for seen in self.seen
                if method in ("", seen.method) and query in seen.path and fault in (None, seen.fault)
            )

    def _take(self, method: str, path: str, headers: dict[str, str], size: int) -> _Planned | None:
        with self._lock:
            planned = next(
                (p for p in self._plan if p.times > 0 and p.method in ("", method) and p.query in path), None
            )
            if planned is not None:
                planned.times -= 1
            self.seen.append(Seen(method, path, headers, size, planned.fault if planned else None))
            return planned


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the game."""


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _handle(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        planned = self.owner._take(self.command, self.path, headers, size)
        fault = planned.fault if planned else None
        if fault is Fault.CUT:
            self.rfile.read(size // 2)
            return self._reset()
        body = self.rfile.read(size)
        if planned is not None and fault is Fault.SLOW:
            self.owner._closing.wait(planned.delay_s)
        if fault is Fault.UNAVAILABLE:
            return self._answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>")
        if fault is Fault.DENIED:
            return self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        if fault is Fault.CONFLICT:
            return self._answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        if fault is Fault.BAD_REQUEST:
            return self._answer(400, b"<Error><Code>InvalidRequest</Code><Message>no such region</Message></Error>")
        if fault is Fault.HALVE:
            body = body[: size // 2]
        if fault is Fault.FLIP:
            body = _flip(body)
        if self.owner.checks_digests and "x-amz-checksum-sha256" in headers:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            if digest != headers["x-amz-checksum-sha256"]:
                return self._answer(400, b"<Error><Code>BadDigest</Code><Message>checksum differs</Message></Error>")
        status, reason, answer_headers, answer = self._forward(body, headers)
        if fault is Fault.LOST_ANSWER:
            return self._reset()
        if fault is Fault.FLIP_ANSWER:
            answer = _flip(answer)
        self.send_response_only(status, reason)
        for name, value in answer_headers:
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        length = next((v for n, v in answer_headers if n.lower() == "content-length"), str(len(answer)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(answer)))
        self.end_headers()
        if fault is Fault.SHORT_ANSWER:
            self.wfile.write(answer[: len(answer) // 2])
            self.wfile.flush()
            time.sleep(0.05)  # let the half be delivered before the reset discards what is in flight
            return self._reset()
        self.wfile.write(answer)
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def _forward(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, list[tuple[str, str]], bytes]:
        target = urlsplit(self.owner.upstream)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
        try:
            kept = {n: v for n, v in headers.items() if n not in _HOP_BY_HOP | {"host", "content-length"}}
            connection.request(self.command, self.path, body=body, headers=kept)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        """Close with RST, as a dying peer or a middlebox does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def _flip(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
