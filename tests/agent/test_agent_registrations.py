"""Who is a worker here: liveness is the lock, and what a process writes is not trusted beyond its own folder."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from pathlib import Path

import msgspec
import pytest
from agent_lab import JOB, AWorker, Lab, give_away

from sameshot.agent import registrations as registrations_module
from sameshot.agent import safefs
from sameshot.agent.discovery import FixedDirs, WorkerDir
from sameshot.agent.registrations import FORGET_AFTER_S, Known, Registrations
from sameshot.model import JobRef, Phase, Registration, Worker


def read(lab: Lab) -> dict[str, Worker]:
    found = Registrations(FixedDirs(lab.dir, node="node-a"), "node-a").all()
    return {known.registration.uuid: known.worker for known in found}


def test_a_worker_lives_exactly_as_long_as_its_process(lab: Lab) -> None:
    worker = lab.worker()
    seen = read(lab)[worker.registration.uuid]
    assert (seen.alive, seen.current) == (True, True)
    worker.kill()
    seen = read(lab)[worker.registration.uuid]
    assert (seen.alive, seen.current, seen.note) == (False, False, "its process has ended")


def test_looking_at_a_lock_never_takes_it(lab: Lab) -> None:
    lab.worker()
    for _ in range(50):
        read(lab)
    lab.worker(local_rank=1, rank=1)  # could not have locked its file if anybody held it for a moment
    assert all(worker.alive for worker in read(lab).values())


def test_a_rank_is_seen_dead_although_its_forked_children_live(lab: Lab) -> None:
    worker = lab.worker(forks=True)
    assert read(lab)[worker.registration.uuid].alive
    os.kill(worker.process.pid, 9)
    worker.process.wait()
    assert not read(lab)[worker.registration.uuid].alive


def test_a_lock_that_another_process_holds_does_not_make_the_registered_one_live(lab: Lab) -> None:
    """pid and lock file can be reused; the start time of the holder can't."""
    worker = lab.worker()
    worker.register(start_ticks=worker.registration.start_ticks - 1)
    seen = read(lab)[worker.registration.uuid]
    assert not seen.alive
    assert "another process" in seen.note


def test_of_two_live_registrations_for_one_local_rank_the_ancestor_wins(lab: Lab) -> None:
    parent = lab.worker()
    child = lab.worker(ancestors=(parent.registration.pid, 1), registered_at_ns=time.time_ns() + 10**9)
    seen = read(lab)
    assert seen[parent.registration.uuid].current
    assert not seen[child.registration.uuid].current
    assert str(parent.registration.pid) in seen[child.registration.uuid].note


def test_of_two_unrelated_incarnations_the_newest_living_wins(lab: Lab) -> None:
    old, new = lab.worker(registered_at_ns=1), lab.worker(registered_at_ns=2)
    assert [read(lab)[each.registration.uuid].current for each in (old, new)] == [False, True]
    new.kill()
    assert [read(lab)[each.registration.uuid].current for each in (old, new)] == [True, False]


def test_an_exiting_worker_is_not_current_and_its_child_does_not_take_over(lab: Lab) -> None:
    parent = lab.worker()
    child = lab.worker(ancestors=(parent.registration.pid,))
    parent.register(phase=Phase.EXITING)
    seen = read(lab)
    assert (seen[parent.registration.uuid].alive, seen[parent.registration.uuid].current) == (True, False)
    assert not seen[child.registration.uuid].current


def test_a_worker_without_a_rank_yet_is_listed_but_not_current(lab: Lab) -> None:
    first = lab.worker(rank=None, local_rank=None)
    second = lab.worker(rank=None, local_rank=None)
    notes = {read(lab)[each.registration.uuid].note for each in (first, second)}
    assert notes == {"its rank is not known yet"}


def test_a_worker_that_still_imports_torch_is_listed_but_not_current(lab: Lab) -> None:
    worker = lab.worker(torch_version=None)
    seen = read(lab)[worker.registration.uuid]
    assert (seen.alive, seen.current, seen.note) == (True, False, "it is still importing torch")
    worker.register(torch_version="2.13.0")
    assert read(lab)[worker.registration.uuid].current


def test_what_ended_long_ago_and_was_replaced_is_removed_and_the_last_one_in_its_place_is_not(lab: Lab) -> None:
    now = [0.0]
    registrations = Registrations(FixedDirs(lab.dir, node="node-a"), "node-a", clock=lambda: now[0])
    first, second, third = (lab.worker(registered_at_ns=n) for n in (1, 2, 3))
    elsewhere = lab.worker(local_rank=1, rank=1, registered_at_ns=1)
    for worker in (first, elsewhere):
        worker.kill()

    def files() -> set[str]:
        registrations.all()
        return {path.name for path in (lab.dir / "workers").iterdir()}

    def of(*workers: AWorker) -> set[str]:
        return {f"{each.registration.uuid}{suffix}" for each in workers for suffix in (".json", ".lock")}

    assert files() == of(first, second, third, elsewhere)
    now[0] = FORGET_AFTER_S - 1
    assert files() == of(first, second, third, elsewhere)
    third.kill()
    second.kill()
    assert files() == of(first, second, third, elsewhere)
    now[0] = FORGET_AFTER_S + 1
    assert files() == of(second, third, elsewhere)  # the second ended only lately, the other was never replaced
    now[0] = 3 * FORGET_AFTER_S
    assert files() == of(third, elsewhere)


def test_the_node_knows_better_than_the_worker_where_it_runs(lab: Lab) -> None:
    worker = lab.worker(node="elsewhere", pod="liar", job=JobRef("", "", ""))
    job = JobRef("ml", "bert", "uid-7", 3)
    [known] = Registrations(a_pod(lab, job=job), "node-a").all()
    assert known.registration.job == job
    assert (known.registration.node, known.registration.pod, known.registration.pod_uid) == (
        "node-a",
        "true-pod",
        "u-1",
    )
    assert known.registration.uuid == worker.registration.uuid


def test_a_registration_that_claims_another_pod_is_nobodys_and_is_reported_once(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    foreign, own = lab.worker(pod_uid="u-9"), lab.worker(pod_uid="u-1", local_rank=1)
    registrations = Registrations(a_pod(lab), "node-a")
    assert [known.registration.uuid for known in registrations.all()] == [own.registration.uuid]
    registrations.all()
    [said] = [record.getMessage() for record in caplog.records]
    assert f"name='{foreign.registration.uuid}.json'" in said
    assert "it claims to be of pod 'u-9', and lies in u-1" in said


def test_what_lies_in_a_pod_of_another_job_is_not_even_opened(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.worker()
    mine, other = JobRef("ml", "mine", "u-m"), JobRef("ml", "other", "u-o")
    registrations = Registrations(a_pod(lab, job=other), "node-a")
    assert len(registrations.of(other)) == 1
    monkeypatch.setattr(safefs, "directory", lambda *_: pytest.fail("it was opened"))
    assert registrations.of(mine) == []


def test_a_flood_of_names_costs_a_bounded_look(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = lab.worker()
    for number in range(50):
        (lab.dir / "workers" / f"junk-{number}.json").write_bytes(b"{" + b" " * 1000)
    monkeypatch.setattr(registrations_module, "MAX_BYTES", 20_000)
    assert len(read(lab)) <= 1
    assert "larger than 20000 bytes in all" in caplog.text
    monkeypatch.setattr(registrations_module, "MAX_NAMES", 10)
    read(lab)
    assert "10 names in all" in caplog.text
    monkeypatch.undo()
    assert list(read(lab)) == [worker.registration.uuid]


def a_pod(lab: Lab, *, job: JobRef | None = None) -> FixedDirs:
    """The lab's directory as if it had been found in a pod."""
    return FixedDirs.of(WorkerDir(lab.dir, "/sameshot", node="node-a", pod="true-pod", pod_uid="u-1", job=job))


def _plain(uid: str) -> Registration:
    return Registration(uid, 1, 1, JOB, rank=0, local_rank=0)


def _link(path: Path, data: bytes) -> None:
    target = path.parent.parent / "elsewhere.json"
    target.write_bytes(data)
    path.symlink_to(target)


def _hard_link(path: Path, data: bytes) -> None:
    target = path.parent.parent / "elsewhere.json"
    target.write_bytes(data)
    path.hardlink_to(target)


def _socket(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _of_another_user(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    give_away(path)


def _changed(path: Path, data: bytes, **changes: object) -> None:
    path.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(msgspec.json.decode(data, type=Registration), **changes))
    )


TRICKS = {
    "a symbolic link": _link,
    "a hard link": _hard_link,
    "a FIFO": lambda path, data: os.mkfifo(path),
    "a socket": _socket,
    "a directory": lambda path, data: path.mkdir(),
    "another user's file": _of_another_user,
    "10 MB of JSON": lambda path, data: path.write_bytes(data[:-1] + b" " * 10_000_000 + b"}"),
    "no JSON": lambda path, data: path.write_bytes(b"\x00{"),
    "a deep JSON": lambda path, data: path.write_bytes(b"[" * 60_000),
    "another schema": lambda path, data: _changed(path, data, schema="sameshot.dev/registration/v2"),
    "another uuid": lambda path, data: _changed(path, data, uuid=str(uuid.uuid4())),
    "a path as container": lambda path, data: _changed(path, data, container="../../etc"),
    "a path as job": lambda path, data: _changed(path, data, job=JobRef("local", "../up", "u", 0)),
    "a path as namespace": lambda path, data: _changed(path, data, job=JobRef("..", "train", "u", 0)),
    "a negative local rank": lambda path, data: _changed(path, data, local_rank=-1),
    "an endless rank": lambda path, data: _changed(path, data, rank=2**40),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_registration_that_is_a_trick_is_refused_and_the_honest_ones_are_not(lab: Lab, trick: str) -> None:
    honest = lab.worker()
    one = str(uuid.uuid4())
    TRICKS[trick](lab.dir / "workers" / f"{one}.json", msgspec.json.encode(_plain(one)))
    assert set(read(lab)) == {honest.registration.uuid}


def test_names_that_lead_elsewhere_are_never_opened(lab: Lab) -> None:
    """The uuid becomes the lock file's name."""
    honest = lab.worker()
    for name in ("..", "...", "x", "%2e%2e"):
        data = msgspec.json.encode(msgspec.structs.replace(_plain(name)))
        (lab.dir / "workers" / f"{name}.json").write_bytes(data)
    assert set(read(lab)) == {honest.registration.uuid}


@pytest.mark.parametrize("kind", ["link", "fifo", "another user's"])
def test_a_lock_file_that_is_a_trick_makes_nobody_live(lab: Lab, kind: str) -> None:
    living, honest = lab.worker(), lab.worker(local_rank=1, rank=1)
    one = str(uuid.uuid4())
    lock = lab.dir / "workers" / f"{one}.lock"
    if kind == "link":
        lock.symlink_to(f"{living.registration.uuid}.lock")
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.touch()
        give_away(lock)
    (lab.dir / "workers" / f"{one}.json").write_bytes(msgspec.json.encode(_plain(one)))
    assert {each for each, worker in read(lab).items() if worker.alive} == {
        living.registration.uuid,
        honest.registration.uuid,
    }


def test_a_folder_of_registrations_that_is_a_link_is_not_followed(lab: Lab, tmp_path: Path) -> None:
    worker = lab.worker()
    assert read(lab)
    (lab.dir / "workers").rename(tmp_path / "workers")
    (lab.dir / "workers").symlink_to(tmp_path / "workers")
    assert read(lab) == {}
    assert (tmp_path / "workers" / f"{worker.registration.uuid}.json").exists()


def test_no_directory_is_no_worker() -> None:
    found: list[Known] = Registrations(FixedDirs(Path("/nonexistent/sameshot")), "node-a").all()
    assert found == []


class OneAtATime(dict[str, float]):
    """Notes whether two threads ever change it at the same time."""

    inside = 0
    most = 0

    def setdefault(self, uuid: str, since: float = 0.0) -> float:  # type: ignore[override]
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.002)  # any other thread gets its turn
        self.inside -= 1
        return super().setdefault(uuid, since)


def test_jobs_that_are_looked_at_at_the_same_time_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is in a thread of its own, and all of them note who has ended."""
    monkeypatch.setattr(registrations_module, "MAX_REMEMBERED", 20)
    where = WorkerDir(Path("/nowhere"), "/sameshot", node="node-a")
    registrations = Registrations(FixedDirs.of(where), "node-a")
    registrations._ended_since = ended = OneAtATime()
    known = [Known(Worker(_plain(str(number)), alive=False), where, 0, 0) for number in range(60)]
    threads = [threading.Thread(target=registrations._forget, args=(known[at::3],)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended.most == 1
    assert len(ended) == 20
