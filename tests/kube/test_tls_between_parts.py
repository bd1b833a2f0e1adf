"""Connections in a cluster: TLS by our own authority, tokens inside of it only, certificates renewed while serving."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from tls import Authority

from sameshot.api.status import from_rpc
from sameshot.api.transport import SERVER_OPTIONS, TOKEN_KEY, Endpoint, ServerTls, aio_channel, bind, channel
from sameshot.errors import UsageError

NAME = "sameshot-agent.sameshot-agents.svc"


class Echo:
    """A server in a thread; its one method answers `peer|authorization`."""

    def __init__(self, tls: ServerTls | None, listen: str = "127.0.0.1:0") -> None:
        self.seen: list[str] = []
        self.address: str = ""
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        started: Future[str] = Future()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(tls, listen, started)))
        self._thread.start()
        self.address = started.result(20)

    async def _serve(self, tls: ServerTls | None, listen: str, started: Future[str]) -> None:
        async def answer(request: bytes, context: Any) -> bytes:
            tokens = [str(value) for key, value in context.invocation_metadata() or () if key == TOKEN_KEY]
            self.seen += tokens
            return f"{context.peer()}|{','.join(tokens)}".encode()

        server = grpc.aio.server(options=SERVER_OPTIONS)
        method = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Who": method}),))
        try:
            address = bind(server, listen, "the agent", tls)
            await server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(address)
        await self._ending.wait()
        await server.stop(0)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(20)
        self._loop.close()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> ServerTls:
    authority.issue(tmp_path, NAME)
    return ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.fixture
def server(files: ServerTls) -> Iterator[Echo]:
    echo = Echo(files)
    yield echo
    echo.close()


def ask(to: Endpoint, *, of: str) -> str:
    """One call through a channel of its own, of the blocking or of the asyncio kind."""
    if of == "sync":
        with channel(to) as one:
            return call(one)

    async def once() -> str:
        async with aio_channel(to) as one:
            answer: bytes = await one.unary_unary("/t.T/Who")(b"", timeout=10)
            return answer.decode()

    return asyncio.run(once())


def call(one: Any) -> str:
    return str(one.unary_unary("/t.T/Who")(b"", timeout=10).decode())


def serial_of(server: Echo, authority: Authority) -> int:
    """Of the certificate that a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        authority.client_context().wrap_socket(plain, server_hostname=NAME) as secure,
    ):
        shown = secure.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


KINDS = pytest.mark.parametrize("of", ["sync", "aio"])


@KINDS
def test_a_token_goes_along_with_every_call_inside_of_tls(server: Echo, authority: Authority, of: str) -> None:
    given = iter(["one", "two"])
    to = Endpoint(server.address, authority.pem, NAME, lambda: next(given))
    assert ask(to, of=of).endswith("|Bearer one")
    assert ask(to, of=of).endswith("|Bearer two")


@KINDS
def test_without_tls_no_token_leaves_and_none_is_even_asked_for(of: str) -> None:
    server = Echo(None)
    asked: list[str] = []

    def token() -> str:
        asked.append("token")
        return "secret"

    try:
        assert ask(Endpoint(server.address, token=token), of=of).endswith("|")
    finally:
        server.close()
    assert (server.seen, asked) == ([], [])


def _wrong(server: Echo, authority: Authority, token: Callable[[], str]) -> dict[str, Endpoint]:
    return {
        "another authority": Endpoint(server.address, Authority().pem, NAME, token),
        "another name": Endpoint(server.address, authority.pem, "c-1.sameshot-coordinators.svc", token),
        "no name but the address": Endpoint(server.address, authority.pem, "", token),
        "no TLS": Endpoint(server.address, token=token),
    }


@KINDS
@pytest.mark.parametrize("what", ["another authority", "another name", "no name but the address", "no TLS"])
def test_a_peer_that_is_not_who_it_should_be_gets_no_call_and_no_token(
    server: Echo, authority: Authority, what: str, of: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(_wrong(server, authority, lambda: "secret")[what], of=of)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "can't be reached" in str(from_rpc(caught.value, "The agent"))
    assert server.seen == []


@KINDS
def test_a_server_that_speaks_no_tls_gets_no_token_either(authority: Authority, of: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard: list[bytes] = []

        def listen() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    heard.append(peer.recv(10_000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(grpc.RpcError):
            ask(Endpoint(f"127.0.0.1:{listening.getsockname()[1]}", authority.pem, NAME, lambda: "secret-token"), of=of)
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert heard
    assert not any(b"secret-token" in each for each in heard)


def test_a_renewed_certificate_serves_new_connections_while_old_ones_live_on(
    server: Echo, authority: Authority, tmp_path: Path
) -> None:
    to = Endpoint(server.address, authority.pem, NAME, lambda: "t")
    before = serial_of(server, authority)
    with channel(to) as old:
        peer = call(old)
        renewed = authority.issue(tmp_path, NAME).serial
        assert renewed != before
        assert serial_of(server, authority) == renewed
        assert call(old) == peer, "the same connection"
        assert ask(to, of="aio").endswith("|Bearer t")


def test_while_a_certificate_is_being_replaced_the_one_in_force_serves(
    server: Echo, authority: Authority, files: ServerTls
) -> None:
    before = serial_of(server, authority)
    renewed = authority.pair(NAME)
    files.certificate.write_bytes(renewed.certificate[: len(renewed.certificate) // 2])
    assert serial_of(server, authority) == before
    files.certificate.write_bytes(renewed.certificate)  # with the key of the one before
    assert serial_of(server, authority) == before
    files.certificate.unlink()
    assert serial_of(server, authority) == before
    files.certificate.write_bytes(renewed.certificate)
    files.key.write_bytes(renewed.key)
    assert serial_of(server, authority) == renewed.serial


def test_renewed_by_another_authority_those_who_trust_both_connect_before_and_after(
    server: Echo, authority: Authority, tmp_path: Path
) -> None:
    """The bundle of old and new, with which the operator rotates its authority."""
    new = Authority()
    to = Endpoint(server.address, authority.pem + new.pem, NAME)
    assert ask(to, of="sync")
    new.issue(tmp_path, NAME)
    assert ask(to, of="sync")
    with pytest.raises(grpc.RpcError):
        ask(Endpoint(server.address, authority.pem, NAME), of="sync")
    with pytest.raises(ssl.SSLCertVerificationError):
        serial_of(server, authority)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.0.0.1:7444", "example.org:1", "7444", ":7444"])
def test_nothing_but_this_machine_is_served_without_a_certificate(listen: str) -> None:
    with pytest.raises(UsageError, match="no address for the agent"):
        Echo(None, listen)


def test_a_certificate_that_is_missing_or_none_is_said(tmp_path: Path, authority: Authority) -> None:
    files = ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(UsageError, match=r"certificate of the agent can't be read: .*tls\.crt"):
        Echo(files)
    authority.issue(tmp_path, NAME)
    files.key.write_bytes(b"no key")
    with pytest.raises(UsageError):
        Echo(files)
