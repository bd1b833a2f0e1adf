"""What the tests of the hook share: armed environments, a stand-in for torch, and a daemon of a few lines."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sameshot.hook import PAYLOAD
from sameshot.model import Registration

DEADLINE_S = 100.0  # the machine may be very busy; nothing here waits this long unless it is broken

# Reports what a real torch would see while it executes; imports its process groups as torch 2 does.
TORCH_STANDIN = """
import json, os
print("SEEN " + json.dumps({k: v for k, v in os.environ.items()
      if k.startswith(("KINETO", "SLURM", "PT_PROF", "SAMESHOT_ARMED"))}), flush=True)
import torch.distributed.distributed_c10d
__version__ = "9.9.9+standin"
"""
C10D_STANDIN = """
class _World:
    pg_names = {}
_world = _World()
def init_process_group(backend=None, init_method=None, *, world_size=-1, rank=-1, group_name=""):
    "Initialize the default distributed process group."
    if world_size == 13:
        raise ValueError("unlucky")
    _world.pg_names["pg"] = "0"
    _world.rank, _world.size = rank, world_size
    return "returned"
def get_rank(): return _world.rank
def get_world_size(): return _world.size
"""


def make_standin(folder: Path) -> Path:
    """A `torch` package for tests that are about importing, not about Kineto."""
    package = folder / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH_STANDIN)
    (package / "distributed" / "__init__.py").write_text("from .distributed_c10d import *\n")
    (package / "distributed" / "distributed_c10d.py").write_text(C10D_STANDIN)
    return folder


def environment(directory: Path | None, *path: Path, **names: str) -> dict[str, str]:
    """A clean environment; with a directory, the one that arming would have made for a job on this machine."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG", "PET_LOG_DIR") if name in os.environ}
    env = {**keep, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if directory is not None:
        env |= {
            "PYTHONPATH": os.pathsep.join(map(str, (PAYLOAD, *path))),
            "SAMESHOT_ARMED": "1",
            "SAMESHOT_DIR": str(directory),
            "SAMESHOT_JOB_NAMESPACE": "local",
            "SAMESHOT_JOB_NAME": "train",
            "SAMESHOT_JOB_UID": "6b1f",
            "SAMESHOT_NODE": "node-a",
        }
    return env | names


def python(env: dict[str, str], code: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def script(folder: Path, code: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return path


def registrations(directory: Path) -> list[Registration]:
    """All registrations, read as the agent reads them: strictly, a field that the model doesn't know is an error."""
    found = []
    for path in sorted((directory / "workers").glob("*.json")):
        raw: dict[str, Any] = json.loads(path.read_bytes())
        assert set(raw) <= set(Registration.__struct_fields__), set(raw) - set(Registration.__struct_fields__)
        found.append(msgspec.convert(raw, Registration))
    return sorted(found, key=lambda one: (one.rank is None, one.rank, one.registered_at_ns))


def held(lock: Path) -> bool:
    """Whether a live process holds this lock file, asked as the agent asks."""
    with lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def until(condition: Callable[[], object], what: str, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the process ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=env, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Responder:
    """Answers Kineto's polls (UNIX datagrams: `<Q` size, 32 bytes of type, body `<iiq` and int32 pids)."""

    def __init__(self, directory: Path) -> None:
        (directory / "ipc").mkdir(parents=True, exist_ok=True)
        self.polled: dict[int, tuple[int, ...]] = {}  # pid → its ancestors as Kineto states them
        self.polls = 0
        self.job_ids: set[int] = set()
        self.fetched: set[int] = set()
        self._offers: dict[int, str] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "ipc" / "dynolog"))
        self._socket.settimeout(0.05)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def offer(self, pid: int, **config: object) -> None:
        """Hold this config until `pid` asks for it."""
        self._offers[pid] = "\n".join(f"{key}={value}" for key, value in config.items())

    def __enter__(self) -> Responder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                data, sender = self._socket.recvfrom(65536)
            except TimeoutError:
                continue
            kind, count, job = struct.unpack_from("<iiq", data, 40)
            if data[8:40].rstrip(b"\0") != b"req":
                continue
            pid, *ancestors = struct.unpack_from(f"<{count}i", data, 56)
            self.polled[pid] = tuple(ancestors)
            self.polls += 1
            self.job_ids.add(job)
            text = (self._offers.get(pid, "") if kind & 2 else "").encode()
            try:
                self._socket.sendto(struct.pack("<Q32s", len(text), b"req") + text, sender)
            except OSError:
                continue  # the worker is gone, or took its name away
            if text:
                self.fetched.add(pid)
                del self._offers[pid]
