"""`sameshot doctor`: what would make a capture fail on this machine, and how to mend it.

Each check tries the real thing rather than reading a version: torch is started against a real broker in a throw-away
directory and must register; a socket is really bound; a running job's agents are really asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sameshot.client import connect
from sameshot.client.local import JobInfo, runtime_root
from sameshot.errors import SameshotError, UsageError
from sameshot.local.arming import MAX_SOCKET_DIR_BYTES
from sameshot.model import CaptureSpec
from sameshot.profiler.broker import Broker
from sameshot.profiler.dynolog import DynologClient

SILENT_S = 10.0  # workers ask their daemon every second


class Verdict(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"  # captures work, something is worth knowing
    PROBLEM = "problem"  # a capture would fail


class Finding(msgspec.Struct, frozen=True):
    """One checked fact; `remedy` says what to do where it is not ok."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def examine(jobs: Iterable[JobInfo], *, python: str = sys.executable, dynolog: str | None = None) -> Iterator[Finding]:
    """All findings, as they are made (the torch check takes seconds). `dynolog`: host:port of a stock daemon to ask."""
    root = runtime_root()
    yield check_socket_directory(root)
    yield check_trace_directory(root)
    yield check_torch(python)
    if dynolog is not None:
        yield check_dynolog(dynolog)
    found = False
    for job in jobs:
        found = True
        yield from check_job(job)
    if not found:
        yield Finding(
            "jobs",
            Verdict.WARNING,
            f"No running job was found below {root}.",
            "Start one with `sameshot run -- torchrun … train.py`.",
        )


def check_socket_directory(root: Path) -> Finding:
    """Kineto's sockets live in a directory of at most 50 bytes that allows UNIX sockets and belongs to us."""
    name = "socket directory"
    length = len(os.fsencode(root / "12345678" / "n0" / "ipc"))
    if length > MAX_SOCKET_DIR_BYTES:
        return Finding(
            name,
            Verdict.PROBLEM,
            f"{root} is too long: socket directories below it have {length} bytes, Kineto allows "
            f"{MAX_SOCKET_DIR_BYTES}.",
            "Set SAMESHOT_RUNTIME_DIR to a shorter folder, for example /tmp/ss.",
        )
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = root.lstat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o077:
            return Finding(
                name, Verdict.PROBLEM, f"{root} must be yours alone.", f"chown it to yourself and `chmod 700 {root}`."
            )
        with tempfile.TemporaryDirectory(dir=root) as folder, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(Path(folder) / "probe"))
    except OSError as error:
        return Finding(
            name,
            Verdict.PROBLEM,
            f"{root} can't hold sockets: {error}.",
            "Set SAMESHOT_RUNTIME_DIR to a folder on a local file system.",
        )
    return Finding(name, Verdict.OK, f"{root} ({length} of {MAX_SOCKET_DIR_BYTES} bytes)")


def check_trace_directory(root: Path) -> Finding:
    """There must be room for one window; the agent refuses a capture that would not fit."""
    free = shutil.disk_usage(root if root.exists() else root.parent).free
    window_ms = CaptureSpec().duration_ms
    per_rank = 300_000_000 * window_ms // 1000
    detail = f"{free / 1e9:.1f} GB free below {root}, room for {free // per_rank} ranks at {window_ms / 1000:.0f} s"
    if free < 2 * per_rank:
        return Finding(
            "trace directory",
            Verdict.PROBLEM,
            detail,
            "Free space, or set SAMESHOT_RUNTIME_DIR to a larger file system.",
        )
    return Finding("trace directory", Verdict.OK, detail)


_PROBE = """
import sys, torch
print(torch.__version__, torch.profiler.kineto_available(), flush=True)
sys.stdin.read()
"""


def check_torch(python: str, timeout_s: float = 60.0) -> Finding:
    """Start this torch in daemon mode against a real broker: only a registration proves that it can."""
    with tempfile.TemporaryDirectory(prefix="ss", dir="/tmp") as folder:
        return asyncio.run(_probe_torch(python, Path(folder), timeout_s))


async def _probe_torch(python: str, folder: Path, timeout_s: float) -> Finding:
    name = "torch daemon mode"
    config = folder / "kineto.conf"
    config.write_text("ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    broker = Broker(folder)
    await broker.start()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SAMESHOT_")},
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": str(config),
        "SLURM_JOB_ID": "1",
    }
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        probe = subprocess.Popen(
            [python, "-c", _PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
        )
    try:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if any(pid == probe.pid for _, pid in await broker.registered()):
                assert probe.stdout is not None
                version = probe.stdout.readline().decode().split()
                return Finding(name, Verdict.OK, f"torch {version[0] if version else '?'} in {python} registered")
            if probe.poll() is not None:
                last = errors.read_text(errors="replace").strip().splitlines()
                return Finding(
                    name,
                    Verdict.PROBLEM,
                    f"{python} can't import torch: {last[-1] if last else 'no message'}.",
                    "Name the training's interpreter with --python.",
                )
            await asyncio.sleep(0.1)
        return Finding(
            name,
            Verdict.PROBLEM,
            f"torch in {python} was imported but never asked a daemon for work.",
            "This build has no Kineto daemon mode (torch ≥ 2.0 for Linux has); use an official build.",
        )
    finally:
        with contextlib.suppress(OSError):
            probe.kill()
        probe.wait()
        for pipe in (probe.stdin, probe.stdout):
            if pipe is not None:
                pipe.close()
        await broker.close()


def check_dynolog(address: str) -> Finding:
    """Does the stock daemon answer? It serves one caller at a time, so a silent one may only be busy with another."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not host:port.")
    try:
        version = asyncio.run(DynologClient(host, int(port)).version())
    except SameshotError as error:
        return Finding(
            "dynolog", Verdict.PROBLEM, str(error), "Start `dynolog --enable_ipc_monitor`, or see who holds its port."
        )
    return Finding("dynolog", Verdict.OK, f"version {version} answers at {address}")


def check_job(job: JobInfo) -> Iterator[Finding]:
    """Do the coordinator and its agents answer, who is registered, and who can never be?"""
    name = f"job {job.job.name}"
    try:
        with connect(job.coordinator) as client:
            listing = client.workers()
    except SameshotError as error:
        yield Finding(name, Verdict.PROBLEM, str(error), "Look at the coordinator's log beside its socket.")
        return
    for agent in listing.agents:
        if not agent.reachable:
            yield Finding(
                name,
                Verdict.PROBLEM,
                f"The agent of {agent.node or agent.address} does not answer: {agent.detail}",
                "Its ranks can't be captured until it is back; look at its log in the runtime directory.",
            )
    current = [worker for worker in listing.workers if worker.current]
    ranks = sorted(worker.registration.rank for worker in current if worker.registration.rank is not None)
    expected = listing.world_size
    if listing.missing_ranks:
        yield Finding(
            name,
            Verdict.PROBLEM,
            f"Ranks {', '.join(map(str, listing.missing_ranks))} of {expected} never registered.",
            "They were started without the armed environment, or by an interpreter that ignores it (see below).",
        )
    elif current:
        yield Finding(name, Verdict.OK, f"{len(ranks)} of {expected} ranks are registered: {ranks}")
    else:
        yield Finding(
            name, Verdict.WARNING, "No rank is registered yet.", "Workers register when they import torch; wait for it."
        )
    for worker in current:
        age = worker.last_poll_age_s
        if age is not None and age > SILENT_S:
            yield Finding(
                name,
                Verdict.PROBLEM,
                f"{worker.registration.target_id} (pid {worker.registration.pid}) last asked its daemon for work "
                f"{age:.0f} s ago; it should every second.",
                "Is the process stopped, or stuck in a call that holds all its threads?",
            )
    registered = {worker.registration.pid for worker in listing.workers}
    yield from (deaf for deaf in find_deaf_workers(job, registered))


_IGNORES_PYTHONPATH = {"-S": "no site module", "-I": "isolated", "-E": "environment ignored"}


def find_deaf_workers(job: JobInfo, registered: set[int]) -> Iterator[Finding]:
    """Processes of this job with a rank whose interpreter was told to ignore the hook (-S, -I, -E)."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in registered:
            continue
        try:
            environment = dict(
                part.split("=", 1)
                for part in (process / "environ").read_bytes().decode(errors="replace").split("\0")
                if "=" in part
            )
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        if environment.get("SAMESHOT_JOB_UID") != job.job.uid or "RANK" not in environment:
            continue
        flags = [why for flag, why in _IGNORES_PYTHONPATH.items() if _has_flag(arguments, flag)]
        if flags:
            yield Finding(
                f"job {job.job.name}",
                Verdict.PROBLEM,
                f"Process {process.name} (rank {environment['RANK']}) runs Python with {', '.join(flags)}: the hook "
                "can't run in it and it will never register.",
                "Start it without -S, -I and -E.",
            )


def _has_flag(arguments: list[str], flag: str) -> bool:
    for argument in arguments[1:]:
        if not argument.startswith("-") or argument in ("-c", "-m"):
            return False
        if not argument.startswith("--") and flag[1] in argument[1:]:
            return True
    return False
