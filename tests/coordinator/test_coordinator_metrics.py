"""What a coordinator tells Prometheus and probes, and the coordinator of a cluster as a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from coordination import SPEC, in_loop, until, until_view
from coordinator_cluster import Cluster
from fake_agent import stay
from prometheus_client.parser import text_string_to_metric_families

from sameshot.coordinator import CoordinatorConfig, CoordinatorServer
from sameshot.coordinator import cluster as in_cluster
from sameshot.coordinator.configfile import encoded
from sameshot.coordinator.metrics import CoordinatorMetrics
from sameshot.kube.reviews import Tally
from sameshot.model import JobRef, Outcome, TargetState


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def scraped(address: str) -> dict[str, float]:
    """name{labels} → value, without what names the job or the process."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    found = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            if sample.name.startswith("sameshot_coordinator_"):
                found[sample.name.removeprefix("sameshot_coordinator_") + (f"{{{labels}}}" if labels else "")] = (
                    sample.value
                )
    return found


def asked(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def said(address: str, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(asked, address, path)


@in_loop
async def test_metrics_say_what_is_captured_who_is_missing_and_who_was_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job, address = cluster.job("llama"), free_address()
        agent = await cluster.node("a", [0, 1], job, 4)
        cluster.pod(job, "llama-b", "b")
        policy = tmp_path / "policy.json"
        policy.write_text("{}")
        async with (
            cluster.coordinator(job, metrics=address, policy=policy) as coordinator,
            cluster.client(job) as client,
        ):
            assert await said(address, "readyz") == (200, "ok\n")
            links = coordinator.server.roster.links
            await until(lambda: all(each.answers or each.trouble for each in links()))
            idle = await scraped(address)
            assert (idle["workers_registered"], idle["workers_missing"]) == (2, 2)
            assert (idle["agents{answers=yes}"], idle["agents{answers=no}"]) == (1, 1)
            assert "last_capture_seconds" not in idle
            deliver, agent.script = agent.script, stay(TargetState.QUEUED)
            started = await client.start_capture(SPEC)
            await until_view(
                client,
                started.capture_id,
                lambda view: (
                    view.state == "COLLECTING" and sum(each.state is TargetState.QUEUED for each in view.targets) == 2
                ),
            )
            running = await scraped(address)
            assert (running["captures{state=COLLECTING}"], running["captures_unsettled"]) == (1, 1)
            assert (running["targets{state=queued}"], running["targets{state=failed}"]) == (2, 2)
            agent.script = deliver
            assert (await client.wait(started.capture_id)).outcome is Outcome.PARTIAL
            policy.write_text("{")
            await client.describe()
            done = await scraped(address)
            assert (done["captures{state=PARTIAL}"], done["captures_unsettled"], done["targets{state=queued}"]) == (
                1, 0, 0,
            )  # fmt: skip
            assert (done["last_capture_targets{outcome=archived}"], done["last_capture_targets{outcome=failed}"]) == (
                2,
                2,
            )
            assert (done["last_capture_published"], done["policy_unreadable"], done["retired"]) == (1, 1, 0)
            assert 0 < done["last_capture_seconds"] < 60
            assert done["token_reviews_total{answer=allowed}"] >= 1
            assert done["token_reviews_total{answer=denied}"] == 0
            assert done["directory_unknown"] == 0


@in_loop
async def test_metrics_are_named_for_their_part_and_none_has_a_label_that_grows_without_end(tmp_path: Path) -> None:
    server = CoordinatorServer(CoordinatorConfig(job=JobRef("ml", "llama", "u", 0), archive=str(tmp_path)))
    families = list(
        CoordinatorMetrics(server.config, server.book, {"token": Tally(), "access": Tally()}, None).collect()
    )
    assert all(family.name.startswith("sameshot_coordinator_") for family in families)
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels == {"job_namespace", "job", "uid", "attempt", "version", "backend", "state", "answers", "answer"}


@in_loop
async def test_probes_are_answered_without_metrics_and_tell_of_a_loop_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # it is not installed
    monkeypatch.setattr(in_cluster, "BEAT_S", 0.05)
    monkeypatch.setattr(in_cluster, "DEAD_AFTER_S", 0.5)
    async with Cluster(tmp_path) as cluster:
        job, address = cluster.job("llama"), free_address()
        async with cluster.coordinator(job, probe=address):
            assert [await said(address, path) for path in ("readyz", "healthz", "metrics")] == [
                (200, "ok\n"), (200, "ok\n"), (404, "/healthz, /readyz\n"),
            ]  # fmt: skip
            ended, heard = threading.Event(), list[tuple[int, str]]()

            def ask() -> None:
                host, port = cluster.address.rsplit(":", 1)
                while not ended.is_set() and len(heard) < 400:
                    socket.create_connection((host, int(port)), 5).close()  # as a tcpSocket probe, all the while
                    heard.append(asked(address, "healthz"))
                    if heard[-1][0] != 200:
                        return
                    ended.wait(0.02)

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(10)  # in the loop's own thread
            ended.set()
            assert heard[0][0] == 200
            assert heard[-1][0] == 503
            assert "its event loop has stood still for" in heard[-1][1]
            async with asyncio.timeout(10):
                while await said(address, "healthz") != (200, "ok\n"):
                    await asyncio.sleep(0.02)


def test_a_coordinator_of_one_machine_imports_nothing_of_clusters() -> None:
    code = (
        "import sys, sameshot.coordinator.server\n"
        "of_clusters = ('sameshot.kube', 'sameshot.arm', 'prometheus_client')\n"
        "print([name for name in sys.modules if name.startswith(of_clusters)])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.mark.full
@in_loop
async def test_the_process_serves_by_its_file_and_lets_a_capture_end_before_it_does(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job, listen = cluster.job("llama"), free_address()
        agent = await cluster.node("a", [0], job, 1)
        deliver, agent.script = agent.script, stay(TargetState.QUEUED)
        file = tmp_path / "config.json"
        file.write_bytes(encoded(cluster.config(job, listen=listen, drain_s=60.0)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sameshot.cli.main", "coordinator", "--config", str(file))
        )
        try:
            cluster.address = listen
            async with cluster.client(job) as client:
                async with asyncio.timeout(60):
                    while True:
                        with contextlib.suppress(Exception):
                            await client.describe()
                            break
                        await asyncio.sleep(0.05)
                started = await client.start_capture(SPEC)
                await until(lambda: started.capture_id in agent.accepted)
                process.send_signal(signal.SIGTERM)
                agent.script = deliver
                view = await client.wait(started.capture_id)
                assert (view.outcome, view.published) == (Outcome.SUCCEEDED, True)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
