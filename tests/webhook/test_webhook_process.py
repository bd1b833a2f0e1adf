"""`sameshot webhook`, as its container runs it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tls import Authority
from webhook_lab import NAME, applied, armed, pod, response_in, review_of

pytestmark = pytest.mark.full
COMMAND = (sys.executable, "-m", "sameshot.cli.main", "webhook")
AUTHORITY = Authority()


@contextmanager
def webhook(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process and its port, ready."""
    address = folder / "address"
    AUTHORITY.issue(folder, NAME, "localhost")
    process = subprocess.Popen(
        [*COMMAND, "--certificate", folder / "tls.crt", "--key", folder / "tls.key",
         "--listen", "127.0.0.1:0", "--address-file", address]
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, int(address.read_text().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


def post(port: int, body: bytes) -> bytes:
    request = urllib.request.Request(f"https://localhost:{port}/arm", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=AUTHORITY.client_context(), timeout=10) as answer:
        return bytes(answer.read())


def test_it_serves_and_ends_with_zero_when_it_is_told_to(tmp_path: Path) -> None:
    with webhook(tmp_path) as (process, port):
        thing = pod()
        body = review_of(thing)
        assert applied(thing, response_in(post(port, body), body)) == armed(thing)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_pods_that_come_while_it_is_told_to_end_are_still_armed(tmp_path: Path) -> None:
    """An API server learns late that this one is about to go; until then nothing is lost."""
    with webhook(tmp_path) as (process, port):
        stop, failures, count = threading.Event(), [], 0

        def ask() -> None:
            nonlocal count
            while not stop.is_set():
                body = review_of(pod())
                try:
                    assert "patch" in response_in(post(port, body), body)
                    count += 1
                except Exception as error:
                    failures.append(error)
                    return

        asking = threading.Thread(target=ask)
        asking.start()
        while count < 3:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        told = count
        while count < told + 10 and not failures:
            time.sleep(0.01)
        stop.set()
        asking.join()
        assert not failures
        assert process.poll() is None  # it was still draining: all of these came after the signal
        assert process.wait(timeout=30) == 0


def test_a_certificate_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--certificate", tmp_path / "tls.crt", "--key", tmp_path / "tls.key"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert str(tmp_path / "tls.crt") in done.stderr


def test_plain_http_is_not_spoken(tmp_path: Path) -> None:
    with webhook(tmp_path) as (_, port), socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert not raw.recv(100).startswith(b"HTTP")


def test_every_line_of_its_log_names_the_pod_and_what_became_of_it(tmp_path: Path) -> None:
    AUTHORITY.issue(tmp_path, NAME, "localhost")
    address = tmp_path / "address"
    process = subprocess.Popen(
        [*COMMAND, "--certificate", tmp_path / "tls.crt", "--key", tmp_path / "tls.key",
         "--listen", "127.0.0.1:0", "--address-file", address], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not address.exists():
            assert process.poll() is None
            time.sleep(0.05)
        port = int(address.read_text().rpartition(":")[2])
        post(port, review_of(pod()))
        evil = json.loads(review_of(pod(container={"command": None})))
        evil["request"]["namespace"] = "ml\noutcome=armed"
        post(port, json.dumps(evil).encode())
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    reviewed = [line for line in log.splitlines() if "reviewed" in line]
    assert len(reviewed) == 2
    assert "namespace='ml' pod='bert-…' outcome=armed" in reviewed[0]
    assert r"namespace='ml\noutcome=armed' pod='bert-…' outcome=refused" in reviewed[1]
