"""A pod's daemon served from the node: under the right name, for this pod alone, whatever its user does."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pod_dirs_lab import PodDir, a_node, needs_chroot

from sameshot.agent.daemons import Daemons, daemon_factory
from sameshot.agent.discovery import FixedDirs
from sameshot.errors import SameshotError, UsageError
from sameshot.model import CaptureSpec, JobRef
from sameshot.profiler import podplace
from sameshot.profiler.broker import Broker, Pace
from sameshot.profiler.daemon import BackendName, TriggerRequest, TriggerStatus
from sameshot.profiler.place import check_name
from sameshot.profiler.podplace import PodPlace

JOB = JobRef("ml", "train", "uid-1")
OTHER = JobRef("ml", "other", "uid-2")


@pytest.fixture
def root() -> Iterator[Path]:
    needs_chroot()
    with a_node() as root:
        yield root


@pytest.fixture
def pod(root: Path) -> Iterator[PodDir]:
    pod = PodDir(root, "mine", JOB).prepare()
    yield pod
    pod.close()


@pytest.fixture
def other(root: Path) -> Iterator[PodDir]:
    pod = PodDir(root, "other", OTHER).prepare()
    yield pod
    pod.close()


@asynccontextmanager
async def serving(pod: PodDir, **more: Any) -> AsyncIterator[Broker]:
    broker = Broker(PodPlace(pod.volume, "/sameshot"), **more)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def run(pod: PodDir, other: PodDir) -> None:
        asyncio.run(asyncio.wait_for(test(pod, other), 60))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def request(**changes: Any) -> TriggerRequest:
    given: dict[str, Any] = {
        "capture_id": "c1",
        "target_id": "mine/trainer/0",
        "pid": 1,
        "kineto_job_id": 7,
        "spec": CaptureSpec(duration_ms=500, warmup_ms=0),
        "start_at_ns": 0,
        "output_path": "/sameshot/captures/c1/trainer/0/trace.json",
    }
    return TriggerRequest(**(given | changes))


def client_name() -> str:
    return f"dynoconfigclient{uuid.uuid4()}"


@in_loop
async def test_a_worker_gets_its_config_from_the_name_that_it_knows(pod: PodDir, other: PodDir) -> None:
    worker, name = pod.actor(), client_name()
    async with serving(pod) as broker:
        assert len(str(pod.volume / "ipc" / name)) > 107  # no address from here
        assert worker.do("me = client(name); answer = poll(me, pid=os.getpid())", name=name) == ""
        assert await broker.trigger([request(pid=worker.pid)])
        text = worker.do("answer = poll(me, pid=os.getpid())")
        assert "ACTIVITIES_LOG_FILE=/sameshot/captures/c1/trainer/0/trace.json" in text
        (fact,) = await broker.facts("c1")
        assert fact.status is TriggerStatus.CONSUMED
        mode = os.lstat(pod.volume / "ipc" / "dynolog").st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o666)
    assert not (pod.volume / "ipc" / "dynolog").exists()


@in_loop
async def test_a_killed_agents_socket_is_replaced_under_the_same_name(pod: PodDir, other: PodDir) -> None:
    """A worker that polled the first daemon polls the second one, and is known there at once."""
    worker = pod.actor()
    async with serving(pod):
        worker.do("me = client(name); answer = poll(me, pid=os.getpid())", name=client_name())
        kept = pod.volume / "ipc" / "kept"
        os.link(pod.volume / "ipc" / "dynolog", kept)
    os.rename(kept, pod.volume / "ipc" / "dynolog")  # what a SIGKILL leaves
    async with serving(pod) as broker:
        assert broker.intact()
        assert worker.do("answer = poll(me, pid=os.getpid())") == ""
        assert list(await broker.registered()) == [(7, worker.pid)]


@in_loop
async def test_a_second_agent_never_steals_polls(pod: PodDir, other: PodDir) -> None:
    async with serving(pod) as broker:
        with pytest.raises(UsageError, match="Another profiler daemon already serves this pod"):
            await Broker(PodPlace(pod.volume, "/sameshot")).start()
        assert broker.intact()


@in_loop
async def test_before_the_hook_has_run_there_is_nothing_to_serve(pod: PodDir, other: PodDir) -> None:
    os.rmdir(pod.volume / "ipc")
    with pytest.raises(FileNotFoundError):
        await Broker(PodPlace(pod.volume, "/sameshot")).start()
    assert not (pod.volume / "ipc").exists()  # made by us it would belong to the wrong user


def test_a_volume_that_is_mounted_under_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only /sameshot can be served"):
        PodPlace(tmp_path / "sameshot", "/work/sameshot")


def test_a_socket_of_another_name_is_never_served(pod: PodDir, other: PodDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from it would abort the training process."""

    def elsewhere(parent: int, path: str) -> socket.socket:
        wrong = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        wrong.bind(f"/proc/self/fd/{parent}{path}")
        return wrong

    monkeypatch.setattr(podplace, "_bind_below", elsewhere)
    broker = Broker(PodPlace(pod.volume, "/sameshot"))
    with pytest.raises(SameshotError, match="would abort the training processes, so nothing was served"):
        asyncio.run(broker.start())
    assert broker._thread is None
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as nameless, pytest.raises(SameshotError):
        check_name(nameless, "/sameshot/ipc/dynolog")


@in_loop
async def test_each_pod_is_served_for_itself_and_again_where_its_socket_was_removed(pod: PodDir, other: PodDir) -> None:
    os.rename(other.volume / "ipc", other.volume / "away")
    os.symlink("/etc", other.volume / "ipc")  # can't be served, and costs nobody else anything
    daemons = Daemons(FixedDirs.of(pod.where(), other.where()), daemon_factory(BackendName.BROKER, "", 1.0))
    await daemons.start()
    try:
        assert daemons.of(str(pod.volume)) is not None
        assert daemons.of(str(other.volume)) is None
        os.unlink(pod.volume / "ipc" / "dynolog")
        os.unlink(other.volume / "ipc")
        os.rename(other.volume / "away", other.volume / "ipc")
        await until(lambda: (pod.volume / "ipc" / "dynolog").exists(), 10)
        await until(lambda: daemons.of(str(other.volume)) is not None, 10)
        worker = pod.actor()
        assert worker.do("me = client(name); answer = poll(me, pid=os.getpid())", name=client_name()) == ""
        assert list(await daemons.poll_ages(str(pod.volume))) == [(7, worker.pid)]
    finally:
        await daemons.close()
    assert not [each for each in (pod, other) if (each.volume / "ipc" / "dynolog").exists()]


# --- what a hostile user may try


@in_loop
async def test_an_answer_never_leaves_the_pod_through_a_link(pod: PodDir, other: PodDir) -> None:
    """The sender's name is a link to a worker's socket in another pod, which would take the answer for its daemon's."""
    victim, hostile = other.actor(), pod.actor()
    async with serving(pod) as broker, serving(other):
        name, theirs = client_name(), client_name()
        victim.do("me = client(name)", name=theirs)
        target = other.volume / "ipc" / theirs
        hostile.do(
            "me = client(name); os.unlink('/sameshot/ipc/' + name); os.symlink(target, '/sameshot/ipc/' + name)\n"
            "me.sendto(datagram(pid=os.getpid()), '/sameshot/ipc/dynolog')",
            name=name,
            target=str(target),
        )
        await until(lambda: broker.ignored["unreachable"] == 1)
        assert (
            victim.do("me.settimeout(0.2)\ntry: answer = len(me.recv(100))\nexcept TimeoutError: answer = 'quiet'")
            == "quiet"
        )
        # The same by a directory on the way: the socket stays where it was bound.
        hostile.do(
            "os.rename('/sameshot/ipc', '/sameshot/was'); os.symlink(target, '/sameshot/ipc')",
            target=str(other.volume / "ipc"),
        )
        assert not broker.intact()
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            await Broker(PodPlace(pod.volume, "/sameshot")).start()


@in_loop
async def test_links_where_the_socket_goes_lead_nowhere(pod: PodDir, other: PodDir) -> None:
    hostile = pod.actor()
    precious = other.volume / "workers" / "precious"
    precious.write_text("theirs")
    hostile.do("os.symlink(target, '/sameshot/ipc/dynolog')", target=str(precious))
    with pytest.raises(UsageError, match="is not a socket"):
        await Broker(PodPlace(pod.volume, "/sameshot")).start()
    assert precious.read_text() == "theirs"
    hostile.do("os.unlink('/sameshot/ipc/dynolog'); os.mkfifo('/sameshot/ipc/dynolog')")
    with pytest.raises(UsageError, match="is not a socket"):
        await Broker(PodPlace(pod.volume, "/sameshot")).start()
    hostile.do("os.unlink('/sameshot/ipc/dynolog')")
    async with serving(pod):
        pass


def test_nothing_is_imported_from_a_pod_by_the_process_that_binds(
    pod: PodDir, other: PodDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its root directory is the pod's; a volume named like a folder of Python's must not become code of ours."""
    planted = pod.parent / str(Path(os.__file__).parent).lstrip("/")
    planted.mkdir(parents=True)
    for name in ("array", "traceback", "linecache", "decimal"):
        (planted / f"{name}.py").write_text("open('/proof', 'w').write('run')\n")
    place = PodPlace(pod.volume, "/sameshot")
    place.bind().close()
    # The same, were there ever a line of it, or of Python's own, that imports something as late as this.
    careless = tmp_path / "careless.py"
    careless.write_text(podplace._CHILD.read_text().replace("listening.bind(", "import decimal; listening.bind("))
    monkeypatch.setattr(podplace, "_CHILD", careless)
    with pytest.raises(OSError, match="ended without an answer"):
        place.bind()
    assert not (pod.parent / "proof").exists()


@in_loop
async def test_forged_pids_lengths_and_descriptors_reach_nothing(pod: PodDir, other: PodDir) -> None:
    honest, hostile = pod.actor(), pod.actor()
    async with serving(pod) as broker:
        honest.do("me = client(name); answer = poll(me, pid=os.getpid())", name=client_name())
        await broker.trigger([request(pid=honest.pid)])
        open_before = len(os.listdir("/proc/self/fd"))
        hostile.do(
            """
me = client(name)
daemon = "/sameshot/ipc/dynolog"
def throw(data):
    while True:
        try:
            return me.sendto(data, socket.MSG_DONTWAIT, daemon)
        except BlockingIOError:
            time.sleep(0.001)
for bad in (
    datagram(pid=pid), datagram(pid=0), datagram(pid=-1), datagram(count=2**31 - 1), datagram(count=-1),
    datagram(size=2**63), datagram(size=0), datagram(kind=b"ctxt"), datagram(kind=b"x" * 32), b"", b"\\0" * 40,
    datagram(pids=list(range(1, 6000))), b"\\xff" * 60000,
):
    throw(bad)
for _ in range(50):
    fds = array.array("i", [0, 1, 2])
    while True:
        try:
            me.sendmsg([datagram(pid=os.getpid())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)], 0, daemon)
            break
        except BlockingIOError:
            time.sleep(0.001)
""",
            name=client_name(),
            pid=honest.pid,
        )
        await until(lambda: broker.ignored["foreign_pid"] >= 1 and broker.ignored["malformed"] >= 10)
        # Descriptors that were sent along are nobody's; those that an answer takes are there for a moment only.
        await until(lambda: len(os.listdir("/proc/self/fd")) <= open_before)
        text = honest.do("answer = poll(me, pid=os.getpid())")
        assert "ACTIVITIES_LOG_FILE" in text  # nobody else has fetched what was meant for it
        assert broker.ignored["internal_error"] == 0


@pytest.mark.full
@in_loop
async def test_a_flood_of_datagrams_delays_nobody_elses_answer(pod: PodDir, other: PodDir) -> None:
    """Kineto waits 90 ms for an answer."""
    floods = [pod.actor() for _ in range(2)]
    worker = other.actor()
    async with serving(pod, per_second=500.0) as flooded, serving(other, per_second=500.0):
        worker.do("me = client(name); answer = poll(me, pid=os.getpid())", name=client_name())
        began = time.monotonic()
        for flood in floods:
            flood.send(
                "me = client(name); data = datagram(pid=os.getpid()); tried = sent = 0\n"
                "me.setblocking(False)\n"
                "while not os.path.exists('/sameshot/enough'):\n"
                "    tried += 1\n"
                "    try: me.sendto(data, '/sameshot/ipc/dynolog')\n"
                "    except BlockingIOError: continue\n"
                "    sent += 1\n"
                "answer = [tried, sent]",
                name=client_name(),
            )
        await until(lambda: flooded.ignored["throttled"] > 0)
        for _ in range(5):  # a loaded machine may be late for a while; a flood that delays others does at every time
            took = await asyncio.to_thread(
                worker.do,
                "answer = []\n"
                "for _ in range(40):\n"
                "    began = time.monotonic(); text = poll(me, pid=os.getpid())\n"
                "    answer.append(None if text is None else time.monotonic() - began); time.sleep(0.05)",
            )
            in_time = [each for each in took if each is not None and each < 0.09]
            if len(in_time) >= 0.9 * len(took):
                break
        (pod.volume / "enough").touch()
        tried, sent = (sum(counts) for counts in zip(*(flood.receive() for flood in floods), strict=True))
        may = 500 * (time.monotonic() - began + 1)  # a second's worth at once, at first
        assert tried > 5 * may
        assert sent < may + _waiting_at_most()  # the kernel refuses the others while the daemon pauses
        assert flooded.ignored["throttled"] < may  # one pause for each: it sleeps, and does not spin
        assert len(in_time) >= 0.9 * len(took)


def _waiting_at_most() -> int:
    """Datagrams that the kernel keeps for a socket that nobody reads (unix(7)), and one that is under way for each."""
    return int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 10


def test_the_pace_lets_a_burst_through_and_no_more_on_the_long_run() -> None:
    pace = Pace(10.0)
    assert [pace.pause_s(0.0) for _ in range(10)] == [0.0] * 10
    assert pace.pause_s(0.0) == pytest.approx(0.1)
    assert pace.pause_s(1.0) == 0.0


async def until(look: Callable[[], object], patience_s: float = 30.0) -> None:
    ends = time.monotonic() + patience_s
    while not look():
        assert time.monotonic() < ends, "it did not come true"
        await asyncio.sleep(0.02)
