"""Without encryption only this machine may connect, and a socket belongs to its owner alone."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import grpc
import pytest

from sameshot.api.transport import SERVER_OPTIONS, bind
from sameshot.coordinator import CoordinatorConfig, CoordinatorServer
from sameshot.errors import UsageError
from support.coordination import in_loop
from support.fake_agent import JOB


def bound(listen: str) -> str:
    async def listening() -> str:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            return bind(server, listen, "the coordinator")
        finally:
            await server.stop(0)

    return asyncio.run(listening())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0", "example.org:1", "127.0.0.1", "127.0.0.1:http"])
def test_an_address_that_others_could_reach_or_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match="loopback"):
        bound(listen)


@in_loop
async def test_a_coordinator_refuses_to_serve_other_machines(tmp_path: Path) -> None:
    server = CoordinatorServer(CoordinatorConfig(job=JOB, archive=str(tmp_path), listen="0.0.0.0:0"))
    with pytest.raises(UsageError, match=r"0\.0\.0\.0:0"):
        await server.start()
    await server.stop()


def test_a_free_port_is_found_and_told() -> None:
    host, port = bound("127.0.0.1:0").split(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)


@in_loop
async def test_a_socket_is_made_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = grpc.aio.server()
    before = os.umask(0)
    try:
        assert bind(server, f"unix:{path}", "the agent") == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        assert os.umask(0) == 0, "the umask of the process is put back"
    finally:
        os.umask(before)
        await server.stop(0)


def test_a_file_in_the_sockets_place_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UsageError, match="is not a socket"):
        bound(f"unix:{tmp_path}/notes")
    assert (tmp_path / "notes").read_text() == "mine"
