"""What an agent tells Prometheus and the kubelet's probes, over HTTP, against what was done with it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from agent_lab import SPEC, Lab, in_loop, until
from prometheus_client.parser import text_string_to_metric_families

from sameshot.agent.health import DEAD_AFTER_S, Health
from sameshot.agent.metrics import AgentMetrics
from sameshot.errors import UsageError
from sameshot.kube import scrape
from sameshot.kube.scrape import MOST_AT_ONCE, scraped
from sameshot.model import CaptureSpec, Phase


def get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def numbers(text: str) -> dict[str, float]:
    """`name{label=value}` → value, of ours."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {name.removeprefix("sameshot_agent_"): value for name, value in found.items() if "sameshot" in name}


@contextlib.contextmanager
def scraping(agent: Any) -> Iterator[str]:
    with scraped("127.0.0.1:0", AgentMetrics(agent), agent.health) as address:
        yield address


@in_loop
async def test_workers_targets_ends_and_bytes_are_those_of_the_capture(lab: Lab) -> None:
    first, second = lab.worker(phase=Phase.CONFIRMED), lab.worker(rank=1, local_rank=1, phase=Phase.CANDIDATE)
    gone = lab.worker(rank=2, local_rank=2)
    gone.kill()
    async with lab.agent(keep_free_bytes=77) as caller:
        with scraping(caller.agent) as address:

            async def read() -> dict[str, float]:
                status, text = await asyncio.to_thread(get, address, "/metrics")
                assert status == 200
                return numbers(text)

            seen = await read()
            assert seen["workers{phase=confirmed}"] == seen["workers{phase=candidate}"] == 1
            assert seen["workers{phase=ended}"] == 1
            assert seen["workers{phase=exiting}"] == 0
            assert seen["directories"] == 1
            assert seen["keep_free_bytes"] == 77
            assert seen["spool_free_bytes"] > 1e6
            assert seen["info{backend=broker,node=node-a,version=0.1.0}"] == 1
            assert {seen[f"targets{{state={name}}}"] for name in ("queued", "announced", "verified")} == {0}
            assert not [name for name in seen if "review" in name or "api_list" in name], "no cluster, no API server"

            capture = await caller.dispatch(first, second, gone)
            await caller.dispatch(first, second, gone, capture_id=capture, start_at_ns=1)  # as a coordinator repeats it
            await until(lambda: _queued(caller.agent) == 2, "both are asked for")
            seen = await read()
            assert seen["targets{state=queued}"] == 2
            assert seen["targets_ended_total{outcome=WORKER_EXITED}"] == 1

            first.write_trace(capture)
            second.write_trace(capture, b"{")
            await caller.until_archived(capture, first)
            await caller.until_failed(capture, second)
            seen = await read()
            ended = {name: value for name, value in seen.items() if name.startswith("targets_ended") and value}
            assert ended == {
                "targets_ended_total{outcome=archived}": 1,
                "targets_ended_total{outcome=INVALID}": 1,
                "targets_ended_total{outcome=WORKER_EXITED}": 1,
            }
            assert {value for name, value in seen.items() if name.startswith("targets{")} == {0}


def _queued(agent: Any) -> int:
    return sum(target.fact.state.name == "QUEUED" for capture in agent.book for target in capture.open_targets)


@in_loop
async def test_uploads_that_fail_are_counted_while_they_are_tried_again(lab: Lab) -> None:
    worker = lab.worker()
    lab.archive.write_bytes(b"no folder can be made here")
    async with lab.agent() as caller:
        with scraping(caller.agent) as address:
            capture = await caller.dispatch(worker, spec=CaptureSpec(duration_ms=SPEC.duration_ms, warmup_ms=0))
            worker.write_trace(capture)
            await until(lambda: caller.agent.archive.failures >= 2, "two attempts failed")
            seen = numbers((await asyncio.to_thread(get, address, "/metrics"))[1])
            assert seen["archive_failures_total"] >= 2
            assert seen["targets{state=verified}"] == 1
            assert seen["spool_bytes"] > 0
            lab.archive.unlink()
            await caller.until_archived(capture, worker)


class Nothing:
    def collect(self) -> list[Any]:
        return []


class Broken:
    def collect(self) -> list[Any]:
        raise OSError("the disk")


def test_probes_tell_alive_from_ready_and_a_loop_that_stands_still_from_both() -> None:
    now = [0.0]
    health = Health(lambda: now[0])

    async def one_beat() -> None:
        beating = asyncio.create_task(health.beat())
        await asyncio.sleep(0)
        beating.cancel()

    with scraped("127.0.0.1:0", Nothing(), health) as address:
        assert get(address, "/healthz") == (200, "ok\n")
        assert get(address, "/readyz") == (503, "it is starting\n")
        asyncio.run(one_beat())
        health.wait_for("there is no certificate yet")
        assert get(address, "/readyz") == (503, "there is no certificate yet\n")
        health.wait_for("")
        assert get(address, "/readyz?verbose") == (200, "ok\n")
        now[0] += DEAD_AFTER_S + 1
        for path in ("/healthz", "/readyz"):
            assert get(address, path) == (503, "its event loop has stood still for 61 s\n")
        assert get(address, "/other")[0] == 404


def test_metrics_that_fail_are_no_reason_for_a_restart() -> None:
    health = Health()
    with scraped("127.0.0.1:0", Broken(), health) as address:
        assert get(address, "/metrics")[0] == 500
        assert get(address, "/healthz")[0] == 200


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_connections_that_are_slow_or_idle_are_bounded_and_fail_no_probe() -> None:
    with contextlib.ExitStack() as held, scraped("127.0.0.1:0", Nothing(), Health()) as address:
        slow = [held.enter_context(connected(address)) for _ in range(3 * MOST_AT_ONCE)]
        for each in slow[-MOST_AT_ONCE:]:
            each.sendall(b"GET /met")
        for each in slow[: 2 * MOST_AT_ONCE]:
            assert each.recv(1) == b"", "the oldest make room"
        for _ in range(5):
            assert get(address, "/healthz") == (200, "ok\n")
        slow[-1].sendall(b"rics HTTP/1.0\r\n\r\n")
        assert slow[-1].recv(12) == b"HTTP/1.0 200"


def test_a_connection_ends_in_time_however_busy_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "CONNECTION_LASTS_S", 0.5)
    with scraped("127.0.0.1:0", Nothing(), Health()) as address, connected(address) as drip:
        began = time.monotonic()
        with contextlib.suppress(OSError):  # cut off
            while time.monotonic() < began + 10:
                drip.sendall(b"G")
                time.sleep(0.02)
        assert time.monotonic() - began < 10


def test_a_request_without_end_is_not_read_to_its_end() -> None:
    with scraped("127.0.0.1:0", Nothing(), Health()) as address, connected(address) as large:
        large.sendall(b"GET /healthz HTTP/1.0\r\nx: ".ljust(scrape.MAX_REQUEST, b"y"))
        assert large.recv(12) == b"HTTP/1.0 200"


@pytest.mark.parametrize("listen", ["9464", "here:http", "127.0.0.1:70000", "203.0.113.1:9464"])
def test_an_address_that_can_not_be_used_is_said(listen: str) -> None:
    with pytest.raises(UsageError), scraped(listen, Nothing(), Health()):
        pass


def test_both_families_of_addresses_reach_a_part_that_listens_everywhere() -> None:
    with scraped("0.0.0.0:0", Nothing(), Health()) as address:
        port = address.rpartition(":")[2]
        assert get(f"127.0.0.1:{port}", "/healthz")[0] == 200
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # no loopback of that family here
                assert get(f"[::1]:{port}", "/healthz")[0] == 200


def test_an_agent_without_metrics_imports_nothing_of_prometheus() -> None:
    code = "import sameshot.agent.server, sys; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
