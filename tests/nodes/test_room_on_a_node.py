"""A capture never evicts a pod and never fills a node: it is refused before anything is sent, and nothing is lost."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_lab import Caller, Lab, a_lab, in_loop, until, write_large_trace
from kube_api import KubeApiServer, a_pod, an_object
from pod_dirs_lab import USER, PodDir, PodWorker, needs_chroot

from sameshot.agent.poddirs import PodDirs
from sameshot.kube.api import KubeApi
from sameshot.model import CaptureSpec, FailureReason, JobRef, TargetFact, TargetState

SPEC = CaptureSpec(duration_ms=100, warmup_ms=0)  # 30 MB at the default rate


class Node:
    """An agent that finds its pods as on a real node, on a file system of its own where `size_mb` is given."""

    def __init__(self, lab: Lab, api: KubeApiServer, size_mb: int | None = None) -> None:
        self.lab, self.api = lab, api
        self.root = lab.root / "kubelet"
        self.root.mkdir()
        self.mounted = size_mb is not None
        if size_mb is not None:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "node", self.root]
            tried = subprocess.run(mount, capture_output=True, text=True, check=False)
            if tried.returncode:
                pytest.skip(f"a file system of its own takes CAP_SYS_ADMIN: {tried.stderr.strip()}")
        self.spool = self.root / "spool"
        self.spool.mkdir()
        self.pods: list[PodDir] = []

    def pod(self, name: str, **of_the_pod: Any) -> PodWorker:
        owner = self.api.put(an_object("Job", name, api_version="batch/v1"))
        job = JobRef("ml", name, owner["metadata"]["uid"])
        pod = PodDir(self.root, name, job).prepare()
        self.pods.append(pod)
        self.api.put(a_pod(name, node="node-a", uid=pod.uid, owner=owner, **of_the_pod))
        return pod.worker()

    @contextlib.asynccontextmanager
    async def agent(self, **more: Any) -> Any:
        dirs = PodDirs(KubeApi(self.api.url, part="test"), node="node-a", root=self.root, spool=self.spool)
        async with self.lab.agent(worker_dirs=dirs, spool=self.spool, **more) as caller:
            yield caller

    def close(self) -> None:
        for pod in self.pods:
            pod.close()
        if self.mounted:
            subprocess.run(["umount", self.root], check=True)


@pytest.fixture
def api() -> Iterator[KubeApiServer]:
    with KubeApiServer() as server:
        yield server


@pytest.fixture
def node(api: KubeApiServer) -> Iterator[Node]:
    needs_chroot()
    with a_lab() as lab:
        node = Node(lab, api)
        yield node
        node.close()


@pytest.fixture
def small_node(api: KubeApiServer) -> Iterator[Node]:
    needs_chroot()
    with a_lab() as lab:
        node = Node(lab, api, size_mb=90)
        try:
            yield node
        finally:
            node.close()


async def dispatched(caller: Caller, worker: PodWorker) -> tuple[str, TargetFact]:
    capture = await caller.dispatch(worker, job=worker.pod.job, spec=SPEC)  # type: ignore[arg-type]
    return capture, caller.answer[worker.target_id]


async def state(caller: Caller, capture: str, worker: PodWorker) -> TargetState:
    return (await caller.facts(capture, worker.pod.job))[worker.target_id].state


@in_loop
async def test_a_pod_that_may_store_too_little_is_refused_before_anything_is_sent(node: Node) -> None:
    """Half of its limit counts: what else it stores is not seen from the node's agent."""
    tight = node.pod("tight", limits={"ephemeral-storage": "50M"})
    roomy = node.pod("roomy", limits={"ephemeral-storage": "70M"})
    sized = node.pod("sized", empty_dir={"sizeLimit": "20M"})
    free = node.pod("free")
    async with node.agent() as caller:
        refused = [(await dispatched(caller, worker))[1] for worker in (tight, sized)]
        for fact in refused:
            assert fact.failure is not None
            assert fact.failure.reason is FailureReason.NO_ROOM
            assert "1 windows may write 30 MB" in fact.failure.detail
        assert [fact.failure.detail.partition("may still store ")[2][:5] for fact in refused if fact.failure] == [
            "25 MB",
            "20 MB",
        ]
        assert not node.lab.daemon.asked
        assert not (tight.pod.volume / "captures").exists()
        for worker in (roomy, free):
            assert (await dispatched(caller, worker))[1].failure is None


@pytest.mark.full
@in_loop
async def test_a_spool_that_fills_up_refuses_new_work_and_loses_nothing(small_node: Node) -> None:
    node, archive = small_node, small_node.lab.archive
    worker, second = node.pod("first"), node.pod("second")
    archive.write_text("in the way")  # the store is out of order
    async with node.agent() as caller:
        capture, fact = await dispatched(caller, worker)
        assert not fact.state.terminal
        final = Path(f"{worker.pod.parent}{worker.final_name(capture)}")
        scratch = final.with_suffix(".tmp")
        write_large_trace(scratch, worker.registration, 60 << 20)
        subprocess.run(["chown", f"{USER}:{USER}", scratch], check=True)
        scratch.rename(final)

        async def verified() -> bool:
            return await state(caller, capture, worker) is TargetState.VERIFIED

        await until(verified, "it waits for the archive")
        _, refused = await dispatched(caller, second)
        assert refused.failure is not None
        assert refused.failure.reason is FailureReason.NO_ROOM
        assert "Nothing was sent" in refused.failure.detail
        assert "Free space, or ask for less" in refused.failure.detail
        assert {request.target_id for request in node.lab.daemon.asked} <= {worker.target_id}
        archive.unlink()  # the store is mended

        async def archived() -> bool:
            return await state(caller, capture, worker) is TargetState.ARCHIVED

        await until(archived, "it is archived after all")
        await until(lambda: not list(node.spool.rglob("raw.json")), "its file is gone")
        # A file's room comes back when the last one who has it open lets go of it.
        await until(lambda: shutil.disk_usage(node.root).free > 60 << 20, "its room is free again")
        assert (await dispatched(caller, second))[1].failure is None
