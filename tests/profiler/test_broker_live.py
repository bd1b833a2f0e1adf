"""The broker against the Kineto of the installed torch: what really ends up in the files."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from profiler_lab import JOB, NS, Worker, a_request, until, until_status

from sameshot.model import Activity, CaptureSpec
from sameshot.profiler.broker import Broker
from sameshot.profiler.config import config_text
from sameshot.profiler.daemon import TriggerStatus
from sameshot.profiler.kineto_ipc import Poll, Wants, decode, encode_reply

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

QUEUED, CONSUMED, BUSY = TriggerStatus.QUEUED, TriggerStatus.CONSUMED, TriggerStatus.BUSY


def with_worker(ipc_dir: Path, home: Path, test: Callable[[Broker, Worker], Awaitable[None]]) -> None:
    async def go() -> None:
        broker = Broker(ipc_dir)
        await broker.start()
        try:
            with Worker(broker.socket_dir, home) as worker:
                await worker.training()
                await registered(broker, worker)
                await test(broker, worker)
        finally:
            await broker.close()

    asyncio.run(go())


async def registered(broker: Broker, worker: Worker) -> None:
    async def known() -> bool:
        return (JOB, worker.pid) in await broker.registered()

    await until("the worker polls", known)


def in_seconds(seconds: float) -> int:
    return time.time_ns() + int(seconds * NS)


def test_a_capture_records_the_offered_window_and_nothing_that_was_not_asked_for(ipc_dir: Path, tmp_path: Path) -> None:
    async def test(broker: Broker, worker: Worker) -> None:
        start = in_seconds(6)
        request = worker.request("c1", spec=CaptureSpec(duration_ms=1000, warmup_ms=1000), start_at_ns=start)
        fact = await until_status(broker, request, CONSUMED)
        assert fact.late_start is False
        trace = await worker.trace(request)
        first, last = trace.window_ns()
        assert abs(first - start) < 0.5 * NS
        assert 0.5 * NS < last - first < 1.5 * NS
        assert trace.categories["cpu_op"] > 50
        assert trace.categories["user_annotation"] > 5
        assert "python_function" not in trace.categories
        assert {event["name"] for event in trace.events if event.get("cat") == "user_annotation"} >= {"lab_step"}
        assert (await broker.facts("c1"))[0].note == ""

    with_worker(ipc_dir, tmp_path, test)


@pytest.mark.full
def test_each_option_records_what_it_names(ipc_dir: Path, tmp_path: Path) -> None:
    """One bad name in the list would lose the whole request: every list must lead to a file."""
    short = {"duration_ms": 400, "warmup_ms": 0}

    async def test(broker: Broker, worker: Worker) -> None:
        async def capture(name: str, **options: object) -> tuple[set[str], list[dict[str, object]]]:
            request = worker.request(name, spec=CaptureSpec.of({**short, **options}))
            await until_status(broker, request, CONSUMED)
            trace = await worker.trace(request)
            return set(trace.categories), trace.events

        categories, _ = await capture("cuda", activities=["cuda"])
        assert "cpu_op" not in categories
        categories, events = await capture("all", activities=[activity.value for activity in Activity])
        assert "cpu_op" in categories
        assert not any("Input Dims" in event.get("args", {}) for event in events)
        categories, events = await capture("stack", with_stack=True, record_shapes=True)
        assert categories >= {"cpu_op", "python_function"}
        assert any("one_step" in str(event["name"]) for event in events if event.get("cat") == "python_function")
        assert any("Input Dims" in event.get("args", {}) for event in events)

    with_worker(ipc_dir, tmp_path, test)


def test_a_start_that_was_fetched_too_late_begins_at_once_and_says_so(ipc_dir: Path, tmp_path: Path) -> None:
    async def test(broker: Broker, worker: Worker) -> None:
        start = in_seconds(0.5)
        request = worker.request("c1", start_at_ns=start)
        fact = await until_status(broker, request, CONSUMED)
        assert fact.late_start is True
        first, _ = (await worker.trace(request)).window_ns()
        assert fact.consumed_at_ns is not None
        assert 1.5 * NS < first - fact.consumed_at_ns < 4 * NS  # two ticks of Kineto, no warm-up

    with_worker(ipc_dir, tmp_path, test)


@pytest.mark.full
def test_the_soonest_start_that_the_broker_still_sends_is_met(ipc_dir: Path, tmp_path: Path) -> None:
    """The margin is only right if Kineto takes what the broker believes it can take."""

    async def test(broker: Broker, worker: Worker) -> None:
        met = 0
        for attempt in range(6):
            request = worker.request(f"c{attempt}", start_at_ns=in_seconds(1.6 + 0.15 * attempt))
            fact = await until_status(broker, request, CONSUMED)
            met += fact.late_start is False
            first, _ = (await worker.trace(request)).window_ns()
            if fact.late_start is False:
                assert abs(first - request.start_at_ns) < 0.5 * NS

            async def idle(request: object = request) -> bool:
                probe = a_request(capture_id=f"probe{time.time_ns()}", pid=worker.pid)
                (fact,) = await broker.trigger([probe])
                await broker.withdraw(probe.capture_id, [probe.target_id])
                return fact.status is not BUSY

            await until("the slot is free", idle)
        assert met

    with_worker(ipc_dir, tmp_path, test)


def test_a_withdrawn_config_never_runs_and_the_next_one_does(ipc_dir: Path, tmp_path: Path) -> None:
    async def test(broker: Broker, worker: Worker) -> None:
        worker.signal(signal.SIGSTOP)  # so that it surely does not poll before the withdrawal
        request = worker.request("c1")
        await until_status(broker, request, QUEUED)
        (fact,) = await broker.withdraw("c1", [request.target_id])
        assert fact.status is TriggerStatus.WITHDRAWN
        worker.signal(signal.SIGCONT)
        following = worker.request("c2")
        await until_status(broker, following, CONSUMED)
        await worker.trace(following)
        assert list(Path(request.output_path).parent.iterdir()) == []

    with_worker(ipc_dir, tmp_path, test)


def test_an_overlapping_capture_waits_for_the_first_and_then_runs(ipc_dir: Path, tmp_path: Path) -> None:
    async def test(broker: Broker, worker: Worker) -> None:
        spec = CaptureSpec(duration_ms=1500, warmup_ms=0)
        first = worker.request("c1", spec=spec, start_at_ns=in_seconds(5))
        second = worker.request("c2", spec=spec)
        await until_status(broker, first, CONSUMED)
        fact = await until_status(broker, second, BUSY)
        assert "c1" in fact.note
        await until_status(broker, second, CONSUMED)
        _, first_end = (await worker.trace(first)).window_ns()
        second_begin, _ = (await worker.trace(second)).window_ns()
        assert first_end < second_begin

    with_worker(ipc_dir, tmp_path, test)


def test_a_new_broker_finds_the_workers_of_the_old_one(ipc_dir: Path, tmp_path: Path) -> None:
    async def go() -> None:
        old = Broker(ipc_dir)
        await old.start()
        with Worker(old.socket_dir, tmp_path) as worker:
            await worker.training()
            await registered(old, worker)
            await old.close()
            new = Broker(ipc_dir)
            await new.start()
            try:
                assert await new.registered() == {}
                await registered(new, worker)
                request = worker.request("c1")
                await until_status(new, request, CONSUMED)
                await worker.trace(request)
            finally:
                await new.close()

    asyncio.run(go())


def test_a_worker_that_spells_the_directory_differently_trains_on(ipc_dir: Path, tmp_path: Path) -> None:
    """An answer would abort it ("Unexpected socket name")."""

    async def go() -> None:
        broker = Broker(ipc_dir)
        await broker.start()
        try:
            with Worker(f"{ipc_dir}/", tmp_path) as worker:
                await worker.training()

                async def three_polls() -> bool:
                    return broker.ignored["malformed"] >= 3

                await until("the worker polls", three_polls)
                assert worker.process.poll() is None
                assert await broker.registered() == {}
        finally:
            await broker.close()

    asyncio.run(go())


@pytest.mark.full
def test_kineto_says_when_it_records_and_loses_a_request_that_comes_before_a_pending_one_began(
    ipc_dir: Path, tmp_path: Path
) -> None:
    """Why the broker keeps a slot taken until the window is over, whatever the worker says of itself."""
    spec = CaptureSpec(duration_ms=3000, warmup_ms=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(f"{ipc_dir}/dynolog")
        daemon.settimeout(60)
        with Worker(str(ipc_dir), tmp_path) as worker:
            first = worker.request("c1", spec=spec, start_at_ns=0)
            second = worker.request("c2", spec=spec, start_at_ns=0)

            def answer(config: str = "") -> Wants:
                data, client = daemon.recvfrom(65536)
                daemon.sendto(encode_reply(config), client)
                poll = decode(data)
                assert isinstance(poll, Poll)
                assert (poll.pid, poll.job_id) == (worker.pid, JOB)
                return poll.wants

            asyncio.run(worker_trains(worker, answer))
            assert Wants.ACTIVITIES in answer(config_text(spec, first.output_path, in_seconds(5)))
            assert Wants.ACTIVITIES in answer(config_text(spec, second.output_path, None))
            while Wants.ACTIVITIES in answer():  # the first is pending: it still says that it is free
                pass
            while Wants.ACTIVITIES not in answer():
                pass
            assert worker.file_of(first).exists()
            for _ in range(6):  # longer than a window that begins at once
                assert Wants.ACTIVITIES in answer()
            assert not worker.file_of(second).exists()


async def worker_trains(worker: Worker, answer: Callable[[], object]) -> None:
    serving = asyncio.create_task(worker.training())
    while not serving.done():
        await asyncio.to_thread(answer)
    await serving


@pytest.mark.full
def test_a_window_that_the_program_itself_cancelled_is_recorded_after_all(ipc_dir: Path, tmp_path: Path) -> None:
    """The program's own profiler ends a running on-demand one; the worker's polls give it away."""
    script = """
import os, sys, time, torch, torch.profiler
x = torch.randn(16, 16)
with torch.profiler.profile():  # the first one takes seconds, later ones don't
    x @ x
print("training", flush=True)
end = time.time() + 180
while time.time() < end:
    if os.path.exists(os.path.join(os.path.dirname(__file__), "profile-now")):
        os.unlink(os.path.join(os.path.dirname(__file__), "profile-now"))
        with torch.profiler.profile():
            x @ x
    x @ x
    time.sleep(0.01)
"""

    async def go() -> None:
        broker = Broker(ipc_dir)
        await broker.start()
        try:
            with Worker(broker.socket_dir, tmp_path, script=script) as worker:
                await worker.training()
                await registered(broker, worker)
                spec = CaptureSpec(duration_ms=10_000, warmup_ms=0)
                request = worker.request("c1", spec=spec, start_at_ns=in_seconds(6))
                await until_status(broker, request, CONSUMED)

                async def recording() -> bool:
                    return time.time_ns() > request.start_at_ns

                await until("the window has begun", recording)
                (tmp_path / "profile-now").touch()
                await worker.trace(request)
                (fact,) = await broker.facts("c1")
                assert fact.late_start is True
                assert "dropped" in fact.note
        finally:
            await broker.close()

    asyncio.run(go())
