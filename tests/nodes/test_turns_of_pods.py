"""Who is read next, where traces come from pods that know nothing of each other."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from agent_lab import in_loop, until

from sameshot.agent import daemons, verifypool
from sameshot.agent.capturebook import Verified
from sameshot.agent.daemons import Daemons
from sameshot.agent.discovery import WorkerDir
from sameshot.agent.verifypool import VerifyPool
from sameshot.agent.verifyworker import Job
from sameshot.model import BoundBy, Encoding

# Reads nothing: takes as many seconds as the path says, `never` for ever, `held` until it may go on; notes the order.
READER = """
import json, os, sys, time
for line in sys.stdin:
    path = json.loads(line)["path"]
    name, takes = path.rsplit("/", 1)[1].split("-")
    folder = path.rsplit("/", 1)[0]
    open(folder + "/order", "a").write(name + "\\n")
    while takes == "held" and not os.path.exists(folder + "/go_on"):
        time.sleep(0.01)
    time.sleep(1000 if takes == "never" else 0 if takes == "held" else float(takes))
    verified = dict(stored_size=1, stored_sha256="", encoding="gzip", raw_size=1, raw_sha256="", window_start_ns=1,
                    window_end_ns=2)
    print(json.dumps({"verified": verified}), flush=True)
"""


class Lab:
    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder = folder
        self.pool = VerifyPool(workers, 0, command=[sys.executable, "-I", "-S", "-c", READER])

    def read(self, name: str, takes: float | str, *, owner: str, size: int = 1000) -> asyncio.Task[Verified]:
        path = str(self.folder / f"{name}-{takes}")
        job = Job(path, f"{path}.stored", "uuid", 0, BoundBy.BYTES, Encoding.GZIP)
        return asyncio.create_task(self.pool.verify(job, size, owner=owner))

    @property
    def order(self) -> list[str]:
        order = self.folder / "order"
        return order.read_text().split() if order.exists() else []

    def go_on(self) -> None:
        (self.folder / "go_on").touch()


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.mark.full
@in_loop
async def test_a_reading_that_never_ends_is_given_up_and_costs_others_a_moment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifypool, "BUDGET_FIXED_S", 8.0)
    monkeypatch.setattr(verifypool, "SLOW_FIXED_S", 0.5)
    lab.pool.start()
    try:
        hostile = [lab.read(f"bad{n}", "never", owner="a") for n in range(3)]
        began = time.monotonic()
        await until(lambda: lab.order, "the first of them is being read")
        await lab.read("good", 0, owner="b")
        assert not any(task.done() for task in hostile)  # before the first of them was given up
        with pytest.raises(TimeoutError):
            await hostile[0]
        assert time.monotonic() - began > 7.9
        await lab.read("more", 0, owner="b")
        for task in hostile:
            task.cancel()
    finally:
        await lab.pool.close()


@in_loop
async def test_the_pod_for_which_the_least_time_was_spent_comes_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(verifypool, "time", clock)
    lab.pool.start()
    try:
        first = lab.read("a0", "held", owner="a", size=5)
        await until(lambda: lab.order, "it is being read")
        others = [lab.read(f"a{n}", 0, owner="a", size=1) for n in (1, 2)]
        others += [lab.read(f"b{n}", 0.05, owner="b", size=100) for n in range(3)]
        await until(lambda: len(lab.pool._waiting) == 5, "all others wait")
        clock.now = 1000.0  # seconds that were spent for the first pod; none pass for the second one's files
        lab.go_on()
        await asyncio.gather(first, *others)
    finally:
        await lab.pool.close()
    assert lab.order == ["a0", "b0", "b1", "b2", "a1", "a2"]


@pytest.mark.full
@in_loop
async def test_a_pod_may_use_all_processes_but_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path, workers=3)
    lab.pool.start()
    try:
        files = [lab.read(f"a{n}", "held", owner="a") for n in range(4)]
        await until(lambda: len(lab.order) == 2, "two are being read")
        files.append(lab.read("b0", 0, owner="b"))
        await files[-1]
        assert sorted(lab.order[:3]) == ["a0", "a1", "b0"]
        assert len(lab.order) == 3
        lab.go_on()
        await asyncio.gather(*files)
    finally:
        await lab.pool.close()


@in_loop
async def test_one_pod_is_read_one_file_at_a_time_and_a_single_machine_as_ever(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifypool, "SMALL", 10)
    lab.pool.start()
    try:
        large = lab.read("large", "held", owner="a", size=1000)
        await until(lambda: lab.order == ["large"], "it is being read")
        small = lab.read("small", 0, owner="a", size=1)
        await lab.read("other", 0, owner="b", size=1)  # the spare one takes it, and the pod's second one waits
        assert not small.done()
        lab.go_on()
        await asyncio.gather(large, small)
        assert lab.order == ["large", "other", "small"]
        (lab.folder / "go_on").unlink()
        slow = lab.read("big", "held", owner="", size=1000)
        await until(lambda: "big" in lab.order, "it is being read")
        await lab.read("little", 0, owner="", size=1)  # the spare one takes it
        assert not slow.done()
        lab.go_on()
        await slow
    finally:
        await lab.pool.close()


class SlowToStart:
    """A daemon whose start lasts until it may `go_on`."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.starts = 0
        self.open = False

    async def start(self) -> None:
        self.starts += 1
        await self.go_on.wait()
        self.open = True

    async def close(self) -> None:
        self.open = False


@in_loop
async def test_a_pod_whose_daemon_takes_long_to_start_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "LOOK_WAITS_S", 0.05)
    monkeypatch.setattr(daemons, "REFRESH_S", 0.02)
    made: dict[str, SlowToStart] = {}
    here: list[WorkerDir] = []

    class Dirs:
        def current(self) -> list[WorkerDir]:
            return list(here)

    def make(where: WorkerDir) -> SlowToStart:
        daemon = made[str(where.path)] = SlowToStart()
        if where.path.name != "slow":
            daemon.go_on.set()
        return daemon

    def pod(name: str) -> WorkerDir:
        return WorkerDir(path=Path("/pods") / name, worker_path="/sameshot", node="node-a", pod=name, pod_uid=name)

    here += [pod("slow"), pod("first")]
    serves = Daemons(Dirs(), make)  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        await serves.start()
    try:
        await until(lambda: serves.of("/pods/first"), "the first one is served")
        here.append(pod("second"))
        await until(lambda: serves.of("/pods/second"), "so is the next one")
        assert serves.of("/pods/slow") is None
        assert made["/pods/slow"].starts == 1  # it is not tried twice at a time
        here.pop(0)  # the slow one's pod is gone before it was served
        made["/pods/slow"].go_on.set()
        await until(lambda: made["/pods/slow"].open, "it starts after all")
        await until(lambda: not made["/pods/slow"].open, "and is let go of")
        here.append(pod("slow"))
        await until(lambda: made["/pods/slow"].starts, "another pod of that name")
    finally:
        async with asyncio.timeout(30):
            await serves.close()
    assert not any(daemon.open for daemon in made.values())
