"""A node without containers: pods' directories as the kubelet lays them out, and processes that act in them as a pod's.

What acts in a pod's directory has it as its root directory's `sameshot`, as a pod has; that takes CAP_SYS_CHROOT and no
namespaces, so these tests are quick. Whole pods are in `support/pods.py`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_lab import trace_of

from sameshot.agent.discovery import WorkerDir
from sameshot.agent.registrations import start_ticks
from sameshot.arm import labels
from sameshot.model import JobRef, Registration

USER = 10_001


# Root alone is no answer: a container or a user namespace takes away what root can do.
_CAN_BECOME_A_PODS_USER = """
import os, sys
root, user = sys.argv[1], int(sys.argv[2])
os.chown(root, user, user)
os.chroot(root); os.chdir("/")
os.setgroups([]); os.setgid(user); os.setuid(user)
"""


def needs_chroot() -> None:
    if (why := _no_pods_users()) is not None:
        pytest.skip(f"it takes CAP_SYS_CHROOT, CAP_CHOWN, CAP_SETGID and CAP_SETUID to act as a pod's user: {why}")


@functools.cache
def _no_pods_users() -> str | None:
    """Why nobody here can give away a folder, make it its root directory and become its owner; None: it was done."""
    with tempfile.TemporaryDirectory(prefix="sameshot-may-i-") as folder:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CAN_BECOME_A_PODS_USER, folder, str(USER)],
            capture_output=True,
            text=True,
            check=False,
        )
    return (tried.stderr.strip().splitlines() or ["it failed"])[-1] if tried.returncode else None


class PodDir:
    """One pod's volume."""

    def __init__(self, root: Path, name: str, job: JobRef) -> None:
        self.name, self.uid, self.job = name, str(uuid.uuid4()), job
        self.parent = root / "pods" / self.uid / "volumes" / "kubernetes.io~empty-dir"
        self.volume = self.parent / "sameshot"
        self.volume.mkdir(parents=True)
        self.volume.chmod(0o777)
        self.actors: list[Actor] = []

    def prepare(self) -> PodDir:
        """What the hook makes first, as the pod's user."""
        for folder in ("ipc", "workers"):
            (self.volume / folder).mkdir()
            os.chown(self.volume / folder, USER, USER)
        return self

    def where(self, **more: Any) -> WorkerDir:
        return WorkerDir(
            path=self.volume,
            worker_path=labels.DIRECTORY,
            node="node-a",
            pod=self.name,
            pod_uid=self.uid,
            job=self.job,
            **more,
        )

    def actor(self) -> Actor:
        actor = Actor(self.parent)
        self.actors.append(actor)
        return actor

    def worker(self, **fields: Any) -> PodWorker:
        return PodWorker(self, **fields)

    def close(self) -> None:
        for actor in self.actors:
            actor.close()


class PodWorker:
    """A rank in a pod as far as an agent sees it: the registration and the lock of a live process of the pod's user."""

    def __init__(self, pod: PodDir, **fields: Any) -> None:
        self.pod = pod
        self.actor = pod.actor()
        one = str(uuid.uuid4())
        given: dict[str, Any] = {
            "uuid": one,
            "pid": self.actor.pid,
            "start_ticks": start_ticks(self.actor.pid),
            "job": JobRef("", "", ""),  # a pod template can't know it
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
            "pod": pod.name,
            "pod_uid": pod.uid,
            "container": "trainer",
            "kineto_job_id": 7,
            "job_name": f"sameshot/{one}",
            "registered_at_ns": time.time_ns(),
            "torch_version": "2.13.0",
        }
        self.registration = Registration(**(given | fields))
        self.actor.do(
            "lock = os.open(f'/sameshot/workers/{uuid}.lock', os.O_RDWR | os.O_CREAT, 0o644)\n"
            "fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "open(f'/sameshot/workers/{uuid}.json', 'w').write(text)",
            uuid=one,
            text=msgspec.json.encode(self.registration).decode(),
        )

    @property
    def target_id(self) -> str:
        return self.registration.target_id

    def final_name(self, capture_id: str) -> str:
        """As the pod sees it."""
        one = self.registration
        folder = f"/sameshot/captures/{capture_id}/{one.container}/{one.local_rank}"
        return f"{folder}/trace_{one.pid}.json"

    def write_trace(self, capture_id: str) -> None:
        self.actor.do(
            "open(final + '.tmp', 'w').write(text); os.rename(final + '.tmp', final)",
            final=self.final_name(capture_id),
            text=trace_of(self.registration).decode(),
        )


class Actor:
    """A process of the pod's user, inside: runs Python that it is told, and answers with JSON."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _INSIDE, str(root), str(USER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, code: str, **names: Any) -> Any:
        """Run `code` with these names; what it leaves in `answer` comes back."""
        self.send(code, **names)
        return self.receive()

    def send(self, code: str, **names: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([code, names]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        ok, answer = json.loads(self._process.stdout.readline())
        assert ok, answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


# `poll` is what Kineto sends; the answer must come from the very name that Kineto would accept.
_INSIDE = """
import array, fcntl, json, os, signal, socket, struct, sys, time, traceback, linecache, encodings.idna
root, user = sys.argv[1], int(sys.argv[2])
os.chroot(root); os.chdir("/")
os.setgroups([]); os.setgid(user); os.setuid(user)

def datagram(pid=1, job=7, wants=3, pids=None, count=None, size=None, kind=b"req"):
    pids = [pid] if pids is None else pids
    body = struct.pack("=iiq", wants, len(pids) if count is None else count, job) + struct.pack(f"={len(pids)}i", *pids)
    return struct.pack("=Q32s", len(body) if size is None else size, kind) + body

def client(name):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind("/sameshot/ipc/" + name)
    one.settimeout(5)
    return one

def poll(one, **fields):
    one.sendto(datagram(**fields), "/sameshot/ipc/dynolog")
    try:
        data, sender = one.recvfrom(65536)
    except TimeoutError:
        return None
    assert sender == "/sameshot/ipc/dynolog", sender
    return data[40:].decode()

names = {**globals()}
for line in sys.stdin:
    code, given = json.loads(line)
    names.update(given, answer=None)
    try:
        exec(code, names)
        print(json.dumps([True, names["answer"]]), flush=True)
    except BaseException:
        print(json.dumps([False, traceback.format_exc()]), flush=True)
"""


@contextlib.contextmanager
def a_node() -> Iterator[Path]:
    """A kubelet's root, not in pytest's own folder: pods' users must get through."""
    folder = Path(tempfile.mkdtemp(prefix="sameshot-node-"))
    folder.chmod(0o755)
    root = folder / "var/lib/kubelet"
    root.mkdir(parents=True)
    try:
        yield root
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tree(folder: Path) -> Mapping[str, tuple[int, int, int]]:
    """Everything below a folder: name → (inode, size, mode), links not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_size, status.st_mode)
    return found
