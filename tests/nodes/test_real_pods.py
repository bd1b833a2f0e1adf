"""Arm, start pods, train in them, capture: the node's half of a cluster with nothing but the cluster itself played."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from checks import check_capture
from kube_api import an_object
from live import TRAIN, wait_for
from pods import Job, Nodes, needs_pods
from s3 import make_bucket, moto_server, s3_environment

from sameshot.agent.daemons import POD_DATAGRAMS_PER_S
from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import to_proto
from sameshot.api.sameshot_pb2_grpc import AgentStub
from sameshot.api.views import CaptureView
from sameshot.local.services import Service
from sameshot.model import BoundBy, CaptureState, FailureReason, JobRef, Nobody, TargetState
from sameshot.trace.capture_check import locate

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _pods() -> None:
    needs_pods()


def archived(job: Job, view: CaptureView) -> dict[int, dict[str, Any]]:
    """Rank → the keys beside the events of its archived trace."""
    folder = Path(job.nodes.archive) / job.nodes.job.path / view.capture_id
    found = {}
    for fact in view.targets:
        if fact.artifact is not None:
            assert fact.identity.rank is not None
            found[fact.identity.rank] = json.loads(gzip.decompress((folder / fact.artifact.uri).read_bytes()))
    return found


def test_four_pods_on_two_nodes_with_equal_pids_are_captured_into_s3(tmp_path: Path) -> None:
    """Every worker is process 1 of its pod; two of them on each node."""
    with moto_server() as endpoint, s3_environment(endpoint):
        make_bucket(endpoint, "traces")
        with Nodes(tmp_path, "node-a", "node-b", archive="s3://traces/cluster") as nodes:
            pods = nodes.train("node-a", "node-a", "node-b", "node-b")
            with nodes.agent("node-a") as one, nodes.agent("node-b") as two, nodes.coordinator(one, two) as job:
                workers = job.until_training(4)
                assert {worker.registration.pid for worker in workers.values()} == {1}
                view = job.wait(job.start(duration_ms=1000, warmup_ms=1000))
                assert view.state is CaptureState.SUCCEEDED, view
                report = check_capture(*locate(f"s3://traces/cluster/{nodes.job.path}/{view.capture_id}/manifest.json"))
            assert all(pod.alive for pod in pods)
        assert [target.target_id for target in report.targets] == [f"train-{rank}/trainer/0" for rank in range(4)]
        for rank, fact in enumerate(view.targets):
            pod = pods[rank]
            assert fact.identity.rank == rank
            assert (fact.identity.pod, fact.identity.pod_uid, fact.identity.node) == (
                pod.name,
                pod.uid,
                pod.kubelet.name,
            )
            assert fact.identity.registration == workers[rank].registration.uuid
            assert fact.identity.bound_by is BoundBy.BYTES
        assert not [path for pod in pods for path in pod.volume.rglob("*.json") if "workers" not in path.parts]


def test_eight_ranks_in_one_pod_under_a_launcher_that_is_process_1(tmp_path: Path) -> None:
    with Nodes(tmp_path, "node-a") as nodes:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8", "--master-port", "29500"]
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": "/tmp"}
        script = [str(TRAIN), "--finish", "/shared/finish", "--pause", "0.1"]
        pod = nodes["node-a"].run(nodes.pod("eight", [*command, *script], env=env))
        with nodes.agent("node-a") as agent, nodes.coordinator(agent) as job:
            workers = job.until_training(8, timeout_s=240)
            view = job.wait(job.start(duration_ms=1000))
            assert view.state is CaptureState.SUCCEEDED, view
            traces = archived(job, view)
        assert pod.alive
        assert sorted(traces) == list(range(8))
        for rank, trace in traces.items():
            assert trace["PT_PROFILER_JOB_NAME"] == f"sameshot/{workers[rank].registration.uuid}"
        assert len({worker.registration.pid for worker in workers.values()}) == 8
        assert 1 not in {worker.registration.pid for worker in workers.values()}  # the launcher is no rank


def test_a_pod_killed_in_its_window_fails_alone_and_one_deleted_after_it_is_still_delivered(tmp_path: Path) -> None:
    with Nodes(tmp_path, "node-a", "node-b") as nodes:
        pods = nodes.train("node-a", "node-b", "node-b", args=("--apart",))
        with nodes.agent("node-a") as one, nodes.agent("node-b") as two, nodes.coordinator(one, two) as job:
            job.until_training(3)
            view = job.start(duration_ms=2000)
            recording = job.until_all(view, TargetState.CONSUMED)
            held = verifiers(one, 1)
            for process in held:
                process.suspend()  # what was announced is read only after its pod is gone
            assert recording.start_at_ns is not None
            begun = recording.start_at_ns + 300_000_000
            wait_for(lambda: time.time_ns() > begun, "the window has begun")
            pods[2].kill()
            job.until(view, 0, TargetState.ANNOUNCED)
            pods[0].delete()
            assert not pods[0].volume.exists()
            for process in held:
                process.resume()
            ended = job.wait(view)
            assert ended.state is CaptureState.PARTIAL
            assert ended.published
            first, second, third = ended.targets
            assert (first.state, second.state) == (TargetState.ARCHIVED, TargetState.ARCHIVED)
            assert third.failure is not None
            assert third.failure.reason is FailureReason.WORKER_EXITED
            assert third.failure.last_state is TargetState.CONSUMED
            assert sorted(archived(job, ended)) == [0, 1]
            # The broker of the deleted pod is gone, and the one beside the killed pod goes on.
            wait_for(lambda: "no longer served" in nodes.log("node-a"), "its daemon is let go")
            assert pods[1].alive


def test_an_agent_that_is_killed_in_the_middle_goes_on_under_the_same_name(tmp_path: Path) -> None:
    with Nodes(tmp_path, "node-a") as nodes:
        pods = nodes.train("node-a", "node-a")
        with nodes.agent("node-a") as agent, nodes.coordinator(agent) as job:
            job.until_training(2)
            view = job.start(duration_ms=3000)
            job.until_all(view, TargetState.CONSUMED)
            os.kill(agent.pid, signal.SIGKILL)
            ended = job.wait(view)
            assert ended.state is CaptureState.SUCCEEDED, ended
            assert agent.restarts == 1
            assert sorted(archived(job, ended)) == [0, 1]
            view = job.wait(job.start())
            assert view.state is CaptureState.SUCCEEDED, view
        assert all(pod.alive for pod in pods)  # an answer under a wrong name would have aborted them
        assert not any((pod.volume / "ipc" / "dynolog").exists() for pod in pods)  # an agent that ends leaves none


def test_an_agent_that_comes_long_after_the_import_is_found_within_one_poll(tmp_path: Path) -> None:
    """Nor do a closed umask and a group of the volume stand in the way, nor that the agent is in a container itself."""
    with Nodes(tmp_path, "node-a") as nodes:
        thing = nodes.training_pod(
            "alone", rank=0, world_size=1, master="127.0.0.1", umask=0o077, fs_group=4_000, options=None
        )
        pod = nodes["node-a"].run(thing)
        wait_for(lambda: "step 500" in pod.said(), "it has been training for a while", 180)
        with nodes.agent("node-a", contained=True) as agent:
            served = time.monotonic()  # its daemon was bound before it said that it is ready
            first, second = poll_moments(agent, nodes.job, 2)
            # Two of its polls would be too many. A loaded machine draws them out, and with them the first one.
            assert first - served < 2 * max(1.0, second - first), (first - served, second - first)
            with nodes.coordinator(agent) as job:
                view = job.wait(job.start())
                assert view.state is CaptureState.SUCCEEDED, view
        assert pod.alive


def poll_moments(agent: Service, job: JobRef, count: int) -> list[float]:
    """When (time.monotonic()) the only worker of this node polled, as the agent itself tells, without a coordinator."""
    request = pb.ListWorkersRequest()
    to_proto(job, request.job)
    moments: list[float] = []

    def asked(stub: AgentStub) -> bool:
        answer = stub.ListWorkers(request, timeout=10)
        for worker in answer.workers:
            if worker.HasField("last_poll_age_s"):
                at = time.monotonic() - worker.last_poll_age_s
                if not moments or at - moments[-1] > 0.5:  # and not the same one, told again
                    moments.append(at)
        return len(moments) == count

    with grpc.insecure_channel(agent.wait_ready(60)) as channel:
        stub = AgentStub(channel)  # type: ignore[no-untyped-call]
        wait_for(lambda: asked(stub), f"it has polled {count} times", 30)
    return moments


@pytest.mark.parametrize("kept", [("dac_override",), ("sys_chroot",)])
def test_without_one_of_its_two_capabilities_an_agent_serves_no_pod_and_says_so(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    with Nodes(tmp_path, "node-a") as nodes:
        [pod] = nodes.train("node-a")
        wait_for(lambda: (pod.volume / "ipc").exists(), "its hook has run")
        with nodes.agent("node-a", capabilities=kept):
            wait_for(lambda: "no profiler daemon" in nodes.log("node-a"), "it says so")
        assert not (pod.volume / "ipc" / "dynolog").exists()
        assert pod.alive


def verifiers(agent: Any, count: int) -> list[psutil.Process]:
    """The agent's reading processes, once they are set up (they lower their priority last)."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(agent.pid).children()
        return [child for child in children if "sameshot.agent.verifyworker" in child.cmdline() and child.nice() > 0]

    wait_for(lambda: len(found()) >= count, "the agent has its verifiers")
    return found()


# Never registers, and does what it can to keep its node's agent busy.
HOSTILE = """
import os, socket, struct, sys, time
for folder in ("ipc", "workers", "captures"):
    os.makedirs(f"/sameshot/{folder}", exist_ok=True)
for number in range(300):
    with open(f"/sameshot/workers/{number:08x}.json", "w") as file:
        file.write("{" * 60000)
os.mkfifo("/sameshot/workers/f.json")
body = struct.pack("=iiqi", 3, 1, 7, os.getpid())
data = struct.pack("=Q32s", len(body), b"req") + body
me = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
me.bind("/sameshot/ipc/dynoconfigclient00000000-0000-0000-0000-000000000000")
me.setblocking(False)
print("ready", file=sys.stderr, flush=True)
tried, sent, began = 0, 0, time.monotonic()
while True:
    try:
        me.sendto(data, "/sameshot/ipc/dynolog")
        sent += 1
    except OSError:  # the kernel refuses what its daemon does not come to read
        pass
    tried += 1
    if tried % 200_000 == 0:
        print("tried", tried, "sent", sent, "in", time.monotonic() - began, "s", file=sys.stderr, flush=True)
"""


def test_a_job_beside_a_hostile_pod_is_captured_as_if_it_were_alone(tmp_path: Path) -> None:
    with Nodes(tmp_path, "node-a") as nodes:
        other = nodes.api.put(an_object("Job", "other", api_version="batch/v1"))
        hostile = nodes["node-a"].run(nodes.pod("hostile", [sys.executable, "-c", HOSTILE], owner=other))
        pods = nodes.train("node-a", "node-a")
        with nodes.agent("node-a") as agent, nodes.coordinator(agent) as job:
            job.until_training(2)
            wait_for(lambda: "tried" in hostile.said(), "the flood is on")
            views = [job.wait(job.start()) for _ in range(2)]
            assert [view.state for view in views] == [CaptureState.SUCCEEDED] * 2, views
            told = re.findall(r"tried (\d+) sent (\d+) in ([0-9.]+) s", hostile.said())
            tried, sent, seconds = (float(number) for number in told[-1])
            assert tried > 10_000 * seconds
            assert 0 < sent < POD_DATAGRAMS_PER_S * (seconds + 1) + 1_000  # all else was refused: it cost nobody else
        assert hostile.alive
        assert all(pod.alive for pod in pods)


def test_a_pod_whose_python_ignores_the_hook_is_named_with_the_likely_causes(tmp_path: Path) -> None:
    with Nodes(tmp_path, "node-a") as nodes:
        deaf = [sys.executable, "-I", "-c", "import torch, time; print('deaf', flush=True); time.sleep(300)"]
        pod = nodes["node-a"].run(nodes.pod("deaf", deaf))
        wait_for(lambda: "deaf" in pod.said(), "torch is imported")
        container = pod.thing["status"]["containerStatuses"][0]
        container["state"]["running"]["startedAt"] = "2026-01-01T00:00:00Z"  # long ago
        nodes.api.put({key: value for key, value in pod.thing.items() if not key.startswith("_")})
        with nodes.agent("node-a") as agent, nodes.coordinator(agent) as job:
            wait_for(lambda: "ever registered" in nodes.log("node-a"), "its agent says so")
            view = job.wait(job.start())
        assert view.state is CaptureState.FAILED
        assert view.nobody is Nobody.NOT_ARMED
        assert "Pod ml/deaf is armed and its container trainer has been running" in view.note
        assert "python runs with -S, -I or -E" in view.note
        assert list(pod.volume.iterdir()) == []
