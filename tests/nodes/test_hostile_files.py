"""What a pod leaves where its trace should be: only its own plain files are taken, and another pod's come through."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_lab import Caller, Lab, a_lab, in_loop, trace_of, until
from isal import isal_zlib
from pod_dirs_lab import USER, PodDir, PodWorker, needs_chroot, tree

from sameshot.agent import safefs, verifypool
from sameshot.agent.announce import Watch, take
from sameshot.agent.discovery import FixedDirs
from sameshot.agent.verifypool import VerifyPool
from sameshot.api.status import from_rpc
from sameshot.errors import NoSuchJob, SameshotError
from sameshot.model import CaptureSpec, FailureReason, JobRef, TargetFact, TargetState

JOB = JobRef("ml", "train", "uid-1")
OTHER = JobRef("ml", "other", "uid-2")
SPEC = CaptureSpec(duration_ms=100, warmup_ms=0)


class Node:
    """Two pods of two jobs on one node, and an agent that serves both."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        root = lab.root / "kubelet"
        self.hostile = PodDir(root, "hostile", JOB).prepare()
        self.honest = PodDir(root, "honest", OTHER).prepare()
        self.host_file = lab.root / "precious"
        self.host_file.write_text("of the node")
        self.dirs = FixedDirs.of(self.hostile.where(), self.honest.where())

    def agent(self, **more: Any) -> contextlib.AbstractAsyncContextManager[Caller]:
        return self.lab.agent(worker_dirs=self.dirs, **more)

    async def capture(self, caller: Caller, worker: PodWorker) -> str:
        return await caller.dispatch(worker, job=worker.pod.job, spec=SPEC)  # type: ignore[arg-type]

    async def fact(self, caller: Caller, capture_id: str, worker: PodWorker, state: TargetState) -> TargetFact:
        async def look() -> TargetFact | None:
            fact = (await caller.facts(capture_id, worker.pod.job))[worker.target_id]
            assert not fact.state.terminal or fact.state is state, fact
            return fact if fact.state is state else None

        found = await until(look, f"{worker.target_id} is {state.name}")
        assert found is not None
        return found

    async def an_honest_capture(self, caller: Caller) -> float:
        """Capture the pod beside; seconds from its file to the archive."""
        worker = self.honest.worker()
        capture = await self.capture(caller, worker)
        worker.write_trace(capture)
        began = time.monotonic()
        fact = await self.fact(caller, capture, worker, TargetState.ARCHIVED)
        assert fact.identity.pod == "honest"
        return time.monotonic() - began


@pytest.fixture
def node() -> Iterator[Node]:
    needs_chroot()
    with a_lab() as lab:
        node = Node(lab)
        yield node
        node.hostile.close()
        node.honest.close()


WRITE = "open(final + '.x', 'wb').write(text.encode())"  # under a name that nobody looks for

UNSAFE = {
    "a link to a file of the node": ("os.symlink(host, final)", "symbolic link"),
    "a link to a trace of another pod": ("os.symlink(theirs, final)", "symbolic link"),
    "a FIFO": ("os.mkfifo(final)", "FIFO"),
    "a socket": ("s = socket.socket(socket.AF_UNIX); s.bind(final)", "socket"),
    "a directory": ("os.mkdir(final)", "directory"),
    "a file with two names": (f"{WRITE}; os.link(final + '.x', final)", "2 names"),
    "a file of two terabytes": (
        "open(final + '.x', 'wb').truncate(2 << 40); os.rename(final + '.x', final)",
        "2199023255552 bytes long",
    ),
    "a folder that was exchanged for a link": (
        "os.rename('/sameshot/captures', '/sameshot/was'); os.symlink(elsewhere, '/sameshot/captures')",
        "not a directory",
    ),
}


@pytest.mark.parametrize("what", UNSAFE)
@in_loop
async def test_nothing_but_a_plain_file_of_the_pods_own_is_ever_touched(node: Node, what: str) -> None:
    code, why = UNSAFE[what]
    worker = node.hostile.worker()
    async with node.agent() as caller:
        capture = await node.capture(caller, worker)
        theirs = Path(f"{node.honest.volume.parent}{worker.final_name(capture)}")
        theirs.parent.mkdir(parents=True)
        theirs.write_bytes(trace_of(worker.registration))
        os.chown(theirs, USER, USER)
        before = tree(node.honest.volume)
        worker.actor.do(
            code,
            final=worker.final_name(capture),
            text=trace_of(worker.registration).decode(),
            host=str(node.host_file),
            theirs=str(theirs),
            elsewhere=str(node.honest.volume / "captures"),
        )
        left = tree(node.hostile.volume)
        fact = await node.fact(caller, capture, worker, TargetState.FAILED)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.UNSAFE_FILE
        assert why in fact.failure.detail
        assert fact.failure.raw is None
        assert tree(node.hostile.volume) == left  # nothing was moved or removed either
        assert tree(node.honest.volume) == before
        assert node.host_file.read_text() == "of the node"
        assert not [path for path in node.lab.archive.rglob("*") if path.is_file()]
        assert not list(node.lab.spool.rglob("raw.json*"))
        await node.an_honest_capture(caller)


@pytest.mark.parametrize("trick", ["another file", "a folder", "the same one, grown"])
def test_what_is_exchanged_at_the_last_moment_goes_back_to_where_it_came_from(
    node: Node, trick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the spool it would no longer count for the pod that wrote it."""
    worker = node.hostile.worker()
    folder = node.hostile.volume / "captures" / "c1" / "trainer" / "0"
    folder.mkdir(parents=True)
    final, spool = folder / "trace_1.json", node.lab.spool / "t"
    spool.mkdir(parents=True)
    final.write_bytes(b"small")
    os.chown(final, USER, USER)
    really = safefs.check_regular

    def then_exchange(*args: Any, **more: Any) -> None:
        really(*args, **more)
        if trick == "the same one, grown":
            os.truncate(final, 2 << 30)
            return
        final.rename(folder / "away")
        final.mkdir() if trick == "a folder" else final.write_bytes(b"large" * 1000)

    monkeypatch.setattr(safefs, "check_regular", then_exchange)
    watch = Watch(
        "c1", "t", worker.registration, node.hostile.volume, ("captures", "c1", "trainer", "0"), final.name, USER,
        spool / "raw.json", 0, 0, most_bytes=1 << 30,
    )  # fmt: skip
    with pytest.raises(safefs.Unsafe, match=r"exchanged|2147483648 bytes long"):
        take(watch)
    assert list(spool.iterdir()) == []
    assert any(path.name.startswith(".refused-") for path in folder.iterdir())


@in_loop
async def test_a_file_whose_owner_holds_a_lease_blocks_nobody(node: Node) -> None:
    """Whoever opens such a file waits up to 45 s (fcntl(2), F_SETLEASE)."""
    worker = node.hostile.worker()
    async with node.agent() as caller:
        capture = await node.capture(caller, worker)
        began = time.monotonic()
        worker.actor.do(
            f"{WRITE}; signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            "held = os.open(final + '.x', os.O_RDWR); fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "os.rename(final + '.x', final)",
            final=worker.final_name(capture),
            text=trace_of(worker.registration).decode(),
        )
        fact = await node.fact(caller, capture, worker, TargetState.FAILED)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.VERIFY_FAILED
        assert "holds a lease" in fact.failure.detail
        await node.an_honest_capture(caller)
        assert time.monotonic() - began < 30


@pytest.mark.full
@in_loop
async def test_files_that_can_never_be_read_to_their_end_cost_others_one_turn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few packed megabytes that hold gigabytes of sound events: four of them, and one honest file behind."""
    monkeypatch.setattr(verifypool, "BUDGET_FIXED_S", 3.0)
    monkeypatch.setattr(verifypool, "SLOW_FIXED_S", 1.0)
    workers = [node.hostile.worker(rank=rank, local_rank=rank) for rank in range(4)]
    (node.hostile.volume / "bomb").write_bytes(packed_gigabytes(trace_of(workers[0].registration)))
    async with node.agent() as caller:
        captures = [await node.capture(caller, worker) for worker in workers]
        for worker, capture in zip(workers, captures, strict=True):
            worker.actor.do(
                "data = open('/sameshot/bomb', 'rb').read(); open(final + '.x', 'wb').write(data)\n"
                "os.rename(final + '.x', final)",
                final=worker.final_name(capture),
            )
        await until(lambda: node.lab.spool.rglob("stored.*"), "one of them is being read")
        assert await node.an_honest_capture(caller) < 20
        fact = await node.fact(caller, captures[0], workers[0], TargetState.FAILED)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.VERIFY_TIMEOUT


def packed_gigabytes(trace: bytes) -> bytes:
    event = b',{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1.5,"dur":0.25}'
    packer = isal_zlib.compressobj(level=1, wbits=31)
    block = event * (1 << 14)
    packed = packer.compress(trace[:-2])
    for _ in range(2500):  # 3.3 GB
        packed += packer.compress(block)
    return packed + packer.compress(b"]}") + packer.flush()


@in_loop
async def test_a_file_that_still_grows_is_not_uploaded_for_ever(node: Node) -> None:
    worker = node.hostile.worker()
    async with node.agent() as caller:
        capture = await node.capture(caller, worker)
        worker.actor.do(
            "grows = open(final, 'wb'); grows.write(b'no trace'); grows.flush()", final=worker.final_name(capture)
        )
        await until(lambda: list(node.lab.spool.rglob("raw.json")), "it is taken")
        worker.actor.do("grows.write(b'x' * 1000000); grows.flush()")
        fact = await node.fact(caller, capture, worker, TargetState.FAILED)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.INVALID
        raw = fact.failure.raw  # as large as it was announced, or not at all
        assert raw is None or raw.size == len(b"no trace")


@in_loop
async def test_a_coordinator_of_another_job_can_do_nothing_with_a_pod(node: Node) -> None:
    """Nor does a registration that names the other job help it: whose a pod is says the API server alone."""
    worker = node.hostile.worker(job=OTHER)
    async with node.agent() as caller:
        assert list(await caller.workers(JOB)) == [worker.registration.uuid]
        assert await caller.workers(OTHER) == {}
        nobody = JobRef("ml", "nobody", "uid-9")
        with pytest.raises(Exception) as refused:
            await caller.dispatch(worker, job=nobody, spec=SPEC)  # type: ignore[arg-type]
        assert isinstance(from_rpc(refused.value, "the agent"), NoSuchJob)
        assert not node.lab.daemon.asked
        capture = await caller.dispatch(worker, job=OTHER, spec=SPEC)  # type: ignore[arg-type]
        fact = caller.answer[worker.target_id]
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.STALE_REGISTRATION
        assert not node.lab.daemon.asked
        mine = await node.capture(caller, worker)
        with pytest.raises(Exception) as refused:
            await caller.facts(mine, nobody)
        assert isinstance(from_rpc(refused.value, "the agent"), SameshotError)
        assert capture != mine
        assert (await caller.facts(mine, OTHER)) == {}


@pytest.mark.full
@in_loop
async def test_a_pod_full_of_junk_registrations_does_not_slow_another_job_down(node: Node) -> None:
    mine = node.hostile.worker()
    mine.actor.do(
        "for n in range(600):\n    open(f'/sameshot/workers/{n:08x}.json', 'w').write('{' * 60000)\n"
        "os.mkfifo('/sameshot/workers/f.json'); os.symlink('/etc/passwd', '/sameshot/workers/l.json')"
    )
    honest = node.honest.worker()
    async with node.agent() as caller:
        began = time.monotonic()
        assert list(await caller.workers(OTHER)) == [honest.registration.uuid]
        quick = time.monotonic() - began
        began = time.monotonic()
        await caller.workers(JOB)
        assert quick < 0.5
        assert time.monotonic() - began < 20  # and its own owner gets an answer, too
        await node.an_honest_capture(caller)


@in_loop
async def test_what_a_dead_pod_leaves_is_delivered_and_nothing_else_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = node.honest.worker()
    waiting: list[Any] = []
    really = VerifyPool.verify

    async def later(pool: VerifyPool, *args: Any, **more: Any) -> Any:
        waiting.append(args)
        await until(lambda: not node.honest.volume.exists(), "the pod is gone")
        return await really(pool, *args, **more)

    monkeypatch.setattr(VerifyPool, "verify", later)
    async with node.agent() as caller:
        capture = await node.capture(caller, worker)
        worker.write_trace(capture)
        await until(lambda: waiting, "it is announced")
        node.honest.close()
        shutil.rmtree(node.honest.volume.parents[2])
        await node.fact(caller, capture, worker, TargetState.ARCHIVED)
        await until(lambda: not list(node.lab.spool.rglob("raw.json")), "the spool is empty")
