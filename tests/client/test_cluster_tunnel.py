"""Connections through the API server's port-forward: bytes are whole, ends are seen, nothing spins."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import hashlib
import os
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import websocket
from cluster_api import ClusterApi
from dialled_cluster import Dialled
from websocket import ABNF

from sameshot.api.views import CaptureView
from sameshot.client import Client
from sameshot.client.cluster import dialing, tunnel
from sameshot.client.cluster.access import Upgrade
from sameshot.client.cluster.tunnel import Tunnel, refused
from sameshot.errors import Denied, Unreachable
from sameshot.kube import names
from sameshot.kube.coordinators import PodPlace
from sameshot.model import CaptureState

PLACE = PodPlace("sameshot-coordinators", "c-1", 7443)
MB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialled]:
    with ClusterApi() as api, Dialled(api, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def tunnel_of(dialer: dialing.Dialer) -> Tunnel:
    (place,) = dialer._places.values()
    assert place.known is not None
    assert place.known.tunnel is not None
    return place.known.tunnel


def within(holds: Callable[[], object], seconds: float = 15.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


# ---- with real gRPC and TLS in it


def test_several_clients_at_once_get_large_answers_whole(cluster: Dialled) -> None:
    job = cluster.job("large")
    data = os.urandom(10 * MB)
    cluster.served(job).canned.answers["GetManifest"] = data
    endpoint = cluster.dialer().dial("kube:ml/large")

    def fetched(_: int) -> str:
        with Client(endpoint) as client:
            return hashlib.sha256(client.manifest("0" * 32)).hexdigest()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(fetched, range(4))) == {hashlib.sha256(data).hexdigest()}
    assert len(cluster.served(job).seen.peers) == 4


def test_a_watch_through_a_tunnel_that_breaks_goes_on_with_the_usual_patience(cluster: Dialled) -> None:
    job = cluster.job("watched")
    running = CaptureView(capture_id="0" * 32, job=job)
    views: asyncio.Queue[CaptureView] = asyncio.Queue()
    served = cluster.served(job)
    served.canned.answers["WatchCapture"] = views
    dialer = cluster.dialer()
    with Client(dialer.dial("kube:ml/watched")) as client, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.wait, running.capture_id)
        cluster.call(lambda: views.put_nowait(running))
        within(lambda: served.canned.calls == ["WatchCapture"])
        cluster.api.away()  # the connection through it is cut, and no other can be made for a while
        within(lambda: tunnel_of(dialer).connections == 0)
        time.sleep(0.5)
        cluster.api.come_back()
        within(lambda: served.canned.calls.count("WatchCapture") > 1)
        ended = msgspec.structs.replace(running, state=CaptureState.FAILED)
        cluster.call(lambda: views.put_nowait(ended))
        assert waiting.result(20).state is CaptureState.FAILED


def test_a_pod_that_is_gone_and_a_right_that_is_refused_are_told_apart(cluster: Dialled) -> None:
    job = cluster.job("typed")
    dialer = cluster.dialer("tim")
    with Client(dialer.dial("kube:ml/typed")) as client:
        assert client.describe().job == job
        standing = tunnel_of(dialer)
        cluster.api.delete("rolebindings.rbac.authorization.k8s.io", names.COORDINATORS_NAMESPACE, "tim-connects")
        cut(standing)
        with pytest.raises(Denied, match="pods/portforward"):
            client.describe()
        cluster.person("tim")
        within(lambda: _answers(client))
        cluster.api.delete("pods", names.COORDINATORS_NAMESPACE, names.coordinator_of(job))
        cut(standing)
        with pytest.raises(Unreachable, match="is not there any more"):
            client.describe()
    with pytest.raises(Unreachable, match="is not there any more"):
        cluster.dialer("tim").dial("kube:ml/typed")


def test_a_coordinator_that_does_not_listen_is_told_in_the_pods_own_words(cluster: Dialled) -> None:
    job = cluster.job("deaf")
    dialer = cluster.dialer()
    cluster.stop(cluster.served(job))
    with Client(dialer.dial("kube:ml/deaf")) as client, pytest.raises(Unreachable, match="failed to connect") as deaf:
        client.describe()
    assert "began nothing" in str(deaf.value)
    assert f"kubectl -n sameshot-coordinators logs {names.coordinator_of(job)} --previous" in str(deaf.value)


def _answers(client: Client) -> bool:
    try:
        client.describe()
    except (Denied, Unreachable):
        return False
    return True


def cut(standing: Tunnel) -> None:
    """Its connections, as a network does."""
    for each in list(standing._shared.open):
        each.shutdown(socket.SHUT_RDWR)
    within(lambda: not standing.connections)


def test_an_idle_tunnel_takes_no_processor(cluster: Dialled) -> None:
    cluster.job("idle")
    others = set(threading.enumerate())
    dialer = cluster.dialer()
    endpoint = dialer.dial("kube:ml/idle")
    clients = [Client(endpoint) for _ in range(3)]
    for client in clients:
        client.describe()
    threads = [each for each in set(threading.enumerate()) - others if each.name.startswith("sameshot-")]
    assert sorted(each.name for each in threads) == ["sameshot-forward"] * 3 + ["sameshot-tunnel"]
    before = sum(map(_ticks, threads))
    time.sleep(1.0)  # what is measured
    assert sum(map(_ticks, threads)) - before <= 2  # of 100 a second
    for client in clients:
        client.close()
    within(lambda: tunnel_of(dialer).connections == 0)


def _ticks(thread: threading.Thread) -> int:
    """Processor time of one thread (proc(5), /proc/pid/task/tid/stat: utime and stime)."""
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_tunnel_ends_with_its_last_user(cluster: Dialled) -> None:
    cluster.job("ending")
    dialer = cluster.dialer()
    client = Client(dialer.dial("kube:ml/ending"))
    client.describe()
    host, _, port = tunnel_of(dialer).address.partition(":")
    dialer.forget()
    gc.collect()
    client.describe()  # who has it still can go on
    client.close()
    del client

    def refuses() -> bool:
        gc.collect()
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            return True
        return False

    within(refuses)


def test_a_place_chooses_no_other_path_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote it: the request carries the user's own credential."""
    asked: list[str] = []

    def refused(url: str, **_: object) -> None:
        asked.append(url)
        raise OSError("not today")

    monkeypatch.setattr(websocket, "create_connection", refused)
    for place in (PodPlace("a/../..", "x", 1), PodPlace("a", "../../secrets/x?watch=1#", 1)):
        with pytest.raises(Unreachable):
            tunnel.open_websocket(Upgrade("wss://api", {}, {}), place)
    assert [url.partition("?")[0].count("/") for url in asked] == [2 + 7] * 2  # as in .../pods/<name>/portforward
    assert all(
        url.startswith("wss://api/api/v1/namespaces/a") and url.endswith("/portforward?ports=1") for url in asked
    )


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, Denied, "refuses"),
        (403, Denied, "get and create on pods/portforward in namespace sameshot-coordinators"),
        (404, Unreachable, "another one is made"),
        (500, Unreachable, "c-1 (500): kubelet"),
    ],
)
def test_what_an_answer_to_the_request_for_a_port_forward_means(status: int, kind: type[Exception], said: str) -> None:
    error = refused(status, "kubelet says no", PLACE)
    assert type(error) is kind
    assert said in str(error)


# ---- with hand-made frames


class Far:
    """The other end of a connection: what the kubelet would send and get."""

    def __init__(self) -> None:
        ours, self.wire = socket.socketpair()
        self.user, near = socket.socketpair()
        self.user.settimeout(10)
        self.wire.settimeout(10)
        self.end = websocket.WebSocket(skip_utf8_validation=True)
        self.end.sock, self.end.connected = ours, True
        self.reads = websocket.WebSocket()
        self.reads.sock, self.reads.connected = self.wire, True
        self.shared = tunnel._Shared(PLACE, lambda: Upgrade("", {}, {}))
        self.shared.spare = (time.monotonic(), self.end)
        self.thread = threading.Thread(target=tunnel._serve, args=(near, self.shared), daemon=True)

    def send(self, data: bytes, opcode: int = ABNF.OPCODE_BINARY, fin: int = 1) -> bytes:
        frame = ABNF(fin, 0, 0, 0, opcode, 0, data).format()
        self.wire.sendall(frame)
        return frame

    def start(self) -> Far:
        self.thread.start()
        self.send(b"\x00" + (7443).to_bytes(2, "little"))
        self.send(b"\x01" + (7443).to_bytes(2, "little"))
        return self

    def got(self, size: int) -> bytes:
        """So many bytes that the user sent."""
        data = b""
        while len(data) < size:
            frame = self.reads.recv_frame()
            assert frame.opcode == ABNF.OPCODE_BINARY
            assert frame.data[:1] == b"\x00"
            data += frame.data[1:]
        return data

    def ended(self) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()


def received(user: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := user.recv(size - len(data))):
        data += more
    return data


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    yield far
    far.user.close()
    far.wire.close()
    if far.thread.ident is not None:
        far.ended()


def test_ports_are_swallowed_and_bytes_go_both_ways(far: Far) -> None:
    far.start()
    far.user.sendall(b"hello")
    assert far.got(5) == b"hello"
    far.send(b"\x00wor")
    far.send(b"\x00ld")
    assert received(far.user, 5) == b"world"


def test_frames_that_come_in_crumbs_and_in_pieces_are_put_together(far: Far) -> None:
    far.start()
    frame = ABNF(1, 0, 0, 0, ABNF.OPCODE_BINARY, 0, b"\x00" + b"x" * 300).format()
    for each in frame:
        far.wire.sendall(bytes((each,)))
    far.send(b"\x00one ", fin=0)
    far.send(b"two", ABNF.OPCODE_CONT)
    assert received(far.user, 307) == b"x" * 300 + b"one two"


def test_a_ping_is_answered_between_frames_and_never_within_one(far: Far) -> None:
    far.start()
    data = os.urandom(3 * MB)  # more than the wire takes at once
    sending = threading.Thread(target=far.user.sendall, args=(data,), daemon=True)
    sending.start()
    within(lambda: _waiting_at(far.wire) > 100_000)  # a part of a frame, and the rest can't go on
    far.send(b"are you there", ABNF.OPCODE_PING)
    before = _ticks(far.thread)
    time.sleep(0.2)  # it has come by then
    assert _ticks(far.thread) - before <= 2
    whole, pongs = b"", []
    while len(whole) < len(data) or not pongs:
        frame = far.reads.recv_frame()
        if frame.opcode == ABNF.OPCODE_PONG:
            pongs.append(frame.data)
        else:
            whole += frame.data[1:]
    assert whole == data
    assert pongs == [b"are you there"]


def _waiting_at(end: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_the_end_of_the_far_side_is_seen_after_the_last_byte(far: Far) -> None:
    far.start()
    data = os.urandom(2 * MB)
    sending = threading.Thread(target=lambda: (far.send(b"\x00" + data), far.send(b"\x03\xe8", ABNF.OPCODE_CLOSE)))
    sending.start()
    time.sleep(0.2)  # the user is slow
    assert received(far.user, len(data) + 1) == data
    far.ended()
    assert far.shared.trouble is None


def test_a_wire_that_breaks_ends_the_user_and_is_remembered(far: Far) -> None:
    far.start()
    far.send(b"\x00half")
    far.wire.close()
    assert received(far.user, 5) == b"half"
    far.ended()
    assert isinstance(far.shared.trouble, Unreachable)
    assert "c-1" in str(far.shared.trouble)


def test_an_error_of_the_pod_is_told_in_its_words(far: Far) -> None:
    far.start()
    far.send(b"\x01error forwarding port 7443: connection refused")
    far.send(b"\x03\xe8", ABNF.OPCODE_CLOSE)
    assert received(far.user, 1) == b""
    far.ended()
    assert "connection refused" in str(far.shared.trouble)


def test_a_user_that_goes_ends_the_wire_and_is_no_trouble(far: Far) -> None:
    far.start()
    far.user.sendall(b"bye")
    assert far.got(3) == b"bye"
    far.user.close()
    far.ended()
    assert far.wire.recv(1) == b""
    assert far.shared.trouble is None


@pytest.mark.parametrize("who", ["user", "wire"])
def test_who_does_not_read_makes_the_other_side_wait(far: Far, who: str) -> None:
    far.start()
    reader, writer = (far.user, far.wire) if who == "user" else (far.wire, far.user)
    writer.settimeout(0.5)
    block, sent = os.urandom(MB), 0
    with contextlib.suppress(TimeoutError):
        while sent < 64:
            far.send(b"\x00" + block) if who == "user" else writer.sendall(block)
            sent += 1
    assert sent < 12  # and not all of it in memory
    before = _ticks(far.thread)
    time.sleep(0.5)  # what is measured
    assert _ticks(far.thread) - before <= 2
    reader.close()
    far.ended()
