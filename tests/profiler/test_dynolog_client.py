"""Our client of the stock daemon: what it claims, and that it neither blocks nor kills the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from profiler_lab import JOB, NS, Client, Dynolog, a_request

from sameshot.errors import InvalidSpec, SameshotError, Unreachable
from sameshot.model import CaptureSpec, TargetState
from sameshot.profiler.config import config_text
from sameshot.profiler.daemon import CAPABILITIES, TriggerFact, TriggerRequest, TriggerStatus
from sameshot.profiler.dynolog import MAX_CONFIG_BYTES, SEND_AGAIN_AFTER_NS, DynologClient

NOT_MATCHED, BUSY, QUEUED = TriggerStatus.NOT_MATCHED, TriggerStatus.BUSY, TriggerStatus.QUEUED


def client_of(dynolog: Dynolog, **options: Any) -> DynologClient:
    return DynologClient("localhost", dynolog.port, **({"timeout_s": 30.0} | options))


async def one(client: DynologClient, request: TriggerRequest) -> TriggerFact:
    (fact,) = await client.trigger([request])
    return fact


def test_an_unknown_process_is_not_matched(dynolog: Dynolog) -> None:
    fact = asyncio.run(one(client_of(dynolog), a_request()))
    assert fact.status is NOT_MATCHED
    assert "does not know process 100" in fact.note


def test_a_triggered_process_is_queued_and_gets_the_config_once(dynolog: Dynolog) -> None:
    async def go() -> None:
        client = client_of(dynolog)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            assert (await one(client, a_request())).status is QUEUED
            assert "ACTIVITIES_LOG_FILE=/sameshot/captures/c1/main/0/trace.json\n" in worker.poll()
            assert (await one(client, a_request())).status is QUEUED
            assert worker.poll() == ""

    asyncio.run(go())


def test_matched_but_not_triggered_never_looks_like_a_start(dynolog: Dynolog) -> None:
    async def go() -> None:
        client = client_of(dynolog)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            await one(client, a_request())
            second = a_request(capture_id="c2", output_path="/sameshot/c2/trace.json")
            fact = await one(client, second)
            assert fact.status is BUSY
            assert "has not been fetched yet" in fact.note
            assert "/captures/c1/" in worker.poll()
            assert (await one(client, second)).status is QUEUED
            assert "/c2/" in worker.poll()

    asyncio.run(go())


def test_a_match_of_descendants_alone_is_no_match(dynolog: Dynolog) -> None:
    async def go() -> None:
        with Client(dynolog.ipc_dir, pid=200, ancestors=(100,)) as child:
            child.poll()
            fact = await one(client_of(dynolog), a_request(pid=100))
            assert fact.status is NOT_MATCHED
            assert "[200]" in fact.note

    asyncio.run(go())


def test_descendants_that_were_triggered_along_are_named(dynolog: Dynolog) -> None:
    async def go() -> None:
        with Client(dynolog.ipc_dir, pid=100) as worker, Client(dynolog.ipc_dir, pid=200, ancestors=(100,)) as child:
            worker.poll()
            child.poll()
            fact = await one(client_of(dynolog), a_request(pid=100))
            assert fact.status is QUEUED
            assert "[200]" in fact.note

    asyncio.run(go())


def test_each_target_gets_its_own_path(dynolog: Dynolog) -> None:
    async def go() -> None:
        with Client(dynolog.ipc_dir, pid=100) as first, Client(dynolog.ipc_dir, pid=101) as second:
            first.poll()
            second.poll()
            requests = [
                a_request(target_id=f"node/main/{i}", pid=100 + i, output_path=f"/c1/{i}/trace.json") for i in (0, 1)
            ]
            facts = await client_of(dynolog).trigger(requests)
            assert [fact.target_id for fact in facts] == ["node/main/0", "node/main/1"]
            assert "/c1/0/trace.json" in first.poll()
            assert "/c1/1/trace.json" in second.poll()

    asyncio.run(go())


def test_it_never_claims_more_than_queued_and_knows_no_polls(dynolog: Dynolog) -> None:
    async def go() -> None:
        client = client_of(dynolog)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            await one(client, a_request())
            worker.poll()
            (fact,) = await client.facts("c1")
            assert fact == await one(client, a_request())
            assert (fact.status, fact.consumed_at_ns, fact.last_poll_age_s) == (QUEUED, None, None)
            assert await client.registered() == {}
            assert CAPABILITIES[client.name].strongest_claim is TargetState.QUEUED

    asyncio.run(go())


def test_a_dead_process_still_looks_queued(dynolog: Dynolog) -> None:
    """Why QUEUED promises no file."""

    async def go() -> None:
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
        assert (await one(client_of(dynolog), a_request())).status is QUEUED

    asyncio.run(go())


def test_what_is_queued_stays_queued_and_what_is_not_is_never_sent_after_a_withdrawal(dynolog: Dynolog) -> None:
    async def go() -> None:
        client = client_of(dynolog)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            await one(client, a_request())
            await one(client, a_request(capture_id="c2"))
            (first,) = await client.withdraw("c1", ["node/main/0"])
            (second,) = await client.withdraw("c2", ["node/main/0"])
            assert (first.status, second.status) == (QUEUED, BUSY)
            assert worker.poll() != ""
            assert (await one(client, a_request(capture_id="c2"))).status is BUSY
            assert worker.poll() == ""

    asyncio.run(go())


def test_a_config_that_a_restarted_daemon_lost_is_sent_once_more_when_nothing_came_of_it(dynolog: Dynolog) -> None:
    now = time.time_ns()

    async def go() -> None:
        nonlocal now
        client = client_of(dynolog, clock=lambda: now)
        ask, again = a_request(start_at_ns=now + 5 * NS), a_request(start_at_ns=now + 5 * NS, again=True)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            assert (await one(client, ask)).status is QUEUED
            dynolog.restart()
            now += 5 * NS + SEND_AGAIN_AFTER_NS - 1
            assert (await one(client, again)).note == ""  # too early to say that nothing came
            now += 1
            lost = await one(client, again)
            assert lost.status is QUEUED  # what was true stays so, though this daemon does not know the worker yet
            assert "does not know process 100" in lost.note
            assert worker.poll() == ""  # back
            assert (await one(client, ask)).status is QUEUED  # nobody says that nothing came: nothing is sent
            assert worker.poll() == ""
            resent = await one(client, again)
            assert (resent.status, resent.late_start) == (QUEUED, True)
            assert "a second trace is possible" in resent.note
            assert "PROFILE_START_TIME=0\n" in worker.poll()
            now += 10 * SEND_AGAIN_AFTER_NS
            assert await one(client, again) == resent
            assert worker.poll() == ""  # once is enough

    asyncio.run(go())


def test_a_config_that_is_still_stored_is_not_doubled(dynolog: Dynolog) -> None:
    now = time.time_ns()

    async def go() -> None:
        nonlocal now
        client = client_of(dynolog, clock=lambda: now)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            await one(client, a_request())
            now += SEND_AGAIN_AFTER_NS
            fact = await one(client, a_request(again=True))
            assert fact.status is QUEUED
            assert "not been fetched yet" in fact.note
            assert "ACTIVITIES_LOG_FILE" in worker.poll()
            assert worker.poll() == ""

    asyncio.run(go())


def test_nothing_is_sent_again_after_a_withdrawal(dynolog: Dynolog) -> None:
    now = time.time_ns()

    async def go() -> None:
        nonlocal now
        client = client_of(dynolog, clock=lambda: now)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            await one(client, a_request())
            worker.poll()
            await client.withdraw("c1", ["node/main/0"])
            now += SEND_AGAIN_AFTER_NS
            await one(client, a_request(again=True))
            assert worker.poll() == ""

    asyncio.run(go())


@pytest.mark.parametrize("longer", [0, 1])
def test_a_config_that_the_daemon_would_lose_is_refused(dynolog: Dynolog, longer: int) -> None:
    fixed = len(config_text(CaptureSpec(), "/x.json", 0)) - len("/x.json")
    path = f"/{'x' * (MAX_CONFIG_BYTES - fixed - len('/.json') + longer)}.json"

    async def go() -> None:
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            ask = one(client_of(dynolog), a_request(spec=CaptureSpec(), output_path=path))
            if longer:
                with pytest.raises(InvalidSpec, match="too long"):
                    await ask
                assert worker.poll() == ""
            else:
                assert (await ask).status is QUEUED

    asyncio.run(go())


def test_a_start_that_a_poll_could_miss_is_not_sent(dynolog: Dynolog) -> None:
    async def go() -> None:
        client = client_of(dynolog, poll_interval_s=5.0)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            soon = time.time_ns() + 6 * NS
            fact = await one(client, a_request(start_at_ns=soon))
            assert fact.late_start is True
            assert "PROFILE_START_TIME=0\n" in worker.poll()
            later = time.time_ns() + 60 * NS
            fact = await one(client, a_request(capture_id="c2", start_at_ns=later))
            assert fact.late_start is None  # nobody can tell with this daemon
            assert f"PROFILE_START_TIME={later // 1_000_000}\n" in worker.poll()

    asyncio.run(go())


@pytest.mark.parametrize(
    "wrong", [{"pid": 0}, {"pid": -1}, {"pid": 2**40}, {"kineto_job_id": 0}, {"kineto_job_id": 2**31}]
)
def test_numbers_that_the_daemon_would_misread_are_never_sent(wrong: dict[str, int]) -> None:
    nowhere = DynologClient("localhost", 1)
    with pytest.raises(InvalidSpec, match="Nothing was sent"):
        asyncio.run(one(nowhere, a_request(**wrong)))


def test_where_nobody_listens_nothing_was_sent() -> None:
    async def go() -> None:
        client = DynologClient("localhost", 1)
        with pytest.raises(Unreachable, match="nothing was sent"):
            await one(client, a_request())
        (fact,) = await client.facts("c1")
        assert fact.status is NOT_MATCHED

    asyncio.run(go())


def test_giving_up_never_kills_the_daemon(standin: Callable[..., Dynolog]) -> None:
    """Closed the ordinary way, the same connection does (see the daemon's own test)."""

    async def go() -> None:
        daemon = standin(think_s=0.3)
        impatient = client_of(daemon, timeout_s=0.1)
        for _ in range(3):
            with pytest.raises(Unreachable, match="may have been executed"):
                await one(impatient, a_request())
        assert await client_of(daemon).version()
        assert daemon.alive

    asyncio.run(go())


def test_cancelling_never_kills_the_daemon(standin: Callable[..., Dynolog]) -> None:
    async def go() -> None:
        daemon = standin(think_s=0.3)
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client_of(daemon).version(), 0.1)
        assert await client_of(daemon).version()
        assert daemon.alive

    asyncio.run(go())


def test_a_stream_of_broken_off_calls_leaves_the_daemon_alive(dynolog: Dynolog) -> None:
    async def go() -> None:
        for step in range(40):
            with contextlib.suppress(Unreachable):
                await client_of(dynolog, timeout_s=0.0005 * step).version()
        assert await client_of(dynolog).version()
        assert dynolog.alive

    asyncio.run(go())


def test_a_blocked_daemon_costs_one_timeout_and_the_doubt_is_kept(dynolog: Dynolog) -> None:
    async def go() -> None:
        impatient = client_of(dynolog, timeout_s=0.5)
        with Client(dynolog.ipc_dir, pid=100) as worker:
            worker.poll()
            with dynolog.connect(), pytest.raises(Unreachable, match="one silent client"):
                await one(impatient, a_request())
            impatient._timeout_s = 30.0
            fact = await one(impatient, a_request())
            if fact.status is BUSY:  # the first request was executed after all
                assert "may be this capture's own" in fact.note
                worker.poll()
                fact = await one(impatient, a_request())
            assert fact.status is QUEUED
            assert "a second trace is possible" in fact.note
        assert dynolog.alive

    asyncio.run(go())


# --- peers that are not dynolog, or not in their right mind -----------------------------------------------------

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def peer(answer: Answer) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            (size,) = struct.unpack("=i", await reader.readexactly(4))
            await reader.readexactly(size)
            await answer(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "localhost", 0) as server:
        yield server.sockets[0].getsockname()[1]


def says(*pieces: bytes, pause_s: float = 0) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


def framed(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("=i", len(body)) + body


@pytest.mark.parametrize(
    "answer",
    [
        says(b""),
        says(struct.pack("=i", 2**31 - 1)),
        says(struct.pack("=i", 0)),
        says(struct.pack("=i", -7)),
        says(struct.pack("=i", 100) + b"{}"),
        says(struct.pack("=i", 7) + b"no json"),
        says(framed({"processesMatched": "all"})),
        says(framed([1])),
        says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        says(*[b"\x01"] * 100, pause_s=0.05),
    ],
)
def test_a_senseless_or_endless_answer_is_no_answer(answer: Answer) -> None:
    async def go() -> None:
        async with peer(answer) as port:
            client = DynologClient("localhost", port, timeout_s=1.0)
            with pytest.raises(Unreachable, match="may have been executed"):
                await one(client, a_request())
            (fact,) = await client.facts("c1")
            assert fact.status is NOT_MATCHED
            assert "may have been executed" in fact.note

    asyncio.run(go())


def test_an_absurd_length_is_not_waited_for() -> None:
    async def go() -> None:
        async with peer(says(struct.pack("=i", 2**31 - 1), pause_s=60)) as port:
            with pytest.raises(Unreachable, match="announced an answer of 2147483647 bytes"):
                await one(DynologClient("localhost", port, timeout_s=30), a_request())

    asyncio.run(go())


def test_a_refusal_is_told_in_the_daemons_words() -> None:
    async def go() -> None:
        async with peer(says(framed({"status": "failed with exception = xyz"}))) as port:
            with pytest.raises(SameshotError, match="xyz") as caught:
                await one(DynologClient("localhost", port), a_request())
            assert not isinstance(caught.value, Unreachable)

    asyncio.run(go())


def test_an_answer_in_crumbs_is_put_together() -> None:
    crumbs = [bytes([byte]) for byte in framed({"processesMatched": [100], "activityProfilersTriggered": [100]})]

    async def go() -> None:
        async with peer(says(*crumbs)) as port:
            assert (await one(DynologClient("localhost", port), a_request())).status is QUEUED

    asyncio.run(go())


def test_one_connection_at_a_time_even_for_many_callers() -> None:
    open_now, most, calls = 0, 0, 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most, calls
        open_now, calls = open_now + 1, calls + 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        open_now -= 1
        writer.write(framed({"processesMatched": [], "activityProfilersTriggered": []}))
        await writer.drain()

    async def go() -> None:
        async with peer(answer) as port:
            client = DynologClient("localhost", port, timeout_s=30)
            await asyncio.gather(*(one(client, a_request(target_id=f"node/main/{i}")) for i in range(12)))

    asyncio.run(go())
    assert (most, calls) == (1, 12)


def test_the_request_leaves_in_one_piece_and_names_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon reads the length with a single read; a list of pids that is empty or has 0 would mean everybody.

    What the peer reads at once proves nothing (the kernel joins what came in pieces), so the calls themselves are
    recorded, at the socket.
    """
    sent: list[bytes] = []
    served = 0

    class Recorded(socket.socket):
        def send(self, data: Any, *flags: int) -> int:
            taken = super().send(data, *flags)
            if self.family != socket.AF_UNIX and self.getpeername()[1] == served:
                sent.append(bytes(data[:taken]))
            return taken

    monkeypatch.setattr("sameshot.profiler.dynolog.socket.socket", Recorded)

    async def go() -> None:
        nonlocal served
        triggered = says(framed({"processesMatched": [100], "activityProfilersTriggered": [100]}))
        async with peer(triggered) as served:
            assert (await one(DynologClient("localhost", served), a_request())).status is QUEUED

    asyncio.run(go())
    (request,) = sent
    assert struct.unpack("=i", request[:4])[0] == len(request) - 4
    body = json.loads(request[4:])
    assert (body["pids"], body["job_id"], body["process_limit"]) == ([100], JOB, 1000)
