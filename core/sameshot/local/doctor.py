"""`sameshot doctor`: what would make a capture fail on this machine, and how to mend it.

Each check tries the real thing rather than reading a version, but for what shows once in thousands of recordings: a
socket is bound, torch is started against a broker and must register and write a trace, a running job's agents are
asked.
"""

from __future__ import annotations

import asyncio
import enum
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from sameshot.agent.room import DEFAULT_BYTES_PER_MS, prepared_share
from sameshot.client import connect
from sameshot.client.local import JobInfo, check_private, runtime_root
from sameshot.errors import Denied, SameshotError
from sameshot.local.torch_probe import probe_torch
from sameshot.model import CaptureSpec, Encoding
from sameshot.profiler.dynolog import DynologClient
from sameshot.profiler.place import MAX_DIRECTORY_BYTES

SILENT_S = 10.0  # workers ask their daemon every second
STOPS_SAFELY = (2, 14)  # the first torch that waits for running callbacks before it frees a recording


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
    sockets = check_socket_directory(root)
    yield sockets
    yield check_room(root)
    if sockets.verdict is Verdict.OK:
        yield from check_torch(python, root)
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
    """Kineto's sockets need a short directory (see `MAX_DIRECTORY_BYTES`) that allows them and belongs to us."""
    name = "socket directory"
    length = len(os.fsencode(root / "12345678" / "n0" / "ipc"))
    if length > MAX_DIRECTORY_BYTES:
        return Finding(
            name,
            Verdict.PROBLEM,
            f"{root} is too long: socket directories below it have {length} bytes, Kineto allows "
            f"{MAX_DIRECTORY_BYTES}.",
            "Set SAMESHOT_RUNTIME_DIR to a shorter folder, for example /tmp/ss.",
        )
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(root)
        with tempfile.TemporaryDirectory(dir=root) as folder, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(Path(folder) / "probe"))
    except Denied as error:
        return Finding(name, Verdict.PROBLEM, str(error), f"chown it to yourself and `chmod 700 {root}`.")
    except OSError as error:
        return Finding(
            name,
            Verdict.PROBLEM,
            f"{root} can't hold sockets: {error}.",
            "Set SAMESHOT_RUNTIME_DIR to a folder on a local file system.",
        )
    return Finding(name, Verdict.OK, f"{root} ({length} of {MAX_DIRECTORY_BYTES} bytes)")


def check_room(root: Path) -> Finding:
    """There must be room for one window; the agent refuses a capture that would not fit."""
    free = shutil.disk_usage(root if root.exists() else root.parent).free
    window_ms = CaptureSpec().duration_ms
    per_rank = int(DEFAULT_BYTES_PER_MS * window_ms * (1 + prepared_share(Encoding.GZIP, columns=True)))
    detail = f"{free / 1e9:.1f} GB free below {root}, room for {free // per_rank} ranks at {window_ms / 1000:.0f} s"
    if free < 2 * per_rank:
        return Finding(
            "room for traces",
            Verdict.PROBLEM,
            detail,
            "Free space, or set SAMESHOT_RUNTIME_DIR to a larger file system.",
        )
    return Finding("room for traces", Verdict.OK, detail)


def _release(version: str | None) -> tuple[int, int] | None:
    """Major and minor number; None where the text begins with no such thing."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def check_torch(python: str, root: Path) -> Iterator[Finding]:
    """Only a registration proves daemon mode, and only a file proves that traces may be written where they go."""
    with tempfile.TemporaryDirectory(prefix="dr", dir=root) as folder:
        try:
            seen = probe_torch(python, Path(folder))
        except OSError as error:
            yield Finding(
                "torch", Verdict.PROBLEM, f"{python} can't be started: {error.strerror}.", "Name it by --python."
            )
            return
    if seen.error:
        yield Finding(
            "torch",
            Verdict.PROBLEM,
            f"{python} can't import torch: {seen.error}",
            "Name the training's interpreter with --python.",
        )
    elif not seen.registered:
        yield Finding(
            "torch",
            Verdict.PROBLEM,
            f"torch in {python} was imported but never asked a daemon for work.",
            "This build has no Kineto daemon mode; use an official build for Linux.",
        )
    else:
        yield Finding("torch", Verdict.OK, f"torch {seen.version} in {python} entered daemon mode and registered")
        if (release := _release(seen.version)) is not None and release < STOPS_SAFELY:
            yield Finding(
                "end of a recording",
                Verdict.WARNING,
                f"torch {seen.version} may crash, rarely, when any on-demand recording stops while other threads run "
                "operators.",
                "A defect of PyTorch, mended in 2.14; see docs/troubleshooting.md. Upgrade, or accept the risk.",
            )
        if seen.trace_bytes:
            detail = f"a window of 0.1 s was written below {root} ({seen.trace_bytes} bytes)"
            yield Finding("trace directory", Verdict.OK, detail)
        else:
            yield Finding(
                "trace directory",
                Verdict.PROBLEM,
                f"torch {seen.version} took a request but wrote no trace below {root}.",
                "Does another profiler run in it, or does this build allow only other folders?",
            )


def check_dynolog(address: str) -> Finding:
    """Does the stock daemon answer? It serves one caller at a time, so a silent one may only be busy with another."""
    try:
        version = asyncio.run(DynologClient.at(address).version())
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
    for address in job.dynolog:
        yield check_dynolog(address)
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
            f"Nobody covers rank {', '.join(map(str, listing.missing_ranks))} of {expected} right now.",
            "Unless an agent above is silent or the process has ended, it was started without the armed environment, "
            "or by an interpreter that ignores it (see below).",
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


_DEAF = {"S": "-S (no site module)", "I": "-I (isolated)", "E": "-E (environment ignored)"}


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
        flags = [_DEAF[flag] for flag in sorted(interpreter_flags(arguments) & _DEAF.keys())]
        if flags:
            yield Finding(
                f"job {job.job.name}",
                Verdict.PROBLEM,
                f"Process {process.name} (rank {environment['RANK']}) runs Python with {', '.join(flags)}: the hook "
                "can't run in it and it will never register.",
                "Start it without -S, -I and -E.",
            )


def interpreter_flags(arguments: Sequence[str]) -> set[str]:
    """The one-letter flags of a Python command line, up to what it runs; -W and -X take a value, -c and -m end them."""
    found: set[str] = set()
    rest = iter(arguments[1:])
    for word in rest:
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif word == "-" or not word.startswith("-"):
            break
        elif not word.startswith("--"):
            for index, letter in enumerate(word[1:], start=2):
                if letter in "cm":
                    return found
                if letter in "WX":
                    if index == len(word):
                        next(rest, "")
                    break
                found.add(letter)
    return found
