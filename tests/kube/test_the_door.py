"""What a server that the network reaches bears: calls, streams and connections are bounded, whoever makes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_lab import in_loop, until
from tls import Authority
from unfinished import Unfinished

from sameshot.api import door
from sameshot.api.transport import CHANNEL_OPTIONS, TOKEN_KEY, ServerTls, bind
from sameshot.errors import Denied

NAME = "x.y.svc"
EXHAUSTED, REFUSED = (
    str(code.value[0]) for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED)
)


class Keeper:
    """Judges when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.methods: set[str] = set()

    async def admit(self, method: str, metadata: door.Metadata) -> Any:
        self.methods.add(method)
        self.waiting += 1
        await self.open.wait()
        raise Denied("nobody is let in")


@contextlib.asynccontextmanager
async def served(folder: Path, keeper: Keeper) -> AsyncIterator[tuple[str, bytes]]:
    authority = Authority()
    authority.issue(folder, NAME)
    server = door.guarded(keeper, max_request=1 << 10, network=True)
    address = bind(server, "127.0.0.1:0", "it", ServerTls(folder / "tls.crt", folder / "tls.key"))
    await server.start()
    try:
        yield address, authority.pem
    finally:
        await server.stop(0)


@in_loop
async def test_more_calls_than_it_bears_are_refused_at_once_while_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MOST_CALLS", 5)
    keeper = Keeper()
    async with served(tmp_path, keeper) as (address, ca):
        peer = await asyncio.to_thread(Unfinished, address, ca, NAME)
        with peer:
            first = {peer.begin("T/Who", 900) for _ in range(5)}
            await until(lambda: keeper.waiting == 5, "these are judged")
            more = {peer.begin("T/Who", 900) for _ in range(3)}
            assert set((await asyncio.to_thread(peer.answers, more)).values()) == {EXHAUSTED}
            keeper.open.set()
            assert set((await asyncio.to_thread(peer.answers, first)).values()) == {REFUSED}
    assert (keeper.waiting, keeper.methods) == (5, {"Who"})


@in_loop
async def test_more_connections_than_it_bears_are_closed_and_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*door.NETWORK_OPTIONS, ("grpc.max_allowed_incoming_connections", 3)]
    monkeypatch.setattr(door, "NETWORK_OPTIONS", options)
    keeper = Keeper()
    keeper.open.set()
    async with served(tmp_path, keeper) as (address, ca):

        def answered() -> set[str]:
            with Unfinished(address, ca, NAME) as peer:
                return set(peer.answers({peer.begin("T/Who", 900)}).values())

        with contextlib.ExitStack() as held:
            for _ in range(3):
                peer = held.enter_context(await asyncio.to_thread(Unfinished, address, ca, NAME))
                await asyncio.to_thread(peer.answers, {peer.begin("T/Who", 900)})
            with pytest.raises(OSError):
                await asyncio.to_thread(answered)

        async def again() -> bool:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(answered) == {REFUSED}
            return False

        while not await again():
            await asyncio.sleep(0.01)


@in_loop
async def test_a_client_that_is_idle_loses_its_connection_and_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "NETWORK_OPTIONS", [*door.NETWORK_OPTIONS, ("grpc.max_connection_idle_ms", 200)])
    keeper = Keeper()
    keeper.open.set()
    async with served(tmp_path, keeper) as (address, ca):
        options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", NAME)]
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options=options) as channel:
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as caught:
                    await channel.unary_unary("/sameshot.v1.T/Who")(b"", timeout=10, metadata=((TOKEN_KEY, "x"),))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                while channel.get_state() is grpc.ChannelConnectivity.READY:
                    await asyncio.sleep(0.01)


def test_whoever_called_is_known_only_where_somebody_was_at_the_door() -> None:
    with pytest.raises(LookupError):
        door.who_called()


@pytest.mark.parametrize(
    "brought",
    [[], ["Bearer a", "Bearer b"], ["Basic a"], ["Bearer "], ["Bearer"], ["a"], [b"Bearer a"]],
    ids=["none", "two", "another scheme", "empty", "no token", "no scheme", "bytes"],
)
def test_no_token_is_made_out_of_what_is_none(brought: list[str | bytes]) -> None:
    with pytest.raises(Denied):
        door.bearer([("user-agent", "x"), *((TOKEN_KEY, each) for each in brought)])


def test_the_scheme_is_spelt_in_any_way_and_the_token_in_one() -> None:
    assert door.bearer([(TOKEN_KEY, "bEaReR aBc ")]) == "aBc"
