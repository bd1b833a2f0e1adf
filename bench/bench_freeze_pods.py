"""What it costs to know a job of 1,000 pods on 125 nodes and to close the set of a capture on it.

    python bench/bench_freeze_pods.py [--pods 1000] [--nodes 125] [--rounds 5]

Four figures, each beside one that was measured in the same run:

- reading the list of pods (as the API server gives it: 9 KB each) into what is kept of it, beside `json.loads` of the
  same bytes: once at a coordinator's start, and after an outage;
- one change of one pod, as a watch brings it: that is all that a running job costs;
- directory and plan of one capture (pods → nodes → agents; registrations → targets), without any network;
- a whole freeze over loopback (request accepted → set closed): agents found by pods and called by TLS, beside the same
  agents named one by one and called in the clear.

Agents are simulated in a process of their own, their answers made beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import msgspec

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.transport import ServerTls, bind
from sameshot.arm import labels
from sameshot.arm.record import ArmedRecord
from sameshot.client import AsyncClient
from sameshot.coordinator import CoordinatorConfig, CoordinatorServer
from sameshot.coordinator.cluster import AgentChannels
from sameshot.coordinator.plan import Seen, freeze
from sameshot.coordinator.podagents import PodAgents
from sameshot.kube import names
from sameshot.kube.agentpods import AgentPods
from sameshot.kube.api import Change, Listed
from sameshot.kube.podlist import PodList
from sameshot.kube.tokens import FileToken
from sameshot.model import CaptureSpec, JobRef, Registration, Worker

JOB = JobRef("ml", "llama", "0b1c7c1e-0000-4000-8000-000000000000", 0)
SERVICE = "sameshot.v1.Agent"
POD_BYTES = 9_000  # of a training pod with its managedFields, environment and status
PORT = 7444


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def a_pod(number: int, node: str) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {
            "name": f"llama-{number}", "namespace": JOB.namespace, "uid": uid(number), "resourceVersion": "1",
            "labels": {labels.ARM_LABEL: labels.ENABLED, "job-name": JOB.name},
            "annotations": {labels.ARMED: ArmedRecord(v=1, container="trainer", local_world_size=1).text},
            "ownerReferences": [
                {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": JOB.name, "uid": JOB.uid,
                 "controller": True}
            ],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "trainer", "image": "registry.example/llama:1", "env": []}],
            "volumes": [{"name": labels.VOLUME, "emptyDir": {}}],
        },
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "trainer", "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
    }  # fmt: skip
    fill = pod["spec"]["containers"][0]["env"]
    while len(json.dumps(pod)) < POD_BYTES:
        fill.append({"name": f"VARIABLE_{len(fill)}", "value": "x" * 40, "valueFrom": {"fieldRef": {"fieldPath": "a"}}})
    return pod


def an_agent(number: int, node: str, ip: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"sameshot-agent-{number}", "namespace": "sameshot-agents", "uid": uid(10**6 + number)},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class CannedApi:
    """Two lists, as bytes; nothing changes."""

    def __init__(self, pods: bytes, agents: bytes) -> None:
        self._pods, self._agents = pods, agents
        self._ended = threading.Event()

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]:
        data = self._agents if query["labelSelector"] == names.AGENT_SELECTOR else self._pods
        yield Listed(tuple(msgspec.json.decode(data, type=list[msgspec.Raw])), "1")

    def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]:
        self._ended.wait()
        yield from ()

    def close(self) -> None:
        self._ended.set()


def workers(number: int, nodes: int, pods: int) -> list[Worker]:
    """Of one node: every pod there has one rank."""
    found = []
    for rank in range(number, pods, nodes):
        registration = Registration(
            uuid=f"{rank:032x}", pid=7, start_ticks=1, job=JOB, rank=rank, local_rank=0, world_size=pods,
            local_world_size=1, node=f"node-{number}", pod=f"llama-{rank}", pod_uid=uid(rank), container="trainer",
            registered_at_ns=1, job_name=f"sameshot/{rank:032x}", torch_version="2.13.0",
        )  # fmt: skip
        found.append(Worker(registration, alive=True, current=True, last_poll_age_s=0.5))
    return found


# ---- the simulated agents: a process of their own


async def simulate(folder: Path, nodes: int, pods: int) -> None:
    """Every agent at an address of its own, in the clear and by TLS; says so and serves until it is ended."""
    addresses = []
    servers = []
    for number in range(nodes):
        listing = pb.ListWorkersResponse(node=f"node-{number}", backend="broker", poll_interval_s=1.0)
        facts = pb.CaptureFacts(known=True)
        for worker in workers(number, nodes, pods):
            to_proto(worker, listing.workers.add())
            fact = facts.targets.add(target_id=worker.registration.target_id, state=pb.QUEUED)
            to_proto(worker.registration.identity, fact.identity)
        answers = {"ListWorkers": listing.SerializeToString(), "KnownCaptures": b"", "PublishManifest": b""}
        handlers = {
            each: grpc.unary_unary_rpc_method_handler(_answering(answers.get(each, facts.SerializeToString())))
            for each in ("ListWorkers", "Dispatch", "GetFacts", "Withdraw", "KnownCaptures", "PublishManifest")
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        addresses.append(bind(server, "127.0.0.1:0", "an agent"))
        bind(server, f"{ip_of(number)}:{PORT}", "an agent", ServerTls(folder / "tls.crt", folder / "tls.key"))
        await server.start()
        servers.append(server)
    print(json.dumps(addresses), flush=True)
    await asyncio.Event().wait()


def ip_of(number: int) -> str:
    return f"127.77.{number // 250}.{number % 250 + 1}"


def _answering(data: bytes) -> Any:
    async def answer(request: bytes, context: Any) -> bytes:
        return data

    return answer


# ---- figures


def seconds(what: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        what()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


async def freezes(server: CoordinatorServer, nodes: int, rounds: int) -> list[float]:
    """Accepted → closed, by the coordinator's own clock, with all connections made."""
    found = []
    address = await server.start()
    async with AsyncClient(address) as client:
        while not all(link.answers for link in server.roster.links()):
            await asyncio.sleep(0.05)
        for _ in range(rounds):
            started = await client.start_capture(CaptureSpec(duration_ms=500))
            async for view in client.watch(started.capture_id):
                if view.frozen_at_ns is not None:
                    break
            assert view.frozen_at_ns is not None
            assert view.failed == 0
            found.append((view.frozen_at_ns - view.accepted_at_ns) / 1e9)
            await client.cancel(started.capture_id)
            await asyncio.sleep(4)  # its window passes, and nobody is asked anything else
    await server.stop()
    return found


async def compare(pods: int, nodes: int, rounds: int, folder: Path) -> None:
    things = [a_pod(number, f"node-{number % nodes}") for number in range(pods)]
    listed = json.dumps(things).encode()
    agents = json.dumps([an_agent(n, f"node-{n}", ip_of(n)) for n in range(nodes)]).encode()
    api: Any = CannedApi(listed, agents)
    podlist, agentpods = PodList(api, namespace=JOB.namespace, unarmed=True), AgentPods(api)
    assert podlist.start(30)
    assert agentpods.start(30)
    directory = PodAgents(JOB, podlist, agentpods, PORT)
    print(f"{pods} pods on {nodes} nodes, {len(listed) / 2**20:.1f} MiB of JSON, {os.cpu_count()} cores")

    loads = seconds(lambda: json.loads(listed), rounds)

    def read() -> None:
        things = map(podlist._understood, msgspec.json.decode(listed, type=list[msgspec.Raw]))
        podlist._replace([pod for pod in things if pod is not None])

    reads = seconds(read, rounds)
    print(f"list → what is kept: {reads * 1e3:.0f} ms of CPU, {reads / loads:.2f} × json.loads (limit 1.0)")
    changed = copy.deepcopy(things[0])
    changed["metadata"]["resourceVersion"] = "2"
    raw = msgspec.Raw(json.dumps(changed).encode())
    one = (
        seconds(lambda: [podlist._take("MODIFIED", uid(0), podlist._understood(raw)) for _ in range(100)], rounds) / 100
    )
    print(f"one change of one pod: {one * 1e6:.0f} µs of CPU, {one / (reads / pods):.1f} × its share of the list")

    seen = [Seen(f"node-{n}", f"node-{n}", tuple(workers(n, nodes, pods))) for n in range(nodes)]
    places = seconds(directory.agents, rounds) + seconds(directory.pods, rounds)
    plain = seconds(lambda: freeze(seen), rounds)
    with_pods = seconds(lambda: freeze(seen, directory.pods()), rounds)
    print(
        f"directory {places * 1e3:.1f} ms, plan {plain * 1e3:.1f} ms of CPU; plan with pods "
        f"{with_pods / plain:.2f} × the plan without (limit 1.5)"
    )

    certificate(folder)
    process = subprocess.Popen(
        [sys.executable, __file__, "--simulate", str(folder), "--pods", str(pods), "--nodes", str(nodes)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        named = CoordinatorConfig(job=JOB, archive=str(folder / "a"), agents=tuple(addresses))
        found = CoordinatorConfig(job=JOB, archive=str(folder / "b"))
        (folder / "token").write_text("token")
        connect = AgentChannels(folder / "ca.crt", FileToken(folder / "token"))
        baseline = await freezes(CoordinatorServer(named), nodes, rounds)
        cluster = await freezes(CoordinatorServer(found, directory=directory, connect=connect), nodes, rounds)
    finally:
        process.kill()
        process.wait()
        podlist.close()
    ratio = statistics.median(cluster) / statistics.median(baseline)
    print(
        f"request → set closed: {statistics.median(cluster):.3f} s by pods and TLS, {ratio:.2f} × "
        f"{statistics.median(baseline):.3f} s with agents named, in the clear (limit 3; at most 2 s are allowed)"
    )


def certificate(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    from tls import Authority

    authority = Authority()
    authority.issue(folder, names.AGENT_HOST)
    (folder / "ca.crt").write_bytes(authority.pem)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pods", type=int, default=1000)
    options.add_argument("--nodes", type=int, default=125)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--simulate", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.simulate is not None:
        asyncio.run(simulate(chosen.simulate, chosen.nodes, chosen.pods))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            asyncio.run(compare(chosen.pods, chosen.nodes, chosen.rounds, Path(scratch)))
