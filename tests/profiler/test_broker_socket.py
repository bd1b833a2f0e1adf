"""The broker's socket, with clients that speak Kineto's protocol but need no torch."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiler_lab import JOB, Client, a_request, short_directory, until

from sameshot.errors import InvalidSpec, SameshotError, UsageError
from sameshot.profiler.broker import Broker
from sameshot.profiler.daemon import CAPABILITIES, BackendName, TriggerStatus
from sameshot.profiler.kineto_ipc import HEADER, Wants
from sameshot.profiler.place import MAX_DIRECTORY_BYTES, remove_dead_clients


@asynccontextmanager
async def serving(ipc_dir: Path) -> AsyncIterator[Broker]:
    broker = Broker(ipc_dir)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def mine(**changes: Any) -> Any:
    return a_request(**({"pid": os.getpid()} | changes))


def test_a_config_reaches_the_worker_and_only_once(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with Client(str(ipc_dir)) as worker:
                assert worker.poll() == ""
                (fact,) = await broker.trigger([mine()])
                assert fact.status is TriggerStatus.QUEUED
                assert worker.poll(Wants.EVENTS) == ""
                assert "ACTIVITIES_LOG_FILE=/sameshot/captures" in worker.poll()
                assert worker.poll() == ""
                (fact,) = await broker.facts("c1")
                assert fact.status is TriggerStatus.CONSUMED
                assert fact.last_poll_age_s is not None
                assert fact.last_poll_age_s < 60
                assert list(await broker.registered()) == [(JOB, os.getpid())]

    asyncio.run(go())


def test_a_withdrawn_config_does_not_reach_the_worker(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with Client(str(ipc_dir)) as worker:
                worker.poll()
                await broker.trigger([mine()])
                (fact,) = await broker.withdraw("c1", ["node/main/0"])
                assert fact.status is TriggerStatus.WITHDRAWN
                assert worker.poll() == ""

    asyncio.run(go())


def test_answers_come_while_the_event_loop_is_blocked(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir):
            with Client(str(ipc_dir)) as worker:
                assert worker.poll() == ""  # the loop is right here, in this blocking read

    asyncio.run(go())


def test_whoever_sends_too_much_costs_no_daemon_among_thousands_of_descriptors(ipc_dir: Path) -> None:
    """An agent of a full node has more than select(2) knows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip(f"a process may have no more than {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))

    async def go() -> None:
        broker = Broker(ipc_dir, per_second=5.0)
        await broker.start()
        try:
            with Client(str(ipc_dir)) as worker:
                for _ in range(6):
                    assert worker.poll() == ""

                async def throttled() -> bool:
                    return broker.ignored["throttled"] > 0

                await until("it waits", throttled)
                worker.socket.settimeout(0.4)  # what came during the pause is too old to be answered

                async def answered() -> bool:
                    try:
                        return worker.poll() == ""
                    except TimeoutError:
                        return False

                await until("it answers again", answered)
                assert broker.intact()
        finally:
            await broker.close()

    with open(os.devnull, "rb") as nothing:
        many = [os.dup(nothing.fileno()) for _ in range(1100)]
        try:
            assert max(many) > 1024
            asyncio.run(go())
        finally:
            for each in many:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_daemon_whose_thread_has_ended_is_not_intact(ipc_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket still stands, and nobody reads it."""

    async def go() -> None:
        broker = Broker(ipc_dir)
        assert not broker.intact()
        monkeypatch.setattr(Broker, "_serve", lambda *_: None)
        await broker.start()
        assert broker._thread is not None
        broker._thread.join()
        assert (ipc_dir / "dynolog").is_socket()
        assert not broker.intact()
        monkeypatch.undo()
        await broker.close()
        await broker.start()
        assert broker.intact()
        with Client(str(ipc_dir)) as worker:
            assert worker.poll() == ""
        await broker.close()

    asyncio.run(go())


def test_a_poll_that_has_grown_old_is_not_answered_but_counts_as_a_sign_of_life(ipc_dir: Path) -> None:
    """A late answer would be read at the next poll, and every later one too late as well."""
    program = (
        "import asyncio, sys, pathlib\n"
        "from sameshot.profiler.broker import Broker\n"
        "async def go():\n"
        "    broker = Broker(pathlib.Path(sys.argv[1])); await broker.start(); print('up', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(go())\n"
    )
    broker = subprocess.Popen([sys.executable, "-c", program, ipc_dir], stdout=subprocess.PIPE)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"up\n"
        with Client(str(ipc_dir)) as worker:
            assert worker.poll() == ""
            broker.send_signal(signal.SIGSTOP)
            _wait_for_state(broker.pid, "T")
            asked = time.monotonic()
            worker.ask()
            while time.monotonic() - asked < 0.2:  # Kineto has long given up
                time.sleep(0.02)
            broker.send_signal(signal.SIGCONT)
            worker.ask()
            assert worker.read() == ""
            worker.socket.settimeout(1.0)
            with pytest.raises(TimeoutError):
                worker.read()
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close() if broker.stdout else None


def _wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


HOSTILE = [
    b"",
    b"x",
    HEADER.pack(0, b"req"),
    HEADER.pack(2**63, b"req") + b"x" * 24,
    HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, 2**31 - 1, JOB, 1),
    HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, -(2**31), JOB, 1),
    HEADER.pack(24, b"\xff" * 32) + b"\xff" * 24,
    HEADER.pack(60_000, b"req") + b"\xff" * 60_000,
    HEADER.pack(100_000, b"req") + b"\0" * 100_000,
]


def test_hostile_datagrams_are_counted_and_nothing_else(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with Client(str(ipc_dir)) as worker:
                for data in HOSTILE:
                    worker.send(data)
                assert worker.poll() == ""
            assert broker.ignored["malformed"] == len(HOSTILE)
            assert list(await broker.registered()) == [(JOB, os.getpid())]

    asyncio.run(go())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_no_sequence_of_bytes_ends_the_daemon(noise: list[bytes]) -> None:
    async def go() -> None:
        with short_directory() as folder:
            async with serving(folder), _noise_then_poll(folder, noise) as answer:
                assert answer == ""

    asyncio.run(go())


@asynccontextmanager
async def _noise_then_poll(folder: Path, noise: list[bytes]) -> AsyncIterator[str]:
    with Client(str(folder)) as worker:
        for data in noise:
            worker.send(data)
        try:
            answer = worker.poll()
        except TimeoutError:  # on a busy machine it may have been read too late to be answered; Kineto asks again, too
            answer = worker.poll()
        yield answer


@pytest.mark.parametrize("name", ["someone", "dynoconfigclientnot-a-uuid", "dynolog2"])
def test_only_sockets_named_like_kinetos_are_answered(ipc_dir: Path, name: str) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with Client(str(ipc_dir), name=name) as stranger, Client(str(ipc_dir)) as worker:
                stranger.ask()
                assert worker.poll() == ""
                stranger.socket.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    stranger.read()
                assert broker.ignored["malformed"] == 1

    asyncio.run(go())


def test_a_sender_without_a_name_or_from_elsewhere_is_ignored(ipc_dir: Path) -> None:
    async def go() -> None:
        with short_directory() as elsewhere:
            async with serving(ipc_dir) as broker:
                with (
                    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless,
                    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign,
                    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
                    Client(str(ipc_dir)) as worker,
                ):
                    name = f"dynoconfigclient{uuid.uuid4()}"
                    foreign.bind(f"{elsewhere}/{name}")
                    abstract.bind(b"\0" + name.encode() + b"\0")
                    poll = HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, 1, JOB, os.getpid())
                    for sender in (nameless, foreign, abstract):
                        sender.sendto(poll, f"{ipc_dir}/dynolog")
                    assert worker.poll() == ""
                assert broker.ignored["malformed"] == 3

    asyncio.run(go())


def test_a_process_that_states_another_ones_pid_is_ignored(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with Client(str(ipc_dir), pid=os.getppid()) as impostor, Client(str(ipc_dir)) as worker:
                impostor.ask()
                assert worker.poll() == ""
                assert broker.ignored["foreign_pid"] == 1
                assert list(await broker.registered()) == [(JOB, os.getpid())]

    asyncio.run(go())


def test_a_worker_in_its_own_pid_namespace_is_known_by_the_pid_it_sees_itself(ipc_dir: Path) -> None:
    program = (
        "import sys, os; sys.path.insert(0, sys.argv[2]); from profiler_lab import Client\n"
        "with Client(sys.argv[1]) as worker: print(os.getpid(), worker.poll() == '', flush=True)\n"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program, str(ipc_dir), str(Path(__file__).parent)]

    async def go() -> None:
        async with serving(ipc_dir) as broker:
            worker = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            output, errors = await worker.communicate()
            if b"unshare" in errors and worker.returncode:
                pytest.skip(f"no pid namespace can be made here: {errors.decode().strip()}")
            assert output == b"1 True\n", errors
            assert list(await broker.registered()) == [(JOB, 1)]
            assert not broker.ignored

    asyncio.run(go())


def test_a_worker_that_is_gone_when_the_answer_comes_has_not_consumed_it(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            worker = Client(str(ipc_dir))
            worker.poll()
            await broker.trigger([mine()])
            os.unlink(f"{ipc_dir}/{worker.name}")
            worker.ask()

            async def noticed() -> bool:
                return broker.ignored["unreachable"] == 1

            await until("the broker fails to answer", noticed)
            worker.socket.close()
            (fact,) = await broker.facts("c1")
            assert fact.status is TriggerStatus.QUEUED

    asyncio.run(go())


def test_older_kineto_that_registers_its_gpus_gets_its_number(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir):
            with Client(str(ipc_dir)) as worker:
                worker.send(HEADER.pack(16, b"ctxt") + struct.pack("=iiq", 0, os.getpid(), JOB))
                assert worker.socket.recv(100) == HEADER.pack(4, b"ctxt") + struct.pack("=i", 1)

    asyncio.run(go())


def test_a_new_broker_takes_over_from_a_dead_one(ipc_dir: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(f"{ipc_dir}/dynolog")
    dead.close()

    async def go() -> None:
        with Client(str(ipc_dir)) as worker:
            for _ in range(2):
                async with serving(ipc_dir) as broker:
                    assert worker.poll() == ""
                    assert list(await broker.registered()) == [(JOB, os.getpid())]
        assert not (ipc_dir / "dynolog").exists()

    asyncio.run(go())


def test_a_forked_child_that_outlives_a_killed_broker_does_not_block_the_next(ipc_dir: Path) -> None:
    program = (
        "import asyncio, os, sys, pathlib, time\n"
        "from sameshot.profiler.broker import Broker\n"
        "async def go():\n"
        "    broker = Broker(pathlib.Path(sys.argv[1])); await broker.start()\n"
        "    if os.fork() == 0: print(os.getpid(), flush=True); time.sleep(120); os._exit(0)\n"
        "    time.sleep(120)\n"
        "asyncio.run(go())\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, ipc_dir], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    child = int(killed.stdout.readline())
    try:
        killed.kill()
        killed.wait()

        async def go() -> None:
            async with serving(ipc_dir):
                os.kill(child, 0)
                with Client(str(ipc_dir)) as worker:
                    assert worker.poll() == ""

        asyncio.run(go())
    finally:
        os.kill(child, signal.SIGKILL)
        killed.stdout.close()


def test_a_living_daemon_is_never_displaced(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir):
            with pytest.raises(UsageError, match="already serves"):
                await Broker(ipc_dir).start()
            with Client(str(ipc_dir)) as worker:
                assert worker.poll() == ""

    asyncio.run(go())


def test_something_else_under_the_daemons_name_is_not_removed(ipc_dir: Path) -> None:
    (ipc_dir / "dynolog").write_text("precious")
    with pytest.raises(UsageError):
        asyncio.run(Broker(ipc_dir).start())
    assert (ipc_dir / "dynolog").read_text() == "precious"


def test_workers_of_other_users_can_reach_the_socket(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir):
            assert stat.S_IMODE((ipc_dir / "dynolog").stat().st_mode) == 0o666

    asyncio.run(go())


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/tmp/" + "x" * 50, "55 bytes"),
        ("/tmp/" + "ü" * 25, "55 bytes"),
        ("relative/dir", "absolute"),
        ("/tmp/../tmp/sl", "plainly written"),
        ("/proc/nowhere", "can't be made"),
    ],
)
def test_a_directory_that_could_not_work_is_refused_before_anything_is_served(directory: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        asyncio.run(Broker(Path(directory)).start())


def test_the_longest_allowed_directory_works() -> None:
    with short_directory() as folder:
        long = folder / ("x" * (MAX_DIRECTORY_BYTES - len(str(folder)) - 1))
        assert len(str(long)) == 54

        async def go() -> None:
            async with serving(long):
                with Client(str(long)) as worker:
                    assert worker.poll() == ""

        asyncio.run(go())


def test_a_socket_that_got_another_name_serves_nobody(ipc_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from a daemon named in another way aborts the training process."""
    descriptor = os.open(ipc_dir, os.O_RDONLY)

    class ByDescriptor(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(str(address).replace(str(ipc_dir), f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(socket, "socket", ByDescriptor)
    broker = Broker(ipc_dir)
    try:
        with pytest.raises(SameshotError, match=f"named '/proc/self/fd/{descriptor}/dynolog' instead of '{ipc_dir}/"):
            asyncio.run(broker.start())
    finally:
        os.close(descriptor)
    monkeypatch.undo()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as worker, pytest.raises(ConnectionRefusedError):
        worker.connect(str(ipc_dir / "dynolog"))


def test_sockets_of_dead_workers_are_removed_and_only_those(ipc_dir: Path) -> None:
    def client_name() -> str:
        return f"dynoconfigclient{uuid.uuid4()}"

    def dead_socket(name: str, age_s: float) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
            gone.bind(f"{ipc_dir}/{name}")
        os.utime(ipc_dir / name, (time.time() - age_s,) * 2)
        return name

    old = dead_socket(client_name(), 120)
    young = dead_socket(client_name(), 0)  # may be a worker between its bind and its first listen
    other = dead_socket("someone-elses", 120)
    regular = client_name()
    (ipc_dir / regular).touch()
    os.utime(ipc_dir / regular, (0, 0))
    link = client_name()
    (ipc_dir / link).symlink_to(ipc_dir / other)
    with Client(str(ipc_dir)) as alive:
        os.utime(ipc_dir / alive.name, (0, 0))
        assert remove_dead_clients(str(ipc_dir), 60) == [old]
        assert {entry.name for entry in ipc_dir.iterdir()} == {young, other, regular, link, alive.name}


def test_an_unusable_path_is_refused_at_once(ipc_dir: Path) -> None:
    async def go() -> None:
        async with serving(ipc_dir) as broker:
            with pytest.raises(InvalidSpec):
                await broker.trigger([mine(output_path="/a/x=1/trace.json")])

    asyncio.run(go())


def test_the_broker_claims_what_its_capabilities_say() -> None:
    assert Broker.name is BackendName.BROKER
    assert CAPABILITIES[Broker.name].sees_fetches
